"""A place for a race, on any cluster and database: everything in it has a name of its own, and goes in the end."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.engine import make_url

from bench.contenders.ours import forget_groups
from bench.harness.race import Course
from bench.harness.records import Shape, Tell, delete_topic, fill
from bench.harness.tables import drop
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.cluster import Cluster
from tallymark.stores.opening import open_sql, sqlite_file
from tallymark.stores.sql.ledger.tables import metadata
from tallymark.stores.sql.store import SqlStore

KINDS = {"postgresql": "postgresql", "postgres": "postgresql", "sqlite": "sqlite"}


@dataclass(frozen=True)
class Venue:
    brokers: str
    url: str
    records: int
    shape: Shape

    @contextmanager
    def course(self, tell: Tell) -> Iterator[Course]:
        """A topic with records and a store, as long as the block lasts; what was there before is left alone."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        kind = KINDS.get(make_url(self.url).get_backend_name(), "mariadb")
        course = Course(self.brokers, name, self.records, self.url, kind, name.replace("-", "_"))
        with ExitStack() as stack:
            self._leave_the_store_as_it_is(stack, course)
            stack.callback(_remove_topic, Cluster(self.brokers), name)
            fill(Cluster(self.brokers), name, self.records, self.shape, tell)
            yield course

    def _leave_the_store_as_it_is(self, stack: ExitStack, course: Course) -> None:
        file = sqlite_file(self.url)
        if file is not None and not file.exists():
            stack.callback(_remove_file, file)
        store = stack.enter_context(closing(open_sql(self.url)))
        store.ping()
        if not store.has_ledger():
            stack.callback(_remove_ledger, store)
        stack.callback(drop, store, course.table, f"{course.table}_offsets")
        stack.callback(_forget, store, course.topic)


def _remove_topic(cluster: Cluster, topic: str) -> None:
    """If it has come to be."""
    if Brokers(cluster).topics([topic], existing_only=True):
        delete_topic(cluster, topic)


def _forget(store: SqlStore, topic: str) -> None:
    if store.has_ledger():
        forget_groups(store, topic)


def _remove_ledger(store: SqlStore) -> None:
    """The race has made it, and it is ours to remove unless somebody else began to use it."""
    if not store.has_ledger() or store.journal().groups():
        return
    with store.transaction() as connection:
        connection.execute(text("DROP VIEW IF EXISTS tallymark_status"))
        metadata.drop_all(connection)


def _remove_file(file: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
