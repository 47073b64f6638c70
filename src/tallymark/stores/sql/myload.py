"""LOAD DATA LOCAL: how many rows are sent to MySQL at once.

With LOCAL the server turns errors into warnings and skips duplicates, even in strict mode. A warning or a wrong number
of loaded rows therefore counts as a refusal.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Table, TableClause, column, table
from sqlalchemy.exc import DBAPIError

from tallymark.errors import DataRefused
from tallymark.stores.sql.columns import hexed, is_binary, is_text

INCOMING = "tallymark_incoming"
"""The temporary table for rows that are written by key. It belongs to the connection and survives a rollback."""
LOCAL_FILES = 1 << 7
"""The capability flag CLIENT_LOCAL_FILES of MySQL's protocol."""
_OFF = {1044, 1148, 1227, 1787, 2068, 3748, 3750, 3948, 4166}
"""Errors when client, server or permissions forbid LOAD DATA LOCAL or temporary tables in a transaction."""


class LoadIsOff(Exception):
    """LOAD DATA LOCAL is not available. Nothing was written, and the transaction can continue."""


def load_aside(connection: Connection, target: Table, rows: pa.Table) -> TableClause:
    """Load rows into a temporary table with the types of the target, and return it. The caller drops it."""
    quote = connection.dialect.identifier_preparer.quote
    columns = ", ".join(map(quote, rows.column_names))
    connection.exec_driver_sql(f"DROP TEMPORARY TABLE IF EXISTS {INCOMING}")
    with _off():
        empty = f"SELECT {columns} FROM {quote(target.name)} LIMIT 0"
        connection.exec_driver_sql(f"CREATE TEMPORARY TABLE {INCOMING} AS {empty}")
    load(connection, INCOMING, rows)
    return table(INCOMING, *(column(name, target.c[name].type) for name in rows.column_names))


def load(connection: Connection, target: str, rows: pa.Table) -> None:
    """Load rows into the table with this quoted name."""
    quote = connection.dialect.identifier_preparer.quote
    parameters, assignments = [], []
    for number, field in enumerate(rows.schema):
        binary = is_binary(field.type)
        parameters.append(f"@tallymark_{number}" if binary else quote(field.name))
        assignments += [f"{quote(field.name)} = UNHEX(@tallymark_{number})"] if binary else []
    with _file(rows) as path, _sending_files(connection), _off():
        loaded = connection.exec_driver_sql(
            f"LOAD DATA LOCAL INFILE '{path}' INTO TABLE {target} CHARACTER SET utf8mb4 "
            "FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' LINES TERMINATED BY X'0A' "
            f"({', '.join(parameters)}){' SET ' if assignments else ''}{', '.join(assignments)}"
        ).rowcount
    warnings = [words for level, _, words in connection.exec_driver_sql("SHOW WARNINGS LIMIT 10") if level != "Note"]
    if warnings or loaded != rows.num_rows:
        raise DataRefused(warnings[0] if warnings else f"the server loaded {loaded} of {rows.num_rows} rows")


@contextmanager
def _sending_files(connection: Connection) -> Iterator[None]:
    """Let the driver send a file, unless ``local_infile=0`` in the URL forbids it."""
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
    """Yield the path of a CSV file with the rows. NULL is unquoted, and all text is quoted."""
    lines = pc.binary_join_element_wise(*map(_field, rows.columns), _text(","))
    in_memory = hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("rows"), "wb") if in_memory else tempfile.NamedTemporaryFile() as file:
        for chunk in pc.binary_join_element_wise(lines, _text(""), _text("\n")).chunks:
            file.write(_bytes(chunk))
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}" if in_memory else file.name


def _field(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the text of each value in the file. Arrow's own CSV writer writes NULL as it writes an empty text."""
    printable = _printable(column)
    field = printable.cast(pa.large_string())
    if is_text(printable.type):
        field = pc.binary_join_element_wise(_text('"'), pc.replace_substring(field, '"', '""'), _text('"'), _text(""))
    return pc.fill_null(field, _text("NULL"))


def _text(value: str) -> pa.Scalar:
    return pa.scalar(value, pa.large_string())


def _bytes(lines: pa.LargeStringArray) -> memoryview:
    """Return the concatenated values of an array, without copying them."""
    _, offsets, values = lines.buffers()
    start, stop = (memoryview(offsets).cast("q")[lines.offset + place] for place in (0, len(lines)))
    return memoryview(values)[start:stop]


def _printable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if is_binary(kind):
        return hexed(column)
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us"))
    if pa.types.is_float32(kind):
        # The shortest text of the largest float32 values exceeds the server's range.
        return column.cast(pa.float64())
    return column.cast(pa.string()) if pa.types.is_decimal(kind) else column
