"""Sums of drift: what a commit adds, what refused records take away, what is shown."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tallymark.core.drift import (
    MOST,
    OTHERS,
    Found,
    Seen,
    added,
    check,
    described,
    from_json,
    limited,
    merged,
    reduced,
    short,
    to_json,
    total,
)
from tallymark.core.spans import Partition
from tallymark.errors import Drifted
from tallymark.kafka.lag import Lag
from tallymark.kafka.source import Kafka
from tallymark.run.observe.gauges import MOST_FIELDS, Gauges, Observation, Watch
from tallymark.run.setup import Setup
from tests.unit.strategies import position

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
NOON = datetime(2026, 11, 19, 12, 0, 1, 250_000, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)


def test_the_ledger_holds_the_sums_with_whole_seconds() -> None:
    drift = added({}, {"note": Found(2, 5)}, NOON)
    drift = added(drift, {"note": Found(1, 9), "a.b": Found(1, 9)}, LATER)
    noon, later = (time.replace(microsecond=0) for time in (NOON, LATER))
    assert from_json(to_json(drift)) == {"note": Seen(3, noon, later), "a.b": Seen(1, later, later)}
    assert (to_json({}), from_json(None)) == (None, {})


def test_names_that_no_store_could_hold_are_replaced_and_long_ones_cut() -> None:
    assert [short("a\0b\ud800é"), short("é" * 201)] == ["a\\0b\ufffdé", "é" * 200 + OTHERS]


def test_parts_of_a_batch_are_added_and_refused_records_subtracted() -> None:
    first = {ZERO: {"note": Found(2, 5), "x": Found(1, 6)}, ONE: {"y": Found(1, 0)}}
    both = merged(first, {ZERO: {"note": Found(1, 3), "z": Found(1, 9)}})
    assert both == {ZERO: {"note": Found(3, 3), "x": Found(1, 6), "z": Found(1, 9)}, ONE: {"y": Found(1, 0)}}
    refused = {ZERO: {"note": Found(1, 3), "x": Found(1, 6)}, ONE: {"y": Found(1, 0)}}
    assert reduced(both, refused) == {ZERO: {"note": Found(2, 3), "z": Found(1, 9)}}
    many = merged({ZERO: {f"a{n}": Found(1, n) for n in range(MOST)}}, {ZERO: {"b": Found(2, 0), "c": Found(3, 1)}})
    assert many[ZERO][OTHERS] == Found(5, 0)


def test_refused_records_are_subtracted_from_the_sum_of_the_others() -> None:
    """Alone they have few names, and of the batch theirs were added up."""
    found = {ZERO: {"a": Found(2, 0), OTHERS: Found(5, 1)}}
    assert reduced(found, {ZERO: {"a": Found(1, 0), "y": Found(1, 1), "z": Found(1, 1)}}) == {
        ZERO: {"a": Found(1, 0), OTHERS: Found(3, 1)}
    }


def test_the_most_frequent_fields_come_first_and_the_others_last() -> None:
    drift = total([{"a": Seen(1, NOON, NOON), OTHERS: Seen(50, NOON, NOON)}, {"b": Seen(2, NOON, LATER)}])
    assert list(drift) == ["b", "a", OTHERS]
    assert limited(drift, 1) == {"b": Seen(2, NOON, LATER), OTHERS: Seen(51, NOON, NOON)}
    assert described(drift, 2) == (
        "fields that the schema does not name: b in 2 records since 2026-11-19 12:00 UTC, "
        "a in 1 record since 2026-11-19 12:00 UTC, and 1 more"
    )
    assert described({}, 2) == ""


def test_fail_names_the_first_record() -> None:
    found = {ONE: {"a": Found(9, 0)}, ZERO: {"b": Found(1, 7), "c": Found(1, 8)}}
    with pytest.raises(Drifted, match=r"^group g: orders\[0\] offset 7 has the field b, .* on_drift='record'"):
        check("g", found)
    check("g", {})


def test_the_metric_has_a_limited_number_of_series() -> None:
    fields = {f"f{n}": Seen(100 - n, NOON, NOON) for n in range(MOST_FIELDS + 5)}
    watch, gauges = Watch(Setup("g", Kafka("localhost:9092", "orders"), "sqlite://")), Gauges()
    gauges.watches = {"g": watch}
    assert _series(gauges) == {}
    found = [replace(position(ZERO), drift=fields), replace(position(ONE), drift={"f0": Seen(1, NOON, NOON)})]
    watch.seen = Observation(found, {each.partition: Lag(None) for each in found})
    series = _series(gauges)
    assert (len(series), series["f0"], series[OTHERS]) == (MOST_FIELDS + 1, 101, sum(100 - n for n in range(20, 25)))


def _series(gauges: Gauges) -> dict[str, float]:
    (family,) = (one for one in gauges.collect() if one.name == "tallymark_drift_records")
    return {sample.labels["field"]: sample.value for sample in family.samples}
