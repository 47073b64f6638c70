"""Records per second from Kafka to COMMIT without Spark: our consumers beside the loops that one writes by hand.

All contenders take turns in one run on the same topic. Time runs from a contender's first commit to its last, so that
joining and starting count for nobody. What counts are the ratios. ``make bench`` runs it and writes docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from rich.console import Console
from rich.progress import Progress as Bar

import tallymark as tm
from bench.contenders.loops import Clock, Place, Run, hand_arrow, hand_batches, textbook
from bench.harness.records import DDL, PARTITIONS, SCHEMA, fill, value
from bench.harness.report import replace_section
from tallymark.core.progress import Progress, Step
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.cluster import Cluster
from tallymark.local.sandbox import Sandbox

IDLE = ("idle-by-hand", "idle-ours")
TOPIC = "orders"
INSERT = f"INSERT INTO orders ({', '.join(SCHEMA.names)}) VALUES ({', '.join(f':{name}' for name in SCHEMA.names)})"
JSON = tm.Json(DDL)
AS_BY_HAND = tm.Json(DDL.replace("TIMESTAMP", "STRING"))
"""The time stays text, and the database parses it, as json.loads and a plain INSERT have it."""


def produce(brokers: str, records: int) -> None:
    fill(Cluster(brokers), TOPIC, records)
    for topic in IDLE:
        Brokers(brokers).create(topic, PARTITIONS)


def our_batches(most: int) -> Run:
    """The same statement as by hand, and the same parameters."""

    def run(place: Place, clock: Clock) -> None:
        source = tm.Kafka(place.brokers, place.topic, value=AS_BY_HAND)
        consumer = tm.Consumer(group=_group(), source=source, store=place.url)
        for batch in consumer.batches(most):
            with batch.transaction() as db:
                db.execute(INSERT, batch.records.values())
            clock.committed(len(batch))
            if clock.done:
                break

    return run


def our_arrow(most: int) -> Run:
    def handle(records: Any, db: Any) -> None:
        db.write("orders", records.values_to_arrow())

    return lambda place, clock: _listen(place, clock, handle, batch=True, max_records=most)


def our_records(place: Place, clock: Clock) -> None:
    """A handler by record."""

    def handle(record: Any, db: Any) -> None:
        db.execute(INSERT, record.value)

    _listen(place, clock, handle, value=AS_BY_HAND)


def _listen(place: Place, clock: Clock, handle: Callable[..., None], **settings: Any) -> None:
    app = tm.App(brokers=place.brokers, store=place.url)
    app.listen(place.topic, group=_group(), **{"value": JSON, **settings})(handle)

    def step(step: Step, progress: Progress) -> None:
        if step is Step.COMMITTED:
            clock.committed(progress.tally.applied)
            if clock.done:
                app.stop()

    app.run(on_step=step)


def _group() -> str:
    return f"bench-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class Contender:
    """``share`` is the part of the records it gets: rates are compared, and the slow ones need not see them all."""

    name: str
    run: Run
    share: float = 1.0
    beside: tuple[str, ...] = ()
    """The contenders it is compared with."""


TEXTBOOK, HAND, HAND_ARROW = "by hand, a record", "by hand, 500", "by hand, Arrow and COPY"
CONTENDERS = (
    Contender(TEXTBOOK, textbook, 0.02),
    Contender(HAND, hand_batches(500)),
    Contender("Consumer, 500", our_batches(500), beside=(TEXTBOOK, HAND)),
    Contender("listener by record", our_records, 0.1, beside=(TEXTBOOK, HAND)),
)
ARROW_CONTENDERS = (
    Contender(f"{HAND_ARROW}, 500", hand_arrow(500)),
    Contender("listener, Arrow, 500", our_arrow(500), beside=(TEXTBOOK, f"{HAND_ARROW}, 500")),
    Contender(f"{HAND_ARROW}, 10,000", hand_arrow(10_000)),
    Contender("listener, Arrow, 10,000", our_arrow(10_000), beside=(TEXTBOOK, f"{HAND_ARROW}, 10,000")),
)


def measure(place: Place, contenders: Sequence[Contender], records: int, rounds: int) -> dict[str, list[float]]:
    """Records per second in every round."""
    rates: dict[str, list[float]] = {one.name: [] for one in contenders}
    with Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task(place.store.dialect.name, total=rounds * len(contenders))
        for _ in range(rounds):
            for one in contenders:
                bar.update(task, description=f"{place.store.dialect.name}: {one.name}")
                place.clear()
                clock = Clock(int(records * one.share))
                one.run(place, clock)
                if place.rows() != clock.commits[-1][1]:
                    raise RuntimeError(f"{one.name} committed {clock.commits[-1][1]} records and {place.rows()} rows")
                rates[one.name].append(clock.rate)
                bar.advance(task)
    return rates


def latency(place: Place, run: Run, records: int) -> list[float]:
    """Milliseconds from handing one record to the producer until it is committed, with nothing else to do."""
    place.clear()
    producer = Producer({"bootstrap.servers": place.brokers, "linger.ms": 0})
    clock = Clock(sys.maxsize)
    warm, times = 10, []
    thread = threading.Thread(target=run, args=(place, clock), daemon=True)
    thread.start()
    for number in range(records + warm):
        began = time.perf_counter()
        producer.produce(place.topic, value(number), partition=number % PARTITIONS)
        producer.poll(0)
        while not clock.commits or clock.commits[-1][1] <= number:
            time.sleep(0.001)
        if number >= warm:
            times.append((clock.commits[-1][0] - began) * 1000)
        time.sleep(0.01)
    clock.records = 1
    producer.produce(place.topic, value(0), partition=0)
    producer.flush()
    thread.join()
    return times


def report(kind: str, contenders: Sequence[Contender], rates: dict[str, list[float]]) -> Iterator[str]:
    for one in contenders:
        found = [rate / 1000 for rate in rates[one.name]]
        ratios = (_ratio(rates[one.name], rates[other], other) for other in one.beside if other in rates)
        yield (
            f"| {kind} | {one.name} | {statistics.median(found):,.1f} | {min(found):,.1f}-{max(found):,.1f} "
            f"| {'; '.join(ratios)} |"
        )


def _ratio(ours: Sequence[float], theirs: Sequence[float], name: str) -> str:
    each = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return f"{statistics.median(each):.2f}x ({min(each):.2f}-{max(each):.2f}) {name}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--records", type=int, default=200_000)
    options.add_argument("--stores", nargs="+", default=["postgresql"], choices=["postgresql", "mariadb", "sqlite"])
    options.add_argument("--only", default="", help="Contenders whose name has this in it.")
    options.add_argument("--write", type=Path, help="Put the tables into this file, between the consumers marks.")
    chosen = options.parse_args()
    lines = ["| store | road | k records/s | spread | is |", "|---|---|---:|---|---|"]
    with ExitStack() as stack:
        box = stack.enter_context(Sandbox())
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        urls = {
            "postgresql": lambda: box.postgresql().url,
            "mariadb": lambda: box.mariadb().url,
            "sqlite": lambda: f"sqlite:///{directory}/bench.db",
        }
        brokers = box.kafka().brokers
        produce(brokers, chosen.records)
        for kind in chosen.stores:
            place = Place(brokers, urls[kind]())
            all_of_them = CONTENDERS + (ARROW_CONTENDERS if kind == "postgresql" else ())
            contenders = [one for one in all_of_them if chosen.only in one.name]
            lines += report(kind, contenders, measure(place, contenders, chosen.records, chosen.rounds))
        url = urls[chosen.stores[0]]()
        lines += ["", f"| one record, {chosen.stores[0]} | p50 ms | p99 ms |", "|---|---:|---:|"]
        for topic, name, run in zip(IDLE, (TEXTBOOK, "Consumer"), (textbook, our_batches(500)), strict=True):
            times = statistics.quantiles(latency(Place(brokers, url, topic), run, 200), n=100)
            lines.append(f"| {name} | {times[49]:.1f} | {times[98]:.1f} |")
    # Only now: it brings Spark along, which consumers do without.
    from bench.stores import facts

    said = "\n".join([facts(), "", *lines, "", f"Medians of {chosen.rounds} rounds, in turns."])
    print(said)
    if chosen.write:
        replace_section(chosen.write, "consumers", said)


if __name__ == "__main__":
    main()
