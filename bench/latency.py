"""Milliseconds from producing one record until another connection sees its row, while nothing else is to be done.

Each contender is a context manager that keeps something running between a topic and a table. They take turns, one at a
time, each turn with a topic, a table and a group of its own. The row is asked for every millisecond, by its id, and the
gaps between records are random, the same for all contenders, so that no interval of polling is favoured. Records are
sent and rows are looked for by another process, so that this does not slow down a contender. For some contenders every
fifth record can't be decoded: it is sent immediately before the next one, whose time includes the work on both.
"""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import psycopg
from confluent_kafka import Producer

import tallymark as tm
from bench.contenders import streaming
from bench.contenders.loops import Clock, Place, textbook
from bench.contenders.workloads import COMPUTED, PICKED, Workload
from bench.harness import jdbc, tables
from bench.harness.command import Command, run
from bench.harness.machine import sentence
from bench.harness.race import Course, say, spread, turns
from bench.harness.records import DDL, PARTITIONS, STEP, delete_topic, values
from bench.harness.report import table
from bench.harness.servers import Servers
from tallymark.core.progress import OnStep, ignore
from tallymark.errors import BadInput, TallymarkError
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.cluster import Cluster
from tallymark.spark.session import session
from tallymark.stores.opening import open_sql

Running = Callable[[Course], AbstractContextManager[None]]

WARM = 10
IDS = 1_000_000
GAPS = (0.05, 0.25)
"""Seconds between one record's row and the next record: a random number between these."""
TIMEOUT = 90.0
UNDECODABLE = b'{"id": '
EVERY = 5
BY_HAND, CONSUMER, PIPELINE, TUNED = "loop by hand", "tallymark, consumer", "tallymark, Spark", "foreachBatch, tuned"
COMPUTING = ", computed"
MIXED = f"{COMPUTING}, every fifth undecodable"
"""How the names of contenders end whose function computes, and of those that get undecodable records, too."""
TARGETS = (
    (CONSUMER, BY_HAND, 1.5),
    (PIPELINE, TUNED, 0.6),
    (PIPELINE + COMPUTING, TUNED + COMPUTING, 0.6),
    (PIPELINE + MIXED, TUNED + MIXED, None),
    (PIPELINE + MIXED, PIPELINE + COMPUTING, None),
)
"""The p50 of the first is to be at most so many times that of the second, or is only compared."""
TAILS = ((PIPELINE + MIXED, 2.0),)
"""The p90 is to be at most so many times the p50."""


class Absent(Exception):
    """A peer that can't run here, and why."""


@contextmanager
def in_thread(run: Callable[[], Any], stop: Callable[[], None]) -> Iterator[None]:
    """Run it meanwhile, and let its own error be the one that is seen."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run)
        try:
            yield
        finally:
            stop()
            future.result(TIMEOUT)


@contextmanager
def in_background(pipeline: tm.Pipeline, on_step: OnStep = ignore) -> Iterator[None]:
    """The same for a pipeline, which only a signal could stop otherwise."""
    with pipeline.setup.destination() as destination:
        loop = pipeline._loop(destination, on_step)
        with in_thread(loop.run, loop.stop):
            yield


@contextmanager
def by_hand(course: Course) -> Iterator[None]:
    """A transaction for every record: the row and its offset."""
    clock = Clock(sys.maxsize)

    def stop() -> None:
        clock.records = 0

    with Place(course) as place, in_thread(lambda: textbook(place, clock), stop):
        yield


@contextmanager
def consumer(course: Course) -> Iterator[None]:
    """The statement that the loop by hand has; the time stays text, as it does there."""
    source = tm.Kafka(course.brokers, course.topic, value=tm.Json(DDL.replace("TIMESTAMP", "STRING")))
    made = tm.Consumer(group=course.topic, source=source, store=course.url)

    def run() -> None:
        for batch in made.batches():
            with batch.transaction() as db:
                db.execute(tables.plain_insert(course.table), batch.records.values())

    with in_thread(run, made.stop):
        yield


def pipeline(workload: Workload = PICKED) -> Running:
    @contextmanager
    def running(course: Course) -> Iterator[None]:
        source = tm.Kafka(course.brokers, course.topic, value=tm.Json(workload.ddl))
        made = tm.Pipeline(group=course.topic, source=source, store=course.url)
        for name, output in workload.tables(course).items():
            made.table(name)(output.function)
        with in_background(made):
            yield

    return running


def foreach_batch(workload: Workload = PICKED, *, tuned: bool) -> Running:
    """Structured Streaming with Spark's JDBC writer, at once whenever there is something."""

    @contextmanager
    def running(course: Course) -> Iterator[None]:
        with streaming.writer(course, workload, tuned=tuned) as writer:
            query = writer.trigger(processingTime="0 seconds").start()
            try:
                yield
                # A row is seen before its batch has ended, and a query that is stopped within one complains at length.
                query.processAllAvailable()
            finally:
                query.stop()

    return running


def peer(module: str) -> Running:
    """A contender in another process, which need not be installed here."""

    @contextmanager
    def running(course: Course) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(importlib.import_module(f"bench.peers.{module}").running(course))
            except (ImportError, OSError, TallymarkError) as error:
                raise Absent(str(error)) from error
            yield

    return running


CONTENDERS: Mapping[str, Running] = {
    BY_HAND: by_hand,
    CONSUMER: consumer,
    PIPELINE: pipeline(),
    "foreachBatch, default": foreach_batch(tuned=False),
    TUNED: foreach_batch(tuned=True),
    **{
        name + end: running
        for end in (COMPUTING, MIXED)
        for name, running in {PIPELINE: pipeline(COMPUTED), TUNED: foreach_batch(COMPUTED, tuned=True)}.items()
    },
    "Debezium": peer("debezium"),
    "Quix Streams": peer("quix"),
}


def turn(course: Course, name: str, running: Running, records: int, pool: Executor) -> list[float]:
    """The milliseconds of every record, after some that warm up."""
    with running(course):
        times = pool.submit(observed, course, records + WARM, mixed=name.endswith(MIXED)).result()
    found = tables.written(course)
    if found != len(times):
        raise RuntimeError(f"{len(times)} records became {found} rows")
    return times[WARM:]


def observed(course: Course, records: int, *, mixed: bool) -> list[float]:
    """Send one record after the other, each after the row of the one before was seen.

    ``mixed`` sends an undecodable record before every fourth of them, so that every fifth is undecodable.
    """
    gaps = random.Random(records)
    producer = Producer({"bootstrap.servers": course.brokers, "linger.ms": 0})
    times = []
    with psycopg.connect(course.url, autocommit=True) as looking:
        for number, one in enumerate(values(0, records, IDS)):
            time.sleep(gaps.uniform(*GAPS))
            began = time.perf_counter()
            if mixed and number % (EVERY - 1) == 0:
                producer.produce(course.topic, UNDECODABLE, partition=number % PARTITIONS)
            producer.produce(course.topic, one, partition=number % PARTITIONS)
            seen = _seen(looking, course.table, number * STEP % IDS)
            times.append((seen - began) * 1000)
        producer.flush()
    return times


def _seen(connection: psycopg.Connection[Any], table: str, number: int) -> float:
    deadline = time.perf_counter() + TIMEOUT
    while time.perf_counter() < deadline:
        if connection.execute(f"SELECT 1 FROM {table} WHERE id = %s", (number,)).fetchone():
            return time.perf_counter()
        time.sleep(0.001)
    raise RuntimeError(f"record {number} did not become a row in {TIMEOUT:.0f} s")


@contextmanager
def fresh(brokers: str, url: str, number: int) -> Iterator[Course]:
    """A topic and an empty table for one turn, gone afterwards."""
    course = Course(brokers, f"bench_latency_{number}", 0, url, "postgresql", f"bench_latency_{number}")
    Brokers(Cluster(brokers)).create(course.topic, PARTITIONS)
    tables.prepare(course)
    try:
        yield course
    finally:
        delete_topic(Cluster(brokers), course.topic)
        with closing(open_sql(url)) as store:
            tables.drop(store, course.table)


@dataclass
class Times:
    """Milliseconds of every record in every round, by contender, and why others could not take part."""

    rounds: dict[str, list[list[float]]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def measure(brokers: str, url: str, chosen: Mapping[str, Running], records: int, rounds: int) -> Times:
    times = Times()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for number, (round_number, (name, running)) in enumerate(turns(list(chosen.items()), rounds, warm=0)):
            if name in times.skipped:
                continue
            say(f"{name}, round {round_number}")
            with fresh(brokers, url, number) as course:
                try:
                    found = turn(course, name, running, records, pool)
                except Absent as error:
                    times.skipped[name] = str(error)
                else:
                    times.rounds.setdefault(name, []).append(found)
    return times


def report(times: Times) -> Iterator[str]:
    yield from table(("one record", "p50 ms", "p90 ms", "p99 ms", "p50 of each round"), map(_row, times.rounds.items()))
    for rounds in itertools.islice(times.rounds.values(), 1):
        yield from ("", f"{len(rounds)} rounds of {len(rounds[0])} records each, in turns.")
    yield from ratios(times)
    for name, reason in times.skipped.items():
        yield f"{name} did not take part: {reason}."


def _row(named: tuple[str, list[list[float]]]) -> tuple[str, ...]:
    name, rounds = named
    cuts = _percentiles(rounds)
    medians = ", ".join(f"{statistics.median(one):.1f}" for one in rounds)
    return name, f"{cuts[49]:.1f}", f"{cuts[89]:.1f}", f"{cuts[98]:.1f}", medians


def ratios(times: Times) -> Iterator[str]:
    """Each target, and what was found."""
    for ours, theirs, most in TARGETS:
        if times.rounds.keys() >= {ours, theirs}:
            pairs = zip(times.rounds[ours], times.rounds[theirs], strict=True)
            median, least, largest = spread(statistics.median(mine) / statistics.median(other) for mine, other in pairs)
            said = f"The p50 of **{ours}** is {median:.2f}x ({least:.2f}-{largest:.2f}) that of **{theirs}**"
            yield said + _judged(median, most)
    for name, most in TAILS:
        if name in times.rounds:
            cuts = _percentiles(times.rounds[name])
            yield f"The p90 of **{name}** is {cuts[89] / cuts[49]:.2f}x its p50{_judged(cuts[89] / cuts[49], most)}"


def _judged(ratio: float, most: float | None) -> str:
    return "." if most is None else f"; the target is at most {most}x: {'met' if ratio <= most else 'missed'}."


def _percentiles(rounds: list[list[float]]) -> list[float]:
    return statistics.quantiles(itertools.chain(*rounds), n=100, method="inclusive")


def main() -> None:
    command = Command("latency", __doc__)
    command.options.add_argument("--rounds", type=int, default=3)
    command.options.add_argument("--records", type=int, default=70, help="Records of each contender in a round.")
    command.options.add_argument("--quick", action="store_true", help="One round of ten records.")
    command.options.add_argument("--only", default="", help="Contenders whose name has this in it.")
    chosen = command.parse()
    records, rounds = (10, 1) if chosen.quick else (chosen.records, chosen.rounds)
    those = {name: running for name, running in CONTENDERS.items() if chosen.only in name}
    if not those:
        raise BadInput(f"no contender has {chosen.only!r} in its name; there are {'; '.join(CONTENDERS)}")
    session({"spark.master": "local[2]", "spark.jars": jdbc.jars()})
    with Servers() as servers:
        facts = servers.facts("postgresql")
        times = measure(servers.brokers, servers.url("postgresql"), those, records, rounds)
    command.publish(chosen, "\n".join([sentence(facts), "", *report(times)]), {"facts": facts, **asdict(times)})


if __name__ == "__main__":
    run(main)
