"""Totals by key in PostgreSQL: the workload, and what PySpark users write without merged tables, with a state store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
from sqlalchemy import text

from bench.contenders.limits import running
from bench.contenders.streaming import decoded, timed
from bench.contenders.workloads import Workload
from bench.harness import jdbc, tables
from bench.harness.race import Course, Idle, Lap
from bench.harness.records import SALES_DDL, SALES_KEYS, pieces, sales
from bench.harness.tables import Mode
from tallymark.errors import TallymarkError
from tallymark.stores.opening import open_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter

    from tallymark.spark.pipeline import Pipeline

Key = Literal["shop", "customer"]
Provider = Literal["HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"]
Upsert = Callable[[Course, Key, "DataFrame"], None]
STATE = "spark.sql.streaming.stateStore"
COLUMNS = ("orders", "revenue", "largest")
UNITS = {"orders": 1, "revenue": 100, "largest": 100}
SUMS = ("count(*)", *(f"sum({name} * {unit}{times})" for name, unit in UNITS.items() for times in ("", " * {key}")))
"""What of a table is compared: a total in the row of another key changes a sum."""


@dataclass(frozen=True)
class Totals(Workload):
    """Number, sum and largest amount of the sales of each key. ``by_record``: a row for each sale is merged."""

    outputs: tuple[()] = ()
    ddl: str = SALES_DDL
    key: Key = "shop"
    by_record: bool = False

    def add_tables(self, pipeline: Pipeline, course: Course, _: Mode) -> None:
        function = self.rows if self.by_record else self.totals
        pipeline.table(
            course.table,
            key=self.key,
            write="merge",
            merge={"orders": "count", "revenue": "sum", "largest": "max"},
        )(function)

    def totals(self, records: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        amount = F.col("value.amount")
        return records.groupBy(f"value.{self.key}").agg(
            F.count("*").alias("orders"), F.sum(amount).alias("revenue"), F.max(amount).alias("largest")
        )

    def rows(self, records: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        amount = F.col("value.amount")
        return records.select(
            f"value.{self.key}", F.lit(1).alias("orders"), amount.alias("revenue"), amount.alias("largest")
        )

    def prepare(self, course: Course, _: Mode = "append") -> None:
        """Make the table anew, as a user would: with the key and the types of the totals."""
        with closing(open_sql(course.url)) as store:
            tables.drop(store, course.table)
            with store.transaction() as connection:
                connection.execute(text(create_table(course.table, self.key)))
            tables.tidy(store, course.table)

    def lap(self, course: Course, name: str, seconds: float, first: tuple[int, float] = (0, 0.0)) -> Lap:
        """Return a lap over all records if the table has exactly the totals that they have."""
        with closing(open_sql(course.url)) as store, store.look() as connection:
            sums = ", ".join(SUMS).format(key=self.key)
            found = connection.execute(text(f"SELECT {sums} FROM {course.table}")).one()
        expected = truth(self.key, course.records)
        if tuple(found) != expected:
            raise TallymarkError(f"{name} wrote totals to {course.table} with the sums {found} instead of {expected}")
        return Lap(course.records, seconds, *first)


def create_table(table: str, key: Key) -> str:
    columns = "orders BIGINT NOT NULL, revenue NUMERIC(20, 2) NOT NULL, largest NUMERIC(10, 2) NOT NULL"
    return f"CREATE TABLE {table} ({key} BIGINT PRIMARY KEY, {columns})"


@cache
def truth(key: Key, records: int) -> tuple[int, ...]:
    """The sums of a table with the totals of all records, in cents; computed without Spark, Arrow and the database."""
    orders, cents, largest = np.zeros((3, SALES_KEYS[key]), np.int64)
    for start, stop in pieces(records):
        made = sales(start, stop)
        np.add.at(orders, made[key], 1)
        np.add.at(cents, made[key], made["cents"])
        np.maximum.at(largest, made[key], made["cents"])
    keys = np.arange(SALES_KEYS[key])
    sums = [int(sum_) for each in (orders, cents, largest) for sum_ in (each.sum(), (each * keys).sum())]
    return int(np.count_nonzero(orders)), *sums


@dataclass
class StateStore(Idle):
    """A streaming query with ``groupBy``, whose foreachBatch writes the totals that have changed. At least once."""

    name: str
    workload: Totals
    records: int
    provider: Provider
    upsert: Upsert

    def lap(self, course: Course) -> Lap:
        self.workload.prepare(course)
        with self._query(course) as ready:
            seconds = timed(ready)
        with closing(open_sql(course.url)) as store:
            tables.drop(store, staged(course))
        return self.workload.lap(course, self.name, seconds)

    @contextmanager
    def _query(self, course: Course) -> Iterator[DataStreamWriter]:
        conf = running().conf
        conf.set(f"{STATE}.providerClass", f"org.apache.spark.sql.execution.streaming.state.{self.provider}")
        conf.set(f"{STATE}.rocksdb.changelogCheckpointing.enabled", "true")
        values = decoded(course, self.workload.ddl, tuned=True, maxOffsetsPerTrigger=str(self.records))

        def write(rows: DataFrame, _: int) -> None:
            self.upsert(course, self.workload.key, rows)

        with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as checkpoint:
            query = self.workload.totals(values).writeStream.outputMode("update")
            yield query.foreachBatch(write).option("checkpointLocation", checkpoint)


def by_copy(course: Course, key: Key, rows: DataFrame) -> None:
    """Collect the totals as Arrow, COPY them to a temporary table, and merge that, in one transaction."""
    found = rows.toArrow()
    sink = pa.BufferOutputStream()
    plain = pa.table([_as_text(column) for column in found.columns], names=found.column_names)
    pa_csv.write_csv(plain, sink, pa_csv.WriteOptions(include_header=False))
    with psycopg.connect(course.url) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE incoming (LIKE {course.table}) ON COMMIT DROP")
        with cursor.copy(f"COPY incoming ({', '.join(found.column_names)}) FROM STDIN (FORMAT csv)") as copy:
            copy.write(memoryview(sink.getvalue()))
        cursor.execute(overwrite(course, key, "incoming"))


def by_jdbc(course: Course, key: Key, rows: DataFrame) -> None:
    """Write the totals to a staging table by Spark's own writer, and merge that."""
    options = {**jdbc.spark_options(course, tuned=True), "dbtable": staged(course)}
    rows.write.format("jdbc").options(**options).mode("overwrite").save()
    with psycopg.connect(course.url) as connection:
        connection.execute(overwrite(course, key, staged(course)))


def staged(course: Course) -> str:
    return f"{course.table}_items"


def overwrite(course: Course, key: Key, source: str) -> str:
    """The statement that overwrites the totals of the keys of ``source``."""
    names = ", ".join([key, *COLUMNS])
    changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in COLUMNS)
    return (
        f"INSERT INTO {course.table} ({names}) SELECT {names} FROM {source} ON CONFLICT ({key}) DO UPDATE SET {changes}"
    )


def _as_text(column: Any) -> Any:
    return column.cast(pa.string()) if pa.types.is_decimal(column.type) else column
