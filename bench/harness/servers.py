"""Where a race runs: servers that are given or started, and a topic and tables that are removed at the end."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import text
from sqlalchemy.engine import make_url

from bench.harness import machine
from bench.harness.race import Course, say
from bench.harness.records import Shape, delete_topic, fill
from bench.harness.tables import ITEMS, drop
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.cluster import Cluster
from tallymark.local.sandbox import Sandbox
from tallymark.local.sandbox.kafka import KafkaBroker
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_sql, sqlite_file
from tallymark.stores.sql.ledger.tables import metadata
from tallymark.stores.sql.store import SqlStore

if TYPE_CHECKING:
    from typing import Self


class Servers:
    """The brokers and the store that are given, and servers of a sandbox instead of those that are not."""

    def __init__(self, brokers: str | None = None, store: str | None = None) -> None:
        self._given_brokers, self._given_store = brokers, store
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.box = self._stack.enter_context(Sandbox())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def kafka(self) -> KafkaBroker:
        """A broker that is compiled for throughput, and not for a quick start."""
        say("starting Kafka")
        return self._stack.enter_context(KafkaBroker(self.box.directory / "broker", fast=False, temporary=True))

    @property
    def brokers(self) -> str:
        return self._given_brokers or self.kafka.brokers

    def url(self, kind: str) -> str:
        """The address of a store: postgresql, mariadb, sqlite or redis."""
        if self._given_store:
            return self._given_store
        if kind == "sqlite":
            return f"sqlite:///{self.box.directory}/bench.db"
        started = {"postgresql": self.box.postgresql, "mariadb": self.box.mariadb, "redis": self.box.valkey}
        return started[kind]().url

    def facts(self, *stores: str) -> dict[str, str]:
        return machine.facts(*map(self.url, stores), sandbox=self._given_brokers is None)


def kind_of(url: str) -> str:
    """The kind of a store with SQL, as a course has it."""
    backend = make_url(url).get_backend_name()
    return {"postgres": "postgresql", "postgresql": "postgresql", "sqlite": "sqlite"}.get(backend, "mariadb")


@contextmanager
def course(brokers: str, url: str, records: int, shape: Shape = "small") -> Iterator[Course]:
    """Make a topic with records, and leave brokers and store as they were when the block ends."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    made = Course(brokers, name, records, url, kind_of(url), name.replace("-", "_"))
    with ExitStack() as stack:
        _restore_store(stack, made)
        stack.callback(_remove_topic, Cluster(brokers), name)
        say(f"writing {records:,} records to topic {name}")
        fill(Cluster(brokers), name, records, shape)
        yield made


def new_group(course: Course) -> str:
    """The name of a group that reads the topic from its beginning."""
    return f"{course.topic}-{uuid.uuid4().hex[:8]}"


def forget_groups(store: Store, topic: str) -> None:
    """Remove the groups of a course from the ledger: their names begin with that of its topic."""
    books = store.journal()
    for group in [name for name in books.groups() if name.startswith(f"{topic}-")]:
        books.delete(group, lambda _positions, _runs: None)
        store.clear_stages(group)


def _restore_store(stack: ExitStack, made: Course) -> None:
    file = sqlite_file(made.url)
    if file is not None and not file.exists():
        stack.callback(_remove_file, file)
    store = stack.enter_context(closing(open_sql(made.url)))
    store.ping()
    if not store.has_ledger():
        stack.callback(_remove_ledger, store)
    stack.callback(drop, store, *(f"{made.table}{end}" for end in ("", "_offsets", ITEMS)))
    stack.callback(_forget, store, made.topic)


def _remove_topic(cluster: Cluster, topic: str) -> None:
    if Brokers(cluster).topics([topic], existing_only=True):
        delete_topic(cluster, topic)


def _forget(store: SqlStore, topic: str) -> None:
    if store.has_ledger():
        forget_groups(store, topic)


def _remove_ledger(store: SqlStore) -> None:
    """Remove the ledger, which the race created, unless other groups are in it by now."""
    if not store.has_ledger() or store.journal().groups():
        return
    with store.transaction() as connection:
        connection.execute(text("DROP VIEW IF EXISTS tallymark_status"))
        metadata.drop_all(connection)


def _remove_file(file: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
