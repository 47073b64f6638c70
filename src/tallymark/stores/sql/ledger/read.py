"""Reading the ledger: positions of partitions and of groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Row, select, tuple_

from tallymark.ledger.tables import positions
from tallymark.spans import OUTCOMES, Owner, Partition, Position, Tally


def read_positions(connection: Connection, group: str, partitions: Iterable[Partition]) -> dict[Partition, Position]:
    """The positions of those partitions that have one."""
    return _select(connection, group, partitions, lock=False)


def lock_positions(connection: Connection, group: str, partitions: Iterable[Partition]) -> dict[Partition, Position]:
    """The same, locked until the transaction ends: waits for whoever is moving them."""
    return _select(connection, group, partitions, lock=True)


def read_group(connection: Connection, group: str | None = None) -> dict[str, list[Position]]:
    """All positions, of one group or of every group."""
    query = select(positions).order_by(positions.c.group_name, positions.c.topic, positions.c.partition_id)
    found: dict[str, list[Position]] = {}
    for row in connection.execute(query if group is None else query.where(positions.c.group_name == group)):
        found.setdefault(row.group_name, []).append(_position(row))
    return found


def _select(
    connection: Connection, group: str, partitions: Iterable[Partition], *, lock: bool
) -> dict[Partition, Position]:
    keys = [(partition.topic, partition.number) for partition in sorted(partitions)]
    query = (
        select(positions)
        .where(positions.c.group_name == group, tuple_(positions.c.topic, positions.c.partition_id).in_(keys))
        .order_by(positions.c.topic, positions.c.partition_id)
    )
    rows = connection.execute(query.with_for_update() if lock else query)
    return {position.partition: position for position in map(_position, rows)}


def _position(row: Row[Any]) -> Position:
    owner = Owner(row.owner, row.owner_host, row.owned_since) if row.owner else None
    return Position(
        partition=Partition(row.topic, row.partition_id),
        next_offset=row.next_offset,
        first_offset=row.first_offset,
        topic_id=row.topic_id,
        cluster_id=row.cluster_id,
        epoch=row.epoch,
        owner=owner,
        tally=Tally(*(getattr(row, name) for name in OUTCOMES)),
        record_time=row.record_time,
        updated_at=row.updated_at,
        leader_epoch=row.leader_epoch,
    )
