"""Reads spans with Spark's Kafka source. Decodes nothing, and commits nothing to Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tallymark.core.raw import hulls
from tallymark.core.spans import Partition, Span
from tallymark.kafka.source import Kafka
from tallymark.spark import access


def by_topic(spans: Sequence[Span], form: Callable[[list[Span]], Any]) -> str:
    """JSON in the format of the Kafka source's options, with an entry for each topic."""
    topics: dict[str, list[Span]] = {}
    for span in spans:
        topics.setdefault(span.partition.topic, []).append(span)
    return json.dumps({topic: form(parts) for topic, parts in topics.items()})


def within(span: Span) -> Column:
    """Whether a record is in the span."""
    in_partition = (F.col("topic") == span.partition.topic) & (F.col("partition") == span.partition.number)
    return in_partition & (F.col("offset") >= span.start) & (F.col("offset") < span.stop)


def leave_out(records: DataFrame, gone: Collection[tuple[Partition, int]]) -> DataFrame:
    """All records except these."""
    for span in hulls(gone):
        offsets = ", ".join(str(offset) for partition, offset in gone if partition == span.partition)
        # SQL text needs a single call to the JVM; a Column would need a call for every offset.
        records = records.where(~(within(span) & F.expr(f"offset IN ({offsets})")))
    return records


KAFKA_OPTIONS = {
    "includeHeaders": "true",
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "10000",
    "kafka.fetch.max.bytes": str(8 << 20),
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    # The end of a span is known, so a fetch must not wait for more records.
    "kafka.fetch.max.wait.ms": "20",
}
RAW_RECORDS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


class Scan:
    """Reads spans of one source, with consumers that the executors cache for the whole run."""

    def __init__(self, spark: SparkSession, source: Kafka, run: str) -> None:
        self._spark = spark
        self._run = run
        self._renewed = 0
        self._options = {
            **KAFKA_OPTIONS,
            **access.options(source.cluster),
            # A fixed id for the run lets the executors reuse their consumers; nothing is committed to this group.
            "kafka.group.id": f"tallymark-{run}",
        }

    def renew(self) -> None:
        """Use new consumers from now on: records that the old consumers fetched ahead may be gone from the log."""
        self._renewed += 1
        self._options["kafka.group.id"] = f"tallymark-{self._run}-{self._renewed}"

    def frame(self, spans: Sequence[Span]) -> DataFrame:
        """The records as a DataFrame, with the columns of RAW_RECORDS and others."""
        offsets = {
            "assign": by_topic(spans, lambda parts: [span.partition.number for span in parts]),
            "startingOffsets": by_topic(spans, lambda parts: {span.partition.number: span.start for span in parts}),
            "endingOffsets": by_topic(spans, lambda parts: {span.partition.number: span.stop for span in parts}),
        }
        return self._spark.read.format("kafka").options(**self._options, **offsets).load()

    def name_jobs(self, offsets: int) -> None:
        """Set the job group of this thread, so that its jobs can be identified and cancelled."""
        self._spark.sparkContext.setJobGroup(self._run, f"tallymark batch of {offsets} offsets")
