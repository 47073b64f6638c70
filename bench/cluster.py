"""Staging on a real Spark standalone cluster: what a second worker gains, and whose CPU time it takes.

Two clusters on loopback, one of one worker and one of two, each worker with one core. Each has a driver in a process of
its own that stays warm. The drivers take turns on one topic, by the executors' road and by the driver's. What each
process took of the cores is read from /proc, so it runs on Linux alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from standalone import Driver, Order, Standalone
from tallymark.bench import tables
from tallymark.bench.machine import database, machine, sentence, versions
from tallymark.bench.race import Course, Lap, Result, race, spread
from tallymark.bench.report import replace_section, thousands
from tallymark.bench.venue import Venue
from tallymark.pipeline import Road
from tallymark.sandbox import Sandbox
from tallymark.sandbox.kafka import Kafka
from tallymark.sandbox.server import Server

BATCHES: Mapping[Road, int] = {"executors": 1_000_000, "driver": 250_000}
"""The most records of a batch: many where they are staged, few where the driver reads one while another commits."""
WORKERS = (1, 2)
PARTS = ("driver, Python", "driver, JVM", "executors, JVM", "executors, Python", "PostgreSQL", "Kafka")


@dataclass(frozen=True)
class Process:
    parent: int
    name: str
    seconds: float
    """CPU time, with that of its children that have ended."""


def processes() -> dict[int, Process]:
    """All that run now."""
    found, tick = {}, os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = path.read_text().rpartition(")")
        except OSError:
            continue
        fields = tail.split()
        seconds = sum(map(int, fields[11:15])) / tick
        found[int(path.parent.name)] = Process(int(fields[1]), head.partition("(")[2], seconds)
    return found


def family(running: Mapping[int, Process], roots: Collection[int | None]) -> set[int]:
    """These processes and all that descend from them."""
    found = {pid for pid in roots if pid is not None and pid in running}
    while more := {pid for pid, one in running.items() if one.parent in found} - found:
        found |= more
    return found


def busy_seconds() -> float:
    """CPU time of the whole machine since it started: user, nice, system and interrupts."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    return sum(int(fields[number]) for number in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")


@dataclass
class Lane(tables.Idle):
    """A contender: one road through one cluster. ``costs`` has the CPU seconds of each part, lap by lap."""

    cluster: Standalone
    driver: Driver
    servers: Mapping[str, Server]
    road: Road
    costs: list[dict[str, float]] = field(default_factory=list)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.workers = len(self.cluster.workers)
        self.name = f"{self.workers} worker{'s' * (self.workers > 1)}, {self.road}"

    def lap(self, course: Course) -> Lap:
        tables.prepare(course)
        order = Order(course.brokers, course.topic, course.url, course.table, self.road, BATCHES[self.road])
        before = self._spent()
        *batches, end = self.driver.obey(order)
        after = self._spent()
        self.costs.append({part: after[part] - before[part] for part in after} | {"batches": len(batches)})
        return tables.lap(course, self.name, sum(one["applied"] for one in batches), end["seconds"])

    def _spent(self) -> dict[str, float]:
        running = processes()
        drivers, workers = {self.driver.pid}, family(running, [one.pid for one in self.cluster.workers])
        java = {pid for pid in workers if running[pid].name == "java"}
        members = {
            "driver, Python": drivers,
            "driver, JVM": family(running, drivers) - drivers,
            "executors, JVM": java,
            "executors, Python": workers - java,
        } | {name: family(running, [server.pid]) for name, server in self.servers.items()}
        spent = {part: sum(running[pid].seconds for pid in pids) for part, pids in members.items()}
        return spent | {"machine": busy_seconds(), "clock": time.perf_counter()}


def report(lanes: Sequence[Lane], results: Mapping[str, Result]) -> Iterator[str]:
    yield "| workers | road | k records/s | spread | against one worker |"
    yield "|---:|---|---:|---|---|"
    for lane in lanes:
        result = results[lane.name]
        alone = next(results[one.name] for one in lanes if one.road == lane.road and one.workers == 1)
        median, least, most = map(thousands, spread(result.rates))
        gain = "" if result is alone else "{:.2f}x ({:.2f}-{:.2f})".format(*spread(result.ratios(alone)))
        yield f"| {lane.workers} | {lane.road} | {median} | {least}-{most} | {gain} |"
    yield ""
    yield f"| CPU seconds for a million records | {' | '.join(PARTS)} | the driver's share | cores | cores of all |"
    yield f"|---|{'---:|' * (len(PARTS) + 3)}"
    for lane in lanes:
        yield f"| {lane.name} | {' | '.join(_costs(lane, results[lane.name].laps[0].records))} |"


def _costs(lane: Lane, records: int) -> Iterator[str]:
    """Medians of the laps that count."""
    cost = {name: statistics.median(one[name] for one in lane.costs[1:]) for name in lane.costs[0]}
    for part in PARTS:
        yield f"{cost[part] * 1e6 / records:.2f}"
    total = sum(cost[part] for part in PARTS)
    yield f"{sum(cost[part] for part in PARTS if part.startswith('driver')) / total:.0%}"
    yield f"{total / cost['clock']:.2f}"
    yield f"{cost['machine'] / cost['clock']:.2f} of {os.cpu_count()}"


def measure(records: int, rounds: int) -> tuple[dict[str, str], list[Lane], dict[str, Result]]:
    told = Console(stderr=True, highlight=False)
    with ExitStack() as stack:
        box = stack.enter_context(Sandbox())
        # A broker that is compiled for throughput, and not for a quick start.
        kafka = stack.enter_context(Kafka(box.directory / "broker", fast=False, temporary=True))
        postgresql = box.postgresql()
        servers = {"PostgreSQL": postgresql, "Kafka": kafka}
        lanes: list[Lane] = []
        for workers in WORKERS:
            cluster = stack.enter_context(Standalone(box.directory / f"cluster-{workers}", workers))
            driver = stack.enter_context(Driver(cluster))
            lanes += (Lane(cluster, driver, servers, road) for road in BATCHES)
        venue = Venue(kafka.brokers, postgresql.url, records, "small")
        course = stack.enter_context(venue.course(lambda _: None))
        results = race(lanes, course, rounds, lambda name, turn: told.print(f"round {turn}: {name}"))
        return {**machine(), **versions(), **database(postgresql.url)}, lanes, results


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--records", type=int, default=2_000_000)
    options.add_argument("--write", type=Path, help="Put the tables into this file, between the cluster marks.")
    options.add_argument("--json", type=Path, help="Put all that was measured into this file.")
    chosen = options.parse_args()
    facts, lanes, results = measure(chosen.records, chosen.rounds)
    end = f"{chosen.records:,} records. Medians of {chosen.rounds} rounds after one to warm up, in turns."
    said = "\n".join([sentence(facts), "", *report(lanes, results), "", end])
    print(said)
    if chosen.write:
        replace_section(chosen.write, "cluster", said)
    if chosen.json:
        laps = {one.name: {"rates": results[one.name].rates, "cpu seconds": one.costs[1:]} for one in lanes}
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps({"facts": facts, "records": chosen.records, "laps": laps}, indent=1) + "\n")


if __name__ == "__main__":
    main()
