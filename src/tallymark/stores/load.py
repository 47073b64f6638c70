"""MySQL's LOAD DATA LOCAL: rows as a file that never reaches a disk, and the check that all of them arrived.

With LOCAL the server turns errors into warnings and skips duplicates, strict or not: whatever it says besides the
number of our rows is a refusal.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
from sqlalchemy import Connection, Table
from sqlalchemy.exc import DBAPIError

from tallymark.errors import DataRefused
from tallymark.stores.columns import hexed, is_binary

INCOMING = "tallymark_incoming"
"""The temporary table that rows with a key come through. It belongs to the connection, and survives a rollback."""
LOCAL_FILES = 1 << 7
"""The flag of MySQL's protocol for a client that sends files."""
_OFF = {1044, 1148, 1227, 1787, 2068, 3748, 3750, 3948, 4166}
"""LOAD DATA LOCAL or a temporary table in a transaction is not allowed, by client, server or permission."""


class LoadIsOff(Exception):
    """Nothing was written, and the transaction goes on."""


def load(connection: Connection, table: Table, rows: pa.Table, _: str = "") -> None:
    """Append rows."""
    _load(connection, connection.dialect.identifier_preparer.quote(table.name), rows)


def load_aside(connection: Connection, table: Table, rows: pa.Table, on_duplicate: str) -> None:
    """Load rows into a temporary table, and insert from there."""
    quote = connection.dialect.identifier_preparer.quote
    columns = ", ".join(map(quote, rows.column_names))
    name = quote(table.name)
    connection.exec_driver_sql(f"DROP TEMPORARY TABLE IF EXISTS {INCOMING}")
    with _off():
        connection.exec_driver_sql(f"CREATE TEMPORARY TABLE {INCOMING} AS SELECT {columns} FROM {name} LIMIT 0")
    _load(connection, INCOMING, rows)
    connection.exec_driver_sql(f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {INCOMING}{on_duplicate}")
    connection.exec_driver_sql(f"DROP TEMPORARY TABLE {INCOMING}")


def _load(connection: Connection, target: str, rows: pa.Table) -> None:
    quote = connection.dialect.identifier_preparer.quote
    places, assignments = [], []
    for number, field in enumerate(rows.schema):
        binary = is_binary(field.type)
        places.append(f"@tallymark_{number}" if binary else quote(field.name))
        assignments += [f"{quote(field.name)} = UNHEX(@tallymark_{number})"] if binary else []
    with _file(rows) as path, _sending_files(connection), _off():
        loaded = connection.exec_driver_sql(
            f"LOAD DATA LOCAL INFILE '{path}' INTO TABLE {target} CHARACTER SET utf8mb4 "
            "FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' LINES TERMINATED BY X'0A' "
            f"({', '.join(places)}){' SET ' if assignments else ''}{', '.join(assignments)}"
        ).rowcount
    warnings = [words for level, _, words in connection.exec_driver_sql("SHOW WARNINGS LIMIT 10") if level != "Note"]
    if warnings or loaded != rows.num_rows:
        raise DataRefused(warnings[0] if warnings else f"the server took {loaded} of {rows.num_rows} rows")


@contextmanager
def _sending_files(connection: Connection) -> Iterator[None]:
    """Let the driver send a file, if it may at all: ``local_infile=0`` in the URL forbids it."""
    driver: Any = connection.connection.driver_connection
    driver._local_infile = bool(driver.client_flag & LOCAL_FILES)
    try:
        yield
    finally:
        driver._local_infile = False


@contextmanager
def _off() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if error.orig is not None and error.orig.args and error.orig.args[0] in _OFF:
            raise LoadIsOff(error.orig.args[1]) from error
        raise


@contextmanager
def _file(rows: pa.Table) -> Iterator[str]:
    """The path of a file with the rows as CSV: NULL is a bare word, and all text is quoted."""
    columns = [_printable(column) for column in rows.columns]
    printable = pa.table(columns, names=[str(number) for number in range(len(columns))])
    in_memory = hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("rows"), "wb") if in_memory else tempfile.NamedTemporaryFile() as file:
        pa_csv.write_csv(printable, file, pa_csv.WriteOptions(include_header=False, null_string="NULL"))
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}" if in_memory else file.name


def _printable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if is_binary(kind):
        return hexed(column)
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us"))
    if pa.types.is_float32(kind):
        # The shortest text of the largest ones is beyond the server's range.
        return column.cast(pa.float64())
    return column.cast(pa.string()) if pa.types.is_decimal(kind) else column
