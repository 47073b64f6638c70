"""Staging on a real Spark standalone cluster: what a second worker gains, and whose CPU time it takes.

Clusters of one and of two workers on loopback, each worker with one core, and once more with a part of a core: on a
small machine the database and the driver need the rest, and only then does a second worker show a gain.
Each cluster has a driver in a process of its own that stays warm. The drivers take turns on one topic; rows go through
the executors or through the driver. The CPU time of each process is read from /proc, so it runs on Linux alone.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import tables
from bench.harness.command import Command, run
from bench.harness.machine import sentence
from bench.harness.processes import busy_seconds, family, processes
from bench.harness.race import Course, Idle, Lap, Result, race, say, spread
from bench.harness.ration import ration
from bench.harness.report import ratio_of, table, thousands
from bench.harness.servers import Servers, course
from bench.harness.standalone import Driver, Order, Standalone
from tallymark.errors import BadInput
from tallymark.local.sandbox.server import Server
from tallymark.spark.pipeline import Road

BATCHES: Mapping[Road, int] = {"executors": 1_000_000, "driver": 250_000}
"""The most records of a batch: many where they are staged, few where the driver reads one while another commits."""
WORKERS = (1, 2)
PART = 0.3
"""Of a core, for each worker of the smaller kind: its executor's Java and Python together."""
PARTS = ("driver, Python", "driver, JVM", "executors, JVM", "executors, Python", "PostgreSQL", "Kafka")


@dataclass
class Lane(Idle):
    """A contender: one path through one cluster. ``costs`` has the CPU seconds of each part, lap by lap."""

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
    speeds = ("workers", "cores of each", "road", "k records/s", "spread", "against one worker")
    yield from table(speeds, (_speed(lane, lanes, results) for lane in lanes), left=0)
    yield ""
    costs = ("CPU seconds for a million records", *PARTS, "the driver's share", "cores", "cores of all")
    yield from table(costs, ((lane.name, *_costs(lane, results[lane.name].laps[0].records)) for lane in lanes))


def _speed(lane: Lane, lanes: Sequence[Lane], results: Mapping[str, Result]) -> tuple[str, ...]:
    result = results[lane.name]
    like = (one for one in lanes if (one.road, one.cores) == (lane.road, lane.cores))
    alone = next(results[one.name] for one in like if one.workers == 1)
    median, least, most = map(thousands, spread(result.rates))
    gain = "" if result is alone else ratio_of(spread(result.ratios(alone)))
    return f"{lane.workers}", f"{lane.cores:g}", lane.road, median, f"{least}-{most}", gain


def _costs(lane: Lane, records: int) -> Iterator[str]:
    """Medians of the laps that count."""
    cost = {name: statistics.median(one[name] for one in lane.costs[1:]) for name in lane.costs[0]}
    for part in PARTS:
        yield f"{cost[part] * 1e6 / records:.2f}"
    total = sum(cost[part] for part in PARTS)
    yield f"{sum(cost[part] for part in PARTS if part.startswith('driver')) / total:.0%}"
    yield f"{total / cost['clock']:.2f}"
    yield f"{cost['machine'] / cost['clock']:.2f} of {os.cpu_count()}"


def measure(servers: Servers, records: int, rounds: int) -> tuple[list[Lane], dict[str, Result]]:
    url, directory = servers.url("postgresql"), servers.box.directory
    watched = {"PostgreSQL": servers.box.postgresql(), "Kafka": servers.kafka}
    with ExitStack() as stack:
        lanes: list[Lane] = []
        for workers in WORKERS:
            cluster = stack.enter_context(Standalone(directory / f"cluster-{workers}", workers))
            driver = stack.enter_context(Driver(cluster))
            lanes += (Lane(cluster, driver, watched, road) for road in BATCHES)
        try:
            lanes += [_rationed(stack, directory, watched, workers) for workers in WORKERS]
        except BadInput as error:
            say(f"without workers of a part of a core: {error}")
        at = stack.enter_context(course(servers.brokers, url, records))
        return lanes, race("cluster", lanes, at, rounds).results


def _rationed(stack: ExitStack, directory: Path, servers: Mapping[str, Server], workers: int) -> Lane:
    """The executors' path through workers that have a part of a core each."""
    rations = [stack.enter_context(ration(PART)) for _ in range(workers)]
    cluster = stack.enter_context(Standalone(directory / f"small-cluster-{workers}", workers))
    for one, worker in zip(rations, cluster.workers, strict=True):
        assert worker.pid is not None
        one.add(worker.pid)
    return Lane(cluster, stack.enter_context(Driver(cluster)), servers, "executors", PART)


def main() -> None:
    command = Command("cluster", __doc__)
    command.options.add_argument("--rounds", type=int, default=3)
    command.options.add_argument("--records", type=int, default=2_000_000)
    chosen = command.parse()
    with Servers() as servers:
        lanes, results = measure(servers, chosen.records, chosen.rounds)
        facts = servers.facts("postgresql")
    end = f"{chosen.records:,} records. Medians of {chosen.rounds} rounds after one to warm up, in turns."
    laps = {one.name: {"rates": results[one.name].rates, "cpu seconds": one.costs[1:]} for one in lanes}
    text = "\n".join([sentence(facts), "", *report(lanes, results), "", end])
    command.publish(chosen, text, {"facts": facts, "records": chosen.records, "laps": laps})


if __name__ == "__main__":
    run(main)
