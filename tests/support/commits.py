"""Commits made by hand, for tests of the ledger that need no Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

import pyarrow as pa

from tallymark.commit import Commit, commit
from tallymark.ledger.claim import Claim, FirstClaim, claim
from tallymark.ledger.commit import Advance
from tallymark.read import DeadLetter
from tallymark.shape import TableSpec
from tallymark.spans import Owner, Partition, Tally
from tallymark.stores.store import Store

EVENTS = TableSpec("events")
SCHEMA = pa.schema([("partition_id", pa.int64()), ("record_offset", pa.int64()), ("writer", pa.string())])
SINCE = datetime(2026, 1, 31, 12, 30, tzinfo=timezone.utc)


def owner(run: str) -> Owner:
    return Owner(run, f"host-of-{run}", SINCE)


def ready_store(url: str) -> Store:
    """A store with a ledger and the table ``events``."""
    store = Store(url)
    store.create_ledger()
    store.create_tables([EVENTS], {"events": SCHEMA})
    return store


def take(store: Store, group: str, run: str, partitions: Sequence[Partition], at: int = 0) -> dict[Partition, Claim]:
    """Claim these partitions; those without a position start at ``at``."""
    with store.transaction() as connection:
        first = {partition: FirstClaim(at, "topic-id", "cluster-id") for partition in partitions}
        return claim(connection, group, owner(run), partitions, first)


def work(group: str, writer: str, claims: Mapping[Partition, Claim], start: int, stop: int, *, dead: int = 0) -> Commit:
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
    return Commit(
        group=group,
        batch=f"{writer}-{uuid.uuid4().hex[:8]}",
        started=SINCE,
        advances=advances,
        tables=[EVENTS],
        rows={"events": pa.Table.from_pylist(rows, SCHEMA)},
        dead_letters=letters,
        losses=[],
    )


def apply(store: Store, made: Commit, claims: Mapping[Partition, Claim]) -> dict[Partition, Claim]:
    return commit(store, made, claims, lambda _step: None)
