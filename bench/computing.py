"""Records per second from Kafka to COMMIT for functions that pick columns and for functions that compute.

Pipelines with default settings race against tuned foreachBatch + JDBC into PostgreSQL. On a sandbox, or on brokers and
a store that are given: what the race makes there has names of its own and is removed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from bench.contenders import lineup
from bench.contenders.ours import OurPipeline
from bench.contenders.streaming import ForeachBatch
from bench.contenders.workloads import COMPUTED, NESTED, PICKED, Workload
from bench.harness import races
from bench.harness.command import Command, run
from bench.harness.race import Comparison, Course
from bench.harness.records import Shape
from bench.harness.report import short
from bench.harness.servers import kind_of
from tallymark.core.plan import Limits
from tallymark.errors import BadInput
from tallymark.spark.pipeline import Road

RECORDS, QUICK_RECORDS = 2_000_000, 200_000


@dataclass(frozen=True)
class Case:
    """One race: its records, what is done with them, and how many times as fast as the peer ours has to be."""

    title: str
    shape: Shape
    workload: Workload
    least: float
    aim: float | None = None
    batch: int = Limits.records
    road: Road = "auto"

    def race(self, records: int, *, quick: bool) -> races.Race:
        """Tallymark has its default limits except for the size of a batch, which is also the peer's."""
        size = lineup.batch_size(self.batch, records, quick=quick)
        name = lineup.EXECUTORS if self.road == "executors" else lineup.PIPELINE
        ours = OurPipeline(name, records=size, road=self.road, workload=self.workload)
        peer = ForeachBatch(lineup.JDBC_TUNED, True, size, self.workload)
        compared = [Comparison(ours.name, peer.name, self.least, self.aim)]
        return races.Race(
            f"{self.title}, {short(size)} a batch",
            [ours, peer],
            lineup.without_targets(compared) if quick else compared,
        )


CASES = (
    Case("140 B, picked", "small", PICKED, 2.5),
    Case("140 B, computed", "small", COMPUTED, 2.0),
    Case("140 B, computed, executors", "small", COMPUTED, 1.0, 1.3, lineup.LARGE, "executors"),
    Case("0.4 KB nested, two tables, filtered and computed", "nested", NESTED, 1.3, 1.6),
    Case("1 KB, picked", "large", PICKED, 1.0, 1.2),
    Case("1 KB, computed", "large", COMPUTED, 0.9, 1.1),
)


def main() -> None:
    command = Command("computing", __doc__)
    command.add_race_options(RECORDS, QUICK_RECORDS)
    command.options.add_argument("--only", default="", help="Races whose title has this in it, such as 'computed'.")
    chosen = command.parse_race()
    if chosen.store and kind_of(chosen.store) != "postgresql":
        raise BadInput("the races of functions need PostgreSQL; pass --store postgresql://...")
    cases = [case for case in CASES if chosen.only.lower() in case.title.lower()]
    if not cases:
        raise BadInput(f"no race has {chosen.only!r} in its title; there are {'; '.join(case.title for case in CASES)}")

    def planned(at: Course, shape: Shape) -> Iterator[races.Race]:
        return (case.race(at.records, quick=chosen.quick) for case in cases if case.shape == shape)

    command.publish_races(chosen, *races.measure(chosen, courses(chosen, cases), planned))


def courses(chosen: argparse.Namespace, cases: list[Case]) -> Iterator[tuple[str, Shape, int]]:
    """A topic for each shape. Of records that are larger there are half as many."""
    for shape in dict.fromkeys(case.shape for case in cases):
        yield "postgresql", shape, chosen.records if shape == "small" else max(1000, chosen.records // 2)


if __name__ == "__main__":
    run(main)
