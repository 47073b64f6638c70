"""Positions moved by hand, in SQL, and groups that are forgotten."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import Connection, delete, update

from tallymark.books import Consent, Decision
from tallymark.errors import PositionMoved
from tallymark.fence import Claim, FirstClaim, begun
from tallymark.ledger.claim import insert_first, register_group, restart
from tallymark.ledger.commit import record_notes
from tallymark.ledger.read import lock_positions, read_group
from tallymark.ledger.runs import read_runs
from tallymark.ledger.statements import key_condition, key_parameters
from tallymark.ledger.tables import batches, dead_letters, exceptions, groups, positions, rebalances, runs
from tallymark.spans import Partition, Position

TABLES = (positions, batches, exceptions, dead_letters, groups, rebalances, runs)


def move(
    connection: Connection, group: str, partitions: Collection[Partition], decide: Decision, by: str, now: datetime
) -> None:
    """Make positions, or send them elsewhere without an owner. The wish is made with all of them locked."""
    found = lock_positions(connection, group, partitions)
    wish = decide(found, read_runs(connection, group))
    register_group(connection, group, by, now)
    insert_first(connection, group, now, wish.first)
    _check_made(wish.first, lock_positions(connection, group, wish.first))
    record_notes(connection, group, begun(wish.first), now)
    free = {"epoch": positions.c.epoch + 1, "owner": None, "owner_host": None, "owned_since": None}
    for partition, to in sorted(wish.restarts.items()):
        connection.execute(update(positions).where(*key_condition()).values(free), key_parameters(group, partition))
        restart(connection, group, Claim.after(found[partition]), to, now)


def _check_made(first: Mapping[Partition, FirstClaim], found: Mapping[Partition, Position]) -> None:
    """A row that is not there can't be locked: a run that starts may have made it since the wish."""
    for partition, start in sorted(first.items()):
        if found[partition].first_offset != start.offset:
            raise PositionMoved(
                f"{partition}: a run has begun it at {found[partition].first_offset} meanwhile; "
                "nothing was changed: look at the preview again"
            )


def delete_group(connection: Connection, group: str, consent: Consent) -> None:
    held = {one.partition for one in read_group(connection, group).get(group, [])}
    consent(lock_positions(connection, group, held), read_runs(connection, group))
    for table in TABLES:
        connection.execute(delete(table).where(table.c.group_name == group))
