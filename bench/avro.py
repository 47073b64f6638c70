"""Records per second from Kafka to COMMIT in PostgreSQL: Avro from a schema registry, and JSON with the same rows.

Pipelines with default settings race against each other, and against tuned foreachBatch + ``from_avro`` + JDBC.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from bench.contenders import lineup
from bench.contenders.ours import OurPipeline
from bench.contenders.streaming import ForeachBatch
from bench.contenders.workloads import COMPUTED, PICKED, Workload
from bench.harness import races
from bench.harness.command import Command, run
from bench.harness.race import Comparison, Contender, Course, Idle, Lap, say
from bench.harness.records import AVRO, AVRO_ID, Shape, delete_topic, fill
from bench.harness.registry import registry
from bench.harness.report import short
from bench.harness.servers import kind_of
from tallymark.core.plan import Limits
from tallymark.errors import BadInput
from tallymark.formats.value import Avro
from tallymark.kafka.cluster import Cluster

RECORDS, QUICK_RECORDS = 1_000_000, 200_000
OURS, BY_JSON, PEER = "tallymark, Avro", "tallymark, JSON", "foreachBatch + from_avro + JDBC, tuned"
SCHEMA = json.dumps(AVRO)
WORKLOADS = {"picked": PICKED, "computed": COMPUTED}


@dataclass
class OnAvro(Idle):
    """Has another contender run on the topic with Avro."""

    name: str
    other: Contender

    def lap(self, course: Course) -> Lap:
        return self.other.lap(replace(course, topic=topic_of(course)))


def topic_of(course: Course) -> str:
    """The topic with the records of a course as Avro."""
    return f"{course.topic}-avro"


@contextmanager
def avro_topic(course: Course) -> Iterator[None]:
    topic, cluster = topic_of(course), Cluster(course.brokers)
    say(f"writing {course.records:,} records to topic {topic}")
    fill(cluster, topic, course.records, "avro")
    try:
        yield
    finally:
        delete_topic(cluster, topic)


def contenders(workload: Workload, size: int, url: str) -> list[Contender]:
    ours = OurPipeline(OURS, records=size, workload=workload, value=Avro(url, subject="orders"))
    peer = ForeachBatch(PEER, True, size, workload, SCHEMA)
    return [OnAvro(OURS, ours), OurPipeline(BY_JSON, records=size, workload=workload), OnAvro(PEER, peer)]


def main() -> None:
    command = Command("avro", __doc__)
    command.add_race_options(RECORDS, QUICK_RECORDS)
    chosen = command.parse_race()
    if chosen.store and kind_of(chosen.store) != "postgresql":
        raise BadInput("the races of Avro need PostgreSQL; pass --store postgresql://...")

    def planned(at: Course, _: Shape) -> Iterator[races.Race]:
        size = lineup.batch_size(Limits.records, at.records, quick=chosen.quick)
        compared = [Comparison(OURS, BY_JSON, 1.0), Comparison(OURS, PEER, 2.0)]
        with avro_topic(at), registry(AVRO_ID, AVRO) as url:
            for name, workload in WORKLOADS.items():
                yield races.Race(
                    f"{name}, {short(size)} a batch",
                    contenders(workload, size, url),
                    lineup.without_targets(compared) if chosen.quick else compared,
                )

    command.publish_races(chosen, *races.measure(chosen, [("postgresql", "small", chosen.records)], planned))


if __name__ == "__main__":
    run(main)
