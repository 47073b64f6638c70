"""The new positions of a reset, and their description."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.claims import FirstClaim, Restart
from tallymark.core.journal import Run
from tallymark.core.spans import Log, Owner, Partition, Position, Tally
from tallymark.errors import BadInput, CommitRefused, PositionMoved, TopicRecreated, UnknownPartition
from tallymark.operate.reset import (
    EPOCH,
    Aim,
    Planned,
    Reset,
    before_now,
    parse_moment,
    parse_scope,
    within,
)

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
NOW = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)
OWNER = Owner("run-1", "host", NOW)


def log(start: int = 12, stop: int = 500, end: int = 512, partition: Partition = ZERO) -> Log:
    return Log(partition, "id", "cluster", start, stop, end)


def position(offset: int, owner: Owner | None = None, first: int = 0) -> Position:
    return Position(ZERO, offset, first, "id", "cluster", 3, owner, Tally(applied=offset - first), None, NOW)


def planned(aim: Aim, at: int | None = None, held: int | None = 100) -> Planned:
    saved = {} if held is None else {ZERO: position(held)}
    (one,) = Reset(aim, {ZERO: log()}, {ZERO: at}).plan(saved)
    return one


@pytest.mark.parametrize(
    ("aim", "held", "new", "words"),
    [
        (Aim("earliest", ""), 100, 12, "repeats 88 offsets"),
        (Aim("latest", ""), 100, 500, "skips 400 offsets: backfill can fill them later"),
        (Aim("latest", ""), 5, 500, "skips 495 offsets, 7 of them deleted from the log: backfill"),
        (Aim("offset", "", number=100), 100, 100, "unchanged"),
        (Aim("offset", "", number=50), None, 50, "no position: gets this one"),
        (Aim("current", ""), None, None, "no position: stays without one"),
        (Aim("current", ""), 100, 100, "unchanged"),
        (Aim("shift", "", number=-30), 100, 70, "repeats 30 offsets"),
        (Aim("shift", "", number=30), 100, 130, "skips 30 offsets"),
        (Aim("file", "", offsets={ZERO: 200}), 100, 200, "skips 100 offsets"),
        (Aim("time", ""), 100, 500, "skips 400 offsets"),
    ],
)
def test_every_aim_has_an_offset_and_a_meaning(aim: Aim, held: int | None, new: int | None, words: str) -> None:
    found = planned(aim, held=held)
    assert found.new == new
    assert found.words.startswith(words)
    assert found.warning is None


def test_a_time_is_the_offset_that_the_brokers_name_for_it() -> None:
    assert planned(Aim("time", ""), at=77).new == 77


@pytest.mark.parametrize(
    ("aim", "held", "wanted", "new"),
    [
        (Aim("offset", "", number=900), 100, 900, 512),
        (Aim("shift", "", number=-1000), 100, -900, 12),
        (Aim("current", ""), 900, 900, 512),
        (Aim("current", ""), 5, 5, 12),
    ],
)
def test_what_is_outside_of_the_log_is_moved_into_it_with_a_warning(aim: Aim, held: int, wanted: int, new: int) -> None:
    warning = f"orders[0]: clamped from {wanted} to {new}, the log holds 12..512"
    assert planned(aim, held=held).warning == warning


@given(st.integers(0, 900), st.integers(-900, 900))
def test_repeats_and_skips_are_the_way_from_the_old_to_the_new_place(held: int, by: int) -> None:
    found = planned(Aim("shift", "", number=by), held=held)
    assert found.new is not None
    assert 12 <= found.new <= 512
    assert found.skips - found.repeats == found.new - held
    assert 0 <= found.gone <= found.skips


def test_a_position_that_is_not_there_can_not_be_shifted() -> None:
    with pytest.raises(BadInput, match=r"orders\[0\] has no position to shift"):
        planned(Aim("shift", "", number=1), held=None)


def test_a_position_of_another_topic_is_not_sent_anywhere() -> None:
    other = Log(ZERO, "other", "cluster", 0, 5, 5)
    with pytest.raises(TopicRecreated):
        Reset(Aim("earliest", ""), {ZERO: other}).plan({ZERO: position(3)})


def test_the_ledger_is_asked_for_what_changes_and_nothing_else() -> None:
    two = Partition("orders", 2)
    logs = {ZERO: log(), ONE: log(partition=ONE), two: log(partition=two)}
    reset, unmoved = Reset(Aim("offset", "", number=100), logs), position(100)
    saved = {ZERO: position(200), two: Position(**{**vars(unmoved), "partition": two})}
    changes = reset.decide(reset.plan(saved), NOW, "why", lambda _: None)(saved, [])
    assert changes.restarts == {ZERO: Restart(100, "why")}
    assert changes.first == {ONE: FirstClaim(100, "id", "cluster", "why")}


@pytest.mark.parametrize("found", [{ZERO: position(101)}, {ZERO: position(100, first=1)}, {}])
def test_what_has_moved_since_the_preview_is_left_alone(found: dict[Partition, Position]) -> None:
    reset = Reset(Aim("earliest", ""), {ZERO: log()})
    decide = reset.decide(reset.plan({ZERO: position(100)}), NOW, "", lambda _: None)
    with pytest.raises(PositionMoved, match=r"has moved from 100 to .* since the preview; nothing was changed"):
        decide(found, [])


def test_who_is_at_work_is_in_the_way_and_only_on_what_would_change() -> None:
    held = {ZERO: position(100, OWNER)}
    alive, ended = Run("run-1", "host", NOW, NOW), Run("run-1", "host", NOW, NOW, ended=NOW)
    away, stay = (Reset(Aim("offset", "", number=to), {ZERO: log()}) for to in (50, 100))
    decide = away.decide(away.plan(held), NOW, "", lambda _: None)
    with pytest.raises(CommitRefused, match=r"owned by run run-1 on host since .*; nothing was changed: stop it"):
        decide(held, [alive])
    assert decide(held, [ended]).restarts
    assert not stay.decide(stay.plan(held), NOW, "", lambda _: None)(held, [alive]).restarts


def test_who_takes_over_goes_by_what_is_there_then() -> None:
    reset, done = Reset(Aim("shift", "", number=-10), {ZERO: log()}), list[Planned]()
    decide = reset.decide(reset.plan({ZERO: position(100)}), NOW, "", done.extend, take_over=True)
    changes = decide({ZERO: position(150, OWNER)}, [Run("run-1", "host", NOW, NOW)])
    assert changes.restarts == {ZERO: Restart(140, "")}
    assert [one.current for one in done] == [150]


AHEAD_OR_STAY = [
    Aim("current", ""),
    Aim("latest", ""),
    Aim("shift", "", number=5),
    Aim("offset", "", number=2000),
    Aim("time", ""),
    Aim("file", "", offsets={ZERO: 2000}),
]


@pytest.mark.parametrize("aim", AHEAD_OR_STAY, ids=lambda aim: aim.kind)
@pytest.mark.parametrize("seen", [100, None])
def test_a_position_that_has_passed_the_end_that_was_asked_for_is_never_sent_back(aim: Aim, seen: int | None) -> None:
    if aim.kind == "shift" and seen is None:
        return
    reset, done = Reset(aim, {ZERO: log()}), list[Planned]()
    before = {} if seen is None else {ZERO: position(seen)}
    decide = reset.decide(reset.plan(before), NOW, "", done.extend, take_over=True)
    assert not decide({ZERO: position(600, OWNER)}, [Run("run-1", "host", NOW, NOW)]).restarts
    assert [(one.new, one.repeats) for one in done] == [(600, 0)]


@pytest.mark.parametrize("kind", ["current", "latest"])
def test_a_position_past_the_end_of_a_log_that_was_cut_is_brought_back_into_it(kind: Any) -> None:
    reset, held = Reset(Aim(kind, ""), {ZERO: log()}), {ZERO: position(600)}
    for take_over in (False, True):
        changes = reset.decide(reset.plan(held), NOW, "", lambda _: None, take_over=take_over)(held, [])
        assert changes.restarts == {ZERO: Restart(512 if kind == "current" else 500, "")}


def test_a_scope_names_topics_and_partitions() -> None:
    scope = parse_scope(["orders:0,3", "orders:1", "users", "users:2"])
    assert scope == {"orders": frozenset({0, 1, 3}), "users": None}
    there = [Partition("orders", number) for number in range(4)] + [Partition("other", 0)]
    assert within({"orders": frozenset({3, 1})}, there) == [ONE, Partition("orders", 3)]
    assert within({"orders": None}, there) == there[:4]
    with pytest.raises(UnknownPartition, match=r"topic orders has no partition 9; its partitions are 0\.\.3"):
        within({"orders": frozenset({0, 9})}, there)


@pytest.mark.parametrize("text", ["", ":1", "orders:", "orders:x", "orders:1,", "orders:-1"])
def test_a_scope_that_is_none_gets_one_sentence(text: str) -> None:
    with pytest.raises(BadInput, match="is not valid; write --topic orders"):
        parse_scope([text])


def test_a_time_has_a_zone_or_is_utc() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text in ("2026-01-31T12:00:00", "2026-01-31T12:00:00Z", "2026-01-31T13:00:00.000+01:00"):
        assert parse_moment(text) == noon
    with pytest.raises(BadInput, match="is not a time"):
        parse_moment("yesterday")


def test_no_time_is_before_all_time() -> None:
    assert parse_moment("0001-01-01") == EPOCH
    assert before_now(timedelta(days=999_999_999)) == EPOCH
