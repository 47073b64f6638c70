"""PostgreSQL, by psycopg: rows go by COPY, upserts by COPY into a temporary table and one merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
from sqlalchemy import Connection, Table, select, table, text
from sqlalchemy import column as sql_column
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import Insert

from tallymark.stores.dialects import Dialect, not_in_key

INCOMING = "tallymark_incoming"
"""The temporary table that upserts come through; it is gone with the transaction."""


class Postgresql(Dialect):
    name = "postgresql"
    driver = "postgresql+psycopg"
    extra = "postgresql"

    def engine_options(self) -> dict[str, Any]:
        return super().engine_options() | {"connect_args": {"connect_timeout": 10}}

    def append(self, connection: Connection, table: Table, rows: pa.Table) -> None:
        _copy(connection, connection.dialect.identifier_preparer.format_table(table), rows)

    def upsert(self, connection: Connection, table: Table, rows: pa.Table, key: Sequence[str]) -> None:
        target = connection.dialect.identifier_preparer.format_table(table)
        columns = _column_list(connection, rows.column_names)
        incoming = f"CREATE TEMPORARY TABLE {INCOMING} ON COMMIT DROP AS SELECT {columns} FROM {target} WITH NO DATA"
        connection.execute(text(incoming))
        _copy(connection, INCOMING, rows)
        connection.execute(self.upsert_statement(table, rows.column_names, key))
        connection.execute(text(f"DROP TABLE {INCOMING}"))

    def upsert_statement(self, table: Table, columns: Sequence[str], key: Sequence[str]) -> Insert:
        statement = postgresql.insert(table).from_select(list(columns), _incoming(columns))
        others = not_in_key(columns, key)
        if not others:
            return statement.on_conflict_do_nothing(index_elements=list(key))
        return statement.on_conflict_do_update(
            index_elements=list(key), set_={column: statement.excluded[column] for column in others}
        )


def _incoming(columns: Sequence[str]) -> Any:
    return select(*(sql_column(name) for name in columns)).select_from(table(INCOMING))


def _column_list(connection: Connection, names: Sequence[str]) -> str:
    return ", ".join(connection.dialect.identifier_preparer.quote_identifier(name) for name in names)


def _copy(connection: Connection, target: str, rows: pa.Table) -> None:
    import psycopg

    driver: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    statement = f"COPY {target} ({_column_list(connection, rows.column_names)}) FROM STDIN (FORMAT csv)"
    try:
        with driver.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            copy.write(_csv(rows))
    except psycopg.Error as error:
        raise DBAPIError.instance(statement, None, error, psycopg.Error, dialect=connection.dialect) from error


def _csv(rows: pa.Table) -> memoryview:
    """The rows as CSV: NULL is an empty field, an empty string a quoted one."""
    sink = pa.BufferOutputStream()
    printable = pa.table([_printable(column) for column in rows.columns], names=rows.column_names)
    pa_csv.write_csv(printable, sink, pa_csv.WriteOptions(include_header=False, quoting_style="needed"))
    return memoryview(sink.getvalue())


def _printable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return pa.chunked_array([["\\x" + value.hex() if value is not None else None for value in column.to_pylist()]])
    return column.cast(pa.string()) if pa.types.is_decimal(column.type) else column
