"""Reading what stands beside the positions in SQL: groups, commits and notes."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection, select

from tallymark.books import BatchLine, NoteLine
from tallymark.fence import Note
from tallymark.ledger.tables import batches, exceptions, groups
from tallymark.spans import OUTCOMES, GroupState, Partition, Span, Tally


def read_groups(connection: Connection) -> dict[str, GroupState]:
    rows = connection.execute(select(groups).order_by(groups.c.group_name))
    return {row.group_name: GroupState(row.desired_state, row.reason, row.changed_by, row.changed_at) for row in rows}


def read_history(connection: Connection, group: str, since: datetime | None, most: int) -> list[BatchLine]:
    """The newest first."""
    query = select(batches).where(batches.c.group_name == group)
    if since is not None:
        query = query.where(batches.c.committed_at >= since)
    newest = query.order_by(batches.c.id.desc()).limit(most)
    return [
        BatchLine(
            row.batch,
            row.started_at,
            row.committed_at,
            Tally(*(getattr(row, name) for name in OUTCOMES)),
            json.loads(row.table_rows),
            [Span(Partition(topic, number), start, stop) for topic, number, start, stop in json.loads(row.spans)],
        )
        for row in connection.execute(newest)
    ]


def read_notes(connection: Connection, group: str, kinds: Collection[str]) -> list[NoteLine]:
    """In the order in which they were written: hosts may differ about the time."""
    query = select(exceptions).where(exceptions.c.group_name == group, exceptions.c.kind.in_(list(kinds)))
    found = []
    for row in connection.execute(query.order_by(exceptions.c.id)):
        span = Span(Partition(row.topic, row.partition_id), row.start_offset, row.stop_offset)
        found.append(NoteLine(Note(row.kind, span, row.reason), row.batch, row.recorded_at))
    return found
