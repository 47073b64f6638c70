"""A snapshot of an SQL database: a transaction that does not see later commits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Row, Select, column, inspect, select, table

from tallymark.core.claims import Note
from tallymark.core.journal import UNAPPLIED
from tallymark.core.spans import Partition, Span
from tallymark.stores.contract import HISTORY, NOTES, ORIGIN, Moment, Snapshot, SnapshotMark
from tallymark.stores.sql.ledger.read import read_group
from tallymark.stores.sql.ledger.runs import read_history
from tallymark.stores.sql.ledger.skips import read_skips
from tallymark.stores.sql.ledger.tables import dead_letters, exceptions

AT_ONCE = 100_000


def in_snapshot(connection: Connection) -> Connection:
    """Set the isolation level, before the first statement. SQLite's transactions are snapshots already."""
    if connection.dialect.name == "sqlite":
        return connection
    return connection.execution_options(isolation_level="REPEATABLE READ")


class SqlSnapshot(Snapshot):
    """Runs all queries in the connection's transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def moment(self, group: str) -> Moment:
        connection = self._connection
        return Moment(
            read_group(connection, group).get(group, []),
            [skip.span for skip in read_skips(connection, group)],
            [(_note(row), row.recorded_at) for row in connection.execute(_notes(group))],
            [_mark(row) for row in connection.execute(_letters(group))],
            read_history(connection, group, None, HISTORY),
        )

    def origins(self, name: str) -> Iterator[pa.Table] | None:
        catalog = inspect(self._connection)
        if not catalog.has_table(name):
            return None
        columns = {reflected["name"] for reflected in catalog.get_columns(name)}
        return self._origins(name) if set(ORIGIN.names) <= columns else None

    def _origins(self, name: str) -> Iterator[pa.Table]:
        rows: Any = select(*map(column, ORIGIN.names)).select_from(table(name))
        # Not an option of the connection: the results of its other statements are small.
        for part in self._connection.execute(rows, execution_options={"stream_results": True}).partitions(AT_ONCE):
            yield pa.table(list(zip(*part, strict=True)), schema=ORIGIN)


def _notes(group: str) -> Select[Any]:
    # By id, not by time: the clocks of the hosts may differ.
    mine = exceptions.c.group_name == group, exceptions.c.kind.in_(NOTES)
    return select(exceptions).where(*mine).order_by(exceptions.c.id)


def _note(row: Row[Any]) -> Note:
    span = Span(Partition(row.topic, row.partition_id), row.start_offset, row.stop_offset)
    return Note(row.kind, span, row.reason)


def _letters(group: str) -> Select[Any]:
    wanted = (dead_letters.c[name] for name in ("topic", "partition_id", "record_offset", "state", "recorded_at"))
    return select(*wanted).where(dead_letters.c.group_name == group, dead_letters.c.state.in_(UNAPPLIED))


def _mark(row: Row[Any]) -> SnapshotMark:
    return SnapshotMark(Partition(row.topic, row.partition_id), row.record_offset, row.state, row.recorded_at)
