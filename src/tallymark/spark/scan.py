"""Spans as Spark's Kafka source reads them: nothing is decoded yet, and nothing is ever committed to Kafka."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from tallymark import raw
from tallymark.source import Kafka, is_pattern
from tallymark.spans import Span
from tallymark.spark import access
from tallymark.spark.spans import by_topic
from tallymark.times import LAST_MILLIS

KAFKA_OPTIONS = {
    "includeHeaders": "true",
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "10000",
    "kafka.fetch.max.bytes": str(8 << 20),
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    # A reader that knows where its span ends must not wait for more to come.
    "kafka.fetch.max.wait.ms": "20",
}
FIRST_INTERFACE = "spark.sql.sources.useV1SourceList"
RAW_RECORDS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


class Scan:
    """Reads spans of one source, with consumers that the executors keep for the whole run."""

    def __init__(self, spark: SparkSession, source: Kafka, run: str) -> None:
        self._spark = spark
        self._run = run
        self._renewed = 0
        self._options = {
            **KAFKA_OPTIONS,
            **access.options(source.cluster),
            # One id per run lets the executors reuse their consumers; nothing is ever committed to it.
            "kafka.group.id": f"tallymark-{run}",
        }
        # By its first interface the Kafka source turns every record into a row of Java's and back again.
        first = (spark.conf.get(FIRST_INTERFACE) or "").split(",")
        if "kafka" in first:
            spark.conf.set(FIRST_INTERFACE, ",".join(name for name in first if name != "kafka"))
        names = source.topic_names
        self.topic = names[0] if len(names) == 1 and not is_pattern(names[0]) else None
        """The only one. Its name would take as long on the way as a column of the user's."""

    def renew(self) -> None:
        """Read with new consumers: what those before have fetched ahead may not be in the log any more."""
        self._renewed += 1
        self._options["kafka.group.id"] = f"tallymark-{self._run}-{self._renewed}"

    def frame(self, spans: Sequence[Span]) -> DataFrame:
        """The records, with the columns of RAW_RECORDS and some more."""
        offsets = {
            "assign": by_topic(spans, lambda parts: [span.partition.number for span in parts]),
            "startingOffsets": by_topic(spans, lambda parts: {span.partition.number: span.start for span in parts}),
            "endingOffsets": by_topic(spans, lambda parts: {span.partition.number: span.stop for span in parts}),
        }
        return self._spark.read.format("kafka").options(**self._options, **offsets).load()

    def name_jobs(self, offsets: int) -> None:
        """So that the jobs of this thread can be told from others, and cancelled."""
        self._spark.sparkContext.setJobGroup(self._run, f"tallymark batch of {offsets} offsets")

    def columns(self, spans: Sequence[Span]) -> DataFrame:
        """The records with the columns that travel; ``complete`` adds what does not."""
        return self.frame(spans).select(*(name for name in raw.SCHEMA.names if name != "topic" or self.topic is None))

    def to_arrow(self, spans: Sequence[Span]) -> pa.Table:
        """The records, in the driver's memory."""
        return complete(self.columns(spans).toArrow(), self.topic)


def complete(found: pa.Table, topic: str | None) -> pa.Table:
    """Records as they came from Spark, with all columns, and NULL in place of times that no calendar has."""
    if topic is not None:
        found = found.append_column("topic", pa.repeat(topic, found.num_rows))
    return _within_calendars(found.select(raw.SCHEMA.names).cast(raw.SCHEMA))


def _within_calendars(found: pa.Table) -> pa.Table:
    at = found.schema.get_field_index("timestamp")
    micros = found["timestamp"].cast(pa.int64())
    ends = pc.min_max(micros).as_py()
    if ends["min"] is None or (ends["min"] >= 0 and ends["max"] <= LAST_MILLIS * 1000):
        return found
    known = pc.and_(pc.greater_equal(micros, 0), pc.less_equal(micros, LAST_MILLIS * 1000))
    return found.set_column(at, "timestamp", pc.if_else(known, found["timestamp"], None))
