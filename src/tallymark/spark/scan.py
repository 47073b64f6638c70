"""Reads spans with Spark's Kafka source, also ahead of time. Decodes nothing, and commits nothing to Kafka.

The result of a scan ahead is used only by a read of exactly the same spans; otherwise it is discarded.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tallymark.core import raw
from tallymark.core.raw import hulls
from tallymark.core.retry import Background
from tallymark.core.spans import Partition, Span
from tallymark.core.times import LAST_MILLIS
from tallymark.kafka.source import Kafka, is_pattern
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
        names = source.topic_names
        self.topic = names[0] if len(names) == 1 and not is_pattern(names[0]) else None
        """The only topic, else None: transferring its name would cost as much as a user's column."""

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

    def columns(self, spans: Sequence[Span]) -> DataFrame:
        """The records with the columns that are transferred; ``complete`` adds the others."""
        return self.frame(spans).select(*(name for name in raw.SCHEMA.names if name != "topic" or self.topic is None))

    def to_arrow(self, spans: Sequence[Span]) -> pa.Table:
        """Collect the records in the driver."""
        return complete(self.columns(spans).toArrow(), self.topic)


def complete(records: pa.Table, topic: str | None) -> pa.Table:
    """Records from Spark with all columns, and NULL for timestamps outside the calendar."""
    if topic is not None:
        records = records.append_column("topic", pa.repeat(topic, records.num_rows))
    return _within_calendars(records.select(raw.SCHEMA.names).cast(raw.SCHEMA))


def _within_calendars(records: pa.Table) -> pa.Table:
    at = records.schema.get_field_index("timestamp")
    micros = records["timestamp"].cast(pa.int64())
    ends = pc.min_max(micros).as_py()
    if ends["min"] is None or (ends["min"] >= 0 and ends["max"] <= LAST_MILLIS * 1000):
        return records
    known = pc.and_(pc.greater_equal(micros, 0), pc.less_equal(micros, LAST_MILLIS * 1000))
    return records.set_column(at, "timestamp", pc.if_else(known, records["timestamp"], None))


Spans = Sequence[Span]


class Scanning:
    """Scans spans in a separate thread, one part after the other; ``split`` makes the parts."""

    def __init__(self, scan: Callable[[Spans], pa.Table], split: Callable[[Spans], Sequence[Spans]]) -> None:
        self._scan = scan
        self._split = split
        self._thread = Background("tallymark-scan")
        self._lock = threading.Lock()
        self._ahead: tuple[Spans, deque[Future[pa.Table]]] = (), deque()

    def parts(self, spans: Spans, then: Spans | None = None) -> Generator[pa.Table, None, None]:
        """The parts of these spans in order. Afterwards the thread scans ``then``, the spans of the next call.

        If ``then`` is None, the current scan ahead stays as it is.
        """
        with self._lock:
            expected, futures = self._ahead
            if expected == spans:
                self._ahead = (), deque()
            else:
                futures = self._submit(spans)
            if then is not None:
                _cancel(self._ahead[1])
                self._ahead = then, self._submit(then)
        try:
            while futures:
                yield futures.popleft().result()
        finally:
            _cancel(futures)

    def drop(self) -> None:
        """Discard everything that was scanned ahead."""
        with self._lock:
            _cancel(self._ahead[1])
            self._ahead = (), deque()

    def _submit(self, spans: Spans) -> deque[Future[pa.Table]]:
        return deque(self._thread.submit(partial(self._scan, part)) for part in self._split(spans))


def _cancel(futures: deque[Future[pa.Table]]) -> None:
    """Cancel scans that have not begun; a running scan finishes."""
    while futures:
        futures.popleft().cancel()
