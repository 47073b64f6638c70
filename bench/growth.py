"""What a batch of a pipeline costs as things grow: records, partitions, tables, the ledger, its history, and its age.

Every batch has an exact size, and the machine for itself: see ``Stopwatch``. Memory is what the Python process and the
JVM hold in RAM; in local mode the JVM is driver and executors in one, and it seldom gives back what it once took.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from rich.console import Console
from rich.progress import Progress as Bar
from sqlalchemy import text

import tallymark as tm
from bench.harness.machine import database, machine, sentence, versions
from bench.harness.race import spread
from bench.harness.records import DDL, PRODUCER, delete_topic, pieces, values
from bench.harness.report import replace_section
from bench.harness.watching import Endurance, Memory, Sample, Stopwatch, over_time
from bench.latency import in_background
from tallymark.core.progress import OnStep
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.cluster import Cluster
from tallymark.local.sandbox import Sandbox
from tallymark.operate.survey import ledger, look
from tallymark.spark.pipeline import Road
from tallymark.spark.session import session
from tallymark.stores.opening import open_sql

PATIENCE = 180.0
HELD = {"driver": 1 << 30}
"""``limits.memory`` of the roads that need another one than the default."""
LEDGERS = {
    "as it is": "SELECT 1",
    "and 100,000 positions of other groups": """
        INSERT INTO tallymark_positions (group_name, topic, partition_id, next_offset, first_offset, applied, dead,
               skipped, lost, absent, epoch, topic_id, cluster_id, updated_at)
        SELECT 'other-' || g, 'others', p, 1000, 0, 1000, 0, 0, 0, 0, 1, 'id', 'cluster', now()
        FROM generate_series(1, 1000) g, generate_series(0, 99) p""",
    "and a batch in each second of 24 h": """
        INSERT INTO tallymark_batches (group_name, batch, started_at, committed_at, applied, dead, skipped, lost,
               absent, table_rows, spans)
        SELECT :name, 'before-' || n, now() - n * interval '1 second', now() - n * interval '1 second', 1, 0, 0, 0, 0,
               '{}', '[["others", 0, ' || n || ', ' || n + 1 || ']]'
        FROM generate_series(86400, 1, -1) n""",
}
"""What is in the ledger, and how it gets there; ``:name`` is the group."""


@dataclass(frozen=True)
class Case:
    """Batches of so many records, over so many partitions, into so many tables."""

    records: int
    partitions: int = 4
    tables: int = 1
    road: Road = "auto"
    most: float | None = None
    """Seconds that a batch may take."""


CASES = (
    Case(1, most=0.1),
    *(Case(records) for records in (10, 100, 1_000, 10_000, 100_000, 250_000)),
    Case(1_000_000, road="driver"),
    Case(1_000_000, road="executors"),
    Case(100),
    Case(100, partitions=64, most=0.6),
    Case(100, partitions=400, most=2.5),
    *(Case(10_000, tables=tables) for tables in range(1, 6)),
)


def produce(brokers: str, topic: str, partitions: int, records: int) -> None:
    """So many records over all partitions in turn; they are there when it returns."""
    producer = _producer(brokers)
    for start, stop in pieces(records):
        for number, one in enumerate(values(start, stop, records), start):
            producer.produce(topic, one, partition=number % partitions)
        if producer.flush(PATIENCE):
            raise RuntimeError(f"topic {topic} did not take all records")


@cache
def _producer(brokers: str) -> Producer:
    return Producer({"bootstrap.servers": brokers, **PRODUCER, "linger.ms": 5})


def new_topic() -> str:
    return f"growth_{uuid.uuid4().hex[:8]}"


class Place:
    """Real servers, a warm session, and pipelines that run between them."""

    def __init__(self, brokers: str, url: str) -> None:
        self.brokers, self.url, self.store = brokers, url, open_sql(url)
        self.cluster = Cluster(brokers)
        spark = session({"spark.master": "local[2]"})
        spark.range(1000).toArrow()
        jvm: Any = spark.sparkContext._jvm
        self.memory = Memory(jvm.java.lang)
        self._elsewhere = ProcessPoolExecutor(1, get_context("spawn"))

    @contextmanager
    def running(self, case: Case, topic: str, on_step: OnStep) -> Iterator[None]:
        """A pipeline for such batches, with a topic, a group and tables of its own, all named after the topic."""
        Brokers(self.cluster).create(topic, case.partitions)
        limits = tm.Limits(records=case.records, seconds=600, memory=HELD.get(case.road, tm.Limits().memory))
        source = tm.Kafka(self.brokers, topic, value=tm.Json(DDL))
        pipeline = tm.Pipeline(group=topic, source=source, store=self.url, limits=limits, road=case.road)
        for number in range(case.tables):
            pipeline.table(f"{topic}_{number}")(lambda records: records.select("value.*"))
        with in_background(pipeline, on_step):
            yield
        delete_topic(self.cluster, topic)

    def produce(self, topic: str, partitions: int, records: int) -> None:
        """From another process, whose memory is not measured."""
        self._elsewhere.submit(produce, self.brokers, topic, partitions, records).result(PATIENCE)

    def execute(self, statement: str) -> None:
        with self.store.transaction() as connection:
            connection.exec_driver_sql(statement)

    def empty(self, case: Case, topic: str, records: int) -> None:
        """Drop the tables, if every record is in each of them."""
        for number in range(case.tables):
            with self.store.look() as connection:
                rows = connection.execute(text(f"SELECT count(*) FROM {topic}_{number}")).scalar_one()
            if rows != records:
                raise RuntimeError(f"{records} records became {rows} rows")
            self.execute(f"DROP TABLE {topic}_{number}")


@dataclass
class Timing:
    """The seconds of each batch of a case, and the most memory that was held meanwhile, in MiB."""

    case: Case
    seconds: list[float]
    peaks: dict[str, float]


def timed(place: Place, case: Case, batches: int, warm: int) -> Timing:
    topic = new_topic()
    watch = Stopwatch(lambda records: place.produce(topic, case.partitions, records))
    with place.running(case, topic, watch.step):
        for _ in range(warm):
            watch.batch(case.records)
        place.memory.peaks()
        seconds = [watch.batch(case.records) for _ in range(batches)]
        peaks = place.memory.peaks()
    place.empty(case, topic, (case.records + 1) * (batches + warm))
    return Timing(case, seconds, peaks)


@dataclass(frozen=True)
class Load:
    """The seconds of one-record batches and of looks at the group, with so much in the ledger."""

    ledger: str
    batches: list[float]
    looks: list[float]


def loaded(place: Place, batches: int, warm: int) -> list[Load]:
    """One group that goes on while its ledger fills."""
    topic, case = new_topic(), Case(1)
    watch = Stopwatch(lambda records: place.produce(topic, case.partitions, records))
    found = []
    with place.running(case, topic, watch.step):
        for name, statement in LEDGERS.items():
            place.execute(statement.replace(":name", f"'{topic}'"))
            place.execute("ANALYZE")
            for _ in range(warm):
                watch.batch(1)
            found.append(Load(name, [watch.batch(1) for _ in range(batches)], _looks(place, topic, batches)))
    place.empty(case, topic, 2 * (warm + batches) * len(found))
    return found


def _looks(place: Place, group: str, times: int) -> list[float]:
    """What ``tallymark status`` does when Python has started."""
    found, brokers = [], Brokers(place.cluster)
    with ledger(place.url) as opened:
        for _ in range(times):
            began = time.monotonic()
            look(opened, group, brokers)
            found.append(time.monotonic() - began)
    return found


def endurance(place: Place, minutes: float) -> list[Sample]:
    """Memory over one-record batches, one after the other."""
    topic, case = new_topic(), Case(1)
    watch = Endurance(place.memory, minutes * 60, lambda: produce(place.brokers, topic, 1, 1))
    with place.running(case, topic, watch.step):
        watch.run()
    place.empty(case, topic, watch.batches)
    return watch.samples


@dataclass
class Growth:
    """All that was measured. ``idle`` is the memory before the first batch, in MiB."""

    idle: dict[str, float]
    samples: list[Sample] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)


def measure(place: Place, cases: Sequence[Case], minutes: float, batches: int) -> Growth:
    """Memory over time first: a JVM that has been large already could hide what it leaks."""
    found, warm = Growth(place.memory.now()), 2 if batches < 5 else 5
    with Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task("one record after the other", total=len(cases) + 2)
        found.samples = endurance(place, minutes)
        bar.advance(task)
        for case in cases:
            bar.update(task, description=said(case))
            found.timings.append(timed(place, case, batches, warm if case.records < 100_000 else 1))
            bar.advance(task)
        bar.update(task, description="ledger")
        found.loads = loaded(place, batches, warm)
        bar.advance(task)
    return found


def said(case: Case) -> str:
    road = "" if case.road == "auto" else f", {case.road}"
    return f"{case.records:,} records, {case.partitions} partitions, {case.tables} tables{road}"


def report(found: Growth) -> Iterator[str]:
    yield from ("| records | partitions | tables | road | ms | spread | target | Python MiB | JVM MiB |",)
    yield "|---:|---:|---:|---|---:|---|---|---:|---:|"
    for timing in found.timings:
        case, (median, least, largest) = timing.case, spread(timing.seconds)
        sizes = " | ".join(f"{timing.peaks[name]:,.0f}" for name in ("python", "jvm"))
        yield (
            f"| {case.records:,} | {case.partitions} | {case.tables} | {case.road} | {median * 1000:,.0f} "
            f"| {least * 1000:,.0f}-{largest * 1000:,.0f} | {verdict(median, case.most)} | {sizes} |"
        )
    idle = found.idle
    yield from ("", f"Before the first batch: Python {idle['python']:,.0f} MiB, JVM {idle['jvm']:,.0f} MiB.", "")
    yield from ("| ledger | one-record batch, ms | spread | `tallymark status`, ms |", "|---|---:|---|---:|")
    for load in found.loads:
        median, least, largest = (1000 * one for one in spread(load.batches))
        status = 1000 * statistics.median(load.looks)
        yield f"| {load.ledger} | {median:,.0f} | {least:,.0f}-{largest:,.0f} | {status:,.0f} |"
    yield from ("", *over_time(found.samples))


def verdict(seconds: float, most: float | None) -> str:
    if most is None:
        return ""
    return f"at most {most * 1000:,.0f}: {'met' if seconds <= most else 'missed'}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--batches", type=int, default=7, help="Batches of each case, after some to warm up.")
    options.add_argument("--minutes", type=float, default=3.0, help="The most that memory is watched for.")
    options.add_argument("--quick", action="store_true", help="Three batches, none above 10,000 records, ten seconds.")
    options.add_argument("--write", type=Path, help="Put the tables into this file, between the growth marks.")
    options.add_argument("--json", type=Path, help="Keep every single time in this file.")
    chosen = options.parse_args()
    cases = [case for case in CASES if case.records <= 10_000 and case.partitions <= 64] if chosen.quick else CASES
    minutes, batches = (1 / 6, 3) if chosen.quick else (chosen.minutes, chosen.batches)
    with Sandbox() as box:
        facts = {**machine(), **versions(), **database(box.postgresql().url)}
        found = measure(Place(box.kafka().brokers, box.postgresql().url), cases, minutes, batches)
    text = "\n".join([sentence(facts), "", *report(found), "", f"Medians of {batches} batches."])
    print(text)
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps({"facts": facts, **asdict(found)}))
    if chosen.write:
        replace_section(chosen.write, "growth", text)


if __name__ == "__main__":
    main()
