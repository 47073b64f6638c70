"""SQLite: the embedded default. One writer at a time, readers never wait (WAL)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Engine, Table, event
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL
from sqlalchemy.sql.dml import Insert

from tallymark.errors import BadInput
from tallymark.stores.dialects import READ_ONLY, Dialect, not_in_key

LOCK_WAIT = 30.0
"""Seconds that a writer waits for another one."""


class Sqlite(Dialect):
    name = "sqlite"
    driver = "sqlite+pysqlite"

    def engine(self, url: URL) -> Engine:
        if url.database in (None, "", ":memory:"):
            raise BadInput("a SQLite store needs a file to survive a restart; write sqlite:///name.db")
        engine = super().engine(url)
        event.listen(engine, "connect", _on_connect)
        event.listen(engine, "begin", _on_begin)
        return engine

    def engine_options(self) -> dict[str, Any]:
        return {"connect_args": {"timeout": LOCK_WAIT}}

    def upsert(self, connection: Connection, table: Table, rows: pa.Table, key: Sequence[str]) -> None:
        self._execute_many(connection, _upsert(table, rows.column_names, key), rows)


def _upsert(table: Table, columns: Sequence[str], key: Sequence[str]) -> Insert:
    statement = sqlite.insert(table)
    others = not_in_key(columns, key)
    if not others:
        return statement.on_conflict_do_nothing(index_elements=list(key))
    return statement.on_conflict_do_update(
        index_elements=list(key), set_={column: statement.excluded[column] for column in others}
    )


def _on_connect(connection: Any, _: Any) -> None:
    # The sqlite3 module would begin transactions at moments of its own choice: begin them ourselves.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    # A power cut may undo the last commits, but rows and positions together: the records are read again.
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()


def _on_begin(connection: Connection) -> None:
    looking = connection.get_execution_options().get(READ_ONLY)
    connection.exec_driver_sql("BEGIN" if looking else "BEGIN IMMEDIATE")
