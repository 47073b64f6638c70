"""The last rebalances of a group, as its members saw them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, insert, select

from tallymark.fence import Rebalance
from tallymark.ledger.tables import rebalances
from tallymark.spans import Partition

KEEP_REBALANCES = 1_000


def record_rebalances(connection: Connection, group: str, happened: Sequence[Rebalance]) -> None:
    """Write them down, and forget all but the newest."""
    if not happened:
        return
    connection.execute(insert(rebalances), [_row(group, one) for one in happened])
    old = list(connection.scalars(_newest_first(group).with_only_columns(rebalances.c.id).offset(KEEP_REBALANCES)))
    if old:
        connection.execute(delete(rebalances).where(rebalances.c.id.in_(old)))


def read_rebalances(connection: Connection, group: str, most: int) -> list[Rebalance]:
    """The newest first."""
    return [_rebalance(row) for row in connection.execute(_newest_first(group).limit(most))]


def partitions_as_json(partitions: Sequence[Partition]) -> str:
    return json.dumps([[partition.topic, partition.number] for partition in partitions])


def partitions_from_json(text: str) -> tuple[Partition, ...]:
    return tuple(Partition(topic, number) for topic, number in json.loads(text))


def _newest_first(group: str) -> Select[Any]:
    order = rebalances.c.happened_at.desc(), rebalances.c.id.desc()
    return select(rebalances).where(rebalances.c.group_name == group).order_by(*order)


def _row(group: str, one: Rebalance) -> dict[str, Any]:
    return {
        "group_name": group,
        "happened_at": one.at,
        "kind": one.kind,
        "run": one.run,
        "host": one.host,
        "seconds": one.seconds,
        "gained": partitions_as_json(one.gained),
        "lost": partitions_as_json(one.lost),
    }


def _rebalance(row: Row[Any]) -> Rebalance:
    gained, lost = partitions_from_json(row.gained), partitions_from_json(row.lost)
    return Rebalance(row.happened_at, row.run, row.host, row.seconds, gained, lost, row.kind)
