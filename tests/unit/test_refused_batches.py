"""Batches with refused records: their drift, and what is read again without them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import pyarrow as pa

from tallymark.core.batch import BatchToCommit, refused, without_refused
from tallymark.core.drift import Fields, Found
from tallymark.core.plan import Plan
from tallymark.core.records import DeadLetter, PartitionCounts, Reading
from tallymark.core.spans import Partition
from tallymark.core.tables import OFFSET, PARTITION, TOPIC, Refusal, TableSpec
from tallymark.core.unmatched import NO_ROW

ZERO, OTHER = Partition("orders", 0), Partition("returns", 0)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def letter(offset: int, error: str) -> DeadLetter:
    return DeadLetter(ZERO, offset, NOON, None, b"{}", [], None, error)


def drift_of(letters: Sequence[DeadLetter]) -> dict[Partition, Fields]:
    """All of them have the field, and can be decoded."""
    return {ZERO: {"note": Found(len(letters), min(one.offset for one in letters))}} if letters else {}


def test_only_records_that_were_refused_after_they_were_read_are_subtracted_from_drift() -> None:
    """A record that gives no row is dead although it can be decoded, and its fields were not counted."""
    dead, refused_later = letter(1, NO_ROW), letter(2, "no")
    reading = Reading({ZERO: PartitionCounts(4, 1)}, {}, [dead], drift={ZERO: {"note": Found(3, 0)}})
    batch = BatchToCommit.shaped("b", NOON, Plan(), reading, (), [dead], drift_of=drift_of)
    assert batch.drift() == {ZERO: {"note": Found(3, 0)}}
    assert batch.refusing(reading, [refused_later]).drift() == {ZERO: {"note": Found(2, 0)}}


def test_a_topic_of_which_nothing_is_read_again_has_no_rows() -> None:
    """In a replay, the refused letter may be the only one of its topic, which has a table of its own."""
    specs = [TableSpec("totals"), TableSpec("returns", ("id",), "upsert")]
    totals = pa.table({"n": [1]})
    origin = {TOPIC: ["returns"], PARTITION: pa.array([0], pa.int32()), OFFSET: pa.array([5], pa.int64())}
    returns = pa.table({"id": pa.nulls(1, pa.int64()), **origin})
    reading = Reading(
        {ZERO: PartitionCounts(1, 0), OTHER: PartitionCounts(1, 0)}, {"totals": totals, "returns": returns}, []
    )

    def again(without: Collection[tuple[Partition, int]]) -> Reading:
        assert set(without) == {(OTHER, 5)}
        return Reading({ZERO: PartitionCounts(1, 0)}, {"totals": totals}, [])

    found, refusals = without_refused(reading, refused(reading, specs), specs, again)
    assert [(one.partition, one.offset) for one in refusals] == [(OTHER, 5)]
    assert isinstance(refusals[0], Refusal)
    assert found.rows["returns"].num_rows == 0
    assert found.rows["returns"].schema.equals(returns.schema)
    assert found.rows["totals"].num_rows == 1
    assert found.seen == {ZERO: PartitionCounts(1, 0), OTHER: PartitionCounts(1, 0)}
