"""The Reader on Spark: reads each batch from Kafka once, counts its records, and shapes them into tables.

A batch that fits the driver's memory is collected there undecoded, read by Spark or, if it is small, by the driver
itself. Arrow decodes it, and functions that only pick columns run without Spark.

A larger batch is decoded and staged by the tasks that read it, if all functions only pick columns. Other large batches,
and values that Arrow's parser does not support, are decoded by Spark. The decoded batch is cached while it is counted,
the tables' functions run and the dead letters are extracted, so that all three see the same records. A lost executor or
a speculative task only repeats its part of the same spans.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tallymark.core import raw
from tallymark.core.records import DeadLetter, Reading
from tallymark.core.spans import Partition, Span, split
from tallymark.core.tables import Staged, TableSpec
from tallymark.errors import BatchTooLarge, ReadFailed
from tallymark.formats import json as formats
from tallymark.formats.decoded import DecodedRecords
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.fetch import Direct
from tallymark.kafka.source import Kafka
from tallymark.spark import access
from tallymark.spark.decode import RAW, RECORD, SparkDecoder, count
from tallymark.spark.errors import FunctionFailed, explained, while_java_lives
from tallymark.spark.executors import OnePass, StagingOutcome, check_reached, counting_rows, targets
from tallymark.spark.functions import TableFunction
from tallymark.spark.memory import DriverMemory
from tallymark.spark.rows import Shaper
from tallymark.spark.scan import RAW_RECORDS, Scan, Scanning, leave_out
from tallymark.stores.sql.staging import Stages

log = logging.getLogger(__name__)

REDACTION = "spark.sql.redaction.options.regex"
LOCAL_RELATION = "spark.sql.execution.arrow.localRelationThreshold"
ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
ARROW_BATCH = 4 << 20
"""Bytes of records in one Arrow batch, which a task holds in memory."""
PART = 64 << 20
"""Bytes of records in one scan: more only wait in the JVM and cause garbage collections."""
SMALL = 10_000
"""Number of offsets that the driver reads faster than Spark starts a job."""
SAMPLE = 10
"""Number of records for each span, and of spans, that are sampled to estimate the size of records."""
SLOW_SHARE, SLOW_BATCHES = 0.05, 20
"""If Arrow's parser leaves more than this share of values to Python, Spark decodes this many batches instead."""


class SparkReader:
    """Reads spans of a Kafka source with Spark and applies the tables' functions."""

    def __init__(
        self,
        spark: SparkSession,
        source: Kafka,
        tables: Sequence[tuple[TableSpec, TableFunction]],
        run: str,
        memory: int = sys.maxsize,
        stages: Stages | None = None,
    ) -> None:
        self._spark = spark
        self._source = source
        self._run = run
        self._memory = DriverMemory(memory, self._heap)
        self._stages = stages
        self._decode = SparkDecoder(source.value)
        self._decode_in_driver = formats.JsonDecoder(source.value)
        self._scan = Scan(spark, source, run)
        self._scanning = Scanning(self._scan_part, self._parts)
        self._direct = Direct(source, Brokers(source.cluster))
        records = self._decode.records(spark.createDataFrame([], RAW_RECORDS))
        self._shaper = Shaper(spark, source, tables, records.schema)
        self._by_spark_for = 0
        self._small = SMALL
        self._rows_per_batch = 0
        self._cancelled = False
        # JSON timestamps without a zone are UTC, as are those in the tables, whatever the session's time zone is.
        self._spark.conf.set("spark.sql.session.timeZone", "UTC")
        access.keep_quiet()
        # Spark would convert a local relation to rows in the driver alone.
        self._spark.conf.set(LOCAL_RELATION, 0)
        hidden = self._spark.conf.get(REDACTION, "") or ""
        if access.REDACTED not in hidden:
            self._spark.conf.set(REDACTION, "|".join(filter(None, (hidden, access.REDACTED))))

    def schemas(self) -> Mapping[str, pa.Schema]:
        return self._shaper.schemas

    def read(
        self,
        spans: Sequence[Span],
        batch: str,
        without: Collection[tuple[Partition, int]] = (),
        then: Sequence[Span] | None = None,
    ) -> Reading:
        with while_java_lives(self._spark):
            return self._read(spans, batch, without, then)

    def _read(
        self,
        spans: Sequence[Span],
        batch: str,
        without: Collection[tuple[Partition, int]],
        then: Sequence[Span] | None,
    ) -> Reading:
        self._check_running()
        offsets = sum(map(len, spans))
        self._scan.name_jobs(offsets)
        small = offsets <= self._small
        if self._memory.average is None:
            self._sample(spans)
        if not small:
            self._direct.close()
        large = not self._memory.holds(self._memory.guess(spans), spans)
        arrow = self._arrow_is_faster()
        if then is not None and (small or large or not arrow):
            self._scanning.drop()
        if large and arrow and (reading := self._in_one_pass(spans, batch, without)):
            return reading
        if large or not (small or arrow):
            return self._by_spark(leave_out(self._scan.frame(spans), without), spans, batch)
        parts = self._fetched(spans) if small else self._scanned(spans, then)
        decoded = DecodedRecords.joined(
            [DecodedRecords.of(raw.without(part, without), self._decode_in_driver) for part in parts]
        )
        self._memory.learn(decoded.size, decoded.found.num_rows)
        if not self._memory.holds(decoded.size, spans):
            # Records are larger than before; read again with the new average.
            self._scanning.drop()
            return self._read(spans, batch, without, None)
        if not small:
            self._judge(decoded.slow, decoded.found.num_rows)
        return self._by_arrow(decoded, spans, batch, "direct" if small else "driver")

    def reread(self, letters: Sequence[DeadLetter], batch: str) -> Reading:
        """Like ``read``, for given records instead of records from Kafka."""
        spans = raw.hulls((letter.partition, letter.offset) for letter in letters)
        with while_java_lives(self._spark):
            self._scan.name_jobs(len(letters))
            return self._by_arrow(
                DecodedRecords.of(raw.of_letters(letters), self._decode_in_driver), spans, batch, "given"
            )

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
        self._fit_batches(self._memory.average or 1.0)
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
        if sum(map(len, spans)) <= self._small or not self._memory.holds(self._memory.guess(spans), spans):
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
        """If a batch is too large, discard the average size, so that Spark measures the records."""
        try:
            yield
        except BatchTooLarge:
            self._memory.forget()
            self._scanning.drop()
            raise

    def _by_arrow(self, decoded: DecodedRecords, spans: Sequence[Span], batch: str, road: str) -> Reading:
        """Shape records that are in the driver's memory."""
        records, errors = decoded.found, decoded.errors
        log.info("read batch=%s bytes=%d road=%s", batch, decoded.size, road)
        rows, refusals = self._shaper.shape_arrow(raw.leave_out(decoded.records, errors.keys()), spans)
        letters = raw.letters(records, errors)
        return Reading(raw.seen(records, errors.keys()), rows, letters, refusals, decoded.size)

    def _by_spark(self, undecoded: DataFrame, spans: Sequence[Span], batch: str) -> Reading:
        """Decode and shape records in Spark, without collecting them first."""
        decoded = self._decode(undecoded).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with explained(self._source.brokers):
                seen, size = count(decoded)
            large = not self._memory.holds(size, spans)
            if large and self._stages is None:
                raise self._memory.refusal(size)
            records_seen = sum(partition.records for partition in seen.values())
            self._fit_batches(size / max(1, records_seen))
            records = decoded.where(F.col(RAW).isNull()).select(*RECORD)
            log.info("read batch=%s bytes=%d road=%s", batch, size, "executors" if large else "spark")
            staged: dict[str, Staged] = {}
            if large and self._stages:
                with counting_rows(self._spark):
                    staged = self._shaper.stage(self._stages, records, batch)
            with self._stages.kept(table.name for table in staged.values()) if self._stages else nullcontext():
                rows, refusals = (self._shaper.no_rows(), []) if large else self._shaper.shape(records, spans)
                dead = any(partition.dead for partition in seen.values())
                with explained(self._source.brokers):
                    letters = self._dead_letters(decoded) if dead else []
        finally:
            decoded.unpersist()
        self._memory.learn(size, records_seen)
        return Reading(seen, rows, letters, refusals, size, staged)

    def _in_one_pass(
        self, spans: Sequence[Span], batch: str, without: Collection[tuple[Partition, int]]
    ) -> Reading | None:
        """Read, decode and stage in the same tasks; None if that is impossible or too slow."""
        tables, stages = self._shaper.picking, self._stages
        if tables is None or stages is None or self._memory.average in (None, math.inf):
            return None
        self._fit_batches(self._memory.average or 1.0)
        staging = targets(stages, tables, self.schemas())
        with stages.kept(target.loader.name for target in staging):
            outcome = None
            try:
                with explained(self._source.brokers, tables[0][0].name), counting_rows(self._spark):
                    work = OnePass(self._source.value, self._scan.topic, batch, without, staging)
                    outcome = work.run(self._scan.columns(spans))
            except FunctionFailed as error:
                check_reached(error)
                if self._cancelled:
                    raise
                log.warning("staging by executors failed, using Spark instead batch=%s error=%s", batch, error.words)
            if outcome is not None:
                return self._staged(outcome, spans, batch)
        stages.drop(target.loader.name for target in staging)
        self._by_spark_for = SLOW_BATCHES
        return None

    def _staged(self, outcome: StagingOutcome, spans: Sequence[Span], batch: str) -> Reading:
        """The reading from staged rows and from the records that the tasks returned to the driver."""
        count = sum(counts.records for counts in outcome.seen.values())
        self._memory.learn(outcome.size, count)
        self._judge(outcome.slow, count)
        log.info("read batch=%s bytes=%d road=%s", batch, outcome.size, "executors")
        if not outcome.doubtful.num_rows:
            return Reading(outcome.seen, self._shaper.no_rows(), [], [], outcome.size, outcome.staged)
        rest = self._by_arrow(DecodedRecords.of(outcome.doubtful, self._decode_in_driver), spans, batch, "doubtful")
        dead = {partition: counts.dead for partition, counts in rest.seen.items()}
        seen = {partition: replace(counts, dead=dead.get(partition, 0)) for partition, counts in outcome.seen.items()}
        return replace(rest, seen=seen, size=outcome.size, staged=outcome.staged)

    def _heap(self) -> int | None:
        """The size of Java's heap in bytes, if functions compute on batches there; else None."""
        jvm: Any = self._spark._jvm
        return int(jvm.Runtime.getRuntime().maxMemory()) if self._shaper.computing else None

    def _fit_batches(self, average: float) -> None:
        """Set the number of rows in an Arrow batch from the average size of a record."""
        rows = max(1, min(32_768, int(ARROW_BATCH / max(1.0, average))))
        if rows != self._rows_per_batch:
            self._spark.conf.set(ROWS_PER_BATCH, rows)
            self._rows_per_batch = rows

    def _dead_letters(self, batch: DataFrame) -> list[DeadLetter]:
        names = [F.col(RAW).alias("value") if name == "value" else F.col(name) for name in raw.SCHEMA.names]
        dead = batch.where(F.col(RAW).isNotNull()).select(*names).toArrow()
        values = dead["value"].to_pylist()
        return raw.letters(dead, {at: formats.explain(self._source.value, value) for at, value in enumerate(values)})
