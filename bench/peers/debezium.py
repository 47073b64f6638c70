"""Debezium's JDBC sink on Kafka Connect: at least once, in PostgreSQL and MariaDB.

It needs records with a schema. The topic has plain JSON, so Connect's converter gets the schema from its settings
(``schema.content``), and the sink reads the same bytes as everybody else. A time stays text that the database parses.

How it was tuned, in small trials of 20,000 and 50,000 records on a busy machine. Batches of 10,000 records were faster
than of 500 in every round of inserts, than of 2,000 in two of three; for upserts they were in two of three. Undecided,
and therefore left as they come: ``use.reduction.buffer`` (no key repeats within a batch here), four tasks instead of
two, and for MariaDB ``useBulkStmts``, which is on because it is what the driver has for batches. MySQL's driver, with
``rewriteBatchedStatements``, fails on MariaDB: Hibernate finds no dialect. ``settings`` is there to try others.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import pyarrow as pa

from bench.harness import jdbc, tables
from bench.harness.race import Course, Lap
from bench.harness.records import SCHEMA
from bench.harness.tables import Mode
from bench.peers.connect import CONVERTER, Shared
from bench.peers.watch import watch

Insert = Literal["insert", "upsert"]

TYPES = {pa.int64(): "int64", pa.float64(): "double", pa.string(): "string"}
FIELDS = [{"field": one.name, "type": TYPES.get(one.type, "string"), "optional": True} for one in SCHEMA]
# Without the first, PostgreSQL does not take a text for a time.
PLAIN = {"postgresql": {"stringtype": "unspecified"}, "mariadb": {}}
REWRITE = {**jdbc.REWRITE, "mariadb": {"useBulkStmts": "true"}}
TUNED = {
    "batch.size": str(jdbc.BATCH),
    "consumer.override.max.poll.records": str(jdbc.BATCH),
    "consumer.override.fetch.max.bytes": str(8 << 20),
    "consumer.override.max.partition.fetch.bytes": str(8 << 20),
    "consumer.override.fetch.max.wait.ms": "20",
}

shared = Shared()
"""The worker of this process."""


@dataclass
class Debezium:
    """``tuned``: our Kafka options, batches of 10,000 and a driver that rewrites them. Otherwise all is as it comes."""

    mode: Insert = "insert"
    tasks: int = 2
    tuned: bool = True
    share: float = 1.0
    name: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    """More settings of the connector, or others than ours."""
    connect: Shared = field(default_factory=lambda: shared)

    def __post_init__(self) -> None:
        self.name = self.name or f"Debezium, {self.mode}, {'tuned' if self.tuned else 'default'}, {self.tasks} tasks"

    def start(self, course: Course) -> None:
        self.connect.enter(course.brokers)

    def stop(self) -> None:
        self.connect.leave()

    def lap(self, course: Course) -> Lap:
        mode: Mode = "upsert" if self.mode == "upsert" else "append"
        tables.prepare(course, mode)
        worker, name = self.connect.worker, _name(course)
        with worker.connector(name, self.config(course)):
            found = watch(course, mode, int(course.records * self.share), partial(worker.check, name))
        # It went on until the connector was deleted, so only a whole topic ends at a number that is known.
        return tables.lap(course, self.name, course.records, found.seconds) if self.share == 1 else found

    def config(self, course: Course) -> dict[str, str]:
        """What the connector is told."""
        options = {**PLAIN[course.kind], **(REWRITE[course.kind] if self.tuned else {})}
        user, password = jdbc.login(course)
        return {
            "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
            "tasks.max": str(self.tasks),
            "topics": course.topic,
            "connection.url": jdbc.address(course, course.kind, options),
            "connection.username": user,
            "connection.password": password,
            "collection.name.format": course.table,
            "insert.mode": self.mode,
            "primary.key.mode": "record_value" if self.mode == "upsert" else "none",
            **({"primary.key.fields": "id"} if self.mode == "upsert" else {}),
            "schema.evolution": "none",
            "value.converter": CONVERTER,
            "value.converter.schemas.enable": "true",
            "value.converter.schema.content": json.dumps({"type": "struct", "fields": FIELDS}),
            "consumer.override.auto.offset.reset": "earliest",
            **(TUNED if self.tuned else {}),
            **self.settings,
        }


@contextmanager
def running(course: Course) -> Iterator[None]:
    """A tuned connector that writes to the table of the course, on a worker that outlives it."""
    shared.keep(course.brokers)
    with shared.worker.connector(_name(course), Debezium().config(course)):
        yield


def _name(course: Course) -> str:
    """A new one for each lap, since the name is the group, and a new group starts at the beginning."""
    return f"{course.topic}-{uuid.uuid4().hex[:8]}"
