"""Rows per second from a DataFrame to COMMIT: every store, mode and batch size, beside Spark's own JDBC writer.

All contenders write the same cached DataFrame.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from bench.contenders.limits import running
from bench.harness import jdbc, tables
from bench.harness.command import Command, run
from bench.harness.race import Comparison, Contender, Course, Idle, Lap, Outcome, race
from bench.harness.records import FIRST_MOMENT, SCHEMA, STEP
from bench.harness.servers import Servers
from bench.harness.tables import Mode
from tallymark.core.claims import Advance, Entry, FirstClaim, PositionChanges
from tallymark.core.newest import finish
from tallymark.core.spans import Owner, Partition, Tally
from tallymark.core.tables import OFFSET, PARTITION, TIMESTAMP, TOPIC, Changes
from tallymark.spark.executors import stage
from tallymark.spark.functions import complete, to_collect
from tallymark.spark.session import session
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tallymark.stores.sql.store import SqlStore

SIZES = (1_000, 10_000, 100_000, 250_000)
LARGE = 1_000_000
SQL = ("postgresql", "mariadb")
MODES: Sequence[Mode] = ("append", "upsert")
ZERO = Partition("orders", 0)
DRIVER, EXECUTORS, JDBC, EXECUTEMANY = "tallymark", "tallymark, executors", "Spark JDBC", "executemany"
COMPARISONS = [Comparison(DRIVER, peer) for peer in (EXECUTORS, JDBC, EXECUTEMANY)]


@cache
def orders(rows: int) -> DataFrame:
    """Rows of about 140 bytes in random order of their keys, as they come from the decoder: with hidden columns."""
    note = F.sha1(F.col("id").cast("string").cast("binary"))
    made = (
        running()
        .range(rows)
        .select(
            F.expr(f"id * {STEP} % {rows}").alias("id"),
            F.concat(F.lit("customer-"), F.col("id") % 5000).alias("customer"),
            (F.col("id") % 10000 / 100).alias("amount"),
            F.expr(f"timestamp_micros({FIRST_MOMENT} + id * 1000)").alias("at"),
            F.concat(F.lit("note "), note, F.lit(" 'quoted', é")).alias("note"),
            F.lit("orders").alias(TOPIC),
            F.lit(0).alias(PARTITION),
            F.col("id").alias(OFFSET),
            F.current_timestamp().alias(TIMESTAMP),
        )
    )
    made = made.repartition(2).cache()
    made.count()
    return made


@dataclass
class Writer(Idle):
    """Writes all rows to a table of its own. An upsert finds its keys there from the second lap on."""

    name: str
    store: Store
    table: str
    mode: Mode

    def start(self, course: Course) -> None:
        self._make_table(course)

    def lap(self, course: Course) -> Lap:
        if self.mode == "append":
            self._make_table(course)
        own, rows = replace(course, table=self.table), orders(course.records)
        began = time.perf_counter()
        self.write(own, rows)
        return Lap(course.records, time.perf_counter() - began)

    def write(self, course: Course, rows: DataFrame) -> None:
        """With all that a pipeline does in a batch: hidden columns, one row for each key, ledger and positions."""
        spec, entry = tables.spec(course, self.mode), self.entry(course.records)
        found = complete(to_collect(spec, rows, "orders").toArrow(), "orders")
        self.store.apply([finish(spec, found, entry.batch)], entry)

    def entry(self, rows: int) -> Entry:
        """The ledger's part of a commit of so many records."""
        now, position = datetime.now(UTC), self.store.positions("bench")["bench"][0]
        start = position.next_offset
        step = Advance(ZERO, start, start + rows, position.epoch, Tally(applied=rows), now)
        return Entry("bench", f"bench-{uuid.uuid4().hex[:8]}", now, now, [step], {"orders": rows})

    def _make_table(self, course: Course) -> None:
        if isinstance(self.store, SqlStore):
            tables.drop(self.store, self.table)
        self.store.create_tables([tables.spec(replace(course, table=self.table), self.mode)], {self.table: SCHEMA})


class OnExecutors(Writer):
    """Executors stage the rows, and one transaction promotes them."""

    def write(self, course: Course, rows: DataFrame) -> None:
        stages = self.store.stages("bench", "bench")
        assert stages is not None
        spec, entry, empty = tables.spec(course, self.mode), self.entry(course.records), SCHEMA.empty_table()
        staged = stage(stages, spec, rows, SCHEMA, entry.batch)
        self.store.apply([Changes(spec, empty, empty, staged)], entry)
        stages.drop([staged.name])


class SparkJdbc(Writer):
    """Spark's own writer, tuned: a transaction for each task, and no positions."""

    def write(self, course: Course, rows: DataFrame) -> None:
        options = jdbc.spark_options(course, tuned=True)
        rows.select(*SCHEMA.names).write.format("jdbc").options(**options).mode("append").save()


class ExecuteMany(Writer):
    """What is written by hand: collect, and the driver's executemany in one transaction."""

    def write(self, course: Course, rows: DataFrame) -> None:
        assert isinstance(self.store, SqlStore)
        found = rows.select(*SCHEMA.names).toArrow().to_pylist()
        with self.store.transaction() as connection:
            driver: Any = connection.connection.driver_connection
            with driver.cursor() as cursor:
                cursor.executemany(tables.insert(self.store, course.table, self.mode), found)


WRITERS = {DRIVER: Writer, EXECUTORS: OnExecutors, JDBC: SparkJdbc, EXECUTEMANY: ExecuteMany}


def plan(kind: str, *, quick: bool) -> Iterator[tuple[Mode, int, list[str]]]:
    """Mode, rows and contenders of every race on a store. Redis takes batches of at most 10,000 records."""
    sizes = (10_000,) if quick else SIZES
    for mode in MODES:
        for size in sizes if kind != "redis" else [one for one in sizes if one <= 10_000]:
            peers = [JDBC if mode == "append" else EXECUTEMANY] if kind in SQL else []
            yield mode, size, [DRIVER, *peers, *([EXECUTORS] if peers and size == max(SIZES) else [])]
    if kind in SQL and not quick:
        yield "append", LARGE, [DRIVER, EXECUTORS, JDBC]


def measure(kind: str, url: str, rounds: int, *, quick: bool) -> Iterator[Outcome]:
    with closing(open_store(url)) as store:
        store.create_ledger()
        owner = Owner("bench", "here", datetime.now(UTC))
        store.claim("bench", owner, [ZERO], lambda _: PositionChanges({ZERO: FirstClaim(0, "id", "cluster")}), {})
        for mode, rows, names in plan(kind, quick=quick):
            at = Course("", ZERO.topic, rows, url, kind)
            those: list[Contender] = [
                WRITERS[name](name, store, f"orders_{number}", mode) for number, name in enumerate(names)
            ]
            yield race(f"{kind}, {mode}, {rows:,} rows", those, at, rounds, COMPARISONS)


def main() -> None:
    command = Command("stores", __doc__)
    command.options.add_argument("--rounds", type=int, default=3)
    command.options.add_argument("--quick", action="store_true", help="One small batch size.")
    command.options.add_argument("--stores", nargs="+", default=[*SQL, "sqlite", "redis"])
    chosen = command.parse()
    spark = session({"spark.master": "local[2]", "spark.jars": jdbc.jars()})
    outcomes: list[Outcome] = []
    with Servers() as servers:
        for kind in chosen.stores:
            outcomes += measure(kind, servers.url(kind), chosen.rounds, quick=chosen.quick)
        facts = servers.facts(*(kind for kind in chosen.stores if kind != "redis"))
    spark.stop()
    command.publish_races(chosen, facts, outcomes)


if __name__ == "__main__":
    run(main)
