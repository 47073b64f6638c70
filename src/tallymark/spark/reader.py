"""The Reader on Spark: reads each batch from Kafka once, counts its records, and shapes them into tables.

The path of a batch depends on its size:

- ``direct``: a small batch is fetched and decoded by the driver. For up to 1,000 records, Spark's optimizer evaluates
  functions that compute, without a job.
- ``tasks``: Spark's tasks read, decode and compute; only rows travel to the driver (``spark/tasks.py``).
- ``executors``: Spark's tasks also write the rows to staging tables, if the batch exceeds the driver's memory.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from typing import Literal

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tallymark.core import raw
from tallymark.core.drift import Fields
from tallymark.core.records import DeadLetter, Reading
from tallymark.core.retry import PATIENCE
from tallymark.core.spans import Partition, Span, split
from tallymark.core.tables import TableSpec
from tallymark.core.unmatched import Unmatched, count_unmatched
from tallymark.errors import BadInput, BatchTooLarge
from tallymark.formats.decoders import Decoders
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.fetch import Direct
from tallymark.kafka.source import Kafka
from tallymark.spark.decode import RECORD, SparkDecoder
from tallymark.spark.errors import while_java_lives
from tallymark.spark.functions import TableFunction
from tallymark.spark.given import GivenRecords
from tallymark.spark.layouts import Layout, Layouts, Table
from tallymark.spark.memory import DriverMemory
from tallymark.spark.read_ahead import ReadAhead
from tallymark.spark.rows import FEW, Shaper
from tallymark.spark.scan import RAW_RECORDS, Scan
from tallymark.spark.session import own_session
from tallymark.spark.tasks import Tasks, check_running, joined
from tallymark.stores.sql.staging import Stages

log = logging.getLogger(__name__)

ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
ARROW_BATCH = 4 << 20
"""Bytes of records in one Arrow batch, which a task holds in memory."""
PART = 64 << 20
"""Bytes of records in one job that collects: more only wait in the JVM and cause garbage collections."""
SMALL = 10_000
"""Number of offsets that the driver reads faster than Spark starts a job."""
SAMPLE = 10
"""Number of records for each span, and of spans, that are sampled to estimate the size of records."""
Path = Literal["direct", "tasks", "executors"]
Records = Collection[tuple[Partition, int]]


def choose(offsets: int, *, fits: bool, in_bulk: bool) -> Path:
    """The path of a batch.

    ``fits``: the driver's memory holds it. ``in_bulk``: the driver decodes its values in bulk.
    """
    if not fits:
        return "executors"
    return "direct" if offsets <= (SMALL if in_bulk else FEW) else "tasks"


class SparkReader:
    """Reads spans of a Kafka source with Spark and applies the tables' functions.

    ``memory`` is the maximum number of bytes of a batch in the driver. Larger batches go to ``stages``, or are refused.
    ``path`` is the path of all batches, instead of the path that fits each. ``unmatched`` is what a record is that
    gives no row to any table. ``patience`` is how long a schema registry is waited for. With ``finds_drift`` it finds
    fields that the schema does not name.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: Kafka,
        tables: Sequence[tuple[TableSpec, TableFunction]],
        run: str,
        memory: int = sys.maxsize,
        stages: Stages | None = None,
        path: Path | None = None,
        *,
        unmatched: Unmatched = "applied",
        patience: float = PATIENCE,
        finds_drift: bool = False,
    ) -> None:
        self._path = path
        self._finds_unmatched = unmatched == "dead"
        self._spark = own_session(spark)
        self._source = source
        self._run = run
        self._memory = DriverMemory(memory)
        self._stages = stages
        self._stop = threading.Event()
        self._scan = Scan(self._spark, source, run)
        self._ahead = ReadAhead(self._collect, self._parts, self._check)
        self._brokers = Brokers(source.cluster)
        self._direct = Direct(source, self._brokers)
        self._users = spark
        decoders = partial(source.decoders, stop=self._stop, patience=patience, finds=finds_drift)
        self._layouts = Layouts(source, tables, decoders, self._layout)
        self._given = GivenRecords(self._layouts, finds_unmatched=self._finds_unmatched)
        self._layouts.begin(lambda: self._brokers.resolve(source.topic_names))
        # Held by the thread that reads, if tables follow the schemas.
        self._one_at_a_time = threading.Lock() if any(spec.follows for spec, _ in tables) else nullcontext()
        self._rows_per_batch = 0

    @property
    def tables(self) -> Sequence[TableSpec]:
        return self._layouts.tables

    def schemas(self) -> Mapping[str, pa.Schema]:
        if self._stages is not None and (reason := self._unstageable):
            if self._path == "executors":
                raise BadInput(f"road='executors': {reason}; leave out road=")
            self._stages = None
        return self._layouts.schemas()

    @property
    def _unstageable(self) -> str | None:
        """The reason for which executors can't stage all tables, if there is one."""
        if self._finds_unmatched:
            return "unmatched='dead' compares the rows with the records, which executors can't"
        if not self._layouts.is_shared:
            return "executors stage the same tables for all topics"
        return next((reason for layout in self._layouts.known if (reason := layout.shaper.unstageable)), None)

    def _layout(self, decoders: Decoders, tables: Sequence[Table], topic: str | None) -> Layout:
        nothing = self._spark.createDataFrame([], RAW_RECORDS)
        records = SparkDecoder(self._spark, decoders)(nothing).select(*RECORD).schema
        shaper = Shaper(self._spark, self._users, self._source, tables, records, topic)
        if self._finds_unmatched and not shaper.is_row_wise:
            raise BadInput(
                "unmatched='dead' needs functions that compute the rows of each record by itself, and one aggregates, "
                "joins, or uses a window; leave out unmatched=, or move its table to another pipeline"
            )
        tasks = Tasks(self._spark, self._source, self._scan, decoders, shaper, self._brokers, self._stop)
        return Layout(decoders, shaper, tasks)

    def read(
        self, spans: Sequence[Span], batch: str, without: Records = (), then: Sequence[Span] | None = None
    ) -> Reading:
        return self._followed(spans, lambda: self._read_fitting(spans, batch, without, then))

    def _followed(self, spans: Sequence[Span], read: Callable[[], Reading]) -> Reading:
        """What is read with the columns of the latest schemas: read again if the records have fields that these lack.

        Otherwise several threads may read. They wait for each other if tables follow the schemas, because all records
        of a batch are read with the same columns.
        """
        with while_java_lives(self._spark), self._one_at_a_time:
            while True:
                reading = read()
                try:
                    if not self._layouts.follow(spans):
                        return reading
                except BaseException:
                    self.discard(reading)
                    raise
                self._ahead.drop()
                self.discard(reading)

    def _read_fitting(
        self, spans: Sequence[Span], batch: str, without: Records, then: Sequence[Span] | None
    ) -> Reading:
        check_running(self._stop)
        self._scan.name_jobs(sum(map(len, spans)))
        if self._memory.average in (None, math.inf):
            self._sample(spans)
        reading = self._read(spans, batch, without, then)
        if reading is None:
            # The size of the records is known now.
            reading = self._read(spans, batch, without, None)
        if reading is None:
            raise self._memory.refusal(self._memory.guess(spans))
        return reading

    def _read(self, spans: Sequence[Span], batch: str, without: Records, then: Sequence[Span] | None) -> Reading | None:
        """The reading; None if records are larger than expected, and have to be staged."""
        guess = self._memory.guess(spans)
        fits = self._memory.holds(guess, spans)
        if not fits and self._stages is None:
            raise self._memory.refusal(guess)
        paths = self._paths(spans, self._path, fits=fits)
        reading = None
        if "executors" in paths:
            reading = self._by_executors(spans, batch, without, or_none=fits)
            paths = paths if reading else self._paths(spans, fits=True)
        if "direct" not in paths:
            self._direct.close()
        if then is not None and "tasks" not in paths:
            self._ahead.drop()
        if reading is None:
            parts = [self._in_driver(paths["direct"], without)] if "direct" in paths else []
            parts += [self._by_tasks(paths["tasks"], without, then)] if "tasks" in paths else []
            reading = joined(parts)
        self._memory.learn(reading.size, sum(counts.records for counts in reading.seen.values()))
        if not reading.staged and not self._memory.holds(reading.size, spans):
            self._ahead.drop()
            if self._stages is None:
                raise self._memory.refusal(reading.size)
            return None
        log.info("read batch=%s bytes=%d path=%s", batch, reading.size, "+".join(paths))
        return reading

    def _paths(self, spans: Sequence[Span], forced: Path | None = None, *, fits: bool) -> dict[Path, list[Span]]:
        """The spans of each path. If executors stage rows, they stage all."""
        paths: dict[Path, list[Span]] = {}
        for layout, own in self._layouts.of_spans(spans).items():
            offsets = sum(map(len, own))
            path = forced or choose(offsets, fits=fits, in_bulk=layout.decoders.in_bulk)
            if path == "executors" and (self._stages is None or offsets <= len(own)):
                # A single record of each partition is not worth a staging table.
                path = "direct"
            paths.setdefault(path, []).extend(own)
        return paths

    def reread(self, letters: Sequence[DeadLetter], batch: str) -> Reading:
        """Like ``read``, for given records instead of records from Kafka."""
        spans = raw.hulls((letter.partition, letter.offset) for letter in letters)
        self._scan.name_jobs(len(letters))
        reading = self._followed(spans, lambda: self._given.shaped(raw.of_letters(letters), spans))
        log.info("read batch=%s bytes=%d path=given", batch, reading.size)
        return reading

    def drift(self, letters: Sequence[DeadLetter]) -> Mapping[Partition, Fields]:
        return self._given.drift(letters)

    def discard(self, reading: Reading) -> None:
        if self._stages is not None:
            self._stages.drop(staged.name for staged in reading.staged.values())

    def release(self, partitions: Collection[Partition]) -> None:
        self._direct.release(partitions)
        self._ahead.drop()

    def renew(self, partitions: Collection[Partition]) -> None:
        self.release(partitions)
        self._scan.renew()

    def cancel(self) -> None:
        self._stop.set()
        self._direct.cancel()
        self._ahead.drop()
        # If Java has ended, there is nothing to cancel.
        with suppress(Py4JError, OSError):
            self._spark.sparkContext.cancelJobGroup(self._run)

    def _sample(self, spans: Sequence[Span]) -> None:
        """Estimate the size of records from the first records of some spans."""
        first = [Span(span.partition, span.start, min(span.stop, span.start + SAMPLE)) for span in spans[:SAMPLE]]
        sample = raw.of_messages(self._direct.read(first))
        self._memory.learn(raw.size(sample), sample.num_rows)
        for layout, records, _ in self._given.by_layout(sample, first):
            # Tasks then know the schemas of these records.
            layout.decoders.table(records)

    def _in_driver(self, spans: Sequence[Span], without: Records) -> Reading:
        """Fetch and decode in the driver."""
        least = sum(map(len, spans)) == len(spans)
        with self._growing():
            fetched = raw.of_messages(self._direct.read(spans, sys.maxsize if least else self._memory.most))
        return self._given.shaped(raw.without(fetched, without), spans)

    def _by_tasks(self, spans: Sequence[Span], without: Records, then: Sequence[Span] | None) -> Reading:
        """Decode and compute in Spark's tasks, in parts that fit the JVM's heap if the functions allow it."""
        self._fit_batches()
        # Of several layouts, only some may take this path the next time.
        if then and not (self._layouts.is_shared and self._is_worth_reading_ahead(then)):
            then = ()
        with self._growing(), closing(self._ahead.parts(spans, then, without)) as parts:
            return joined(list(parts))

    def _check(self, spans: Sequence[Span], size: int) -> None:
        """Raise if the parts of a batch are much larger than expected. ``read`` compares the whole batch exactly."""
        if not self._memory.holds(size / 2, spans):
            raise self._memory.refusal(size)

    def _is_worth_reading_ahead(self, spans: Sequence[Span]) -> bool:
        return sum(map(len, spans)) > SMALL and self._memory.holds(self._memory.guess(spans), spans)

    def _collect(self, spans: Sequence[Span], without: Records) -> Reading:
        self._scan.name_jobs(sum(map(len, spans)))
        (layout,) = self._layouts.of_spans(spans)
        reading = layout.tasks.collect(spans, without)
        if not self._finds_unmatched or not count_unmatched(reading):
            return reading
        check_running(self._stop)
        # Tasks do not keep records as they are in Kafka. Another thread may use the reader's own client.
        with closing(Direct(self._source, self._brokers)) as direct:
            return self._given.shaped(raw.without(raw.of_messages(direct.read(spans)), without), spans)

    def _parts(self, spans: Sequence[Span]) -> Sequence[Sequence[Span]]:
        """The spans in parts, each of one layout."""
        parts: list[Sequence[Span]] = []
        for layout, own in self._layouts.of_spans(spans).items():
            # The size may be infinite: another thread may have just found that records have grown.
            size = self._memory.guess(own) if layout.shaper.is_row_wise else 0
            parts += split(own, max(1, min(sum(map(len, own)), math.ceil(min(size, sys.maxsize) / PART))))
        return parts

    @contextmanager
    def _growing(self) -> Iterator[None]:
        """If a batch is too large, discard the average size, so that it is measured again."""
        try:
            yield
        except BatchTooLarge:
            self._memory.forget()
            self._ahead.drop()
            raise

    def _by_executors(self, spans: Sequence[Span], batch: str, without: Records, *, or_none: bool) -> Reading | None:
        """Stage the rows; ``or_none`` if a row is refused, because only the driver finds its record."""
        assert self._stages is not None
        self._fit_batches()
        try:
            (layout,) = self._layouts.known
            return layout.tasks.stage(self._stages, spans, batch, without)
        except BatchTooLarge as error:
            if not or_none:
                raise
            log.info("reading through the driver batch=%s error=%s", batch, error)
            return None

    def _fit_batches(self) -> None:
        """Set the number of rows in an Arrow batch from the average size of a record."""
        average = self._memory.average or 1.0
        rows = max(1, min(32_768, int(ARROW_BATCH / max(1.0, min(average, float(ARROW_BATCH))))))
        if rows != self._rows_per_batch:
            self._spark.conf.set(ROWS_PER_BATCH, rows)
            self._rows_per_batch = rows
