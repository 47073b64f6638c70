"""The Reader on Spark: each batch is read from Kafka once, counted, and shaped into tables.

The decoded batch is cached for the moment it takes to count it, run the tables' functions and pick out the dead
letters, so that all three see the same records. A lost executor or a speculative task only recomputes its part of the
same spans.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from tallymark.errors import BadInput
from tallymark.read import DeadLetter, Reading, Seen
from tallymark.shape import PROVENANCE, TableSpec
from tallymark.source import Kafka
from tallymark.spans import Partition, Span
from tallymark.spark.decode import RAW, RECORD, Decoder, explain, first_line
from tallymark.spark.failures import explained
from tallymark.spark.provenance import with_provenance
from tallymark.stores.columns import JSON_MARK

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
NESTED = (T.StructType, T.ArrayType, T.MapType)


class SparkReader:
    """Reads spans of a Kafka source with Spark and applies the tables' functions."""

    def __init__(
        self, spark: SparkSession, source: Kafka, tables: Sequence[tuple[TableSpec, TableFunction]], run: str
    ) -> None:
        self._spark = spark
        self._source = source
        self._tables = tables
        self._run = run
        self._decode = Decoder(source.value)
        self._schemas: dict[str, pa.Schema] | None = None
        # Whatever the session says: JSON timestamps without a zone are UTC, and so are those in the tables.
        self._spark.conf.set("spark.sql.session.timeZone", "UTC")

    def schemas(self) -> Mapping[str, pa.Schema]:
        if self._schemas is None:
            records = self._decode(self._spark.createDataFrame([], RAW_RECORDS)).select(*RECORD)
            self._schemas = {spec.name: self._schema(spec, function, records) for spec, function in self._tables}
        return self._schemas

    def read(self, spans: Sequence[Span]) -> Reading:
        self._spark.sparkContext.setJobGroup(self._run, f"tallymark batch of {sum(map(len, spans))} offsets")
        batch = self._decode(self._load(spans)).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with explained(self._source.brokers):
                seen = _count(batch)
            records = batch.where(F.col(RAW).isNull()).select(*RECORD)
            rows = {spec.name: self._rows(spec, function, records) for spec, function in self._tables}
            dead = any(partition.dead for partition in seen.values())
            with explained(self._source.brokers):
                letters = self._dead_letters(batch) if dead else []
        finally:
            batch.unpersist()
        return Reading(seen, rows, letters)

    def cancel(self) -> None:
        self._spark.sparkContext.cancelJobGroup(self._run)

    def _load(self, spans: Sequence[Span]) -> DataFrame:
        reader = self._spark.read.format("kafka").options(**KAFKA_OPTIONS)
        return reader.options(
            **{
                "kafka.bootstrap.servers": self._source.brokers,
                # One id per run lets the executors reuse their consumers; nothing is ever committed to it.
                "kafka.group.id": f"tallymark-{self._run}",
                "assign": _by_topic(spans, lambda parts: [span.partition.number for span in parts]),
                "startingOffsets": _by_topic(
                    spans, lambda parts: {span.partition.number: span.start for span in parts}
                ),
                "endingOffsets": _by_topic(spans, lambda parts: {span.partition.number: span.stop for span in parts}),
            }
        ).load()

    def _rows(self, spec: TableSpec, function: TableFunction, records: DataFrame) -> pa.Table:
        with explained(self._source.brokers, spec.name):
            return _as_columns(self._apply(spec, function, records)).toArrow()

    def _apply(self, spec: TableSpec, function: TableFunction, records: DataFrame) -> DataFrame:
        result = _call(spec, function, records)
        return with_provenance(result, records) if spec.write == "upsert" else result

    def _schema(self, spec: TableSpec, function: TableFunction, records: DataFrame) -> pa.Schema:
        result = _call(spec, function, records)
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


def _by_topic(spans: Sequence[Span], form: Callable[[list[Span]], Any]) -> str:
    """JSON as the Kafka source takes it, an entry for each topic."""
    topics: dict[str, list[Span]] = {}
    for span in spans:
        topics.setdefault(span.partition.topic, []).append(span)
    return json.dumps({topic: form(parts) for topic, parts in topics.items()})


def _count(batch: DataFrame) -> dict[Partition, Seen]:
    """Records and dead ones of each partition, and the time of the last record."""
    counts = batch.groupBy("topic", "partition").agg(
        F.count("*").alias("records"), F.count(RAW).alias("dead"), F.max_by("timestamp", "offset").alias("last")
    )
    return {
        Partition(row["topic"], row["partition"]): Seen(row["records"], row["dead"], row["last"])
        for row in counts.toArrow().to_pylist()
    }


def _call(spec: TableSpec, function: TableFunction, records: DataFrame) -> DataFrame:
    try:
        result = function(records)
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
    hidden = [name for name in names if name in PROVENANCE]
    if hidden or not names:
        raise BadInput(
            f"table {spec.name}: its function must return columns, none of them called {' '.join(PROVENANCE)}"
        )


def _as_columns(result: DataFrame) -> DataFrame:
    """What databases have no type for goes as JSON text."""
    nested = {field.name for field in result.schema if isinstance(field.dataType, NESTED)}
    if not nested:
        return result
    return result.select(*(F.to_json(result[n]).alias(n) if n in nested else result[n] for n in result.columns))
