"""First-poll strategies: their syntax, and the position that each gives a partition."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.spans import Partition
from tallymark.core.start import Start, StartRules, overridden_offset, starting_offset
from tallymark.errors import BadInput
from tests.unit.strategies import NOON, log, position

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
LOG = log(ZERO, start=10, stop=50, end=60)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start("earliest")),
        ("latest", Start("latest")),
        ("timestamp=2026-01-31T12:00:00Z", Start("timestamp", timestamp=NOON)),
        ("timestamp=2026-01-31T14:00:00+02:00", Start("timestamp", timestamp=NOON)),
        ("timestamp=2026-01-31T12:00:00", Start("timestamp", timestamp=NOON)),
        ('offsets={"orders": {"0": 17, "1": 40}}', Start("offsets", offsets={ZERO: 17, ONE: 40})),
    ],
)
def test_every_form_is_understood_with_and_without_the_prefix(text: str, start: Start) -> None:
    assert Start.parse(text) == start
    assert Start.parse(f"uncommitted-{text}") == start.uncommitted()
    assert Start.parse(f"uncommitted-{text}").prefer_saved
    assert not Start.parse(text).prefer_saved


@given(st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.sampled_from([UTC, timezone(timedelta(hours=5))])))
def test_a_time_survives_being_written_and_read(moment: datetime) -> None:
    assert Start.parse(f"timestamp={moment.isoformat()}").timestamp == moment


@given(
    st.dictionaries(
        st.sampled_from(["orders", "clicks"]), st.dictionaries(st.integers(0, 99), st.integers(0, 2**62)), max_size=2
    )
)
def test_offsets_survive_being_written_and_read(offsets: dict[str, dict[int, int]]) -> None:
    assert Start.parse(f"offsets={json.dumps(offsets)}") == Start.explicit(offsets)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "begin",
        "Earliest",
        "uncommitted-",
        "uncommitted-uncommitted-earliest",
        "earliest=5",
        "latest=now",
        "timestamp",
        "timestamp=",
        "timestamp=yesterday",
        "offsets",
        "offsets={",
        "offsets=17",
        "offsets=[17]",
        'offsets={"orders": 17}',
        'offsets={"orders": {"zero": 17}}',
        'offsets={"orders": {"0": "many"}}',
        'offsets={"orders": {"0": null}}',
        'offsets={"orders": {"0": 1.5}}',
    ],
)
def test_any_other_form_is_refused_by_naming_the_right_ones(text: str) -> None:
    with pytest.raises(BadInput, match=r"is not a first-poll strategy; write earliest, latest, timestamp=.*offsets="):
        Start.parse(text)


def test_a_negative_offset_is_refused_by_naming_the_ends_of_the_log() -> None:
    with pytest.raises(BadInput, match="'earliest' or 'latest'"):
        Start.parse('offsets={"orders": {"0": -1}}')


def test_a_time_without_a_zone_is_utc_wherever_the_driver_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert Start.at(datetime(2026, 1, 31, 12)).timestamp == NOON
        assert Start.parse("timestamp=2026-01-31T12:00:00").timestamp == NOON
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("start", "at_timestamp", "offset"),
    [
        (Start("earliest"), None, 10),
        (Start("latest"), None, 50),
        (Start.at(NOON), 33, 33),
        (Start.at(NOON), None, 50),
        (Start.explicit({"orders": {0: 10}}), None, 10),
        (Start.explicit({"orders": {0: 60}}), None, 60),
    ],
)
def test_a_partition_without_a_position_starts_where_the_strategy_says(
    start: Start, at_timestamp: int | None, offset: int
) -> None:
    for strategy in (start, start.uncommitted()):
        assert starting_offset(strategy, LOG, at_timestamp, topic_is_known=False) == offset


@pytest.mark.parametrize("text", ["earliest", "latest", "timestamp=2026-01-31", 'offsets={"orders": {"1": 3}}'])
@pytest.mark.parametrize("prefix", ["", "uncommitted-"])
def test_a_partition_that_is_added_to_a_known_topic_starts_at_the_earliest(text: str, prefix: str) -> None:
    assert starting_offset(Start.parse(prefix + text), LOG, 33, topic_is_known=True) == 10


@pytest.mark.parametrize("offset", [0, 9, 61])
def test_an_explicit_offset_outside_of_the_log_is_refused_with_its_bounds(offset: int) -> None:
    start = Start.explicit({"orders": {0: offset}})
    with pytest.raises(BadInput, match=rf"offset {offset} is outside of orders\[0\], which holds 10\.\.60"):
        starting_offset(start, LOG, None, topic_is_known=False)
    with pytest.raises(BadInput, match="outside"):
        overridden_offset(start, LOG, None)


def test_explicit_offsets_must_name_every_partition_that_has_no_position() -> None:
    with pytest.raises(BadInput, match=r"no offset is given for orders\[0\]"):
        starting_offset(Start.explicit({"orders": {1: 3}}), LOG, None, topic_is_known=False)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("earliest", 10),
        ("latest", 50),
        ("timestamp=2026-01-31", 33),
        ('offsets={"orders": {"0": 42}}', 42),
        ('offsets={"orders": {"1": 42}}', None),
    ],
)
def test_only_a_strategy_without_the_prefix_overrides_a_saved_position(text: str, offset: int | None) -> None:
    assert overridden_offset(Start.parse(text), LOG, 33) == offset
    assert overridden_offset(Start.parse(f"uncommitted-{text}"), LOG, 33) is None


@pytest.mark.parametrize(
    ("text", "only_ahead"), [("latest", True), ("timestamp=2026-01-31T12:00:00Z", True), ("earliest", False)]
)
def test_only_the_end_of_the_log_is_a_bound_that_may_be_out_of_date(text: str, only_ahead: bool) -> None:
    found, begin = (
        log(Partition("orders", 0), 3, 20),
        StartRules(Start.parse(text), frozenset({"orders"}), None, by_pattern=False),
    )
    changes = begin.decide(
        [position(found.partition, 7)], frozenset({found.partition}), {found.partition: found}, {}, bool
    )
    assert changes.restarts[found.partition].only_ahead is only_ahead
