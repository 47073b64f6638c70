"""Claims in SQL: raise the epoch of a partition, name its owner, and let go again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, update

from tallymark.errors import Unreachable
from tallymark.fence import BACK, Claim, Decide, FirstClaim, Restart, Wish, check_held, restarted
from tallymark.ledger.commit import record_notes
from tallymark.ledger.letters import void_letters
from tallymark.ledger.read import lock_positions, read_group, read_positions
from tallymark.ledger.skips import void_skips
from tallymark.ledger.statements import insert_if_absent, key_condition, key_parameters
from tallymark.ledger.tables import groups, positions
from tallymark.spans import OUTCOMES, Owner, Partition, Position


def claim(
    connection: Connection,
    group: str,
    owner: Owner,
    partitions: Iterable[Partition],
    decide: Decide,
    held: Mapping[Partition, Claim],
) -> dict[Partition, Claim]:
    """Take over these partitions: raise their epochs and name the owner. Whoever held them is fenced."""
    saved = read_group(connection, group).get(group, [])
    wish = decide(saved)
    register_group(connection, group, owner.host, owner.since)
    insert_first(connection, group, owner.since, wish.first)
    found = lock_positions(connection, group, partitions)
    _check_unclaimed(group, {position.partition: position.epoch for position in saved}, found, wish)
    _update_each(
        connection,
        {"epoch": positions.c.epoch + 1, "owner": owner.run, "owner_host": owner.host, "owned_since": owner.since},
        [key_parameters(group, partition) for partition in found],
    )
    # After the new ones are locked: who was fenced must not take a new partition from who fenced him.
    check_held(held, read_positions(connection, group, held))
    claims = {partition: Claim.after(replace(position, owner=owner)) for partition, position in found.items()}
    for partition in wish.restarts.keys() & claims.keys():
        claims[partition] = restart(connection, group, claims[partition], wish.restarts[partition], owner.since)
    return claims


def _check_unclaimed(
    group: str, epochs: Mapping[Partition, int], found: Mapping[Partition, Position], wish: Wish
) -> None:
    """Refuse a wish that is out of date: another owner has claimed the partition since its position was read."""
    for partition in wish.restarts.keys() & found.keys():
        if found[partition].epoch != epochs[partition]:
            raise Unreachable(f"group {group}: another run has claimed {partition} at the same moment; try again")


def reclaim(connection: Connection, group: str, claims: Mapping[Partition, Claim]) -> dict[Partition, Claim]:
    """Raise the epoch of partitions that are still ours, and read where they are; raise if any is not.

    After a connection broke in the middle of a commit this settles whether it happened: the lock waits for a commit
    that is still under way, and the new epoch shuts out one that has yet to arrive.
    """
    found = lock_positions(connection, group, claims)
    check_held(claims, found)
    _update_each(
        connection, {"epoch": positions.c.epoch + 1}, [key_parameters(group, partition) for partition in found]
    )
    return {partition: Claim.after(position) for partition, position in found.items()}


def release(connection: Connection, group: str, claims: Iterable[Claim]) -> None:
    """Let go of partitions that are still ours: they have no owner, and their positions stay."""
    keys = [key_parameters(group, claim.partition) | {"_epoch": claim.epoch} for claim in claims]
    _update_each(connection, {"owner": None, "owner_host": None, "owned_since": None}, keys, same_epoch=True)


def restart(connection: Connection, group: str, held: Claim, to: Restart, now: datetime) -> Claim:
    """Send a position that is locked somewhere else, and write down what that means."""
    moved, note = restarted(held.position, to, now)
    values: dict[str, Any] = {name: getattr(moved.tally, name) for name in OUTCOMES}
    values |= {"next_offset": moved.next_offset, "first_offset": moved.first_offset, "updated_at": now}
    values["leader_epoch"] = moved.leader_epoch
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
