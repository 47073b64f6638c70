"""Claims: who may move a position.

A claim raises the epoch of a partition and names its owner; whoever held it before is fenced from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, update

from tallymark.ledger.commit import explain_loss, record_exceptions
from tallymark.ledger.read import lock_positions, read_positions
from tallymark.ledger.statements import insert_if_absent, key_condition, key_parameters
from tallymark.ledger.tables import groups, positions
from tallymark.spans import OUTCOMES, Owner, Partition, Position, Span, Tally


@dataclass(frozen=True)
class FirstClaim:
    """Where a partition that has no position yet starts, and which topic of which cluster it is."""

    offset: int
    topic_id: str
    cluster_id: str


@dataclass(frozen=True)
class Claim:
    """The right to move one partition, until somebody raises the epoch. The position is as it was when claimed."""

    partition: Partition
    epoch: int
    position: Position

    def held_in(self, position: Position) -> bool:
        """Whether it still names our owner. Its epoch may be higher, by a reclaim whose answer never reached us."""
        owner, found = self.position.owner, position.owner
        return owner is not None and found is not None and owner.run == found.run


def claim(
    connection: Connection,
    group: str,
    owner: Owner,
    partitions: Iterable[Partition],
    first: Mapping[Partition, FirstClaim],
) -> dict[Partition, Claim]:
    """Take over these partitions: raise their epochs and name the owner. Whoever held them is fenced."""
    wanted = sorted(partitions)
    _register_group(connection, group, owner)
    _insert_first(connection, group, owner, {partition: first[partition] for partition in wanted if partition in first})
    held = lock_positions(connection, group, wanted)
    _update_each(
        connection,
        {"epoch": positions.c.epoch + 1, "owner": owner.run, "owner_host": owner.host, "owned_since": owner.since},
        [key_parameters(group, partition) for partition in held],
    )
    return {partition: _next_claim(replace(position, owner=owner)) for partition, position in held.items()}


def reclaim(connection: Connection, group: str, claims: Iterable[Claim]) -> dict[Partition, Claim]:
    """Raise the epoch of partitions that are still ours, and read where they are.

    After a connection broke in the middle of a commit this settles whether it happened: the lock waits for a commit
    that is still under way, and the new epoch shuts out one that has yet to arrive. Partitions that another owner has
    claimed meanwhile are left alone and missing from the answer.
    """
    mine = {claim.partition: claim for claim in claims}
    held = lock_positions(connection, group, mine)
    still = {partition: position for partition, position in held.items() if mine[partition].held_in(position)}
    _update_each(
        connection, {"epoch": positions.c.epoch + 1}, [key_parameters(group, partition) for partition in still]
    )
    return {partition: _next_claim(position) for partition, position in still.items()}


def check_claims(connection: Connection, group: str, claims: Iterable[Claim]) -> None:
    """Raise, naming the new owner, if another one has claimed any of these partitions."""
    mine = {claim.partition: claim for claim in claims}
    found = read_positions(connection, group, mine)
    for partition, held in sorted(mine.items()):
        position = found.get(partition)
        if position is None or not held.held_in(position):
            raise explain_loss(partition, held.epoch, position)


def release(connection: Connection, group: str, claims: Iterable[Claim]) -> None:
    """Let go of partitions that are still ours: they have no owner, and their positions stay."""
    keys = [key_parameters(group, claim.partition) | {"_epoch": claim.epoch} for claim in claims]
    _update_each(connection, {"owner": None, "owner_host": None, "owned_since": None}, keys, same_epoch=True)


def restart(connection: Connection, group: str, held: Claim, offset: int, reason: str, now: datetime) -> Claim:
    """Send a claimed partition somewhere else, on the record: ahead is a skip, back begins a new tally."""
    position, partition = held.position, held.partition
    if offset >= position.next_offset:
        span, kind = Span(partition, position.next_offset, offset), "skip"
        tally, first = position.tally + Tally(skipped=len(span)), position.first_offset
    else:
        span, kind = Span(partition, offset, position.next_offset), "reset"
        tally, first = Tally(), offset
    values: dict[str, Any] = {name: getattr(tally, name) for name in OUTCOMES}
    values |= {"next_offset": offset, "first_offset": first, "updated_at": now}
    _update_each(connection, values, [key_parameters(group, partition) | {"_epoch": held.epoch}], same_epoch=True)
    if len(span):
        record_exceptions(connection, group, kind, [span], reason, now)
    return Claim(partition, held.epoch, read_positions(connection, group, [partition])[partition])


def _next_claim(position: Position) -> Claim:
    epoch = position.epoch + 1
    return Claim(position.partition, epoch, replace(position, epoch=epoch))


def _register_group(connection: Connection, group: str, owner: Owner) -> None:
    values = {"group_name": group, "desired_state": "running", "changed_by": owner.host, "changed_at": owner.since}
    connection.execute(insert_if_absent(connection, groups), values)


def _insert_first(connection: Connection, group: str, owner: Owner, first: Mapping[Partition, FirstClaim]) -> None:
    rows = [
        {"group_name": group, "topic": partition.topic, "partition_id": partition.number}
        | {"next_offset": start.offset, "first_offset": start.offset, "epoch": 0, "updated_at": owner.since}
        | {"topic_id": start.topic_id, "cluster_id": start.cluster_id}
        | dict.fromkeys(OUTCOMES, 0)
        for partition, start in first.items()
    ]
    if rows:
        connection.execute(insert_if_absent(connection, positions), rows)


def _update_each(
    connection: Connection, values: Mapping[str, Any], keys: Sequence[Mapping[str, Any]], *, same_epoch: bool = False
) -> None:
    condition = [*key_condition(), positions.c.epoch == bindparam("_epoch")] if same_epoch else key_condition()
    if keys:
        connection.execute(update(positions).where(*condition).values(**values), list(keys))
