"""Counts the records of a batch in the pass that computes its rows, so that the batch needs no cache.

A task reads one span in the order of offsets. The number of the last record in its task is therefore the number of
records in the span. The last record is looked for near the end of the span: transaction markers may follow it.
Metrics that ``observe`` collects in the tasks of a result count each task once. If a plan shuffles, or a span ends with
more offsets without records, the counts are not known, and the batch is read in another way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tallymark.core.records import PartitionCounts
from tallymark.core.spans import Partition, Span
from tallymark.core.times import EPOCH
from tallymark.spark.decode import RAW, SIZE
from tallymark.spark.plans import observed

METRICS = "tallymark"
NUMBER = "_tallymark_number"
NUMBER_BITS = (1 << 33) - 1
"""The bits of monotonically_increasing_id that number the records of one task; the others number the task."""
MOST_ENDS = 1024
"""Maximum number of offsets at which the last records of all spans are looked for."""
LONGEST_END = 16


@dataclass(frozen=True)
class Counted:
    """What a batch contains: its records by partition, the records that could not be decoded, and its bytes."""

    seen: Mapping[Partition, PartitionCounts]
    dead: Sequence[tuple[Partition, int]]
    size: int


def counting(decoded: DataFrame, spans: Sequence[Span]) -> DataFrame:
    """The decoded records of these spans; whatever computes them from here on also counts them."""
    place = F.struct("topic", "partition", "offset")
    last = F.struct("topic", "partition", "offset", NUMBER, F.unix_micros("timestamp").alias("micros"))
    return decoded.withColumn(NUMBER, F.monotonically_increasing_id().bitwiseAND(F.lit(NUMBER_BITS))).observe(
        METRICS,
        F.count(F.lit(1)).alias("records"),
        F.coalesce(F.sum(SIZE), F.lit(0)).alias("size"),
        F.collect_list(F.when(_is_at_end(spans), last)).alias("last"),
        F.collect_list(F.when(F.col(RAW).isNotNull(), place)).alias("dead"),
    )


def counted(computed: DataFrame) -> Counted | None:
    """The counts after these rows have been computed; None if the last record of a span was not found.

    Also None if Spark's optimizer knew that there are no rows, and has read nothing.
    """
    metrics = observed(computed, METRICS)
    if metrics is None:
        return None
    last: dict[Partition, Any] = {}
    for record in metrics["last"]:
        partition = _partition(record)
        if partition not in last or record["offset"] > last[partition]["offset"]:
            last[partition] = record
    counts = {partition: record[NUMBER] + 1 for partition, record in last.items()}
    # Each of these counts is at most the true count, so they are right if their sum is.
    if sum(counts.values()) != metrics["records"]:
        return None
    dead = [(_partition(record), record["offset"]) for record in metrics["dead"]]
    died = Counter(partition for partition, _ in dead)
    seen = {
        partition: PartitionCounts(count, died[partition], _time(last[partition].get("micros")))
        for partition, count in counts.items()
    }
    return Counted(seen, dead, metrics["size"])


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


def _is_at_end(spans: Sequence[Span]) -> Column:
    """Whether a record is one of the last of its span; true for some other records if there are several topics."""
    each = max(1, min(LONGEST_END, MOST_ENDS // max(1, len(spans))))
    partitions = max((span.partition.number for span in spans), default=0) + 1
    ends = {
        offset * partitions + span.partition.number
        for span in spans
        for offset in range(max(span.start, span.stop - each), span.stop)
    }
    # SQL text needs a single call to the JVM.
    return F.expr(f"offset * {partitions} + partition IN ({', '.join(map(str, sorted(ends)))})")


def _time(micros: int | None) -> Any:
    return None if micros is None else EPOCH + timedelta(microseconds=micros)
