"""The SQL ledger as operators and audits see it: the journal, and a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Row, Select, column, inspect, select, table

from tallymark.core.claims import Note
from tallymark.core.journal import UNAPPLIED, BatchLine, Consent, Decision, Journal, Letter, LetterQuery, NoteLine, Run
from tallymark.core.retry import retrying
from tallymark.core.spans import GroupState, Partition, Span
from tallymark.core.tables import WrittenTable
from tallymark.stores.contract import HISTORY, NOTES, ORIGIN, Moment, Snapshot, SnapshotMark
from tallymark.stores.sql.emptying import empty_tables, row_counts
from tallymark.stores.sql.ledger.claim import check_whole, delete_group, move
from tallymark.stores.sql.ledger.letters import count_letters, read_letters, settle
from tallymark.stores.sql.ledger.read import lock_positions, read_group
from tallymark.stores.sql.ledger.runs import read_groups, read_history, read_notes, read_runs, read_tables
from tallymark.stores.sql.ledger.skips import read_skips
from tallymark.stores.sql.ledger.tables import dead_letters, exceptions

GIVES_WAY = 10.0
"""Seconds for which an operator's change is retried."""
AT_ONCE = 100_000
"""Rows of a table that are read at once."""
Opened = Callable[[], AbstractContextManager[Connection]]


class SqlJournal(Journal):
    """Reads with ``look``, writes with ``transaction``."""

    def __init__(self, look: Opened, transaction: Opened) -> None:
        self._look, self._transaction = look, transaction

    def groups(self) -> dict[str, GroupState]:
        with self._look() as connection:
            return read_groups(connection)

    def runs(self, group: str) -> list[Run]:
        with self._look() as connection:
            return read_runs(connection, group)

    def history(self, group: str, since: datetime | None = None, most: int = 1000) -> list[BatchLine]:
        with self._look() as connection:
            return read_history(connection, group, since, most)

    def tables(self, group: str | None = None) -> dict[str, list[WrittenTable]]:
        with self._look() as connection:
            return read_tables(connection, group)

    def row_counts(self, tables: Collection[str]) -> dict[str, int]:
        with self._look() as connection:
            return row_counts(connection, tables)

    def notes(self, group: str, kinds: Collection[str]) -> list[NoteLine]:
        with self._look() as connection:
            return read_notes(connection, group, kinds)

    def letters(self, query: LetterQuery) -> list[Letter]:
        with self._look() as connection:
            return read_letters(connection, query)

    def letter_counts(self, group: str) -> dict[str, int]:
        with self._look() as connection:
            return count_letters(connection, group)

    def settle(self, letters: Sequence[Letter], state: str, by: str, now: datetime) -> None:
        with self._transaction() as connection:
            for group in sorted({letter.group for letter in letters}):
                lock_positions(
                    connection, group, {letter.record.partition for letter in letters if letter.group == group}
                )
            settle(connection, [letter.id for letter in letters], state, by, now)

    def move(self, group: str, partitions: Collection[Partition], decide: Decision, by: str, now: datetime) -> None:
        def attempt() -> None:
            with self._transaction() as connection:
                changes = move(connection, group, partitions, decide, by, now)
                if changes.empties:
                    empty_tables(connection, changes.empties)
                    # After the rows: a position that is created later has no row among those that were deleted.
                    check_whole(connection, group, partitions)

        # While the group runs, the database may abort this transaction as the victim of a deadlock.
        retrying(attempt, patience=GIVES_WAY)

    def delete(self, group: str, consent: Consent) -> None:
        def attempt() -> None:
            with self._transaction() as connection:
                delete_group(connection, group, consent)

        retrying(attempt, patience=GIVES_WAY)


def in_snapshot(connection: Connection) -> Connection:
    """Set the isolation level, before the first statement. SQLite's transactions are snapshots already."""
    if connection.dialect.name == "sqlite":
        return connection
    return connection.execution_options(isolation_level="REPEATABLE READ")


class SqlSnapshot(Snapshot):
    """Runs all queries in the connection's transaction, which does not see later commits."""

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
