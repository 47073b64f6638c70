"""Claim, release and move partitions in the SQL ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, update

from tallymark.core.claims import (
    BACK,
    Claim,
    Decide,
    FirstClaim,
    PositionChanges,
    Restart,
    begun,
    check_held,
    restarted,
)
from tallymark.core.drift import to_json
from tallymark.core.journal import Consent, Decision, unexpected
from tallymark.core.spans import OUTCOMES, Owner, Partition, Position
from tallymark.errors import PositionMoved, Unreachable
from tallymark.stores.sql.ledger.commit import record_notes
from tallymark.stores.sql.ledger.letters import void_letters
from tallymark.stores.sql.ledger.read import (
    insert_if_absent,
    key_condition,
    key_parameters,
    lock_group,
    lock_positions,
    read_group,
    read_positions,
)
from tallymark.stores.sql.ledger.runs import read_runs
from tallymark.stores.sql.ledger.skips import void_skips
from tallymark.stores.sql.ledger.tables import (
    batches,
    dead_letters,
    exceptions,
    groups,
    positions,
    rebalances,
    runs,
    tables,
)


def claim(
    connection: Connection,
    group: str,
    owner: Owner,
    partitions: Iterable[Partition],
    decide: Decide,
    held: Mapping[Partition, Claim],
) -> dict[Partition, Claim]:
    """Claim these partitions: raise their epochs and record the owner. Previous owners are fenced."""
    saved = read_group(connection, group).get(group, [])
    changes = decide(saved)
    register_group(connection, group, owner.host, owner.since)
    insert_first(connection, group, owner.since, changes.first)
    found = lock_positions(connection, group, partitions)
    _check_unclaimed(group, {position.partition: position.epoch for position in saved}, found, changes)
    _update_each(
        connection,
        {"epoch": positions.c.epoch + 1, "owner": owner.run, "owner_host": owner.host, "owned_since": owner.since},
        [key_parameters(group, partition) for partition in found],
    )
    # Checked after the new partitions are locked: a fenced owner must not claim new partitions.
    check_held(held, read_positions(connection, group, held))
    claims = {partition: Claim.after(replace(position, owner=owner)) for partition, position in found.items()}
    for partition in changes.restarts.keys() & claims.keys():
        claims[partition] = restart(connection, group, claims[partition], changes.restarts[partition], owner.since)
    return claims


def _check_unclaimed(
    group: str, epochs: Mapping[Partition, int], found: Mapping[Partition, Position], changes: PositionChanges
) -> None:
    """Refuse a stale decision: another owner has claimed the partition since its position was read."""
    for partition in changes.restarts.keys() & found.keys():
        if found[partition].epoch != epochs[partition]:
            raise Unreachable(f"group {group}: another run has claimed {partition} at the same time; try again")


def reclaim(connection: Connection, group: str, claims: Mapping[Partition, Claim]) -> dict[Partition, Claim]:
    """Raise the epochs of claims that are still held and read their positions; raise if any claim is lost.

    After a connection broke during a commit this settles whether the commit happened: the lock waits for a commit that
    is still in progress, and the new epoch fences a commit that is yet to arrive.
    """
    found = lock_positions(connection, group, claims)
    check_held(claims, found)
    _update_each(
        connection, {"epoch": positions.c.epoch + 1}, [key_parameters(group, partition) for partition in found]
    )
    return {partition: Claim.after(position) for partition, position in found.items()}


def release(connection: Connection, group: str, claims: Iterable[Claim]) -> None:
    """Remove the owner from partitions that still have the claim's epoch; their positions stay."""
    keys = [key_parameters(group, claim.partition) | {"_epoch": claim.epoch} for claim in claims]
    _update_each(connection, {"owner": None, "owner_host": None, "owned_since": None}, keys, same_epoch=True)


def restart(connection: Connection, group: str, held: Claim, to: Restart, now: datetime) -> Claim:
    """Move a locked position to another offset, and record the consequences."""
    moved, note = restarted(held.position, to, now)
    values: dict[str, Any] = {name: getattr(moved.tally, name) for name in OUTCOMES}
    values |= {"next_offset": moved.next_offset, "first_offset": moved.first_offset, "updated_at": now}
    values |= {"leader_epoch": moved.leader_epoch, "drift": to_json(moved.drift)}
    _update_each(connection, values, [key_parameters(group, held.partition) | {"_epoch": held.epoch}], same_epoch=True)
    if note is not None and note.kind in BACK:
        void_skips(connection, group, held.partition, to.offset)
        void_letters(connection, group, held.partition, to.offset, now)
    record_notes(connection, group, [note] if note else [], now)
    return replace(held, position=moved)


def register_group(connection: Connection, group: str, by: str, now: datetime) -> None:
    values = {"group_name": group, "desired_state": "running", "changed_by": by, "changed_at": now}
    connection.execute(insert_if_absent(connection, groups), values)


def insert_first(connection: Connection, group: str, now: datetime, first: Mapping[Partition, FirstClaim]) -> None:
    rows = [
        {"group_name": group, "topic": partition.topic, "partition_id": partition.number}
        | {"next_offset": start.offset, "first_offset": start.offset, "epoch": 0, "updated_at": now}
        | {"topic_id": start.topic_id, "cluster_id": start.cluster_id, "leader_epoch": start.leader_epoch}
        | dict.fromkeys(OUTCOMES, 0)
        for partition, start in sorted(first.items())
    ]
    if rows:
        connection.execute(insert_if_absent(connection, positions), rows)


def _update_each(
    connection: Connection, values: Mapping[str, Any], keys: Sequence[Mapping[str, Any]], *, same_epoch: bool = False
) -> None:
    condition = [*key_condition(), positions.c.epoch == bindparam("_epoch")] if same_epoch else key_condition()
    if keys:
        connection.execute(update(positions).where(*condition).values(**values), list(keys))


TABLES = (positions, batches, exceptions, dead_letters, groups, rebalances, runs, tables)


def move(
    connection: Connection, group: str, partitions: Collection[Partition], decide: Decision, by: str, now: datetime
) -> PositionChanges:
    """Create positions or move them, without an owner. ``decide`` is called while all of them are locked."""
    found = lock_positions(connection, group, partitions)
    changes = decide(found, read_runs(connection, group))
    register_group(connection, group, by, now)
    insert_first(connection, group, now, changes.first)
    _check_made(changes.first, lock_positions(connection, group, changes.first))
    record_notes(connection, group, begun(changes.first), now)
    free = {"epoch": positions.c.epoch + 1, "owner": None, "owner_host": None, "owned_since": None}
    for partition, to in sorted(changes.restarts.items()):
        connection.execute(update(positions).where(*key_condition()).values(free), key_parameters(group, partition))
        restart(connection, group, Claim.after(found[partition]), to, now)
    return changes


def check_whole(connection: Connection, group: str, partitions: Collection[Partition]) -> None:
    """Raise if the group has positions of other partitions. Locks all of them."""
    for partition in sorted(lock_group(connection, group).keys() - set(partitions)):
        raise unexpected(partition)


def _check_made(first: Mapping[Partition, FirstClaim], found: Mapping[Partition, Position]) -> None:
    """Raise if a run has created a position since ``decide`` was called: a missing row can't be locked."""
    for partition, start in sorted(first.items()):
        if found[partition].first_offset != start.offset:
            raise PositionMoved(
                f"{partition}: a run has created the position at {found[partition].first_offset}; "
                "nothing was changed: check the preview again"
            )


def delete_group(connection: Connection, group: str, consent: Consent) -> None:
    held = {position.partition for position in read_group(connection, group).get(group, [])}
    consent(lock_positions(connection, group, held), read_runs(connection, group))
    for table in TABLES:
        connection.execute(delete(table).where(table.c.group_name == group))
