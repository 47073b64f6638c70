"""Stages the rows of large batches from the executors, so that they never pass through the driver."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from decimal import Context, Decimal

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DecimalType

from tallymark.core.tables import (
    HIDDEN,
    OFFSET,
    PARTITION,
    PROVENANCE,
    TIMESTAMP,
    TOPIC,
    Staged,
    TableSpec,
    table_schema,
)
from tallymark.errors import BatchTooLarge, Unreachable
from tallymark.spark.plans import column
from tallymark.stores.sql.staging import Stages

AGE, RANK = "_tallymark_age", "_tallymark_rank"
EXACT = Context(prec=38)
STAGED = "attempt BIGINT, rows BIGINT, refused STRING"


def can_stage() -> bool:
    """Whether pandas is installed, which Spark requires for mapInArrow although it does not use it."""
    return importlib.util.find_spec("pandas") is not None


def stage(stages: Stages, spec: TableSpec, rows: DataFrame, schema: pa.Schema, batch: str) -> Staged:
    """Write rows, given with their hidden columns, to a staging table. Only the tasks' reports travel to the driver."""
    if spec.deletes is not None:
        raise BatchTooLarge(f"table {spec.name} deletes rows, which only the driver can do")
    if spec.write == "merge":
        rows = combined(spec, rows, schema)
    elif spec.write != "append":
        rows = one_per_key(spec, rows)
    if spec.provenance:
        origin = [F.col(TOPIC), F.col(PARTITION), F.col(OFFSET), F.lit(batch)]
        rows = rows.withColumns(dict(zip(PROVENANCE, origin, strict=True)))
    columns = table_schema(spec, schema)
    loader = replace(stages.open(columns), key=spec.key)
    # PySpark's mapInArrow does not accept names with dots; the loader knows the names.
    numbered = [column(name).alias(f"_{at}") for at, name in enumerate(columns.names)]
    reports = rows.select(*numbered).mapInArrow(loader, STAGED)
    with stages.kept([loader.name]):
        return loader.staged(reports.toArrow().to_pylist())


def check_reached(error: Exception) -> None:
    """Raise ``Unreachable`` if a task could not reach the store, which Spark reports like a failed function."""
    _, unreachable, words = str(error).partition(f"{Unreachable.__module__}.{Unreachable.__name__}: ")
    if unreachable:
        raise Unreachable(f"an executor could not stage rows: {words}") from error


def one_per_key(spec: TableSpec, rows: DataFrame) -> DataFrame:
    """The newest row of each key, or the oldest for ``write="ignore"``: ``finish``, distributed over the executors."""
    if OFFSET not in rows.columns:
        raise BatchTooLarge(f"table {spec.name} merges records, and only the driver can check the keys of merged rows")
    key = [column(name) for name in spec.key]
    in_partition = Window.partitionBy(*key, TOPIC, PARTITION)
    # A timestamp lower than that of an earlier offset counts as the highest before it.
    rows = rows.withColumn(AGE, F.max(TIMESTAMP).over(in_partition.orderBy(OFFSET)))
    others = [name for name in rows.columns if name not in (*HIDDEN, AGE, *spec.key)]
    version = [column(spec.version).desc_nulls_last()] if spec.version else []
    ages = [_order(spec, name, null_is_oldest=True) for name in (AGE, TOPIC, PARTITION, OFFSET)]
    columns = [_order(spec, name, null_is_oldest=False) for name in others]
    for window in (in_partition, Window.partitionBy(*key)):
        newest = window.orderBy(*version, *ages, *columns)
        rows = rows.withColumn(RANK, F.row_number().over(newest)).where(F.col(RANK) == 1)
    return rows


def combined(spec: TableSpec, rows: DataFrame, schema: pa.Schema) -> DataFrame:
    """One row for each key, combined as in ``core/merging.py``, by functions that do not depend on the order."""
    keys = [column(name) for name in spec.key]
    merged = [_combined(spec.functions[field.name], field) for field in schema if field.name in spec.functions]
    return rows.groupBy(*keys).agg(*merged).select(*map(column, schema.names))


def _combined(function: str, field: pa.Field) -> Column:
    value = column(field.name)
    if pa.types.is_floating(field.type):
        finite = value.isNull() | (F.abs(value) < float("inf"))
        value = F.when(finite, value).otherwise(F.raise_error(F.lit(f"column {field.name} is not finite")))
    if function == "count":
        value = F.coalesce(value, F.lit(0))
    if function in ("min", "max"):
        result = F.min(value) if function == "min" else F.max(value)
    elif pa.types.is_floating(field.type):
        result = F.sum(value).cast(from_arrow_type(field.type))
    else:
        result = _exact_sum(value, field)
    return result.alias(field.name)


def _exact_sum(value: Column, field: pa.Field) -> Column:
    """The sum of integers or decimals. Without ANSI mode, Spark would turn one that is too large to NULL."""
    if pa.types.is_decimal(field.type):
        scale, most = field.type.scale, Decimal(10**field.type.precision - 1).scaleb(-field.type.scale, EXACT)
    else:
        scale, most = 0, Decimal(2 ** (field.type.bit_width - 1) - 1)
    total = F.sum(value.cast(DecimalType(38, scale)))
    wrong = F.raise_error(F.lit(f"column {field.name}: the sum does not fit {field.type}"))
    fits = F.abs(total) <= F.lit(most)
    return F.when(F.count(value) == 0, F.lit(None)).when(fits, total.cast(from_arrow_type(field.type))).otherwise(wrong)


def _order(spec: TableSpec, name: str, *, null_is_oldest: bool) -> Column:
    """Sort order with the row to keep first: the newest, or the oldest for ``write="ignore"``."""
    if spec.write == "ignore":
        return column(name).asc_nulls_first() if null_is_oldest else column(name).asc_nulls_last()
    return column(name).desc_nulls_last() if null_is_oldest else column(name).desc_nulls_first()
