"""Only a partition that is too far behind skips ahead, and never past the records to keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.plan import Jump, plan
from tallymark.core.skip_ahead import Every, SkipAhead, by_records, by_time, jumps
from tallymark.core.spans import Partition
from tallymark.errors import BadInput
from tests.unit.strategies import NOON, log

ZERO = Partition("orders", 0)
offsets = st.integers(0, 50)


# Validation of settings


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({}, (500, 500, timedelta(minutes=15))),
        ({"when_behind": 7, "keep": 1, "every": "30s"}, (7, 1, timedelta(seconds=30))),
        ({"when_behind": "1d", "keep": "2h"}, (timedelta(days=1), timedelta(hours=2), timedelta(minutes=15))),
        (
            {"when_behind": timedelta(minutes=5), "keep": "5m", "every": timedelta(hours=1)},
            (timedelta(minutes=5), timedelta(minutes=5), timedelta(hours=1)),
        ),
    ],
)
def test_amounts_are_records_or_times(said: dict[str, Any], meant: tuple[object, ...]) -> None:
    ahead = SkipAhead(**said)
    assert (ahead.when_behind, ahead.keep, ahead.every) == meant


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"when_behind": 0}, "when_behind=0 must be positive"),
        ({"keep": -1}, "keep=-1 must be positive"),
        ({"every": "0s"}, "every='0s' must be positive"),
        ({"keep": "0s"}, "keep='0s' must be positive"),
        ({"when_behind": "5 m"}, "when_behind='5 m' is not a duration; write one such as 1h30m"),
        ({"when_behind": "500"}, "when_behind='500' is not known; write a number of records, or text such as 15m"),
        ({"when_behind": True}, "when_behind=True is not known"),
        ({"when_behind": 1.5}, "when_behind=1.5 is not known"),
        ({"every": True}, "every=True is not a duration"),
        ({"when_behind": "5m"}, "when_behind=0:05:00 and keep=500 must both be records, or both be times"),
        ({"when_behind": 10, "keep": 11}, "keep=11 is more than when_behind=10"),
        ({"when_behind": "1m", "keep": "2m"}, "keep=0:02:00 is more than when_behind=0:01:00"),
    ],
)
def test_what_makes_no_sense_is_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=f"^SkipAhead: {words}"):
        SkipAhead(**said)


def test_it_is_due_at_once_and_then_every_so_often() -> None:
    interval = Every(SkipAhead(every="10s"))
    assert [interval.due(now) for now in (100.0, 100.1, 109.9, 110.0, 111.0, 250.0, 255.0)] == [
        True, False, False, True, False, True, False,
    ]  # fmt: skip
    interval.again()
    assert interval.due(255.1)


# By records


@given(offsets, offsets, offsets, st.integers(1, 20), st.integers(1, 20))
def test_by_records_the_last_ones_are_kept(position: int, start: int, length: int, a: int, b: int) -> None:
    keep, behind = sorted((a, b))
    found, stop = log(ZERO, start, start + length), start + length
    unread = stop - max(position, start)
    jumping = by_records(SkipAhead(behind, keep), {ZERO: position}, {ZERO: found})
    if unread > behind:
        assert jumping[ZERO].to == stop - keep > max(position, start)
    else:
        assert jumping == {}


def test_the_reason_is_a_sentence_for_operators() -> None:
    jumping = by_records(SkipAhead(), {ZERO: 300}, {ZERO: log(ZERO, 0, 1500)})
    assert jumping == {ZERO: Jump(1000, "1,200 records behind, more than 500: skipped to 500 before the end")}


# By time

HOURLY = SkipAhead(when_behind="2h", keep="1h")


@given(st.lists(st.integers(0, 6 * 60), max_size=20).map(sorted), st.integers(0, 20), st.integers(0, 20))
def test_by_time_whatever_is_unread_and_too_old_is_jumped(ages: list[int], start: int, position: int) -> None:
    """Records at offsets start, start + 1, ... with these ages in minutes, the oldest first."""
    times = {start + at: NOON - timedelta(minutes=age) for at, age in enumerate(reversed(ages))}
    stop = start + len(ages)

    def ask(partitions: Iterable[Partition], moment: datetime) -> Mapping[Partition, int | None]:
        return {one: min((at for at, time in times.items() if time >= moment), default=None) for one in partitions}

    jumping = jumps(HOURLY, {ZERO: position}, {ZERO: log(ZERO, start, stop)}, ask, NOON)
    unread = {at: time for at, time in times.items() if at >= position}
    if not any(time < NOON - timedelta(hours=2) for time in unread.values()):
        assert jumping == {}
        return
    (move,) = plan({ZERO: position}, {ZERO: log(ZERO, start, stop)}, 100, "record", jumping).moves
    kept = [time for at, time in unread.items() if at >= move.read_span.start]
    skipped = [time for at, time in unread.items() if at < move.read_span.start]
    assert all(time >= NOON - timedelta(hours=1) for time in kept)
    assert all(time < NOON - timedelta(hours=1) for time in skipped)
    assert move.skipped == len(skipped) > 0


def test_when_nothing_is_new_enough_it_jumps_to_the_end_and_says_so() -> None:
    found = {ZERO: log(ZERO, 0, 1000)}
    none: dict[Partition, int | None] = {ZERO: None}
    assert by_time(HOURLY, {ZERO: 10}, found, none, none) == {
        ZERO: Jump(1000, "the next of 990 records is older than 2:00:00: skipped to the end")
    }
    assert by_time(HOURLY, {ZERO: 1000}, found, none, none) == {}, "nothing is unread"
    some = by_time(HOURLY, {ZERO: 10}, found, {ZERO: 20}, {ZERO: 30})
    assert some == {ZERO: Jump(30, "the next of 990 records is older than 2:00:00: skipped to the last 1:00:00")}
    beyond = by_time(HOURLY, {ZERO: 10}, found, {ZERO: 2000}, {ZERO: 3000})
    assert beyond[ZERO].to == 1000, "what is in an open transaction can't be read"
