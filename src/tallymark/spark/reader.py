"""The Reader on Spark: each batch is read from Kafka once, counted, and shaped into tables.

The decoded batch is cached for the moment it takes to count it, run the tables' functions and pick out the dead
letters, so that all three see the same records. A lost executor or a speculative task only recomputes its part of the
same spans.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from tallymark.errors import BadInput, BatchTooLarge, TallymarkError, TooManyDead, Unreachable
from tallymark.formats import explain
from tallymark.read import DeadLetter, Reading, Seen
from tallymark.shape import DELETED, HIDDEN, OFFSET, Refusal, Staged, TableSpec
from tallymark.source import Kafka
from tallymark.spans import Partition, Span
from tallymark.spark import access
from tallymark.spark.decode import RAW, RECORD, SIZE, Decoder, first_line
from tallymark.spark.failures import FunctionFailed, explained
from tallymark.spark.given import as_arrow, hulls
from tallymark.spark.poison import poisonous
from tallymark.spark.provenance import collect, with_provenance
from tallymark.spark.spans import by_topic, leave_out, within
from tallymark.spark.stage import stage
from tallymark.stores.columns import JSON_MARK
from tallymark.stores.staging import Stages

log = logging.getLogger(__name__)

TableFunction = Callable[[DataFrame], DataFrame]

KAFKA_OPTIONS = {
    "includeHeaders": "true",
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "10000",
    "kafka.fetch.max.bytes": str(8 << 20),
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    # A reader that knows where its span ends must not wait for more to come.
    "kafka.fetch.max.wait.ms": "20",
}
RAW_RECORDS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
NESTED = (T.StructType, T.ArrayType, T.MapType, T.VariantType)
REDACTION = "spark.sql.redaction.options.regex"
ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
ARROW_BATCH = 16 << 20
"""Bytes of records that travel in one Arrow batch, which a task holds in memory."""
MOST_POISON = 100
"""Records of one batch that a function may fail on: each is found by some twenty jobs."""


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
        self._tables = tables
        self._run = run
        self._memory = memory
        self._stages = stages
        self._decode = Decoder(source.value)
        self._schemas: dict[str, pa.Schema] | None = None
        # Whatever the session says: JSON timestamps without a zone are UTC, and so are those in the tables.
        self._spark.conf.set("spark.sql.session.timeZone", "UTC")
        access.keep_quiet()
        hidden = self._spark.conf.get(REDACTION, "") or ""
        if access.REDACTED not in hidden:
            self._spark.conf.set(REDACTION, "|".join(filter(None, (hidden, access.REDACTED))))

    def schemas(self) -> Mapping[str, pa.Schema]:
        if self._schemas is None:
            records = self._decode(self._spark.createDataFrame([], RAW_RECORDS)).select(*RECORD)
            self._schemas = {spec.name: self._schema(spec, function, records) for spec, function in self._tables}
        return self._schemas

    def read(self, spans: Sequence[Span], batch: str, without: Collection[tuple[Partition, int]] = ()) -> Reading:
        self._spark.sparkContext.setJobGroup(self._run, f"tallymark batch of {sum(map(len, spans))} offsets")
        return self._reading(leave_out(self._load(spans), without), spans, batch)

    def reread(self, letters: Sequence[DeadLetter], batch: str) -> Reading:
        """The same for records that are given, and not asked for in Kafka."""
        self._spark.sparkContext.setJobGroup(self._run, f"tallymark replay of {len(letters)} dead letters")
        given = self._spark.createDataFrame(as_arrow(letters), RAW_RECORDS)
        return self._reading(given, hulls((letter.partition, letter.offset) for letter in letters), batch)

    def _reading(self, raw: DataFrame, spans: Sequence[Span], batch: str) -> Reading:
        decoded = self._decode(raw).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with explained(self._source.brokers):
                seen, size = _count(decoded)
            # One record of each partition is what a batch holds at least.
            large = size > self._memory and sum(map(len, spans)) > len(spans)
            if large and self._stages is None:
                raise BatchTooLarge(f"{size:,} bytes are more than limits.memory={self._memory:,}")
            self._spark.conf.set(ROWS_PER_BATCH, _rows_within(size, seen))
            records = decoded.where(F.col(RAW).isNull()).select(*RECORD)
            log.info("batch=%s bytes=%d road=%s", batch, size, "executors" if large else "driver")
            staged = self._stage(records, batch) if large else {}
            rows, refusals = (self._no_rows(), []) if large else self._shape(records, spans)
            dead = any(partition.dead for partition in seen.values())
            with explained(self._source.brokers):
                letters = self._dead_letters(decoded) if dead else []
        finally:
            decoded.unpersist()
        return Reading(seen, rows, letters, refusals, size, staged)

    def forget(self, reading: Reading) -> None:
        if self._stages is not None:
            self._stages.drop(staged.name for staged in reading.staged.values())

    def cancel(self) -> None:
        self._spark.sparkContext.cancelJobGroup(self._run)

    def _load(self, spans: Sequence[Span]) -> DataFrame:
        reader = self._spark.read.format("kafka").options(**KAFKA_OPTIONS)
        return reader.options(
            **{
                **access.options(self._source.cluster),
                # One id per run lets the executors reuse their consumers; nothing is ever committed to it.
                "kafka.group.id": f"tallymark-{self._run}",
                "assign": by_topic(spans, lambda parts: [span.partition.number for span in parts]),
                "startingOffsets": by_topic(spans, lambda parts: {span.partition.number: span.start for span in parts}),
                "endingOffsets": by_topic(spans, lambda parts: {span.partition.number: span.stop for span in parts}),
            }
        ).load()

    def _shape(self, records: DataFrame, spans: Sequence[Span]) -> tuple[dict[str, pa.Table], list[Refusal]]:
        """The rows of every table, and the records that a function failed on: these are in none of them."""
        refusals: list[Refusal] = []
        while True:
            good = leave_out(records, [refusal.record for refusal in refusals])
            try:
                return {spec.name: self._rows(spec, function, good) for spec, function in self._tables}, refusals
            except FunctionFailed as failure:
                poison = self._poisonous(failure, good, spans)
                if not poison:
                    raise
                refusals += poison

    def _stage(self, records: DataFrame, batch: str) -> dict[str, Staged]:
        """The rows of every table, written by the executors to tables that nobody sees."""
        assert self._stages is not None
        staged: dict[str, Staged] = {}
        try:
            for spec, function in self._tables:
                with explained(self._source.brokers, spec.name):
                    rows = _as_columns(self._apply(spec, function, records))
                    staged[spec.name] = stage(self._stages, spec, rows, self.schemas()[spec.name], batch)
        except (FunctionFailed, BatchTooLarge) as error:
            self._stages.drop(table.name for table in staged.values())
            # A task that could not reach the store looks like a function that failed.
            _, unreachable, words = str(error).partition(f"{Unreachable.__module__}.{Unreachable.__name__}: ")
            if unreachable:
                raise Unreachable(f"an executor could not stage rows: {words}") from error
            raise BatchTooLarge(str(error)) from error
        return staged

    def _no_rows(self) -> dict[str, pa.Table]:
        return {name: schema.empty_table() for name, schema in self.schemas().items()}

    def _rows(self, spec: TableSpec, function: TableFunction, records: DataFrame) -> pa.Table:
        with explained(self._source.brokers, spec.name):
            rows = _as_columns(self._apply(spec, function, records))
            return collect(spec, rows, self._source.topic_names)

    def _poisonous(self, failure: FunctionFailed, records: DataFrame, spans: Sequence[Span]) -> list[Refusal]:
        spec, function = next(table for table in self._tables if table[0].name == failure.table)
        if OFFSET not in self._apply(spec, function, records).columns:
            return []

        def attempt(span: Span) -> str | None:
            try:
                self._rows(spec, function, records.where(within(span)).coalesce(1))
            except FunctionFailed as error:
                return error.words
            return None

        found = poisonous(spans, attempt, MOST_POISON)
        if len(found) > MOST_POISON:
            raise TooManyDead(
                f"table {spec.name}: its function failed on more than {MOST_POISON} records of a batch, "
                f"one of them: {failure.words}; nothing moved: correct the function"
            )
        return [Refusal(*record, spec.name, words) for record, words in found.items()]

    def _apply(self, spec: TableSpec, function: TableFunction, records: DataFrame) -> DataFrame:
        """The function's rows with their hidden columns, as far as each comes from a single record."""
        if spec.deletes is None:
            return with_provenance(_call(spec, function, records), records)
        try:
            flagged = records.withColumn(DELETED, F.expr(spec.deletes).cast("boolean"))
        except PySparkException as error:
            raise BadInput(f"table {spec.name}: delete={spec.delete!r} can't be read: {first_line(error)}") from None
        rows = with_provenance(_call(spec, function, flagged.drop(DELETED)), flagged)
        if DELETED not in rows.columns:
            raise BadInput(
                f"table {spec.name}: delete= needs a function that makes each row of a single record, "
                "and this one merges records"
            )
        return rows

    def _schema(self, spec: TableSpec, function: TableFunction, records: DataFrame) -> pa.Schema:
        result = self._apply(spec, function, records)
        result = result.drop(*HIDDEN)
        with explained(self._source.brokers, spec.name):
            columns = to_arrow_schema(_as_columns(result).schema)
        return pa.schema(
            field.with_metadata({JSON_MARK: b"1"}) if isinstance(result.schema[field.name].dataType, NESTED) else field
            for field in columns
        )

    def _dead_letters(self, batch: DataFrame) -> list[DeadLetter]:
        dead = batch.where(F.col(RAW).isNotNull()).select(
            "topic", "partition", "offset", "timestamp", "key", "headers", RAW
        )
        return [self._letter(row) for row in dead.toArrow().to_pylist()]

    def _letter(self, row: Mapping[str, Any]) -> DeadLetter:
        return DeadLetter(
            partition=Partition(row["topic"], row["partition"]),
            offset=row["offset"],
            record_time=row["timestamp"],
            key=row["key"],
            value=row[RAW],
            headers=[(header["key"], header["value"]) for header in row["headers"] or ()],
            table=None,
            error=explain(self._source.value, row[RAW]),
        )


def _count(batch: DataFrame) -> tuple[dict[Partition, Seen], int]:
    """Records and dead ones of each partition, the time of the last record, and the bytes of all."""
    counts = batch.groupBy("topic", "partition").agg(
        F.count("*").alias("records"),
        F.count(RAW).alias("dead"),
        F.max_by("timestamp", "offset").alias("last"),
        F.sum(SIZE).alias("size"),
    )
    rows = counts.toArrow().to_pylist()
    seen = {Partition(row["topic"], row["partition"]): Seen(row["records"], row["dead"], row["last"]) for row in rows}
    return seen, sum(row["size"] for row in rows)


def _rows_within(size: int, seen: Mapping[Partition, Seen]) -> int:
    """How many rows to put into an Arrow batch, by the average size of a record."""
    average = size / max(1, sum(partition.records for partition in seen.values()))
    return max(1, min(10_000, int(ARROW_BATCH / max(1.0, average))))


def _call(spec: TableSpec, function: TableFunction, records: DataFrame) -> DataFrame:
    try:
        result = function(records)
    except TallymarkError:
        raise
    except Exception as error:
        said = first_line(error)
        raise BadInput(f"table {spec.name}: its function raised {type(error).__name__}: {said}") from error
    if not isinstance(result, DataFrame):
        raise BadInput(f"table {spec.name}: its function must return a DataFrame, not {type(result).__name__}")
    _check_names(spec, result.columns)
    return result


def _check_names(spec: TableSpec, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if [n.lower() for n in names].count(name.lower()) > 1})
    if twice:
        raise BadInput(f"table {spec.name}: its function returns {' and '.join(twice)} more than once; rename one")
    hidden = [name for name in names if name in HIDDEN]
    if hidden or not names:
        raise BadInput(f"table {spec.name}: its function must return columns, none of them called {' '.join(HIDDEN)}")


def _as_columns(result: DataFrame) -> DataFrame:
    """What databases have no type for goes as JSON text."""
    nested = {field.name for field in result.schema if isinstance(field.dataType, NESTED)}
    if not nested:
        return result
    return result.select(*(F.to_json(result[n]).alias(n) if n in nested else result[n] for n in result.columns))
