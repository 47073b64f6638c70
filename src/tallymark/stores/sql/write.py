"""Write a batch's rows to its tables, and find the rows that a table refuses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import pyarrow as pa
from sqlalchemy import Connection, Table

from tallymark.core.halving import Undoing, in_any_order, in_order
from tallymark.core.newest import sendable
from tallymark.core.replica import by_known_columns, with_nulls
from tallymark.core.spans import Partition
from tallymark.core.tables import Changes, Refusal, TableSpec, has_origin, origin, refusal, without
from tallymark.errors import DataRefused
from tallymark.stores.sql.deletions import remember
from tallymark.stores.sql.dialect import Dialect
from tallymark.stores.sql.errors import translated
from tallymark.stores.sql.keys import check_spelling
from tallymark.stores.sql.merging import naming_arrays
from tallymark.stores.sql.staging import staged_rows

MANY = 1_000
"""With more refused parts than this, the search may stop before it has isolated each row."""


def write(dialect: Dialect, connection: Connection, table: Table, change: Changes) -> None:
    """Delete rows, put rows and promote staged rows, in the caller's transaction."""
    for piece in pieces(table, change):
        piece.send(dialect, connection)
    if change.staged is not None and change.staged.rows:
        rows = staged_rows(connection, change.staged, table, change.spec.key)
        dialect.promote(connection, table, change.spec, change.staged.columns, rows)


@dataclass(frozen=True)
class Piece:
    """Rows to put into a table or to delete from it, with their hidden columns."""

    table: Table
    spec: TableSpec
    rows: pa.Table
    deletes: bool

    def __len__(self) -> int:
        # Rows that are merged from several records can't be attributed to records.
        return int(self.rows.num_rows) if has_origin(self.rows) else min(1, self.rows.num_rows)

    def __getitem__(self, at: slice) -> Piece:
        start, stop, _ = at.indices(len(self))
        whole = (start, stop) == (0, len(self))
        return self if whole else replace(self, rows=self.rows.slice(start, stop - start))

    def without(self, records: Collection[tuple[Partition, int]]) -> Piece:
        return replace(self, rows=without(self.rows, records))

    @property
    def record(self) -> tuple[Partition, int]:
        """The record of its first row."""
        return origin(self.rows, 0)

    def refusal(self, error: DataRefused) -> Refusal:
        return refusal(self.spec, self.rows, 0, str(error))

    def send(self, dialect: Dialect, connection: Connection) -> None:
        spec = self.spec
        check_spelling(self.table, spec, self.rows)
        if self.deletes:
            rows = self.rows.select([*spec.key, *([spec.version] if spec.version else [])])
            remember(dialect, connection, self.table, spec, rows)
            dialect.delete(connection, self.table, spec, rows)
        else:
            with naming_arrays(spec):
                dialect.put(connection, self.table, spec, sendable(spec, self.rows))


def pieces(table: Table, change: Changes) -> Iterator[Piece]:
    """Yield the deletes, then the puts."""
    if change.deletes.num_rows:
        yield Piece(table, change.spec, change.deletes, deletes=True)
    for spec, rows in by_known_columns(change.spec, change.puts) if change.puts.num_rows else ():
        # A new row gets NULL, which every type has; a column that refuses NULL gets the placeholder.
        nullable = [name for name in spec.kept if table.c[name].nullable]
        yield Piece(table, spec, with_nulls(rows, nullable), deletes=False)


def refused_rows(dialect: Dialect, connection: Connection, found: Sequence[Piece], at_most: int) -> list[Refusal]:
    """Return the records whose rows the tables refuse; at least ``at_most`` of them, if there are so many.

    Deferred constraints stay deferred until all rows that are refused immediately are removed. Only if a deferred
    constraint is violated then, the search continues for the rows that violate it. This way a row that refers to a
    later row is not blamed.
    """

    def attempt(piece: Piece, *, check: bool = False) -> DataRefused | None:
        nested = connection.begin_nested()
        try:
            with translated(""):
                piece.send(dialect, connection)
                if check:
                    dialect.check_deferred(connection)
                nested.commit()
        except DataRefused as error:
            if not dialect.in_transaction(connection.connection.driver_connection):
                raise Undoing(piece, error) from error
            nested.rollback()
            return error
        return None

    def enough(parts: list[Piece]) -> bool:
        return len(parts) > MANY and len({part.record for part in parts if has_origin(part.rows)}) >= at_most

    whole = connection.begin_nested()
    refused = list(islice(in_order(found, attempt), at_most))
    refusals = [piece.refusal(error) for piece, error in refused]
    if len(refusals) >= at_most or _holds(dialect, connection):
        return refusals
    whole.rollback()
    # With immediate constraints each row is checked once, not again with every later row.
    dialect.check_constraints(connection)
    dead = {refusal.record for refusal in refusals}
    late = in_any_order((piece.without(dead) for piece in found), partial(attempt, check=True), enough)
    return refusals + [piece.refusal(error) for piece, error in late]


def _holds(dialect: Dialect, connection: Connection) -> bool:
    """Whether all constraints hold, including deferred constraints."""
    try:
        with translated(""):
            dialect.check_deferred(connection)
    except DataRefused:
        return False
    return True
