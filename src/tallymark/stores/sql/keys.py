"""Check the key of a table: its unique indexes as the database enforces them, and how the database compares keys.

Within a batch, two records have the same key if the bytes of their keys are equal. If the database considered keys with
different bytes equal, an older record could overwrite a newer one and deleted rows could come back. Such keys are
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Column, Connection, Table, text
from sqlalchemy import types as sql
from sqlalchemy.dialects import mysql, postgresql

from tallymark.core.tables import TableSpec
from tallymark.errors import DataRefused, TableMismatch
from tallymark.stores.arrow import is_json
from tallymark.stores.sql.columns import family, is_text, is_uuid, plain

DEFERRABLE = "is deferrable"
_POSTGRESQL_INDEXES = """
SELECT c.relname, a.attname, CASE
    WHEN i.indpred IS NOT NULL THEN 'covers only some of the rows'
    WHEN i.indexprs IS NOT NULL THEN 'is on an expression'
    WHEN NOT i.indisvalid THEN 'is not valid'
    WHEN i.indisexclusion THEN 'is a constraint without overlaps'
    WHEN NOT i.indimmediate THEN 'is deferrable'
    WHEN NOT coalesce(l.collisdeterministic, true) THEN 'has the nondeterministic collation ' || l.collname
  END
FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid
CROSS JOIN LATERAL generate_series(0, i.indnkeyatts - 1) AS at(number)
LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[at.number] AND a.attnum > 0
LEFT JOIN pg_collation l ON l.oid = i.indcollation[at.number]
WHERE i.indrelid = to_regclass(quote_ident(:name)) AND i.indisunique
ORDER BY c.relname, at.number
"""
_POSTGRESQL_COLLATIONS = """
SELECT a.attname, l.collname FROM pg_attribute a JOIN pg_collation l ON l.oid = a.attcollation
WHERE a.attrelid = to_regclass(quote_ident(:name)) AND NOT l.collisdeterministic
"""
_MYSQL_INDEXES = """
SELECT index_name, column_name,
  CASE WHEN column_name IS NULL THEN 'is on an expression'
    WHEN sub_part IS NOT NULL THEN CONCAT('covers only the first ', sub_part, ' of ', column_name) END
FROM information_schema.statistics
WHERE table_schema = DATABASE() AND table_name = :name AND non_unique = 0 ORDER BY index_name, seq_in_index
"""
_MYSQL_COLLATIONS = """
SELECT column_name, collation_name FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name = :name AND collation_name IS NOT NULL
"""
_SQLITE_INDEXES = """
SELECT l.name, x.name, CASE WHEN l.partial THEN 'covers only some of the rows'
    WHEN x.cid = -2 THEN 'is on an expression'
    WHEN x.coll <> 'BINARY' THEN 'has the collation ' || x.coll END
FROM pragma_index_list(:name) l, pragma_index_xinfo(l.name) x WHERE l."unique" AND x.key ORDER BY l.name, x.seqno
"""
_SQLITE_TEXT_RULE = "SELECT count(*) FROM (SELECT {column} FROM {table} WHERE 0 {others})"
"""UNION compares the values by the collation of the column, which no PRAGMA reports."""
_SQLITE_DIFFERENT = ("a", "A", "a ")
_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


@dataclass(frozen=True)
class Unique:
    """A unique index. ``flaw`` says why it does not identify every row by the complete values of its columns."""

    name: str
    columns: tuple[str | None, ...]
    """None means an expression."""
    flaw: str | None = None


def unique_indexes(connection: Connection, table: Table) -> list[Unique]:
    """Return the primary key and all unique indexes, from the database's catalog."""
    kind = connection.dialect.name
    statement = {"postgresql": _POSTGRESQL_INDEXES, "mysql": _MYSQL_INDEXES, "sqlite": _SQLITE_INDEXES}[kind]
    found: dict[str, list[tuple[str | None, str | None]]] = {}
    for index, column, flaw in connection.execute(text(statement), {"name": table.name}):
        found.setdefault(index, []).append((column, flaw))
    uniques = [
        Unique(name, tuple(column for column, _ in parts), next((flaw for _, flaw in parts if flaw), None))
        for name, parts in found.items()
    ]
    if kind == "sqlite" and table.primary_key.columns:
        # A primary key that is the rowid has no index; any other primary key is among the indexes already.
        rowid = [column for column in table.primary_key.columns if isinstance(column.type, sql.INTEGER)]
        if len(rowid) == len(table.primary_key.columns) == 1:
            uniques.append(Unique("PRIMARY KEY", (rowid[0].name,)))
    return uniques


def check_key(connection: Connection, table: Table, spec: TableSpec, schema: pa.Schema) -> None:
    """Refuse a table without a unique index on the key, or whose keys are not compared by their bytes."""
    key = ", ".join(spec.key)
    found = [unique for unique in unique_indexes(connection, table) if set(unique.columns) == set(spec.key)]
    flawed = [unique for unique in found if unique.flaw]
    if not found:
        raise TableMismatch(
            f"table {table.name} has no primary key or unique index on ({key}), which the {spec.write} needs; "
            "create one"
        )
    collations = _collations(connection, table, spec)
    for name in spec.key:
        for coarse in _coarser(connection, table.c[name], schema.field(name), collations):
            raise TableMismatch(
                f"table {table.name}: key column {name} {coarse}, so that different keys of records can be the same "
                f"key there; {_way_out(connection, table, table.c[name])}"
            )
    # PostgreSQL considers all indexes on the columns and refuses the statement if any is deferrable.
    if len(flawed) == len(found) or any(unique.flaw == DEFERRABLE for unique in flawed):
        raise TableMismatch(
            f"table {table.name}: its unique index {flawed[0].name} on ({key}) {flawed[0].flaw}, so that the "
            f"{spec.write} can't use it; create one that covers the complete values of all rows and is not deferrable"
        )


def _collations(connection: Connection, table: Table, spec: TableSpec) -> dict[str, str]:
    """Describe the columns whose collation considers some different texts equal."""
    kind = connection.dialect.name
    if kind == "sqlite":
        quote = connection.dialect.identifier_preparer.quote
        others = "".join(f" UNION SELECT '{value}'" for value in _SQLITE_DIFFERENT)
        rules = {
            name: _SQLITE_TEXT_RULE.format(column=quote(name), table=quote(table.name), others=others)
            for name in spec.key
        }
        distinct = {name: connection.exec_driver_sql(rule).scalar() for name, rule in rules.items()}
        return {
            name: "is declared with a collation"
            for name, number in distinct.items()
            if number != len(_SQLITE_DIFFERENT)
        }
    statement = _POSTGRESQL_COLLATIONS if kind == "postgresql" else _MYSQL_COLLATIONS
    found = connection.execute(text(statement), {"name": table.name})
    return {
        column: f"has the collation {collation}"
        for column, collation in found
        if kind == "postgresql" or not _is_exact(collation)
    }


def _is_exact(collation: str) -> bool:
    """Whether MySQL compares by bytes alone: the other ``_bin`` collations ignore trailing spaces."""
    return collation == "binary" or (collation.endswith("_bin") and ("_0900_" in collation or "_nopad_" in collation))


def _coarser(
    connection: Connection, column: Column[Any], field: pa.Field, collations: Mapping[str, str]
) -> Iterator[str]:
    """Yield the reasons why different values of the rows can be equal in the column."""
    dialect, kind = connection.dialect.name, plain(column)
    sort = family(kind)
    textual = is_text(field.type) or is_json(field)
    if dialect == "sqlite":
        if (textual or pa.types.is_decimal(field.type)) and sort not in ("string", "binary", "json", None):
            yield f"is {kind}, which converts text to numbers"
        if pa.types.is_floating(field.type) and sort == "string":
            yield f"is {kind}, which truncates digits of numbers"
        if pa.types.is_integer(field.type) and sort == "float":
            yield f"is {kind}, which rounds large numbers"
    elif sort is None and not isinstance(kind, sql.Uuid):
        yield f"is {kind}, which is not compared as the rows' {field.type}"
    elif isinstance(kind, postgresql.CITEXT):
        yield "is CITEXT, which ignores case"
    elif isinstance(kind, sql.CHAR | sql.BINARY):
        yield f"is {kind}, which pads values to its length"
    elif isinstance(kind, postgresql.JSONB) or (dialect == "mysql" and isinstance(kind, mysql.ENUM | mysql.SET)):
        yield f"is {kind}, which is not compared as text"
    if textual and column.name in collations:
        yield f"{collations[column.name]} that considers some different texts equal"


def check_spelling(table: Table, spec: TableSpec, rows: pa.Table) -> None:
    """Refuse a UUID in a key that is not in the database's spelling: by its bytes it would be another key."""
    for name in spec.key:
        if not is_uuid(table.c[name]) or not is_text(rows[name].type):
            continue
        others = rows[name].filter(pc.invert(pc.match_substring_regex(rows[name], _UUID)))
        if len(others):
            raise DataRefused(
                f"key column {name} is a UUID, and {others[0].as_py()[:60]!r} is not in the database's form, so that "
                f"one key could be two; convert it to that form in the table's function, as with lower({name})"
            )


def _way_out(connection: Connection, table: Table, column: Column[Any]) -> str:
    quote = connection.dialect.identifier_preparer.quote
    if connection.dialect.name == "sqlite":
        return f"create the table again, with {column.name} of the rows' type and without COLLATE"
    alter = f"ALTER TABLE {quote(table.name)}"
    if connection.dialect.name == "postgresql":
        exact = ' COLLATE "C"' if isinstance(column.type, sql.String) else ""
        return f"{alter} ALTER COLUMN {quote(column.name)} TYPE text{exact}"
    length = 255 if isinstance(column.type, sql.Enum) else getattr(column.type, "length", None) or 255
    if isinstance(column.type, sql.BINARY):
        return f"{alter} MODIFY {quote(column.name)} VARBINARY({length}) NOT NULL"
    exact = f"CHARACTER SET utf8mb4 COLLATE {exact_collation(connection)}"
    return f"{alter} MODIFY {quote(column.name)} VARCHAR({length}) {exact} NOT NULL"


def exact_collation(connection: Connection) -> str:
    """Return the collation for keys on MySQL. Not utf8mb4_bin, which ignores trailing spaces."""
    return "utf8mb4_nopad_bin" if getattr(connection.dialect, "is_mariadb", False) else "utf8mb4_0900_bin"
