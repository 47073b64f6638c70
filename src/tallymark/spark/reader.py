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
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Literal

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tallymark.core import raw
from tallymark.core.records import DeadLetter, Reading
from tallymark.core.spans import Partition, Span, split
from tallymark.core.tables import TableSpec
from tallymark.errors import BadInput, BatchTooLarge
from tallymark.formats.decoded import DecodedRecords
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.fetch import Direct
from tallymark.kafka.source import Kafka
from tallymark.spark.decode import RECORD, SparkDecoder
from tallymark.spark.errors import while_java_lives
from tallymark.spark.functions import TableFunction
from tallymark.spark.memory import DriverMemory
from tallymark.spark.read_ahead import ReadAhead
from tallymark.spark.rows import FEW, Shaper
from tallymark.spark.scan import RAW_RECORDS, Scan
from tallymark.spark.session import own_session
from tallymark.spark.tasks import Tasks, joined
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
    ``path`` is the path of all batches, instead of the path that fits each.
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
    ) -> None:
        self._path = path
        self._spark = own_session(spark)
        self._source = source
        self._run = run
        self._memory = DriverMemory(memory)
        self._stages = stages
        self._stop = threading.Event()
        self._decoders = source.decoders(self._stop)
        self._scan = Scan(self._spark, source, run)
        self._ahead = ReadAhead(self._collect, self._parts, self._check)
        brokers = Brokers(source.cluster)
        self._direct = Direct(source, brokers)
        decode = SparkDecoder(self._spark, self._decoders)
        records = decode(self._spark.createDataFrame([], RAW_RECORDS)).select(*RECORD)
        self._shaper = Shaper(self._spark, spark, source, tables, records.schema)
        self._tasks = Tasks(self._spark, source, self._scan, self._decoders, self._shaper, brokers)
        self._rows_per_batch = 0

    def schemas(self) -> Mapping[str, pa.Schema]:
        if self._stages is not None and (reason := self._shaper.unstageable):
            if self._path == "executors":
                raise BadInput(f"road='executors': {reason}; leave out road=")
            self._stages = None
        return self._shaper.schemas

    def read(
        self, spans: Sequence[Span], batch: str, without: Records = (), then: Sequence[Span] | None = None
    ) -> Reading:
        with while_java_lives(self._spark):
            self._tasks.check_running()
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
        offsets, guess = sum(map(len, spans)), self._memory.guess(spans)
        fits = self._memory.holds(guess, spans)
        if not fits and self._stages is None:
            raise self._memory.refusal(guess)
        in_bulk = self._decoders.in_bulk
        path = self._path or choose(offsets, fits=fits, in_bulk=in_bulk)
        reading = None
        if path == "executors" and offsets <= len(spans):
            # A single record of each partition is not worth a staging table.
            path = "direct"
        if path == "executors":
            reading = self._by_executors(spans, batch, without, or_none=fits)
            path = path if reading else choose(offsets, fits=True, in_bulk=in_bulk)
        if path != "direct":
            self._direct.close()
        if then is not None and path != "tasks":
            self._ahead.drop()
        if path == "tasks":
            reading = self._by_tasks(spans, without, then)
        elif path == "direct":
            reading = self._in_driver(spans, without)
        assert reading is not None
        self._memory.learn(reading.size, sum(counts.records for counts in reading.seen.values()))
        if path != "executors" and not self._memory.holds(reading.size, spans):
            self._ahead.drop()
            if self._stages is None:
                raise self._memory.refusal(reading.size)
            return None
        log.info("read batch=%s bytes=%d path=%s", batch, reading.size, path)
        return reading

    def reread(self, letters: Sequence[DeadLetter], batch: str) -> Reading:
        """Like ``read``, for given records instead of records from Kafka."""
        spans = raw.hulls((letter.partition, letter.offset) for letter in letters)
        with while_java_lives(self._spark):
            self._scan.name_jobs(len(letters))
            reading = self._shaped(DecodedRecords.of(raw.of_letters(letters), self._decoders), spans)
        log.info("read batch=%s bytes=%d path=given", batch, reading.size)
        return reading

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
        self._tasks.is_cancelled = True
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
        # Tasks then know the schemas of these records.
        self._decoders.table(sample)

    def _in_driver(self, spans: Sequence[Span], without: Records) -> Reading:
        """Fetch and decode in the driver."""
        least = sum(map(len, spans)) == len(spans)
        with self._growing():
            fetched = raw.of_messages(self._direct.read(spans, sys.maxsize if least else self._memory.most))
        return self._shaped(DecodedRecords.of(raw.without(fetched, without), self._decoders), spans)

    def _by_tasks(self, spans: Sequence[Span], without: Records, then: Sequence[Span] | None) -> Reading:
        """Decode and compute in Spark's tasks, in parts that fit the JVM's heap if the functions allow it."""
        self._fit_batches()
        if then and not self._is_worth_reading_ahead(then):
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
        return self._tasks.collect(spans, without)

    def _parts(self, spans: Sequence[Span]) -> Sequence[Sequence[Span]]:
        if not self._shaper.is_row_wise:
            return [spans]
        # The size may be infinite: another thread may have just found that records have grown.
        size = self._memory.guess(spans)
        return split(spans, max(1, min(sum(map(len, spans)), math.ceil(min(size, sys.maxsize) / PART))))

    @contextmanager
    def _growing(self) -> Iterator[None]:
        """If a batch is too large, discard the average size, so that it is measured again."""
        try:
            yield
        except BatchTooLarge:
            self._memory.forget()
            self._ahead.drop()
            raise

    def _shaped(self, decoded: DecodedRecords, spans: Sequence[Span]) -> Reading:
        records, errors = decoded.found, decoded.errors
        rows, refusals = self._shaper.shape_arrow(raw.leave_out(decoded.records, errors.keys()), spans)
        letters = raw.letters(records, errors)
        return Reading(raw.seen(records, errors.keys()), rows, letters, refusals, decoded.size)

    def _by_executors(self, spans: Sequence[Span], batch: str, without: Records, *, or_none: bool) -> Reading | None:
        """Stage the rows; ``or_none`` if a row is refused, because only the driver finds its record."""
        assert self._stages is not None
        self._fit_batches()
        try:
            return self._tasks.stage(self._stages, spans, batch, without)
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
