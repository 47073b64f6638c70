"""Find or create the table for a handler's rows at the first write, and choose the types of the rows for it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlalchemy import Column, Connection, Engine, Table

from tallymark.core.merging import BY_ORDER, Name, unfit
from tallymark.core.tables import TableSpec
from tallymark.errors import BadInput, DataRefused
from tallymark.stores.arrow import JSON_MARK
from tallymark.stores.handler_rows import Given
from tallymark.stores.sql.columns import column_type
from tallymark.stores.sql.deletions import add_deletions, deletions_of, with_deletions
from tallymark.stores.sql.dialect import Dialect
from tallymark.stores.sql.staging import impatient
from tallymark.stores.sql.tables import (
    create_table,
    evolve_table,
    existing_table,
    fits,
    has_table,
    merges_exactly,
    reflected,
    retrying_races,
)

WIDEST = pa.decimal128(38, 18)
"""Column type for decimals whose type is inferred from values: the type that Spark infers for Python's Decimal."""
NARROWER = {
    pa.int64(): (pa.int32(), pa.int16(), pa.int8(), pa.float64(), pa.float32()),
    pa.float64(): (pa.float32(),),
}
"""Types to which Python numbers may be cast to fit the column, if no value is lost."""
ANY = (
    pa.field("", pa.int64()),
    *(pa.field("", narrower) for narrower in NARROWER[pa.int64()]),
    *(pa.field("", kind) for kind in (pa.decimal128(1, 0), pa.date32(), pa.timestamp("us"), pa.bool_())),
    *(pa.field("", kind) for kind in (pa.binary(), pa.string())),
    pa.field("", pa.string(), metadata={JSON_MARK: b"1"}),
)
"""Types that a column with only NULLs may get."""


@dataclass(frozen=True)
class Fitted:
    """A table, and the schema to which rows of one shape are cast for it."""

    table: Table
    schema: pa.Schema


def fit(
    connection: Connection, engine: Engine, dialect: Dialect, spec: TableSpec, given: Given, *, used: bool
) -> Fitted:
    """Find the table, or create or evolve it as the spec allows. Other processes may do the same concurrently.

    ``used``: the transaction has written to the table before.
    """

    def attempt() -> Fitted:
        # On MySQL a failed statement does not abort the transaction, so no savepoint is needed.
        with nullcontext() if dialect.name == "mysql" else connection.begin_nested():
            return _find_or_create(connection, engine, dialect, spec, given, used=used)

    return retrying_races(attempt)


def _find_or_create(
    connection: Connection, engine: Engine, dialect: Dialect, spec: TableSpec, given: Given, *, used: bool
) -> Fitted:
    table, schema = _find(connection, dialect, spec, given)
    if table is not None and all(field.name in table.c for field in schema) and _remembers(table, spec):
        return Fitted(table, schema)
    if dialect.name != "mysql":
        return Fitted(_create(connection, table, spec, schema, given), schema)
    if used and table is not None and _remembers(table, spec):
        raise BadInput(
            f"table {spec.name} lacks a column, and MySQL can't add it after the transaction has written to the table; "
            "write the rows with this column first"
        )
    # On another connection, because DDL would commit the transaction. That transaction may hold the lock, so the wait
    # must be short.
    with engine.begin() as beside, impatient(beside):
        return Fitted(_create(beside, table, spec, schema, given), schema)


def _find(connection: Connection, dialect: Dialect, spec: TableSpec, given: Given) -> tuple[Table | None, pa.Schema]:
    schema = given.rows.schema
    unsure = given.inferred or any(pa.types.is_null(field.type) for field in schema)
    if unsure and has_table(connection, spec.name):
        schema = _fitted(dialect, reflected(connection, spec.name), spec, given)
    elif unsure:
        _check_known(spec, schema)
    table = existing_table(connection, spec, schema)
    if table is not None:
        dialect.check_table(connection, table, spec, schema.names)
    if table is not None and spec.remembers:
        table = with_deletions(connection, spec, table)
    return table, schema


def _create(connection: Connection, table: Table | None, spec: TableSpec, schema: pa.Schema, given: Given) -> Table:
    wide = pa.schema([_widened(field) for field in schema]) if given.inferred else schema
    made = create_table(connection, spec, wide) if table is None else evolve_table(connection, table, spec, wide)
    return add_deletions(connection, spec, made, empty=table is None) if spec.remembers else made


def _remembers(table: Table, spec: TableSpec) -> bool:
    """Whether the table of deletions is there, if one is needed."""
    return not spec.remembers or deletions_of(table) is not None


def _check_known(spec: TableSpec, schema: pa.Schema) -> None:
    for field in schema:
        if pa.types.is_null(field.type):
            raise BadInput(
                f"table {spec.name} does not exist, and can't be created from rows whose {field.name} is always None, "
                "which has no type; create the table, or write an Arrow table"
            )


def _widened(field: pa.Field) -> pa.Field:
    kind = field.type
    if not pa.types.is_decimal(kind) or kind.scale > WIDEST.scale:
        return field
    return field.with_type(WIDEST) if kind.precision - kind.scale <= WIDEST.precision - WIDEST.scale else field


def _fitted(dialect: Dialect, table: Table, spec: TableSpec, given: Given) -> pa.Schema:
    """Choose types for the rows that fit the table. A column with only NULLs that the table lacks is left out."""
    fields = []
    for field in given.rows.schema:
        column = table.c.get(field.name)
        if column is not None and (given.inferred or pa.types.is_null(field.type)):
            fields.append(_as_column(dialect, table, column, field, spec.functions.get(field.name)))
        elif not pa.types.is_null(field.type):
            fields.append(field)
    return pa.schema(fields)


def _as_column(dialect: Dialect, table: Table, column: Column[Any], field: pa.Field, function: Name | None) -> pa.Field:
    if pa.types.is_null(field.type):
        # Text first, where values are compared: on SQLite a text column may also be one of decimals.
        first = (pa.field("", pa.string()),) if function in ("min", "max") else ()
        named = [candidate.with_name(field.name) for candidate in (*first, *ANY)]
        candidates = [candidate for candidate in named if _merges(dialect, column, candidate, function)]
    else:
        candidates = [field, *(field.with_type(narrower) for narrower in NARROWER.get(field.type, ()))]
    for candidate in candidates:
        if dialect.name == "sqlite" or fits(column_type(candidate, in_key=False), column.type):
            return candidate
    raise DataRefused(
        f"table {table.name}: column {field.name} is {column.type} and can't hold the rows' {field.type}; change the "
        "column or convert the value"
    )


def _merges(dialect: Dialect, column: Column[Any], candidate: pa.Field, function: Name | None) -> bool:
    if function is None or function in BY_ORDER:
        return True
    usable = unfit({candidate.name: function}, pa.schema([candidate]), ()) is None
    return usable and merges_exactly(candidate, column, dialect.name)
