"""Debezium's own connectors on Kafka Connect, and databases that keep the log that these read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.peers.connect import CONVERTER, Worker
from tallymark.local.jars import fetch
from tallymark.local.sandbox.mariadb import MariaDB
from tallymark.local.sandbox.mysql import MySQL
from tallymark.local.sandbox.postgresql import PostgreSQL
from tallymark.local.sandbox.server import HOST, Server
from tests.support.background import wait_for
from tests.support.kafka import Topics

LOCK = Path(__file__).with_name("jars.lock")
BINLOG = ("--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-image=FULL", "--server-id=7")
FLUSH_SECONDS = 3.0
"""How often the worker stores the positions of its connectors; what was written since then is repeated after a kill."""
PARTITIONS = 3
SIGNALS = "CREATE TABLE signals (id VARCHAR(42) PRIMARY KEY, type VARCHAR(32) NOT NULL, data VARCHAR(2048))"


class LoggedPostgreSQL(PostgreSQL):
    def command(self) -> list[str | Path]:
        return [*super().command(), "--wal_level=logical"]


class LoggedMariaDB(MariaDB):
    def command(self) -> list[str | Path]:
        return [*super().command(), *BINLOG]


class LoggedMySQL(MySQL):
    def command(self) -> list[str | Path]:
        return [*super().command(), *BINLOG]


SERVERS: dict[str, type[Server]] = {"postgresql": LoggedPostgreSQL, "mariadb": LoggedMariaDB, "mysql": LoggedMySQL}
CLASSES = {
    "postgresql": "postgresql.PostgresConnector",
    "mariadb": "mariadb.MariaDbConnector",
    "mysql": "mysql.MySqlConnector",
}
SCHEMAS = {"postgresql": "public", "mariadb": "test", "mysql": "test"}
"""The schema or the database that has the tables."""
FORMS = {
    "json with a schema": {"value.converter.schemas.enable": "true"},
    # Without a schema, all times have one unit.
    "json": {"value.converter.schemas.enable": "false", "time.precision.mode": "microseconds"},
}
"""The settings of each form of events."""


class Connectors:
    """A connector for each form of events, on one worker. Each has its own topics: ``<prefix>.<schema>.<table>``."""

    def __init__(self, worker: Worker, kind: str, server: Server, prefix: str) -> None:
        self.worker, self.kind, self.server, self.prefix = worker, kind, server, prefix
        self._config = _config(kind, server)

    def start(self) -> None:
        for number, options in enumerate(FORMS.values()):
            prefix = self._prefix(number)
            slot = {"slot.name": prefix.replace("-", "_"), "publication.name": prefix.replace("-", "_")}
            history = {"schema.history.internal.file.filename": str(self.worker.directory / f"{prefix}.history")}
            own = slot if self.kind == "postgresql" else {"database.server.id": str(5400 + number), **history}
            self.worker.add(prefix, {**self._config, **own, "topic.prefix": prefix, **options})

    def topic(self, form: str, table: str = "orders") -> str:
        return f"{self._prefix(list(FORMS).index(form))}.{SCHEMAS[self.kind]}.{table}"

    def check(self) -> None:
        for number in range(len(FORMS)):
            self.worker.check(self._prefix(number))

    def wait_until_stored(self, change: Callable[[], None]) -> None:
        """Return when the worker has stored the positions that the connectors have reached by now.

        ``change`` makes an event: a worker that has nothing new stores nothing.
        """
        # One that has begun may have older positions.
        for _ in range(2):
            before = self._stored_at()
            change()
            wait_for(partial(self._stored_since, before), what="the worker stores positions")

    def remove(self) -> None:
        for number in range(len(FORMS)):
            self.worker.remove(self._prefix(number))

    def restart(self) -> None:
        """Kill the worker; the connectors continue from the positions that it stored last."""
        self.worker.kill()
        self.worker.start()
        self.start()

    def _prefix(self, number: int) -> str:
        return f"{self.prefix}-{number}"

    def _stored_since(self, time: int) -> bool:
        return self._stored_at() > time

    def _stored_at(self) -> int:
        return self.worker.offsets.stat().st_mtime_ns if self.worker.offsets.exists() else 0


@contextmanager
def worker(brokers: str) -> Iterator[Worker]:
    jars = fetch("debezium-sources", lock=LOCK)
    started = Worker(brokers, jars, offset_flush_interval_ms=str(int(FLUSH_SECONDS * 1000)))
    try:
        started.start()
        yield started
    finally:
        started.discard()


def wait_for_text(topics: Topics, topic: str, pattern: str, partitions: int = PARTITIONS) -> list[bytes | None]:
    """The values of a topic, in the order of each partition, as soon as so many have one with this text."""
    wanted = re.compile(pattern.encode())

    def found() -> list[bytes | None] | None:
        values = topics.committed(topic)
        ready = {partition for (partition, _), value in values.items() if value and wanted.search(value)}
        return [values[at] for at in sorted(values)] if len(ready) >= partitions else None

    return wait_for(found, 90, f"{topic} has {pattern}")


def signal(kind: str) -> str:
    """SQL that asks the connectors to read the table again, while they go on."""
    data = json.dumps({"data-collections": [f"{SCHEMAS[kind]}.orders"], "type": "incremental"})
    return f"INSERT INTO signals VALUES ('again', 'execute-snapshot', '{data}')"


def _config(kind: str, server: Server) -> dict[str, str]:
    schema = SCHEMAS[kind]
    of_kind = {
        "postgresql": {
            "database.user": "postgres",
            "database.dbname": "postgres",
            "plugin.name": "pgoutput",
            "publication.autocreate.mode": "filtered",
        },
        "mysql": {"database.user": "root", "database.include.list": schema, "database.ssl.mode": "disabled"},
        "mariadb": {"database.user": "root", "database.include.list": schema, "driver.sslMode": "disable"},
    }[kind]
    return {
        "connector.class": f"io.debezium.connector.{CLASSES[kind]}",
        "database.hostname": HOST,
        "database.port": str(server.port),
        "database.password": "",
        "table.include.list": f"{schema}.orders,{schema}.signals",
        "signal.data.collection": f"{schema}.signals",
        "skipped.operations": "none",
        "bigint.unsigned.handling.mode": "precise",
        "poll.interval.ms": "50",
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "topic.creation.default.partitions": str(PARTITIONS),
        "topic.creation.default.replication.factor": "1",
        "key.converter": CONVERTER,
        "key.converter.schemas.enable": "false",
        "value.converter": CONVERTER,
        **of_kind,
    }
