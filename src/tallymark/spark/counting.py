"""Counts the records of a batch, in the pass that computes its rows or in a pass of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tallymark.core.drift import Fields, Found
from tallymark.core.records import PartitionCounts
from tallymark.core.spans import Partition
from tallymark.core.times import from_micros
from tallymark.spark.decode import RAW, SIZE


@dataclass(frozen=True)
class Counted:
    """What a batch contains: its records by partition, the records that could not be decoded, and its bytes."""

    seen: Mapping[Partition, PartitionCounts]
    dead: Sequence[tuple[Partition, int]]
    size: int
    drift: Mapping[Partition, Fields] = field(default_factory=dict)


def counted(counts: Any) -> Counted | None:
    """What the accumulator has counted since it was reset; None if a record may have been counted twice, or not at all.

    A lost cache is computed again, and if Spark's optimizer knows that there are no rows, it reads nothing.
    """
    found = json.loads(counts.value())
    if found["is_twice"] or not found["partitions"]:
        return None
    seen: dict[Partition, PartitionCounts] = {}
    dead: list[tuple[Partition, int]] = []
    drift: dict[Partition, Fields] = {}
    size = 0
    for topic, number, records, bytes_, micros, offsets, names in found["partitions"]:
        partition = Partition(topic, number)
        seen[partition] = PartitionCounts(records, len(offsets), from_micros(micros))
        dead += [(partition, offset) for offset in offsets]
        size += bytes_
        if names:
            drift[partition] = {name: Found(*each) for name, each in names.items()}
    return Counted(seen, dead, size, drift)


def count(decoded: DataFrame) -> Counted:
    """Count decoded records, which are cached and stay the same, in a pass of its own."""
    rows = (
        decoded.groupBy("topic", "partition")
        .agg(
            F.count("*").alias("records"),
            F.max_by("timestamp", "offset").alias("last"),
            F.sum(SIZE).alias("size"),
            F.collect_list(F.when(F.col(RAW).isNotNull(), F.col("offset"))).alias("dead"),
        )
        .toArrow()
        .to_pylist()
    )
    return Counted(
        {_partition(row): PartitionCounts(row["records"], len(row["dead"]), row["last"]) for row in rows},
        [(_partition(row), offset) for row in rows for offset in row["dead"]],
        sum(row["size"] for row in rows),
    )


def _partition(row: Mapping[str, Any]) -> Partition:
    return Partition(row["topic"], row["partition"])
