"""What a batch of a pipeline costs as things grow: records, partitions, tables, the ledger, its history, and its age.

Every batch has an exact size, and the machine for itself: see ``Stopwatch``. Memory is what the Python process and the
JVM hold in RAM; in local mode the JVM is driver and executors in one, and it seldom gives back what it once took.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from sqlalchemy import text

import tallymark as tm
from bench.contenders.workloads import computed, picked
from bench.harness.command import Command, run
from bench.harness.machine import sentence
from bench.harness.race import say, spread
from bench.harness.records import DDL, PRODUCER, delete_topic, pieces, values
from bench.harness.report import table
from bench.harness.servers import Servers
from bench.harness.watching import Endurance, Memory, Sample, Stopwatch, over_time
from bench.latency import in_background
from tallymark.core.progress import OnStep
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.cluster import Cluster
from tallymark.operate.survey import ledger, look
from tallymark.spark.pipeline import Road
from tallymark.spark.session import session
from tallymark.stores.opening import open_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PATIENCE = 180.0
HELD = {"driver": 1 << 30}
"""``limits.memory`` where the default is too small."""
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
    computed: bool = False
    """Whether the function computes. The values then have a map, too, which only Spark's tasks decode in bulk."""


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


COMPUTED = Case(1_500, partitions=1, computed=True)


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
        schema = f"{DDL}, tags MAP<STRING, STRING>" if case.computed else DDL
        source = tm.Kafka(self.brokers, topic, value=tm.Json(schema))
        pipeline = tm.Pipeline(group=topic, source=source, store=self.url, limits=limits, road=case.road)
        for number in range(case.tables):
            pipeline.table(f"{topic}_{number}")(without_tags if case.computed else picked)
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
            look(opened, [group], brokers)
            found.append(time.monotonic() - began)
    return found


def endurance(place: Place, case: Case, batches: int, minutes: float) -> list[Sample]:
    """Memory over so many batches, one after the other."""
    topic = new_topic()

    def call() -> int:
        place.produce(topic, 1, case.records)
        return case.records

    watch = Endurance(place.memory, batches, minutes * 60, call)
    with place.running(case, topic, watch.step):
        watch.run()
    place.empty(case, topic, watch.records)
    return watch.samples


def without_tags(records: DataFrame) -> DataFrame:
    return computed(records).drop("tags")


@dataclass
class Growth:
    """All that was measured. ``idle`` is the memory before the first batch, in MiB."""

    idle: dict[str, float]
    samples: list[Sample] = field(default_factory=list)
    computed: list[Sample] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)


def measure(place: Place, cases: Sequence[Case], minutes: float, batches: int) -> Growth:
    """Memory over time first: a JVM that has been large already could hide what it leaks."""
    found, warm = Growth(place.memory.now()), 2 if batches < 5 else 5
    say("one record after the other")
    found.samples = endurance(place, Case(1), 10_000, minutes)
    say("a function that computes, batch after batch")
    found.computed = endurance(place, COMPUTED, 2_000, minutes)
    for case in cases:
        say(f"{case.records:,} records, {case.partitions} partitions, {case.tables} tables, {case.road}")
        found.timings.append(timed(place, case, batches, warm if case.records < 100_000 else 1))
    say("ledger")
    found.loads = loaded(place, batches, warm)
    return found


def report(found: Growth) -> Iterator[str]:
    heads = ("records", "partitions", "tables", "road", "ms", "spread", "target", "Python MiB", "JVM MiB")
    yield from table(heads, map(_timing, found.timings), left=0)
    idle = found.idle
    yield from ("", f"Before the first batch: Python {idle['python']:,.0f} MiB, JVM {idle['jvm']:,.0f} MiB.", "")
    yield from table(("ledger", "one-record batch, ms", "spread", "`tallymark status`, ms"), map(_load, found.loads))
    yield from ("", *over_time(found.samples))
    yield from ("", *over_time(found.computed, f"computed batches of {COMPUTED.records:,}"))


def _timing(timing: Timing) -> tuple[str, ...]:
    case, (median, least, largest) = timing.case, spread(timing.seconds)
    size = (f"{case.records:,}", f"{case.partitions}", f"{case.tables}", case.road)
    milliseconds = (f"{median * 1000:,.0f}", f"{least * 1000:,.0f}-{largest * 1000:,.0f}", verdict(median, case.most))
    return *size, *milliseconds, *(f"{timing.peaks[name]:,.0f}" for name in ("python", "jvm"))


def _load(load: Load) -> tuple[str, ...]:
    median, least, largest = (1000 * one for one in spread(load.batches))
    return load.ledger, f"{median:,.0f}", f"{least:,.0f}-{largest:,.0f}", f"{1000 * statistics.median(load.looks):,.0f}"


def verdict(seconds: float, most: float | None) -> str:
    if most is None:
        return ""
    return f"at most {most * 1000:,.0f}: {'met' if seconds <= most else 'missed'}"


def main() -> None:
    command = Command("growth", __doc__)
    command.options.add_argument("--batches", type=int, default=7, help="Batches of each case, after some to warm up.")
    command.options.add_argument("--minutes", type=float, default=18.0, help="The most that memory is watched for.")
    command.options.add_argument("--quick", action="store_true", help="Three small batches of a case, ten seconds.")
    chosen = command.parse()
    cases = [case for case in CASES if case.records <= 10_000 and case.partitions <= 64] if chosen.quick else CASES
    minutes, batches = (1 / 6, 3) if chosen.quick else (chosen.minutes, chosen.batches)
    with Servers() as servers:
        facts = servers.facts("postgresql")
        found = measure(Place(servers.brokers, servers.url("postgresql")), cases, minutes, batches)
    text = "\n".join([sentence(facts), "", *report(found), "", f"Medians of {batches} batches."])
    command.publish(chosen, text, {"facts": facts, **asdict(found)})


if __name__ == "__main__":
    run(main)
