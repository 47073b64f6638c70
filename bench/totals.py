"""Records per second from Kafka to totals by key in PostgreSQL, and the memory that this takes.

Merged tables race against Structured Streaming's ``groupBy`` with a state store, whose foreachBatch upserts the totals.
On a sandbox, or on brokers and a store that are given: what the race makes there has names of its own and is removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

from bench.contenders import lineup
from bench.contenders.ours import OurPipeline
from bench.contenders.totals import Key, StateStore, Totals, by_copy, by_jdbc
from bench.harness import jdbc, races
from bench.harness.command import Command, run
from bench.harness.machine import sentence
from bench.harness.race import Comparison, Contender, Course, Outcome, say
from bench.harness.records import SALES_KEYS, Shape
from bench.harness.report import races_as_json, short, summary, table
from bench.harness.servers import kind_of
from bench.harness.watching import Memory
from tallymark.core.plan import Limits
from tallymark.errors import BadInput

RECORDS, QUICK_RECORDS = 2_000_000, 200_000
OURS, BY_RECORD = "tallymark", "tallymark, a row for each record"
HDFS, ROCKSDB = "state store, default", "state store, RocksDB"
HDFS_JDBC = f"{HDFS}, JDBC"
LEAST = 2.0


@dataclass(frozen=True)
class Held:
    """The most MiB of a contender in a process of its own, and what a collection then left in its JVM's heap."""

    race: str
    name: str
    python: float
    jvm: float
    heap: float


def contenders(key: Key, size: int) -> list[Contender]:
    """All with batches of the same size."""
    totals = Totals(key=key)
    return [
        OurPipeline(OURS, records=size, workload=totals),
        OurPipeline(BY_RECORD, records=size, workload=Totals(key=key, by_record=True)),
        StateStore(HDFS, totals, size, "HDFSBackedStateStoreProvider", by_copy),
        StateStore(ROCKSDB, totals, size, "RocksDBStateStoreProvider", by_copy),
        StateStore(HDFS_JDBC, totals, size, "HDFSBackedStateStoreProvider", by_jdbc),
    ]


def comparisons(*, quick: bool) -> Sequence[Comparison]:
    compared = [Comparison(OURS, peer, LEAST) for peer in (HDFS, ROCKSDB, HDFS_JDBC)]
    return lineup.without_targets(compared) if quick else compared


def held(contender: Contender, course: Course, title: str) -> Held:
    """What a lap holds, in a session of its own that has done nothing before."""
    from tallymark.spark.session import session

    spark = session({"spark.master": "local[2]", "spark.jars": jdbc.jars()})
    jvm: Any = spark.sparkContext._jvm
    memory = Memory(jvm.java.lang)
    contender.lap(course)
    peaks, heap = memory.peaks(), memory.sample(1, collect=True).heap
    spark.stop()
    return Held(title, contender.name, peaks["python"], peaks["jvm"], heap or 0.0)


def in_own_process(contender: Contender, course: Course, title: str) -> Held:
    say(f"{title}: {contender.name}, memory")
    with ProcessPoolExecutor(1, get_context("spawn")) as elsewhere:
        found = elsewhere.submit(held, contender, course, title).result()
    say(f"{title}: {contender.name}, Python {found.python:,.0f} MiB, JVM {found.jvm:,.0f} MiB")
    return found


def memory_table(found: Sequence[Held]) -> list[str]:
    heads = ("race", "contender", "Python MiB", "JVM MiB", "JVM heap after a collection, MiB")
    rows = [(one.race, one.name, *(f"{size:,.0f}" for size in (one.python, one.jvm, one.heap))) for one in found]
    return table(heads, rows, left=2)


def report(facts: dict[str, str], outcomes: Sequence[Outcome], found: Sequence[Held]) -> str:
    return "\n".join([sentence(facts), "", summary(outcomes), "", *memory_table(found)])


def main() -> None:
    command = Command("totals", __doc__)
    command.add_race_options(RECORDS, QUICK_RECORDS)
    command.options.add_argument("--keys", nargs="+", choices=list(SALES_KEYS), default=list(SALES_KEYS))
    command.options.add_argument("--only", default="", help="Contenders whose name has this in it.")
    chosen = command.parse_race()
    if chosen.store and kind_of(chosen.store) != "postgresql":
        raise BadInput("the races of totals need PostgreSQL; pass --store postgresql://...")
    found: list[Held] = []

    def planned(at: Course, _: Shape) -> Iterator[races.Race]:
        size = lineup.batch_size(Limits.records, at.records, quick=chosen.quick)
        for key in chosen.keys:
            title = f"{SALES_KEYS[key]:,} keys, {short(size)} a batch"
            those = lineup.chosen(contenders(key, size), chosen.only)
            yield races.Race(title, those, comparisons(quick=chosen.quick))
            found.extend(in_own_process(one, at, title) for one in those)

    facts, outcomes = races.measure(chosen, [("postgresql", "sales", chosen.records)], planned)
    results = {**races_as_json(facts, outcomes), "memory": [asdict(one) for one in found]}
    command.publish(chosen, report(facts, outcomes, found), results)


if __name__ == "__main__":
    run(main)
