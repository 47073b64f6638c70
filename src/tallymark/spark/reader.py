"""The Reader on Spark: reads each batch from Kafka once, counts its records, and shapes them into tables.

The path of a batch depends on its size and on the functions:

- ``direct``: a small batch is fetched and decoded by the driver. Functions that compute are evaluated by Spark's
  optimizer, without a job.
- ``driver``: Spark's tasks read, and the driver decodes with Arrow, which takes less CPU than Spark's JSON parser.
  Functions that compute get the decoded columns back as a DataFrame, part by part.
- ``tasks``: Spark's tasks read, decode and compute; only rows travel to the driver (``spark/tasks.py``). This is for
  values that Arrow's parser does not support, and for functions that need the whole batch at once.
- ``executors``: Spark's tasks also write the rows to staging tables, if the batch exceeds the driver's memory.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Literal

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tallymark.core import raw
from tallymark.core.records import DeadLetter, Reading
from tallymark.core.spans import Partition, Span, split
from tallymark.core.tables import TableSpec
from tallymark.errors import BadInput, BatchTooLarge, ReadFailed
from tallymark.formats import json as formats
from tallymark.formats.decoded import DecodedRecords
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.fetch import Direct
from tallymark.kafka.source import Kafka
from tallymark.spark.decode import SparkDecoder
from tallymark.spark.errors import FunctionFailed, explained, while_java_lives
from tallymark.spark.executors import OnePass, StagingOutcome, check_reached, targets
from tallymark.spark.functions import TableFunction
from tallymark.spark.memory import DriverMemory
from tallymark.spark.rows import Shaper
from tallymark.spark.scan import RAW_RECORDS, Scan, Scanning
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
SLOW_SHARE, SLOW_BATCHES = 0.05, 20
"""If Arrow's parser leaves more than this share of values to Python, Spark decodes this many batches instead."""
Path = Literal["direct", "driver", "tasks", "executors"]
Records = Collection[tuple[Partition, int]]


def choose(offsets: int, *, fits: bool, in_arrow: bool) -> Path:
    """The path of a batch.

    ``fits``: the driver's memory holds it. ``in_arrow``: Arrow decodes its values, and all functions are row-wise.
    """
    if not fits:
        return "executors"
    if offsets <= SMALL:
        return "direct"
    return "driver" if in_arrow else "tasks"


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
        self._decode = SparkDecoder(source.value)
        self._decode_in_driver = formats.JsonDecoder(source.value)
        self._scan = Scan(self._spark, source, run)
        self._scanning = Scanning(self._scan_part, self._parts)
        brokers = Brokers(source.cluster)
        self._direct = Direct(source, brokers)
        records = self._decode.records(self._spark.createDataFrame([], RAW_RECORDS))
        self._shaper = Shaper(self._spark, spark, source, tables, records.schema)
        self._tasks = Tasks(source, self._scan, self._decode, self._shaper, brokers)
        self._by_spark_for = 0
        self._rows_per_batch = 0
        self._cancelled = False

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
            self._check_running()
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
        in_arrow = self._arrow_is_faster() and self._shaper.is_row_wise
        path = self._path or choose(offsets, fits=fits, in_arrow=in_arrow)
        reading = None
        if path == "executors" and offsets <= len(spans):
            # A single record of each partition is not worth a staging table.
            path = "direct"
        if path == "executors":
            reading = self._by_executors(spans, batch, without, or_none=fits)
            path = path if reading else choose(offsets, fits=True, in_arrow=in_arrow)
        if path != "direct":
            self._direct.close()
        if then is not None and path != "driver":
            self._scanning.drop()
        if path == "tasks":
            reading = self._by_tasks(spans, without)
        elif path != "executors":
            parts = self._fetched(spans) if path == "direct" else self._scanned(spans, then)
            reading = self._by_arrow(parts, spans, without, judged=path == "driver")
        assert reading is not None
        self._memory.learn(reading.size, sum(counts.records for counts in reading.seen.values()))
        if path != "executors" and not self._memory.holds(reading.size, spans):
            self._scanning.drop()
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
            reading = self._shaped(DecodedRecords.of(raw.of_letters(letters), self._decode_in_driver), spans)
        log.info("read batch=%s bytes=%d path=given", batch, reading.size)
        return reading

    def discard(self, reading: Reading) -> None:
        if self._stages is not None:
            self._stages.drop(staged.name for staged in reading.staged.values())

    def release(self, partitions: Collection[Partition]) -> None:
        self._direct.release(partitions)
        self._scanning.drop()

    def renew(self, partitions: Collection[Partition]) -> None:
        self.release(partitions)
        self._scan.renew()

    def cancel(self) -> None:
        self._cancelled = True
        self._direct.cancel()
        self._scanning.drop()
        # If Java has ended, there is nothing to cancel.
        with suppress(Py4JError, OSError):
            self._spark.sparkContext.cancelJobGroup(self._run)

    def _arrow_is_faster(self) -> bool:
        """False for ``SLOW_BATCHES`` batches after a batch with many values that Arrow's parser does not support."""
        self._by_spark_for = max(0, self._by_spark_for - 1)
        return self._decode_in_driver.in_bulk and not self._by_spark_for

    def _judge(self, slow: int, records: int) -> None:
        if slow > SLOW_SHARE * records:
            self._by_spark_for = SLOW_BATCHES

    def _sample(self, spans: Sequence[Span]) -> None:
        """Estimate the size of records from the first records of some spans."""
        first = [Span(span.partition, span.start, min(span.stop, span.start + SAMPLE)) for span in spans[:SAMPLE]]
        sample = raw.of_messages(self._direct.read(first))
        self._memory.learn(raw.size(sample), sample.num_rows)

    def _fetched(self, spans: Sequence[Span]) -> Iterator[pa.Table]:
        least = sum(map(len, spans)) == len(spans)
        with self._growing():
            yield raw.of_messages(self._direct.read(spans, sys.maxsize if least else self._memory.most))

    def _scanned(self, spans: Sequence[Span], then: Sequence[Span] | None) -> Iterator[pa.Table]:
        """The records in parts; the next part is scanned while the caller processes the current part."""
        self._fit_batches()
        size = 0
        if then and not self._is_worth_scanning_ahead(then):
            then = ()
        with self._growing(), explained(self._source.brokers), closing(self._scanning.parts(spans, then)) as parts:
            for part in parts:
                size += raw.size(part)
                if not self._memory.holds(size / 2, spans):
                    raise self._memory.refusal(size)
                yield part

    def _is_worth_scanning_ahead(self, spans: Sequence[Span]) -> bool:
        if sum(map(len, spans)) <= SMALL or not self._memory.holds(self._memory.guess(spans), spans):
            return False
        # Records that return to Spark for a function need its memory too, so do not scan much ahead.
        return not self._shaper.computing or len(self._parts(spans)) == 1

    def _scan_part(self, spans: Sequence[Span]) -> pa.Table:
        self._check_running()
        self._scan.name_jobs(sum(map(len, spans)))
        return self._scan.to_arrow(spans)

    def _parts(self, spans: Sequence[Span]) -> list[list[Span]]:
        # The size may be infinite: another thread may have just found that records have grown.
        size = self._memory.guess(spans)
        return split(spans, max(1, min(sum(map(len, spans)), math.ceil(min(size, sys.maxsize) / PART))))

    def _check_running(self) -> None:
        if self._cancelled:
            raise ReadFailed("the batch was not read, because the run is ending")

    @contextmanager
    def _growing(self) -> Iterator[None]:
        """If a batch is too large, discard the average size, so that it is measured again."""
        try:
            yield
        except BatchTooLarge:
            self._memory.forget()
            self._scanning.drop()
            raise

    def _by_arrow(self, parts: Iterator[pa.Table], spans: Sequence[Span], without: Records, *, judged: bool) -> Reading:
        """Decode and shape records in the driver, part by part if the functions allow it."""
        decoded, slow = [], 0
        readings: list[Reading] = []
        for part in parts:
            decoded.append(DecodedRecords.of(raw.without(part, without), self._decode_in_driver))
            slow += decoded[-1].slow
            if self._shaper.is_row_wise:
                readings.append(self._shaped(decoded.pop(), spans))
        if decoded:
            readings.append(self._shaped(DecodedRecords.joined(decoded), spans))
        reading = joined(readings)
        if judged:
            self._judge(slow, sum(counts.records for counts in reading.seen.values()))
        return reading

    def _shaped(self, decoded: DecodedRecords, spans: Sequence[Span]) -> Reading:
        records, errors = decoded.found, decoded.errors
        rows, refusals = self._shaper.shape_arrow(raw.leave_out(decoded.records, errors.keys()), spans)
        letters = raw.letters(records, errors)
        return Reading(raw.seen(records, errors.keys()), rows, letters, refusals, decoded.size)

    def _by_tasks(self, spans: Sequence[Span], without: Records) -> Reading:
        """Decode and compute in Spark's tasks, in parts that fit the JVM's heap if the functions allow it."""
        self._fit_batches()
        parts = self._parts(spans) if self._shaper.is_row_wise else [spans]
        with self._growing():
            readings = []
            for part in parts:
                self._check_running()
                readings.append(self._tasks.collect(part, without))
            return joined(readings)

    def _by_executors(self, spans: Sequence[Span], batch: str, without: Records, *, or_none: bool) -> Reading | None:
        """Stage the rows; ``or_none`` if a row is refused, because only the driver finds its record."""
        assert self._stages is not None
        self._fit_batches()
        try:
            picked = self._in_one_pass(spans, batch, without) if self._arrow_is_faster() else None
            return picked or self._tasks.stage(self._stages, spans, batch, without)
        except BatchTooLarge as error:
            if not or_none:
                raise
            log.info("reading through the driver batch=%s error=%s", batch, error)
            return None

    def _in_one_pass(self, spans: Sequence[Span], batch: str, without: Records) -> Reading | None:
        """Decode with Arrow and stage picked columns in the tasks; None if that is impossible or too slow."""
        tables, stages = self._shaper.picking, self._stages
        if tables is None or stages is None:
            return None
        staging = targets(stages, tables, self.schemas())
        with stages.kept(target.loader.name for target in staging):
            outcome = None
            try:
                with explained(self._source.brokers, tables[0][0].name):
                    work = OnePass(self._source.value, self._scan.topic, batch, without, staging)
                    outcome = work.run(self._scan.columns(spans))
            except FunctionFailed as error:
                check_reached(error)
                if self._cancelled:
                    raise
                log.warning("staging by executors failed, using Spark instead batch=%s error=%s", batch, error.words)
            if outcome is not None:
                return self._staged(outcome, spans)
        stages.drop(target.loader.name for target in staging)
        self._by_spark_for = SLOW_BATCHES
        return None

    def _staged(self, outcome: StagingOutcome, spans: Sequence[Span]) -> Reading:
        """The reading from staged rows and from the records that the tasks returned to the driver."""
        self._judge(outcome.slow, sum(counts.records for counts in outcome.seen.values()))
        if not outcome.doubtful.num_rows:
            return Reading(outcome.seen, self._shaper.no_rows(), [], [], outcome.size, outcome.staged)
        rest = self._shaped(DecodedRecords.of(outcome.doubtful, self._decode_in_driver), spans)
        dead = {partition: counts.dead for partition, counts in rest.seen.items()}
        seen = {partition: replace(counts, dead=dead.get(partition, 0)) for partition, counts in outcome.seen.items()}
        return replace(rest, seen=seen, size=outcome.size, staged=outcome.staged)

    def _fit_batches(self) -> None:
        """Set the number of rows in an Arrow batch from the average size of a record."""
        average = self._memory.average or 1.0
        rows = max(1, min(32_768, int(ARROW_BATCH / max(1.0, min(average, float(ARROW_BATCH))))))
        if rows != self._rows_per_batch:
            self._spark.conf.set(ROWS_PER_BATCH, rows)
            self._rows_per_batch = rows
