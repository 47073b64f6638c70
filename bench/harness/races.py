"""Runs the races of a part: servers, one Spark session for all, and a topic for each course."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench.harness import jdbc
from bench.harness.race import Comparison, Contender, Course, Outcome, race
from bench.harness.records import Shape
from bench.harness.report import keep, races_as_json
from bench.harness.servers import Servers, course
from tallymark.spark.session import session

WARM = 2
"""Rounds that do not count. After a single one, the contender behind a slow loop still had a faster JVM."""


@dataclass(frozen=True)
class Race:
    """A race that is planned."""

    title: str
    contenders: list[Contender]
    comparisons: Iterable[Comparison]


Courses = Iterable[tuple[str, Shape, int]]
"""The kind of the store, the shape of the records, and how many there are."""


def measure(
    chosen: argparse.Namespace, courses: Courses, races: Callable[[Course, Shape], Iterable[Race]]
) -> tuple[dict[str, str], list[Outcome]]:
    """Run all races on all courses. Results are kept after each, so that a failure later loses none."""
    facts: dict[str, str] = {}
    outcomes: list[Outcome] = []
    with Servers(chosen.brokers, chosen.store) as servers:
        spark = session({"spark.master": "local[2]", "spark.jars": jdbc.jars()})
        try:
            for kind, shape, records in courses:
                with course(servers.brokers, servers.url(kind), records, shape) as at:
                    facts |= servers.facts(kind)
                    for one in races(at, shape):
                        warm, compared = 1 if chosen.quick else WARM, list(one.comparisons)
                        outcomes.append(race(one.title, one.contenders, at, chosen.rounds, compared, warm))
                        keep(chosen.json, races_as_json(facts, outcomes))
        finally:
            spark.stop()
    return facts, outcomes
