"""Milliseconds from producing one record until another connection sees its row, while nothing else is to be done.

Each contender is a context manager that keeps something running between a topic and a table. They take turns, one at a
time, each turn with a topic, a table and a group of its own. The row is asked for every millisecond, by its id, and the
gaps between records are random, the same ones for all, so that no one's rhythm of polling is favoured. Who sends
records and looks for rows is a process of its own: within a contender's it would be in the way.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from confluent_kafka import Producer
from rich.console import Console
from rich.progress import Progress as Bar

import tallymark as tm
from bench.contenders import limits
from bench.contenders.loops import NAMES, VALUES, Clock, Place, textbook
from bench.contenders.streaming import jdbc_jars, jdbc_options
from bench.harness import tables
from bench.harness.machine import database, machine, sentence, versions
from bench.harness.race import Course, spread
from bench.harness.records import DDL, PARTITIONS, STEP, delete_topic, values
from bench.harness.report import replace_section
from tallymark.core.progress import OnStep, ignore
from tallymark.errors import TallymarkError
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.cluster import Cluster
from tallymark.local.sandbox import Sandbox
from tallymark.spark.session import session
from tallymark.stores.opening import open_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Running = Callable[[Course], AbstractContextManager[None]]

WARM = 10
IDS = 1_000_000
GAPS = (0.05, 0.25)
"""Seconds between one record's row and the next record: a random number between these."""
TIMEOUT = 90.0
BY_HAND, CONSUMER, PIPELINE, TUNED = "loop by hand", "tallymark, consumer", "tallymark, Spark", "foreachBatch, tuned"
TARGETS = ((CONSUMER, BY_HAND, 1.5), (PIPELINE, TUNED, 0.6))
"""Whose p50 is to be at most how many times whose."""


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
    place, clock = Place(course.brokers, course.url, course.topic, course.table), Clock(sys.maxsize)
    place.rewind()

    def stop() -> None:
        clock.records = 0

    with closing(place.store), in_thread(lambda: textbook(place, clock), stop):
        yield
    with closing(open_sql(course.url)) as store:
        tables.drop(store, place.offsets)


@contextmanager
def consumer(course: Course) -> Iterator[None]:
    """The statement that the loop by hand has; the time stays text, as it does there."""
    source = tm.Kafka(course.brokers, course.topic, value=tm.Json(DDL.replace("TIMESTAMP", "STRING")))
    made = tm.Consumer(group=course.topic, source=source, store=course.url)

    def run() -> None:
        for batch in made.batches():
            with batch.transaction() as db:
                db.execute(f"INSERT INTO {course.table} ({NAMES}) VALUES ({VALUES})", batch.records.values())

    with in_thread(run, made.stop):
        yield


@contextmanager
def pipeline(course: Course) -> Iterator[None]:
    source = tm.Kafka(course.brokers, course.topic, value=tm.Json(DDL))
    made = tm.Pipeline(group=course.topic, source=source, store=course.url)
    made.table(course.table)(lambda records: records.select("value.*"))
    with in_background(made):
        yield


def foreach_batch(*, tuned: bool) -> Running:
    """Structured Streaming with Spark's JDBC writer, at once whenever there is something; its checkpoint is local."""

    @contextmanager
    def running(course: Course) -> Iterator[None]:
        options = {**limits.kafka_options(course, tuned=tuned), "startingOffsets": "earliest"}
        source = limits.running().readStream.format("kafka").options(subscribe=course.topic, **options).load()
        rows = (limits.from_json if tuned else limits.from_json_plain)(source)
        target = jdbc_options(course, tuned=tuned)

        def write(found: DataFrame, _: int) -> None:
            found.write.format("jdbc").options(**target).mode("append").save()

        with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as checkpoint:
            writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
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
    PIPELINE: pipeline,
    "foreachBatch, default": foreach_batch(tuned=False),
    TUNED: foreach_batch(tuned=True),
    "Debezium": peer("debezium"),
    "Quix Streams": peer("quix"),
}


def turn(course: Course, running: Running, records: int, pool: Executor) -> list[float]:
    """The milliseconds of every record, after some that warm up."""
    with running(course):
        times = pool.submit(observed, course, records + WARM).result()
    found = tables.written(course)
    if found != len(times):
        raise RuntimeError(f"{len(times)} records became {found} rows")
    return times[WARM:]


def observed(course: Course, records: int) -> list[float]:
    """Send one record after the other, each after the row of the one before was seen."""
    gaps = random.Random(records)
    producer = Producer({"bootstrap.servers": course.brokers, "linger.ms": 0})
    times = []
    with psycopg.connect(course.url, autocommit=True) as looking:
        for number, one in enumerate(values(0, records, IDS)):
            time.sleep(gaps.uniform(*GAPS))
            began = time.perf_counter()
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
    """Milliseconds of every record in every round, by contender, and who could not take part, and why."""

    rounds: dict[str, list[list[float]]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def measure(brokers: str, url: str, chosen: Mapping[str, Running], records: int, rounds: int) -> Times:
    times, numbers = Times(), itertools.count(1)
    apart = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with apart as pool, Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task("latency", total=rounds * len(chosen))
        for _, (name, running) in itertools.product(range(rounds), chosen.items()):
            bar.update(task, description=name)
            if name not in times.skipped:
                with fresh(brokers, url, next(numbers)) as course:
                    try:
                        found = turn(course, running, records, pool)
                    except Absent as error:
                        times.skipped[name] = str(error)
                    else:
                        times.rounds.setdefault(name, []).append(found)
            bar.advance(task)
    return times


def report(times: Times) -> Iterator[str]:
    yield from ("| one record | p50 ms | p90 ms | p99 ms | p50 of each round |", "|---|---:|---:|---:|---|")
    for name, found in times.rounds.items():
        cuts = statistics.quantiles(itertools.chain(*found), n=100, method="inclusive")
        medians = ", ".join(f"{statistics.median(one):.1f}" for one in found)
        yield f"| {name} | {cuts[49]:.1f} | {cuts[89]:.1f} | {cuts[98]:.1f} | {medians} |"
    rounds = next(iter(times.rounds.values()))
    yield from ("", f"{len(rounds)} rounds of {len(rounds[0])} records each, in turns.")
    yield from ratios(times)
    for name, reason in times.skipped.items():
        yield f"{name} did not take part: {reason}."


def ratios(times: Times) -> Iterator[str]:
    """Each target, and what was found."""
    for ours, theirs, most in TARGETS:
        if times.rounds.keys() >= {ours, theirs}:
            pairs = zip(times.rounds[ours], times.rounds[theirs], strict=True)
            median, least, largest = spread(statistics.median(mine) / statistics.median(other) for mine, other in pairs)
            verdict = "met" if median <= most else "missed"
            yield (
                f"The p50 of **{ours}** is {median:.2f}x ({least:.2f}-{largest:.2f}) that of **{theirs}**; "
                f"the target is at most {most}x: {verdict}."
            )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--records", type=int, default=70, help="Records of each contender in a round.")
    options.add_argument("--quick", action="store_true", help="One round of ten records.")
    options.add_argument("--only", default="", help="Contenders whose name has this in it.")
    options.add_argument("--write", type=Path, help="Put the table into this file, between the latency marks.")
    options.add_argument("--json", type=Path, help="Keep every single time in this file.")
    chosen = options.parse_args()
    records, rounds = (10, 1) if chosen.quick else (chosen.records, chosen.rounds)
    those = {name: running for name, running in CONTENDERS.items() if chosen.only in name}
    session({"spark.master": "local[2]", "spark.jars": jdbc_jars()})
    with Sandbox() as box:
        facts = {**machine(), **versions(), **database(box.postgresql().url)}
        times = measure(box.kafka().brokers, box.postgresql().url, those, records, rounds)
    said = "\n".join([sentence(facts), "", *report(times)])
    print(said)
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps({"facts": facts, **asdict(times)}))
    if chosen.write:
        replace_section(chosen.write, "latency", said)


if __name__ == "__main__":
    main()
