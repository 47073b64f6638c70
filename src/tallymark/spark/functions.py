"""Calls the tables' functions, checks their results, and collects the rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from tallymark.core.tables import DELETED, HIDDEN, TIMESTAMP, TOPIC, TableSpec
from tallymark.errors import BadInput, TallymarkError
from tallymark.spark.errors import first_line
from tallymark.spark.plans import NESTED, bound, column, quoted, with_provenance
from tallymark.stores.arrow import JSON_MARK

TableFunction = Callable[[DataFrame], DataFrame]
EXACT = (T.StringType, T.BooleanType, T.IntegralType, T.FractionalType, T.BinaryType, T.NullType)
"""Types that PySpark converts to Python and back without a loss."""
NUMBERS: dict[type[T.DataType], str] = {
    T.DateType: "unix_date({0}) AS {0}",
    T.TimestampType: "unix_micros({0}) AS {0}",
    T.TimestampNTZType: "unix_micros(CAST({0} AS TIMESTAMP)) AS {0}",
}
"""Times as numbers: PySpark converts a timestamp by the time zone of this process."""
STORED = {number: pa.int32() if kind is T.DateType else pa.int64() for kind, number in NUMBERS.items()}


def apply(spec: TableSpec, function: TableFunction, records: DataFrame, users: SparkSession | None = None) -> DataFrame:
    """The function's rows, with hidden columns if each row comes from a single record.

    The function runs in the session ``users``, with the user's settings and views; the rows belong to the session of
    the records.
    """
    flagged = records
    if spec.deletes is not None:
        try:
            flagged = records.withColumn(DELETED, F.expr(spec.deletes).cast("boolean"))
        except PySparkException as error:
            raise BadInput(f"table {spec.name}: delete={spec.delete!r} can't be parsed: {first_line(error)}") from None
    shown = bound(flagged.drop(DELETED), users or records.sparkSession)
    rows = with_provenance(call(spec, function, shown), flagged)
    if spec.deletes is not None and DELETED not in rows.columns:
        raise BadInput(
            f"table {spec.name}: delete= needs a function that makes each row from a single record, and this function "
            "merges records; leave out delete=, or do not merge"
        )
    return rows


def to_collect(spec: TableSpec, rows: DataFrame, topic: str | None) -> DataFrame:
    """The rows with as few hidden columns as possible, because each costs as much as a user's column.

    ``topic`` is the only topic, and ``complete`` adds it again.
    """
    return as_columns(rows).drop(*([TOPIC] if topic else []), *([TIMESTAMP] if spec.write == "append" else []))


def complete(rows: pa.Table, topic: str | None) -> pa.Table:
    """The rows with the hidden columns that ``to_collect`` leaves out."""
    if topic is None or not set(HIDDEN) & set(rows.column_names):
        return rows
    return rows.append_column(TOPIC, pa.repeat(topic, rows.num_rows))


def few(rows: DataFrame) -> pa.Table | None:
    """Collect rows without a job, if Spark has computed them while it planned the query; None for unusual types.

    Rows that are computed by a job take longer than with ``toArrow``.
    """
    if not all(isinstance(field.dataType, (*EXACT, *NUMBERS)) for field in rows.schema):
        return None
    kinds = {field.name: NUMBERS.get(type(field.dataType), "{0}") for field in rows.schema}
    # SQL text needs fewer calls to the JVM than columns.
    found = rows.selectExpr(*(kind.format(quoted(name)) for name, kind in kinds.items())).collect()
    columns = zip(*found, strict=True) if found else ([] for _ in kinds)
    schema = arrow_schema(rows)
    arrays = [
        pa.array(values, STORED.get(kinds[field.name], field.type)).cast(field.type)
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def arrow_schema(rows: DataFrame) -> pa.Schema:
    """The types of a DataFrame, with times in UTC: newer Spark versions need the argument, older versions lack it."""
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(rows.schema, **zone)


def schema_of(rows: DataFrame) -> pa.Schema:
    """The columns of a table; columns that hold JSON are marked."""
    result = rows.drop(*HIDDEN)
    columns = arrow_schema(as_columns(result))
    return pa.schema(
        field.with_metadata({JSON_MARK: b"1"}) if isinstance(result.schema[field.name].dataType, NESTED) else field
        for field in columns
    )


def check_arrays(spec: TableSpec, rows: DataFrame) -> None:
    """Refuse to append what is no array. A VARIANT may hold one, which its values tell."""
    for field in rows.schema:
        if field.name in spec.bounds and not isinstance(field.dataType, T.ArrayType | T.VariantType):
            raise BadInput(
                f"table {spec.name}: column {field.name} is {field.dataType.simpleString()}, and append needs an array"
            )


_calling = threading.Lock()
"""Several threads compute rows, and a function may use temporary views, which belong to the session."""


def call(spec: TableSpec, function: TableFunction, records: DataFrame) -> DataFrame:
    """The function's result, checked. Functions are called one at a time."""
    try:
        with _calling:
            result = function(records)
    except TallymarkError:
        raise
    except Exception as error:
        words = first_line(error)
        raise BadInput(f"table {spec.name}: its function raised {type(error).__name__}: {words}") from error
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
        raise BadInput(f"table {spec.name}: its function must return columns, and none named {', '.join(HIDDEN)}")


def as_columns(result: DataFrame) -> DataFrame:
    """Convert nested types, which databases do not have, to JSON text."""
    nested = {field.name for field in result.schema if isinstance(field.dataType, NESTED)}
    if not nested:
        return result
    return result.select(*(F.to_json(column(n)).alias(n) if n in nested else column(n) for n in result.columns))
