"""Debezium's JDBC sink on Kafka Connect: at least once, in PostgreSQL and MariaDB.

It needs records with a schema. The topic has plain JSON, so Connect's converter gets the schema from its settings
(``schema.content``), and the sink reads the same bytes as all contenders. A time stays text that the database parses.

How it was tuned, in small trials of 20,000 and 50,000 records on a busy machine. Batches of 10,000 records were faster
than of 500 in every round of inserts, than of 2,000 in two of three; for upserts they were in two of three. Undecided,
and therefore left as they come: ``use.reduction.buffer`` (no key repeats within a batch here), four tasks instead of
two, and for MariaDB ``useBulkStmts``, which is on because it is what the driver has for batches. MySQL's driver, with
``rewriteBatchedStatements``, fails on MariaDB: Hibernate finds no dialect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from bench.harness import jdbc, tables
from bench.harness.race import Course, Lap
from bench.harness.records import SCHEMA
from bench.harness.servers import new_group
from bench.harness.tables import Mode
from bench.peers.connect import CONVERTER, Shared
from bench.peers.watch import watch

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

    name: str
    mode: Mode = "append"
    tuned: bool = True
    share: float = 1.0

    def start(self, course: Course) -> None:
        shared.enter(course.brokers)

    def stop(self) -> None:
        shared.leave()

    def lap(self, course: Course) -> Lap:
        tables.prepare(course, self.mode)
        name = new_group(course)
        with shared.worker.connector(name, self.config(course)):
            return watch(course, self.mode, int(course.records * self.share), partial(shared.worker.check, name))

    def config(self, course: Course) -> dict[str, str]:
        """What the connector is told."""
        options = {**PLAIN[course.kind], **(REWRITE[course.kind] if self.tuned else {})}
        user, password = jdbc.login(course)
        return {
            "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
            "tasks.max": "2",
            "topics": course.topic,
            "connection.url": jdbc.address(course, course.kind, options),
            "connection.username": user,
            "connection.password": password,
            "collection.name.format": course.table,
            "insert.mode": "upsert" if self.mode == "upsert" else "insert",
            "primary.key.mode": "record_value" if self.mode == "upsert" else "none",
            **({"primary.key.fields": "id"} if self.mode == "upsert" else {}),
            "schema.evolution": "none",
            "value.converter": CONVERTER,
            "value.converter.schemas.enable": "true",
            "value.converter.schema.content": json.dumps({"type": "struct", "fields": FIELDS}),
            "consumer.override.auto.offset.reset": "earliest",
            **(TUNED if self.tuned else {}),
        }


@contextmanager
def running(course: Course) -> Iterator[None]:
    """A tuned connector that writes to the table of the course, on a worker that outlives it."""
    shared.keep(course.brokers)
    with shared.worker.connector(new_group(course), Debezium("Debezium").config(course)):
        yield
