"""Staging on a real Spark standalone cluster: what a second worker gains, and whose CPU time it takes.

Clusters of one and of two workers on loopback, each worker with one core, and once more with a part of a core: on a
small machine the database and the driver need what is left, and only so can be seen whether a second worker gains.
Each cluster has a driver in a process of its own that stays warm. The drivers take turns on one topic, by the
executors' road and by the driver's. What each process took of the cores is read from /proc: it runs on Linux alone.
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

from bench.harness import tables
from bench.harness.machine import database, machine, sentence, versions
from bench.harness.race import Course, Lap, Result, race, spread
from bench.harness.ration import ration
from bench.harness.report import replace_section, thousands
from bench.harness.standalone import Driver, Order, Standalone
from bench.harness.venue import Venue
from tallymark.errors import BadInput
from tallymark.local.sandbox import Sandbox
from tallymark.local.sandbox.kafka import Kafka
from tallymark.local.sandbox.server import Server
from tallymark.spark.pipeline import Road

BATCHES: Mapping[Road, int] = {"executors": 1_000_000, "driver": 250_000}
"""The most records of a batch: many where they are staged, few where the driver reads one while another commits."""
WORKERS = (1, 2)
PART = 0.3
"""Of a core, for each worker of the smaller kind: its executor's Java and Python together."""
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
    cores: float = 1.0
    costs: list[dict[str, float]] = field(default_factory=list)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.workers = len(self.cluster.workers)
        part = f" of {self.cores:g} cores" if self.cores < 1 else ""
        self.name = f"{self.workers} worker{'s' * (self.workers > 1)}{part}, {self.road}"

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
    yield "| workers | cores of each | road | k records/s | spread | against one worker |"
    yield "|---:|---:|---|---:|---|---|"
    for lane in lanes:
        result = results[lane.name]
        like = (one for one in lanes if (one.road, one.cores) == (lane.road, lane.cores))
        alone = next(results[one.name] for one in like if one.workers == 1)
        median, least, most = map(thousands, spread(result.rates))
        gain = "" if result is alone else "{:.2f}x ({:.2f}-{:.2f})".format(*spread(result.ratios(alone)))
        yield f"| {lane.workers} | {lane.cores:g} | {lane.road} | {median} | {least}-{most} | {gain} |"
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
        try:
            lanes += [_rationed(stack, box.directory, servers, workers) for workers in WORKERS]
        except BadInput as error:
            told.print(f"without workers of a part of a core: {error}", style="yellow", markup=False)
        venue = Venue(kafka.brokers, postgresql.url, records, "small")
        course = stack.enter_context(venue.course(lambda _: None))
        results = race(lanes, course, rounds, lambda name, turn: told.print(f"round {turn}: {name}"))
        return {**machine(), **versions(), **database(postgresql.url)}, lanes, results


def _rationed(stack: ExitStack, directory: Path, servers: Mapping[str, Server], workers: int) -> Lane:
    """The executors' road through workers that have a part of a core each."""
    rations = [stack.enter_context(ration(PART)) for _ in range(workers)]
    cluster = stack.enter_context(Standalone(directory / f"small-cluster-{workers}", workers))
    for one, worker in zip(rations, cluster.workers, strict=True):
        assert worker.pid is not None
        one.add(worker.pid)
    return Lane(cluster, stack.enter_context(Driver(cluster)), servers, "executors", PART)


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
