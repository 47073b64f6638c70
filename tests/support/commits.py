"""Commits made by hand, for tests of the ledger that need no Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from tallymark.core.budget import Budget
from tallymark.core.claims import Advance, Claim, Entry, FirstClaim, PositionChanges
from tallymark.core.records import DeadLetter
from tallymark.core.spans import Owner, Partition, Tally
from tallymark.core.tables import Changes, TableSpec
from tallymark.run.commit import Committer, Destination
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tallymark.stores.sql.store import SqlStore

EVENTS = TableSpec("events")
SCHEMA = pa.schema([("partition_id", pa.int64()), ("record_offset", pa.int64()), ("writer", pa.string())])
SEVERAL_WRITERS = pytest.mark.parametrize("url", ["postgresql", "mariadb", "redis"], indirect=True)
"""Stores that allow a second writer during a transaction; SQLite does not."""
SINCE = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)


def owner(run: str) -> Owner:
    return Owner(run, f"host-of-{run}", SINCE)


def ready(url: str) -> Store:
    """A store with a ledger and the table ``events``."""
    store = open_store(url)
    store.create_ledger()
    store.create_tables([EVENTS], {"events": SCHEMA})
    return store


def ready_store(url: str) -> SqlStore:
    """The same, for a database with SQL."""
    store = ready(url)
    assert isinstance(store, SqlStore)
    return store


def take(
    store: Store,
    group: str,
    run: str,
    partitions: Sequence[Partition],
    at: int = 0,
    held: Mapping[Partition, Claim] | None = None,
) -> dict[Partition, Claim]:
    """Claim these partitions; those without a position start at ``at``. ``held`` are the current claims of the run."""
    first = {partition: FirstClaim(at, "topic-id", "cluster-id") for partition in partitions}
    return store.claim(group, owner(run), partitions, lambda _: PositionChanges(first), held or {})


@dataclass(frozen=True)
class Work:
    """One commit: its rows, and its entry in the ledger."""

    changes: Sequence[Changes]
    entry: Entry


def work(group: str, writer: str, claims: Mapping[Partition, Claim], start: int, stop: int, *, dead: int = 0) -> Work:
    """A row for every offset but the last ``dead`` ones, which are dead letters."""
    advances = [
        Advance(partition, start, stop, held.epoch, Tally(applied=stop - start - dead, dead=dead), SINCE)
        for partition, held in claims.items()
    ]
    rows = [
        {"partition_id": partition.number, "record_offset": offset, "writer": writer}
        for partition in claims
        for offset in range(start, stop - dead)
    ]
    letters = [
        DeadLetter(partition, offset, SINCE, b"key", b"\x00\xff", [("h", None)], None, "garbage")
        for partition in claims
        for offset in range(stop - dead, stop)
    ]
    table = pa.Table.from_pylist(rows, SCHEMA)
    entry = Entry(
        group=group,
        batch=f"{writer}-{uuid.uuid4().hex[:8]}",
        started=SINCE,
        now=datetime.now(UTC),
        advances=advances,
        rows={"events": len(rows)},
        dead_letters=letters,
    )
    return Work([Changes(EVENTS, table, table.slice(0, 0))], entry)


def moving(group: str, *advances: Advance) -> Work:
    """A commit without rows."""
    now = datetime.now(UTC)
    return Work([], Entry(group, f"none-{uuid.uuid4().hex[:8]}", SINCE, now, advances))


def apply(store: Store, made: Work, claims: Mapping[Partition, Claim]) -> dict[Partition, Claim]:
    """Commit, and look up the outcome if the connection breaks. Returns the current claims."""
    committer = Committer(made.entry.group, Destination(store, store), Budget(), lambda _: [])
    held = dict(claims)
    committer.write_ledger(made.changes, made.entry, held, lambda _: None)
    return held
