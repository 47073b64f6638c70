"""The tables' functions: called with records, checked, and their rows brought into a form that databases take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from tallymark.errors import BadInput, TallymarkError
from tallymark.shape import DELETED, HIDDEN, TableSpec
from tallymark.spark.decode import column, first_line
from tallymark.spark.provenance import with_provenance
from tallymark.stores.columns import JSON_MARK

TableFunction = Callable[[DataFrame], DataFrame]
NESTED = (T.StructType, T.ArrayType, T.MapType, T.VariantType)


def apply(spec: TableSpec, function: TableFunction, records: DataFrame) -> DataFrame:
    """The function's rows with their hidden columns, as far as each comes from a single record."""
    if spec.deletes is None:
        return with_provenance(call(spec, function, records), records)
    try:
        flagged = records.withColumn(DELETED, F.expr(spec.deletes).cast("boolean"))
    except PySparkException as error:
        raise BadInput(f"table {spec.name}: delete={spec.delete!r} can't be read: {first_line(error)}") from None
    rows = with_provenance(call(spec, function, flagged.drop(DELETED)), flagged)
    if DELETED not in rows.columns:
        raise BadInput(
            f"table {spec.name}: delete= needs a function that makes each row of a single record, "
            "and this one merges records"
        )
    return rows


def arrow_schema(rows: DataFrame) -> pa.Schema:
    """The types of a DataFrame, with times in UTC: newer Sparks want to be told, and older ones have no word for it."""
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(rows.schema, **zone)


def schema_of(rows: DataFrame) -> pa.Schema:
    """The columns that a table gets, with a mark on those that hold JSON."""
    result = rows.drop(*HIDDEN)
    columns = arrow_schema(as_columns(result))
    return pa.schema(
        field.with_metadata({JSON_MARK: b"1"}) if isinstance(result.schema[field.name].dataType, NESTED) else field
        for field in columns
    )


def call(spec: TableSpec, function: TableFunction, records: DataFrame) -> DataFrame:
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


def as_columns(result: DataFrame) -> DataFrame:
    """What databases have no type for goes as JSON text."""
    nested = {field.name for field in result.schema if isinstance(field.dataType, NESTED)}
    if not nested:
        return result
    return result.select(*(F.to_json(column(n)).alias(n) if n in nested else column(n) for n in result.columns))
