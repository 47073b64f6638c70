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

from tallymark.shape import TableSpec
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

    def check_table(  # noqa: B027
        self, connection: Connection, table: Table, spec: TableSpec, columns: Sequence[str]
    ) -> None:
        """Refuse a table that would take these columns, and not keep our promise on this kind of database."""

    def append(self, connection: Connection, table: Table, rows: pa.Table) -> None:
        self._execute_many(connection, insert(table), rows)

    @abstractmethod
    def upsert(self, connection: Connection, table: Table, rows: pa.Table, key: Sequence[str]) -> None:
        """Insert, or overwrite the other columns where the key is there. Keys are distinct and come sorted."""

    def _execute_many(self, connection: Connection, statement: Insert, rows: pa.Table, suffix: str = "") -> None:
        names = {f"_tallymark_{number}": name for number, name in enumerate(rows.column_names)}
        values = {name: bindparam(place, type_=statement.table.c[name].type) for place, name in names.items()}
        compiled = statement.values(values).compile(connection)
        # The statement names the columns in the table's order, whatever the order of the rows.
        ordered = rows.select([names[place] for place in compiled.positiontup or ()])
        # The driver's own executemany: SQLAlchemy's would build a dict for every row.
        connection.exec_driver_sql(f"{compiled}{suffix}", list(python_rows(ordered, self.name)))


def not_in_key(columns: Sequence[str], key: Sequence[str]) -> list[str]:
    return [column for column in columns if column not in key]
