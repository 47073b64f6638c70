"""A batch's rows into one table and, when the table refuses some of them, which."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from sqlalchemy import Connection, Table

from tallymark.errors import DataRefused
from tallymark.shape import Changes, Refusal, TableSpec, has_origin, origin, visible
from tallymark.stores.dialects import Dialect
from tallymark.stores.failures import translated
from tallymark.stores.keys import check_spelling
from tallymark.stores.staging import staged_rows


def write(dialect: Dialect, connection: Connection, table: Table, change: Changes) -> None:
    """Put and delete, as part of the caller's transaction."""
    if change.deletes.num_rows:
        _delete(dialect, connection, table, change.spec, change.deletes)
    if change.puts.num_rows:
        _put(dialect, connection, table, change.spec, change.puts)
    if change.staged is not None and change.staged.rows:
        rows = staged_rows(connection, change.staged, table, change.spec.key)
        dialect.promote(connection, table, change.spec, change.staged.columns, rows)


def refused_rows(
    dialect: Dialect, connection: Connection, table: Table, change: Changes, at_most: int
) -> list[Refusal]:
    """The records whose rows the table does not take, found by halving. What it takes stays in the transaction."""
    spec = change.spec
    if not has_origin(change.puts):
        try:
            write(dialect, connection, table, change)
        except DataRefused as error:
            raise DataRefused(
                f"table {spec.name} refused a row: {error}; its function merges records, so that no single one can be "
                "set aside: correct the function"
            ) from error
        return []
    refusals: list[Refusal] = []

    def halve(rows: pa.Table, send: Callable[[pa.Table], None]) -> None:
        if not rows.num_rows or len(refusals) >= at_most:
            return
        try:
            with translated(""), connection.begin_nested():
                send(rows)
        except DataRefused as error:
            if rows.num_rows == 1:
                refusals.append(Refusal(*origin(rows, 0), spec.name, str(error)))
                return
            middle = rows.num_rows // 2
            halve(rows.slice(0, middle), send)
            halve(rows.slice(middle), send)

    halve(change.deletes, lambda rows: _delete(dialect, connection, table, spec, rows))
    halve(change.puts, lambda rows: _put(dialect, connection, table, spec, rows))
    return refusals


def _put(dialect: Dialect, connection: Connection, table: Table, spec: TableSpec, rows: pa.Table) -> None:
    check_spelling(table, spec, rows)
    dialect.put(connection, table, spec, visible(rows))


def _delete(dialect: Dialect, connection: Connection, table: Table, spec: TableSpec, rows: pa.Table) -> None:
    check_spelling(table, spec, rows)
    # A deletion needs the key, and the version if there is one.
    dialect.delete(connection, table, spec, rows.select([*spec.key, *([spec.version] if spec.version else [])]))
