"""Rows per second from a DataFrame to COMMIT: every store, mode and batch size, beside Spark's own JDBC writer.

All contenders take turns in one run on the same cached DataFrame; the figures are medians, and what counts are the
ratios. ``make bench`` runs it and writes docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console
from rich.progress import Progress
from sqlalchemy import text
from sqlalchemy.engine import make_url

from bench import JARS
from tallymark.core.claims import Advance, Claim, Entry, FirstClaim, PositionChanges
from tallymark.core.spans import Owner, Partition, Tally
from tallymark.core.tables import OFFSET, PARTITION, TIMESTAMP, TOPIC, Changes, TableSpec, finish
from tallymark.local.jars import fetch
from tallymark.local.sandbox import Sandbox
from tallymark.spark.executors import stage
from tallymark.spark.functions import collect
from tallymark.spark.session import session
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tallymark.stores.sql.store import SqlStore

SIZES = (1_000, 10_000, 100_000, 250_000)
LARGE = 1_000_000
ZERO = Partition("orders", 0)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("amount", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("note", pa.string()),
    ]
)
NAMES = ", ".join(SCHEMA.names)


def orders(spark: SparkSession, rows: int) -> DataFrame:
    """Rows of about 140 bytes in random order of their keys, as they come from the decoder: with hidden columns."""
    made = spark.range(rows).select(
        F.expr(f"id * 7919 % {rows}").alias("id"),
        F.concat(F.lit("customer-"), F.col("id") % 5000).alias("customer"),
        (F.col("id") % 10000 / 100).alias("amount"),
        F.expr("timestamp_micros(1767225600000000 + id * 1000)").alias("at"),
        F.concat(F.lit("note "), F.sha1(F.col("id").cast("string").cast("binary")), F.lit(" 'quoted', é")).alias(
            "note"
        ),
        F.lit("orders").alias(TOPIC),
        F.lit(0).alias(PARTITION),
        F.col("id").alias(OFFSET),
        F.current_timestamp().alias(TIMESTAMP),
    )
    made = made.repartition(2).cache()
    made.count()
    return made


@dataclass
class Target:
    """A store with a ledger, and a fresh table for every contender and batch size."""

    kind: str
    store: Store
    url: str
    claims: dict[Partition, Claim] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store.create_ledger()
        owner = Owner("bench", "here", datetime.now(timezone.utc))
        first = {ZERO: FirstClaim(0, "id", "cluster")}
        self.claims = self.store.claim("bench", owner, [ZERO], lambda _: PositionChanges(first), {})

    def entry(self, rows: int) -> Entry:
        """The ledger's part of a commit of so many records."""
        now, position = datetime.now(timezone.utc), self.store.positions("bench")["bench"][0]
        start = position.next_offset
        step = Advance(ZERO, start, start + rows, position.epoch, Tally(applied=rows), now)
        return Entry("bench", f"bench-{uuid.uuid4().hex[:8]}", now, now, [step], {"orders": rows})

    def table(self, name: str, spec: TableSpec) -> None:
        if isinstance(self.store, SqlStore):
            with self.store.transaction() as connection:
                connection.execute(text(f"DROP TABLE IF EXISTS {name}"))
        self.store.create_tables([spec], {name: SCHEMA})


Run = Callable[[], None]


def by_driver(target: Target, spec: TableSpec, rows: DataFrame, count: int) -> Run:
    def run() -> None:
        entry = target.entry(count)
        target.store.apply([finish(spec, collect(spec, rows, ["orders"]), entry.batch)], entry)

    return run


def by_executors(target: Target, spec: TableSpec, rows: DataFrame, count: int) -> Run:
    def run() -> None:
        stages = target.store.stages("bench", "bench")
        assert stages is not None
        entry, empty = target.entry(count), SCHEMA.empty_table()
        staged = stage(stages, spec, rows, SCHEMA, entry.batch)
        target.store.apply([Changes(spec, empty, empty, staged)], entry)
        stages.drop([staged.name])

    return run


def by_jdbc(target: Target, spec: TableSpec, rows: DataFrame, _: int) -> Run:
    """Spark's own writer, tuned: rewritten batches of 10,000. One transaction for each task, and no positions."""
    url = make_url(target.url)
    kind = "postgresql" if target.kind == "postgresql" else "mysql"
    rewrite = "reWriteBatchedInserts=true" if kind == "postgresql" else "rewriteBatchedStatements=true&useSSL=false"
    options = {
        "url": f"jdbc:{kind}://{url.host}:{url.port}/{url.database}?{rewrite}",
        "driver": "org.postgresql.Driver" if kind == "postgresql" else "com.mysql.cj.jdbc.Driver",
        "dbtable": spec.name,
        "user": url.username or "postgres",
        "password": url.password or "",
        "batchsize": "10000",
    }
    visible = rows.select(*SCHEMA.names)
    return lambda: visible.write.format("jdbc").options(**options).mode("append").save()


def by_executemany(target: Target, spec: TableSpec, rows: DataFrame, _: int) -> Run:
    """What people write by hand: collect, and the driver's executemany in one transaction."""
    values = ", ".join(["%s"] * len(SCHEMA.names))
    others = [name for name in SCHEMA.names if name not in spec.key]
    if target.kind == "postgresql":
        overwrite = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
        suffix = f" ON CONFLICT (id) DO UPDATE SET {overwrite}" if spec.key else ""
    else:
        overwrite = ", ".join(f"{name} = VALUES({name})" for name in others)
        suffix = f" ON DUPLICATE KEY UPDATE {overwrite}" if spec.key else ""
    statement = f"INSERT INTO {spec.name} ({NAMES}) VALUES ({values}){suffix}"

    def run() -> None:
        assert isinstance(target.store, SqlStore)
        found = rows.select(*SCHEMA.names).toArrow()
        tuples = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
        with target.store.transaction() as connection:
            driver: Any = connection.connection.driver_connection
            with driver.cursor() as cursor:
                cursor.executemany(statement, tuples)

    return run


ROADS: Mapping[str, Callable[[Target, TableSpec, DataFrame, int], Run]] = {
    "tallymark": by_driver,
    "tallymark, executors": by_executors,
    "Spark JDBC": by_jdbc,
    "executemany": by_executemany,
}


@dataclass(frozen=True)
class Contest:
    """Contenders that write the same rows to the same kind of table, in turns."""

    kind: str
    mode: str
    rows: int
    roads: Sequence[str]


def contests(kinds: Sequence[str], quick: bool) -> Iterator[Contest]:
    sql = ("postgresql", "mariadb")
    for kind in kinds:
        for mode in ("append", "upsert"):
            for size in (10_000,) if quick else SIZES:
                roads = ["tallymark"]
                if kind in sql:
                    roads += ["Spark JDBC"] if mode == "append" else ["executemany"]
                if kind in sql and size == 250_000:
                    roads += ["tallymark, executors"]
                if kind != "redis" or size <= 10_000:
                    yield Contest(kind, mode, size, roads)
        if kind in sql and not quick:
            yield Contest(kind, "append", LARGE, ["tallymark", "tallymark, executors", "Spark JDBC"])


def measure(contest: Contest, target: Target, rows: DataFrame, rounds: int) -> dict[str, list[float]]:
    """Seconds of every round of each contender. The first round warms up; an upsert meets its keys from then on."""
    seconds: dict[str, list[float]] = {road: [] for road in contest.roads}
    specs = {}
    for number, road in enumerate(contest.roads):
        name = f"orders_{number}"
        specs[road] = TableSpec(name, ("id",), "upsert") if contest.mode == "upsert" else TableSpec(name)
        target.table(name, specs[road])
    for turn in range(rounds + 1):
        for road in contest.roads:
            if contest.mode == "append":
                target.table(specs[road].name, specs[road])
            run = ROADS[road](target, specs[road], rows, contest.rows)
            began = time.perf_counter()
            run()
            if turn:
                seconds[road].append(time.perf_counter() - began)
    return seconds


def report(results: Sequence[tuple[Contest, dict[str, list[float]]]], rounds: int) -> str:
    lines = [
        "| store | mode | rows | road | k rows/s | spread | tallymark is |",
        "|---|---|---:|---|---:|---|---:|",
    ]
    for contest, seconds in results:
        ours = statistics.median(seconds["tallymark"])
        for road, times in seconds.items():
            median = statistics.median(times)
            rates = [contest.rows / 1000 / found for found in (max(times), min(times))]
            ratio = "" if road == "tallymark" else f"{median / ours:.2f}x"
            lines.append(
                f"| {contest.kind} | {contest.mode} | {contest.rows:,} | {road} | {contest.rows / 1000 / median:,.0f} "
                f"| {rates[0]:,.0f}-{rates[1]:,.0f} | {ratio} |"
            )
    return "\n".join([*lines, "", f"Medians of {rounds} rounds after one to warm up, in turns."])


def facts() -> str:
    cpu = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine())
    versions = f"Python {platform.python_version()}, pyarrow {pa.__version__}"
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()}, {versions}, {datetime.now(timezone.utc):%Y-%m-%d}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--quick", action="store_true", help="One small batch size.")
    options.add_argument("--stores", nargs="+", default=["postgresql", "mariadb", "sqlite", "redis"])
    options.add_argument("--write", type=Path, help="Put the table into this file, between the stores marks.")
    chosen = options.parse_args()
    spark = session({"spark.master": "local[2]", "spark.jars": ",".join(map(str, fetch("jdbc", lock=JARS)))})
    results = []
    with ExitStack() as stack, Progress(console=Console(stderr=True)) as progress:
        box = stack.enter_context(Sandbox())
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        urls = {
            "postgresql": lambda: box.postgresql().url,
            "mariadb": lambda: box.mariadb().url,
            "sqlite": lambda: f"sqlite:///{directory}/bench.db",
            "redis": lambda: box.valkey().url,
        }
        planned = list(contests(chosen.stores, chosen.quick))
        task = progress.add_task("stores", total=len(planned))
        targets: dict[str, Target] = {}
        frames: dict[int, DataFrame] = {}
        for contest in planned:
            progress.update(task, description=f"{contest.kind} {contest.mode} {contest.rows:,}")
            if contest.kind not in targets:
                url = urls[contest.kind]()
                targets[contest.kind] = Target(contest.kind, open_store(url), url)
            if contest.rows not in frames:
                frames[contest.rows] = orders(spark, contest.rows)
            found = measure(contest, targets[contest.kind], frames[contest.rows], chosen.rounds)
            results.append((contest, found))
            progress.advance(task)
    said = f"{facts()}\n\n{report(results, chosen.rounds)}"
    print(said)
    if chosen.write:
        before, _, rest = chosen.write.read_text().partition("<!-- stores -->")
        after = rest.partition("<!-- end of stores -->")[2]
        chosen.write.write_text(f"{before}<!-- stores -->\n{said}\n<!-- end of stores -->{after}")


if __name__ == "__main__":
    main()
