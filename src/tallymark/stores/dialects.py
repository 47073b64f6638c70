"""What a kind of database has to tell us: how to connect, and the statements that write rows.

A batch's rows reach ``append`` and ``upsert`` as Arrow, inside the transaction that also moves the positions.
The default road is the driver's ``executemany``; a database with a bulk road of its own overrides the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Engine, Table, bindparam, create_engine, insert
from sqlalchemy.engine import URL
from sqlalchemy.sql.dml import Insert

from tallymark.stores.columns import python_rows

READ_ONLY = "tallymark_read_only"
"""Execution option of connections that only look: on SQLite they take no write lock."""


class Dialect(ABC):
    """One kind of database."""

    name: str
    driver: str
    extra: str | None = None

    def engine(self, url: URL) -> Engine:
        return create_engine(url.set(drivername=self.driver), pool_pre_ping=True, **self.engine_options())

    def engine_options(self) -> dict[str, Any]:
        return {"isolation_level": "READ COMMITTED"}

    def check_table(self, connection: Connection, table: Table) -> None:  # noqa: B027
        """Refuse a table that can't take part in a transaction."""

    def append(self, connection: Connection, table: Table, rows: pa.Table) -> None:
        self._execute_many(connection, insert(table), rows)

    def upsert(self, connection: Connection, table: Table, rows: pa.Table, key: Sequence[str]) -> None:
        """Rows have distinct keys and come sorted by them."""
        self._execute_many(connection, self.upsert_statement(table, rows.column_names, key), rows)

    @abstractmethod
    def upsert_statement(self, table: Table, columns: Sequence[str], key: Sequence[str]) -> Insert:
        """INSERT that overwrites the other columns of a row whose key is there already."""

    def _execute_many(self, connection: Connection, statement: Insert, rows: pa.Table) -> None:
        values = {name: bindparam(None, type_=statement.table.c[name].type) for name in rows.column_names}
        compiled = statement.values(values).compile(connection)
        # The driver's own executemany: SQLAlchemy's would build a dict for every row.
        connection.exec_driver_sql(str(compiled), list(python_rows(rows, self.name)))


def not_in_key(columns: Sequence[str], key: Sequence[str]) -> list[str]:
    return [column for column in columns if column not in key]
