"""What contenders do with records: the functions of tables, which pipelines and streaming queries share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from bench.harness import tables
from bench.harness.race import Course, Lap
from bench.harness.records import DDL, NESTED_DDL, SCHEMA
from bench.harness.tables import ITEMS, Mode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tallymark.spark.pipeline import Pipeline


def picked(records: DataFrame) -> DataFrame:
    """The function of most tables."""
    return records.select("value.*")


def computed(records: DataFrame) -> DataFrame:
    """Filters and computes, so that only Spark can evaluate it."""
    from pyspark.sql import functions as F  # noqa: N812

    kept = records.select("value.*").where(F.col("amount") >= 0)
    total = F.round(F.col("amount") * 1.19, 2).cast("double")
    return kept.withColumn("customer", F.upper("customer")).withColumn("amount", total)


def orders(records: DataFrame) -> DataFrame:
    """Two of three nested orders."""
    from pyspark.sql import functions as F  # noqa: N812

    return records.where("value.status <> 'new'").select(
        "value.id",
        "value.at",
        F.upper("value.customer.name").alias("name"),
        F.col("value.customer.address.city").alias("city"),
        F.round(F.col("value.total") * 1.19, 2).alias("amount"),
        F.size("value.items").alias("items"),
    )


def items(records: DataFrame) -> DataFrame:
    """A row for each item of a nested order."""
    from pyspark.sql import functions as F  # noqa: N812

    one = records.select("value.id", F.explode("value.items").alias("item")).where("item.quantity > 0")
    amount = F.col("item.price") * F.col("item.quantity")
    return one.select("id", "item.sku", "item.quantity", amount.alias("amount"))


@dataclass(frozen=True)
class Output:
    """One table: its function, its columns, and the number of rows that so many records become."""

    function: Callable[[DataFrame], DataFrame]
    schema: pa.Schema = SCHEMA
    rows: Callable[[int], int] = int
    suffix: str = ""
    """What the name of the table has after that of the course's table."""


@dataclass(frozen=True)
class Workload:
    """The schema of the values, and the tables that are filled from them."""

    outputs: tuple[Output, ...]
    ddl: str = DDL
    in_query: bool = False
    """Whether a streaming query has the only function before ``foreachBatch``, which saves a copy of each value.

    A function that filters belongs inside: Spark pushes the filter below ``from_json`` and would parse values twice.
    """

    def tables(self, course: Course) -> dict[str, Output]:
        return {f"{course.table}{output.suffix}": output for output in self.outputs}

    def add_tables(self, pipeline: Pipeline, course: Course, mode: Mode) -> None:
        """Have a pipeline fill all tables."""
        for table, output in self.tables(course).items():
            spec = tables.spec(replace(course, table=table), mode)
            pipeline.table(spec.name, key=spec.key, write=spec.write)(output.function)

    def prepare(self, course: Course, mode: Mode = "append") -> None:
        """Make all tables anew."""
        for table, output in self.tables(course).items():
            tables.prepare(replace(course, table=table), mode, output.schema)

    def lap(self, course: Course, name: str, seconds: float, first: tuple[int, float] = (0, 0.0)) -> Lap:
        """Return a lap over all records of the course if every table has exactly its rows."""
        rows = {table: output.rows(course.records) for table, output in self.tables(course).items()}
        return tables.lap(course, name, course.records, seconds, first, rows)


PICKED = Workload((Output(picked),), in_query=True)
COMPUTED = Workload((Output(computed),))
ORDERS = Output(
    orders,
    pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("name", pa.string()),
            ("city", pa.string()),
            ("amount", pa.float64()),
            ("items", pa.int32()),
        ]
    ),
    lambda records: sum(number % 3 > 0 for number in range(records)),
)
ITEM_ROWS = Output(
    items,
    pa.schema([("id", pa.int64()), ("sku", pa.string()), ("quantity", pa.int32()), ("amount", pa.float64())]),
    lambda records: sum(1 + number % 3 for number in range(records)),
    ITEMS,
)
NESTED = Workload((ORDERS, ITEM_ROWS), NESTED_DDL)
