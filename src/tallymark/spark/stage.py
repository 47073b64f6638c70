"""The executors' road: a large batch goes from the tasks straight to staging tables, and never through the driver."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from tallymark.errors import BatchTooLarge, Unreachable
from tallymark.shape import HIDDEN, OFFSET, PARTITION, PROVENANCE, TIMESTAMP, TOPIC, Staged, TableSpec, table_schema
from tallymark.spark.decode import column
from tallymark.stores.staging import Stages

BYTES_PER_BATCH = "spark.sql.execution.arrow.maxBytesPerBatch"
AGE, RANK = "_tallymark_age", "_tallymark_rank"
REPORT = "attempt BIGINT, rows BIGINT, refused STRING"


def can_stage() -> bool:
    """Whether Spark has what it wants for mapInArrow, whether it is used or not."""
    return importlib.util.find_spec("pandas") is not None


def stage(stages: Stages, spec: TableSpec, rows: DataFrame, schema: pa.Schema, batch: str) -> Staged:
    """Write rows, with their hidden columns, to a staging table. Only the tasks' reports come back."""
    if spec.deletes is not None:
        raise BatchTooLarge(f"table {spec.name} deletes rows, which goes through the driver")
    if spec.write != "append":
        rows = one_per_key(spec, rows)
    if spec.provenance:
        origin = [F.col(TOPIC), F.col(PARTITION), F.col(OFFSET), F.lit(batch)]
        rows = rows.withColumns(dict(zip(PROVENANCE, origin, strict=True)))
    wanted = table_schema(spec, schema)
    loader = replace(stages.open(wanted), key=spec.key)
    reports = rows.select(*map(column, wanted.names)).mapInArrow(loader, REPORT)
    with stages.kept([loader.name]):
        return loader.staged(reports.toArrow().to_pylist())


@contextmanager
def counting_rows(spark: SparkSession) -> Iterator[None]:
    """Batches for Python fit by the number of their rows alone.

    To keep to a number of bytes, too, Spark adds up all columns again after every single row.
    """
    before = spark.conf.get(BYTES_PER_BATCH, None)
    spark.conf.set(BYTES_PER_BATCH, 2**31 - 1)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(BYTES_PER_BATCH)
        else:
            spark.conf.set(BYTES_PER_BATCH, before)


def check_reached(error: Exception) -> None:
    """A task that could not reach the store looks like a function that failed: raise it as what it is."""
    _, unreachable, words = str(error).partition(f"{Unreachable.__module__}.{Unreachable.__name__}: ")
    if unreachable:
        raise Unreachable(f"an executor could not stage rows: {words}") from error


def one_per_key(spec: TableSpec, rows: DataFrame) -> DataFrame:
    """Of each key the newest row, or the oldest where the first one in stays: shape.finish, spread over executors."""
    if OFFSET not in rows.columns:
        raise BatchTooLarge(f"table {spec.name} merges records, whose keys are checked on the driver")
    key = [column(name) for name in spec.key]
    in_partition = Window.partitionBy(*key, TOPIC, PARTITION)
    # A timestamp that goes back counts as the latest before it.
    rows = rows.withColumn(AGE, F.max(TIMESTAMP).over(in_partition.orderBy(OFFSET)))
    others = [name for name in rows.columns if name not in (*HIDDEN, AGE, *spec.key)]
    version = [column(spec.version).desc_nulls_last()] if spec.version else []
    ages = [_order(spec, name, null_is_oldest=True) for name in (AGE, TOPIC, PARTITION, OFFSET)]
    columns = [_order(spec, name, null_is_oldest=False) for name in others]
    for window in (in_partition, Window.partitionBy(*key)):
        newest = window.orderBy(*version, *ages, *columns)
        rows = rows.withColumn(RANK, F.row_number().over(newest)).where(F.col(RANK) == 1)
    return rows


def _order(spec: TableSpec, name: str, *, null_is_oldest: bool) -> Column:
    """The row to keep first: the newest, or the oldest where the first one in stays."""
    if spec.write == "ignore":
        return column(name).asc_nulls_first() if null_is_oldest else column(name).asc_nulls_last()
    return column(name).desc_nulls_last() if null_is_oldest else column(name).desc_nulls_first()
