"""Tables of a SQL store: prepared by hand, written through the store, read through SQLAlchemy's own types."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from sqlalchemy import Column, MetaData, Table, cast, select
from sqlalchemy.dialects import mysql

from tallymark.core.tables import Changes, TableSpec
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tallymark.stores.sql.columns import column_type
from tallymark.stores.sql.store import SqlStore

ROWS = TableSpec("things")
UPSERT = TableSpec("things", key=("id",), write="upsert")
IGNORE = TableSpec("things", key=("id",), write="ignore")
PLAIN = pa.schema([("id", pa.int64()), ("name", pa.string())])


def opened(url: str) -> SqlStore:
    store = open_store(url)
    assert isinstance(store, SqlStore)
    return store


def prepare(store: SqlStore, *statements: str) -> None:
    with store.transaction() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def write(store: Store, spec: TableSpec, puts: pa.Table, deletes: pa.Table | None = None) -> None:
    store.create_tables([spec], {spec.name: puts.schema})
    store.apply([Changes(spec, puts, puts.slice(0, 0) if deletes is None else deletes)], None)


def put(store: SqlStore, spec: TableSpec, rows: pa.Table, *, after: str | None = None) -> None:
    """Write to a table as it was before the statement ``after``, without bisecting a refused batch."""
    with store.look() as connection:
        table = Table(spec.name, MetaData(), autoload_with=connection)
    if after:
        prepare(store, after)
    with store.transaction() as connection:
        store.dialect.check_constraints(connection)
        store.dialect.put(connection, table, spec, rows)


def plain(*rows: tuple[int, str | None]) -> pa.Table:
    return pa.table([[id for id, _ in rows], [name for _, name in rows]], schema=PLAIN)


def read(store: SqlStore, spec: TableSpec, schema: pa.Schema) -> list[tuple[Any, ...]]:
    """The rows, ordered by the first column."""
    columns = [Column(field.name, column_type(field, in_key=field.name in spec.key)) for field in schema]
    table = Table(spec.name, MetaData(), *columns)
    # MySQL shows six digits of a FLOAT, though it stores more.
    shown = [
        cast(column, mysql.DOUBLE(asdecimal=False))
        if field.type == pa.float32() and store.dialect.name == "mysql"
        else column
        for column, field in zip(table.columns, schema, strict=True)
    ]
    with store.look() as connection:
        return [tuple(row) for row in connection.execute(select(*shown).order_by(table.columns[0]))]
