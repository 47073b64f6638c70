"""Identifies a micro-batch of a user's streaming query, and converts its rows to changes of tables."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from tallymark.core.newest import finish
from tallymark.core.tables import DELETED, OFFSET, PARTITION, TOPIC, Changes, TableSpec
from tallymark.errors import BadInput
from tallymark.spark.errors import explained, first_line
from tallymark.spark.executors import stage
from tallymark.spark.functions import TableFunction, arrow_schema, as_columns, call
from tallymark.spark.plans import NESTED, column
from tallymark.stores.arrow import JSON_MARK
from tallymark.stores.sql.staging import Stages

QUERY = "sql.streaming.queryId"
SOURCE = "the query's source"
RANK = "_tallymark_rank"


@dataclass(frozen=True)
class Microbatch:
    """``query`` is the id in the checkpoint; ``run`` changes whenever the query is started.

    ``name`` stays the same when Spark repeats the micro-batch, because it is derived from the planned offsets and the
    time of planning. A micro-batch that is planned again has another name.
    """

    query: str
    run: str
    number: int
    name: str
    is_active: Callable[[], bool]
    """Whether the query still runs."""
    failure: Callable[[], str | None]
    """The error that ended the query, if any."""


def identify(rows: DataFrame, number: int) -> Microbatch:
    """Identify the micro-batch. Spark passes only the number; the rest comes from the running query."""
    try:
        execution = _execution(rows)
        planned = execution.offsetLog().get(number).get()
        # Offsets alone do not identify the rows: those of a file source are only counters.
        when = planned.metadata().get().batchTimestampMs()
        query, run = execution.id().toString(), execution.runId().toString()
    except Exception as error:
        raise BadInput(
            "foreach_batch can't identify the streaming query that calls it: pass it to writeStream.foreachBatch "
            f"directly, in a session without Spark Connect ({first_line(error)})"
        ) from error
    name = f"{query.split('-')[0]}-{number}-{zlib.crc32(f'{planned.toString()} {when}'.encode()):08x}"
    return Microbatch(query, run, number, name, lambda: _active(execution), lambda: _failure(execution))


def _active(execution: Any) -> bool:
    try:
        return bool(execution.isActive())
    except Py4JError:
        # Spark has ended, and the query with it.
        return False


def _failure(execution: Any) -> str | None:
    try:
        error = execution.exception()
        return str(error.get().getMessage()).splitlines()[0] if error.isDefined() else None
    except (Py4JError, OSError):
        return None


def _execution(rows: DataFrame) -> Any:
    session: Any = rows.sparkSession
    query = session._jvm.java.util.UUID.fromString(session.sparkContext.getLocalProperty(QUERY))
    # The session of a micro-batch is a clone, whose own list of queries is empty.
    return session._jsparkSession.sharedState().activeStreamingQueries().get(query)


def table_rows(spec: TableSpec, function: TableFunction, rows: DataFrame) -> DataFrame:
    """The function's result; if the table has a version, only the newest row of each key."""
    result = call(spec, function, rows)
    if spec.delete is not None:
        try:
            result = result.withColumn(DELETED, F.expr(spec.delete).cast("boolean"))
        except PySparkException as error:
            raise BadInput(f"table {spec.name}: delete={spec.delete!r} can't be parsed: {first_line(error)}") from None
    if spec.version is None or not {spec.version, *spec.key} <= set(result.columns):
        return result
    same_key, version = Window.partitionBy(*map(column, spec.key)), column(spec.version)
    # Rows of equal version all stay and are refused later, because it is unknown which is the newest.
    rank = F.rank().over(same_key.orderBy(version.desc_nulls_last()))
    if spec.delete is not None:
        # Likewise, the order of a deletion without a version is unknown.
        rank = F.when(F.max(F.col(DELETED) & version.isNull()).over(same_key), 1).otherwise(rank)
    return result.withColumn(RANK, rank).where(f"{RANK} = 1").drop(RANK)


def schema(spec: TableSpec, result: DataFrame) -> pa.Schema:
    """The columns of the table; columns that hold JSON are marked."""
    result = result.drop(DELETED)
    with explained(SOURCE, spec.name):
        columns = arrow_schema(as_columns(result))
    nested = {field.name for field in result.schema if isinstance(field.dataType, NESTED)}
    return pa.schema(field.with_metadata({JSON_MARK: b"1"}) if field.name in nested else field for field in columns)


def collected(spec: TableSpec, result: DataFrame, batch: str) -> Changes:
    """Collect the rows in the driver, numbered, so that a refused row can be identified."""
    with explained(SOURCE, spec.name):
        changes = finish(spec, _in_utc(as_columns(result).toArrow()), batch)
    puts = _numbered(changes.puts, batch, 0)
    return replace(changes, puts=puts, deletes=_numbered(changes.deletes, batch, puts.num_rows))


def staged(spec: TableSpec, result: DataFrame, batch: str, stages: Stages) -> Changes:
    """Have the executors write the rows to a staging table."""
    columns = schema(spec, result)
    with explained(SOURCE, spec.name):
        for key in result.groupBy(*map(column, spec.key)).count().where("count > 1").take(1) if spec.key else ():
            values = ", ".join(f"{name} {key[name]}" for name in spec.key)
            raise BadInput(f"table {spec.name}: several rows have {values}; aggregate to one row per key")
        as_they_are = TableSpec(spec.name)
        done = stage(stages, as_they_are, as_columns(result), columns, batch)
    return Changes(spec, columns.empty_table(), columns.empty_table(), done)


def described(changes: Changes, row: int) -> str:
    """A description of a numbered row, with its key if the table has a key."""
    rows, at = (changes.puts, row) if row < changes.puts.num_rows else (changes.deletes, row - changes.puts.num_rows)
    key: Sequence[str] = changes.spec.key
    return "the row with " + ", ".join(f"{name} {rows[name][at].as_py()}" for name in key) if key else "a row"


def _in_utc(rows: pa.Table) -> pa.Table:
    """Convert timestamps to UTC from the time zone of the query's session."""
    fields = [
        field.with_type(pa.timestamp(field.type.unit, "UTC")) if getattr(field.type, "tz", None) else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def _numbered(rows: pa.Table, batch: str, first: int) -> pa.Table:
    count = rows.num_rows
    rows = rows.append_column(TOPIC, pa.repeat(batch, count)).append_column(PARTITION, pa.repeat(0, count))
    return rows.append_column(OFFSET, pa.array(range(first, first + count), pa.int64()))
