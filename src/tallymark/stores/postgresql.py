"""PostgreSQL, by psycopg: rows go by COPY, upserts by COPY into a temporary table and one merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
from sqlalchemy import Connection, Engine, Table, event, select, table
from sqlalchemy import column as sql_column
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import Insert

from tallymark.errors import TallymarkError
from tallymark.stores.dialects import Dialect, not_in_key

# A server that vanished without a word is noticed within a minute.
CONNECT = {"connect_timeout": 10, "keepalives_idle": 20, "keepalives_interval": 10, "keepalives_count": 3}
INCOMING = "tallymark_incoming"
"""The temporary table that upserts come through; it is gone with the transaction."""


class Postgresql(Dialect):
    name = "postgresql"
    driver = "postgresql+psycopg"
    extra = "postgresql"

    def engine(self, url: URL) -> Engine:
        engine = super().engine(url)
        event.listen(engine, "connect", _on_connect)
        return engine

    def engine_options(self) -> dict[str, Any]:
        return super().engine_options() | {"connect_args": CONNECT}

    def append(self, connection: Connection, table: Table, rows: pa.Table) -> None:
        _copy(connection, _quoted(table.name), rows)

    def upsert(self, connection: Connection, table: Table, rows: pa.Table, key: Sequence[str]) -> None:
        columns = ", ".join(map(_quoted, rows.column_names))
        empty = f"SELECT {columns} FROM {_quoted(table.name)} WITH NO DATA"
        incoming = f"CREATE TEMPORARY TABLE {INCOMING} ON COMMIT DROP AS {empty}"
        connection.exec_driver_sql(incoming.replace("%", "%%"))
        _copy(connection, INCOMING, rows)
        connection.execute(_upsert(table, rows.column_names, key))
        connection.exec_driver_sql(f"DROP TABLE {INCOMING}")


def _on_connect(connection: Any, _: Any) -> None:
    # A time without a zone is UTC, wherever the server believes to be.
    connection.execute("SET TIME ZONE 'UTC'")
    # A client that vanished in the middle of a transaction must not keep its locks for hours.
    connection.execute("SET idle_in_transaction_session_timeout = '60s'")
    connection.commit()


def _upsert(table: Table, columns: Sequence[str], key: Sequence[str]) -> Insert:
    statement = postgresql.insert(table).from_select(list(columns), _incoming(columns))
    others = not_in_key(columns, key)
    if not others:
        return statement.on_conflict_do_nothing(index_elements=list(key))
    return statement.on_conflict_do_update(
        index_elements=list(key), set_={column: statement.excluded[column] for column in others}
    )


def _incoming(columns: Sequence[str]) -> Any:
    return select(*(sql_column(name) for name in columns)).select_from(table(INCOMING))


def _quoted(name: str) -> str:
    """For statements that go to the driver without parameters: SQLAlchemy would double every percent sign."""
    return '"' + name.replace('"', '""') + '"'


def _copy(connection: Connection, target: str, rows: pa.Table) -> None:
    import psycopg

    driver: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    statement = f"COPY {target} ({', '.join(map(_quoted, rows.column_names))}) FROM STDIN (FORMAT csv)"
    try:
        with driver.cursor() as cursor:
            with cursor.copy(statement.encode()) as copy:
                copy.write(_csv(rows))
            taken = cursor.rowcount
    except psycopg.Error as error:
        raise DBAPIError.instance(statement, None, error, psycopg.Error, dialect=connection.dialect) from error
    if taken != rows.num_rows:
        raise TallymarkError(f"{target} took {taken} of {rows.num_rows} rows; the transaction is rolled back")


def _csv(rows: pa.Table) -> memoryview:
    """The rows as CSV: NULL is an empty field, an empty string a quoted one."""
    sink = pa.BufferOutputStream()
    printable = pa.table([_printable(column) for column in rows.columns], names=rows.column_names)
    # Up to PostgreSQL 17 a line of nothing but an unquoted backslash and point ends the data.
    style = "all_valid" if rows.num_columns == 1 else "needed"
    pa_csv.write_csv(printable, sink, pa_csv.WriteOptions(include_header=False, quoting_style=style))
    return memoryview(sink.getvalue())


def _printable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return pa.chunked_array([["\\x" + value.hex() if value is not None else None for value in column.to_pylist()]])
    return column.cast(pa.string()) if pa.types.is_decimal(column.type) else column
