"""SQLite, the embedded default. One writer at a time; readers never wait (WAL)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Context, Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Engine, Table, delete, event, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from tallymark.core import arrays
from tallymark.core.tables import TableSpec
from tallymark.errors import BadInput, DataRefused
from tallymark.stores.sql.deletions import is_deleted
from tallymark.stores.sql.dialect import READ_ONLY, Dialect, deletable, parameters, resolved
from tallymark.stores.sql.merging import APPEND
from tallymark.stores.tls import OPTIONS
from tallymark.stores.url import CONNECT_TIMEOUT, PASSWORD_FILE, READ_TIMEOUT, shown

LOCK_WAIT = 30.0
"""Seconds that a writer waits for another writer."""
BYTEWISE = "BINARY"
WAL = "tallymark_wal"
EXACT = Context(prec=100)
"""Adds decimals without rounding them."""


class Sqlite(Dialect):
    name = "sqlite"
    driver = "sqlite+pysqlite"

    def engine(self, url: URL) -> Engine:
        if url.database in (None, "", ":memory:"):
            raise BadInput("a SQLite store needs a file to survive a restart; write sqlite:///name.db")
        for option in (*OPTIONS, PASSWORD_FILE, CONNECT_TIMEOUT, READ_TIMEOUT):
            if option in url.query:
                raise BadInput(f"{shown(url)}: SQLite has no server to connect to; leave {option}= out")
        engine = super().engine(url)
        event.listen(engine, "connect", _on_connect)
        event.listen(engine, "begin", _on_begin)
        return engine

    def engine_options(self) -> dict[str, Any]:
        return {"connect_args": {"timeout": LOCK_WAIT}}

    def in_transaction(self, driver: Any) -> bool:
        return bool(driver.in_transaction)

    def check_deferred(self, connection: Connection) -> None:
        if not connection.exec_driver_sql("PRAGMA foreign_keys").scalar():
            return
        broken = _violations(connection)
        if broken:
            with connection.engine.connect() as other:
                broken -= _violations(other.execution_options(**{READ_ONLY: True}))
        if broken:
            (table, _, parent, _), *_ = sorted(broken, key=str)
            raise DataRefused(f"FOREIGN KEY constraint failed: a row of {table} refers to no row of {parent}")

    def put(self, connection: Connection, table: Table, spec: TableSpec, rows: pa.Table) -> None:
        _check_numbers(rows)
        own = _exact(spec, rows.schema) if spec.write == "merge" else None
        given, statement = parameters(table, rows), sqlite.insert(table)
        if (deleted := is_deleted(table, spec, given)) is None:
            statement = statement.values(given)
        else:
            statement = statement.from_select(rows.column_names, select(*given.values()).where(~deleted))
        with _naming_overflow(own):
            self._execute_many(connection, resolved(statement, spec, rows.column_names, BYTEWISE, own), rows)

    def delete(self, connection: Connection, table: Table, spec: TableSpec, rows: pa.Table) -> None:
        given = parameters(table, rows)
        statement = delete(table).where(*(table.c[name] == given[name] for name in spec.key))
        if spec.version:
            statement = statement.where(deletable(table, spec, given[spec.version], BYTEWISE))
        self._execute_many(connection, statement, rows)


def _exact(spec: TableSpec, schema: pa.Schema) -> dict[str, str]:
    """Return what SQLite computes wrongly: it rounds sums beyond 64 bits and numbers in arrays; decimals are text."""
    found = dict.fromkeys(spec.bounds, APPEND["sqlite"])
    for name, function in spec.functions.items():
        kind = schema.field(name).type
        digits = kind.precision if pa.types.is_decimal(kind) else 0
        if function in ("sum", "count"):
            nothing = 0 if function == "count" else "NULL"
            found[name] = f"COALESCE(tallymark_sum({{there}}, {{given}}, {digits}), {nothing})"
        elif digits and function in ("min", "max"):
            found[name] = f"tallymark_{function}({{there}}, {{given}})"
    return found


def _sum(there: Any, given: Any, digits: int) -> Any:
    """Add two numbers, or decimals of so many digits in text form. NULL adds nothing."""
    if there is None or given is None:
        return given if there is None else there
    if digits:
        # Of two sums the wider scale remains, and no digit is rounded.
        total = EXACT.add(Decimal(there), Decimal(given))
        if len(total.as_tuple().digits) > digits:
            raise OverflowError
        return format(total, "f")
    whole = there + given
    if isinstance(whole, int) and not -(2**63) <= whole < 2**63:
        raise OverflowError
    return whole


def _extreme(choose: Callable[..., str], there: str | None, given: str | None) -> str | None:
    known = [value for value in (there, given) if value is not None]
    return choose(known, key=Decimal) if known else None


@contextmanager
def _naming_overflow(own: Mapping[str, str] | None) -> Iterator[None]:
    """SQLite reports an overflow in one of our functions as a value that is too big."""
    try:
        yield
    except DBAPIError as error:
        if own and "too big" in str(error.orig):
            raise DataRefused("a sum is out of range for its column") from error
        raise


def _violations(connection: Connection) -> Counter[tuple[Any, ...]]:
    """Count the rows that violate a foreign key."""
    return Counter(tuple(row) for row in connection.exec_driver_sql("PRAGMA foreign_key_check"))


def _check_numbers(rows: pa.Table) -> None:
    """Refuse NaN, which SQLite would silently store as NULL."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            raise DataRefused(f"column {name} is NaN, which SQLite can't store")


def _on_connect(connection: Any, _: Any) -> None:
    # Disable the implicit transactions of the sqlite3 module: _on_begin begins them.
    connection.isolation_level = None
    cursor = connection.cursor()
    # A power failure may undo the last commits, but rows and positions together, so the records are read again.
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()
    connection.create_function("tallymark_sum", 3, _sum, deterministic=True)
    connection.create_function("tallymark_append", 3, arrays.appended, deterministic=True)
    for name, choose in (("min", min), ("max", max)):
        connection.create_function(f"tallymark_{name}", 2, partial(_extreme, choose), deterministic=True)


def _on_begin(connection: Connection) -> None:
    if connection.get_execution_options().get(READ_ONLY):
        connection.exec_driver_sql("BEGIN")
        return
    # The journal mode is a property of the file: readers must not change it.
    if not connection.info.get(WAL):
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        connection.info[WAL] = True
    connection.exec_driver_sql("BEGIN IMMEDIATE")
