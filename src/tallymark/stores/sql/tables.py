"""The user's tables: create missing tables from the schema of the rows, and check existing tables against it."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from sqlalchemy import Column, Connection, Inspector, MetaData, Table, inspect, text
from sqlalchemy import types as sql
from sqlalchemy.dialects import mysql
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateColumn

from tallymark.core.merging import BY_ORDER
from tallymark.core.tables import TableSpec, check_merge
from tallymark.errors import TableMismatch
from tallymark.stores.arrow import is_json, schemas_of
from tallymark.stores.sql.columns import column_type, columns_for, family, has_own_text, plain
from tallymark.stores.sql.keys import check_key, exact_collation

T = TypeVar("T")

_FITS = {
    "boolean": {"boolean", "integer"},
    "integer": {"integer", "decimal"},
    "float": {"float"},
    "decimal": {"decimal", "string"},
    "json": {"json", "string"},
    "timestamp": {"timestamp"},
    "date": {"date", "timestamp"},
    "binary": {"binary"},
    "string": {"string"},
}
_COUNTED = {"integer": ["integer", "decimal"], "boolean": ["boolean", "integer"]}
MERGED_IN: Mapping[str, Mapping[str, Sequence[str | None]]] = {
    "postgresql": _COUNTED,
    # JSON of MariaDB is text.
    "mysql": {**_COUNTED, "json": ["json", "string"]},
    "sqlite": {name: [name, "string"] for name in ("timestamp", "date", "json")} | {"decimal": ["string"]},
}
"""Families of columns in which values are merged exactly, unless the family is that of the values."""
_UNORDERED = ("boolean", "json", "binary")
PAUSES = (0.0, 0.1, 0.5)
"""Seconds before each attempt to find or create a table, which another process may create at the same time."""
MYSQL_SCALE = 30
SECOND_DIGITS = 6
RANGES = {True: ("MariaDB", (10, 9)), False: ("MySQL", (8, 0, 2))}
"""The first version of MariaDB, and of MySQL, that selects a range of a JSON array."""
_INTEGER_BITS: list[tuple[type[Any], int]] = [
    (mysql.TINYINT, 8),
    (sql.SmallInteger, 16),
    (mysql.MEDIUMINT, 24),
    (sql.BigInteger, 64),
    (sql.Integer, 32),
]


def retrying_races(work: Callable[[], T]) -> T:
    """Retry: finding and creating a table is not atomic, and the loser of a race finds it on the next attempt."""
    for pause in PAUSES:
        time.sleep(pause)
        try:
            return work()
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            failed = error
    raise failed


def existing_table(connection: Connection, spec: TableSpec, schema: pa.Schema) -> Table | None:
    """Return the table for rows of this schema, or None if it is to be created; raise if it can't hold the rows.

    Changes nothing. Missing columns are accepted if ``evolve_table`` will add them.
    """
    dialect = connection.dialect.name
    _check_names(spec, schema)
    _check_version(spec, schema, dialect)
    check_merge(spec, schema)
    _check_decimals(spec, schema, dialect)
    _check_ranges(connection, spec)
    if not has_table(connection, spec.name):
        columns_for(schema, spec.key)
        if not spec.create:
            raise TableMismatch(
                f"table {spec.name} does not exist, and create=False; create it, or remove create=False"
            )
        return None
    table = reflected(connection, spec.name)
    _check_columns(table, spec, schema, dialect)
    _check_required(table, schema)
    _check_texts(table, spec, schema, dialect)
    if spec.write == "merge":
        _check_merged(table, spec, schema, dialect)
    if spec.write != "append":
        check_key(connection, table, spec, schema)
    return table


def has_table(connection: Connection, name: str) -> bool:
    """Whether the table exists. Does not use DESCRIBE on MySQL, which locks the name until the transaction ends."""
    if connection.dialect.name != "mysql":
        return inspect(connection).has_table(name)
    found = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :name"
    return bool(connection.scalar(text(found), {"name": name}))


def reflected(connection: Connection, name: str) -> Table:
    """Read the table's definition from the database."""
    listeners = [("column_reflect", _unescape)] if connection.dialect.name == "mysql" else []
    return Table(name, MetaData(), autoload_with=connection, listeners=listeners, resolve_fks=False)


def _unescape(_: Inspector, __: Table, column: ReflectedColumn) -> None:
    # SQLAlchemy parses names from CREATE TABLE and leaves backticks doubled.
    column["name"] = column["name"].replace("``", "`")


def create_table(connection: Connection, spec: TableSpec, schema: pa.Schema) -> Table:
    """Create the table. On MySQL this commits the current transaction, so tables are created before the first batch."""
    columns = columns_for(schema, spec.key, exact_collation(connection))
    table = Table(spec.name, MetaData(), *columns, mysql_engine="InnoDB", mysql_charset="utf8mb4")
    table.create(connection)
    return table


def evolve_table(connection: Connection, table: Table, spec: TableSpec, schema: pa.Schema) -> Table:
    """Add the columns that the table lacks. On MySQL every ALTER TABLE commits the current transaction."""
    missing = [field for field in schema if field.name not in table.c]
    if not missing:
        return table
    name = connection.dialect.identifier_preparer.format_table(table)
    for column in columns_for(pa.schema(missing), ()):
        definition = CreateColumn(column).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {definition}")
    return reflected(connection, spec.name)


LONGEST: dict[str, tuple[int, Callable[[str], int], str]] = {
    "postgresql": (63, lambda name: len(name.encode()), "bytes"),
    "mysql": (64, len, "characters"),
}
"""The longest names of tables. PostgreSQL cuts longer ones, so that two tables could become one."""


def check_table_names(names: Iterable[str], dialect: str) -> None:
    """Refuse names of tables that the database can't hold, or can't tell apart."""
    names = list(names)
    most, length, unit = LONGEST.get(dialect, (sys.maxsize, len, ""))
    if long := [name for name in names if length(name) > most]:
        raise TableMismatch(
            f"the names of these tables are longer than {most} {unit}, which the database can't hold: "
            f"{', '.join(long)}; give them shorter names"
        )
    alike = Counter(name.lower() for name in names if dialect != "postgresql")
    if same := [name for name in names if alike[name.lower()] > 1]:
        raise TableMismatch(
            f"the names of these tables differ only in upper and lower case, which the database may ignore: "
            f"{', '.join(same)}; give them other names"
        )


def _check_names(spec: TableSpec, schema: pa.Schema) -> None:
    needed = {**dict.fromkeys(spec.key, "key"), **({spec.version: "version"} if spec.version else {})}
    for name, role in needed.items():
        if name not in schema.names:
            raise TableMismatch(
                f"table {spec.name}: the {role} column {name} is not in the rows, which have {', '.join(schema.names)}"
            )


def _check_version(spec: TableSpec, schema: pa.Schema, dialect: str) -> None:
    if spec.version is None:
        return
    field = schema.field(spec.version)
    kind = family(column_type(field, in_key=False))
    if kind in _UNORDERED:
        raise TableMismatch(f"table {spec.name}: version {field.name} is {_spark_like(field)}, which has no order")
    if kind == "decimal" and dialect == "sqlite":
        raise TableMismatch(
            f"table {spec.name}: version {field.name} is {field.type}, which SQLite stores as text and can't compare; "
            "cast it to BIGINT or TIMESTAMP"
        )


def _check_decimals(spec: TableSpec, schema: pa.Schema, dialect: str) -> None:
    for field in schema if dialect in ("mysql", "mariadb") else ():
        if pa.types.is_decimal(field.type) and field.type.scale > MYSQL_SCALE:
            raise TableMismatch(
                f"table {spec.name}: column {field.name} is {field.type}, and MySQL has at most {MYSQL_SCALE} digits "
                "after the point; cast it"
            )


def _check_ranges(connection: Connection, spec: TableSpec) -> None:
    dialect: Any = connection.dialect
    if not spec.bounds or dialect.name != "mysql":
        return
    (name, needed), found = RANGES[bool(dialect.is_mariadb)], dialect.server_version_info
    if found < needed:
        needs, is_there = (".".join(map(str, version)) for version in (needed, found))
        raise TableMismatch(
            f"table {spec.name}: append needs {name} {needs} or later, and this is {is_there}; upgrade the server, or "
            "append a row for each element"
        )


def _check_columns(table: Table, spec: TableSpec, schema: pa.Schema, dialect: str) -> None:
    of = schemas_of(schema)
    for field in schema:
        wanted = column_type(field, in_key=False)
        column = table.c.get(field.name)
        if column is None:
            if spec.evolve:
                continue
            raise TableMismatch(
                f"table {table.name} has no column {field.name} for the rows' {_spark_like(field)}{of}; add the "
                "column, set evolve=True to add it, or leave it out of the table's function"
            )
        if dialect != "sqlite" and not fits(wanted, column.type):
            if family(wanted) == family(column.type) == "timestamp":
                raise TableMismatch(
                    f"table {table.name}: column {field.name} is {column.type} and truncates fractions of a second of "
                    f"the rows' {_spark_like(field)}{of}; change the column to one with {SECOND_DIGITS} digits"
                )
            raise TableMismatch(
                f"table {table.name}: column {field.name} is {column.type} and can't hold the rows' "
                f"{_spark_like(field)}{of}; change the column or cast the value"
            )


def _check_texts(table: Table, spec: TableSpec, schema: pa.Schema, dialect: str) -> None:
    """Refuse numbers in text columns: they would be compared as text, or by MySQL as floating-point numbers."""
    for name in [*spec.key, *([spec.version] if spec.version else [])]:
        field = schema.field(name)
        wanted = column_type(field, in_key=False)
        if name not in table.c or family(plain(table.c[name])) != "string":
            continue
        # SQLite compares a key as the text that was written; keys.py refuses types that are rounded as text.
        exact = dialect == "sqlite" and name != spec.version
        if family(wanted) in ("integer", "float", "decimal") and not exact:
            raise TableMismatch(
                f"table {table.name}: column {name} is {table.c[name].type} and stores the rows' {field.type} as text, "
                f"which is not compared as a number; change the column to {wanted}"
            )


def _check_required(table: Table, schema: pa.Schema) -> None:
    for column in table.columns:
        if column.name not in schema.names and not _fills_itself(column):
            raise TableMismatch(
                f"table {table.name}: column {column.name} is NOT NULL without a default, and the rows do not have it; "
                "add it to the table's function or give the column a default"
            )


def _fills_itself(column: Column[Any]) -> bool:
    numbered = column.primary_key and column.autoincrement is not False and isinstance(column.type, sql.Integer)
    return bool(column.nullable or column.server_default or column.identity or column.computed or numbered)


def _check_merged(table: Table, spec: TableSpec, schema: pa.Schema, dialect: str) -> None:
    """Refuse columns in which sums would be rounded, or which are compared in another way than the rows."""
    for name, function in spec.functions.items():
        column = table.c.get(name)
        if column is None or function in BY_ORDER:
            continue
        field = schema.field(name)
        if not merges_exactly(field, column, dialect):
            raise TableMismatch(
                f"table {table.name}: column {name} is {column.type}, in which the {function} of the rows' "
                f"{_spark_like(field)} would not be exact; change the type of the column, or cast the rows"
            )


def merges_exactly(field: pa.Field, column: Column[Any], dialect: str) -> bool:
    """Whether the column computes and compares values as the rows do."""
    need, have = family(column_type(field, in_key=False)), family(plain(column))
    return have in MERGED_IN[dialect].get(need or "", [need]) and not has_own_text(column)


def fits(wanted: sql.TypeEngine[Any], found: sql.TypeEngine[Any]) -> bool:
    """Whether the column can hold the value. Unknown types are left to the database."""
    need, have = family(wanted), family(found)
    if need is None or have is None:
        return True
    if need == have == "integer":
        return _bits(found) >= _bits(wanted)
    if need == have == "float":
        return isinstance(found, sql.Double) or not isinstance(wanted, sql.Double)
    if need == have == "decimal":
        return _digits_fit(wanted, found)
    if need == have == "timestamp":
        return _seconds_fit(found)
    return have in _FITS[need]


def _bits(kind: sql.TypeEngine[Any]) -> int:
    return next((bits for cls, bits in _INTEGER_BITS if isinstance(kind, cls)), 64)


def _digits_fit(wanted: Any, found: Any) -> bool:
    """Whether the column keeps all digits before and after the point. Without a precision it keeps all."""
    if found.precision is None:
        return True
    scale = found.scale or 0
    return bool(scale >= wanted.scale and found.precision - scale >= wanted.precision - wanted.scale)


def _seconds_fit(found: Any) -> bool:
    """Whether the column keeps microseconds. MySQL's columns keep whole seconds unless declared with more digits."""
    digits = (found.fsp or 0) if hasattr(found, "fsp") else getattr(found, "precision", None)
    return digits is None or digits >= SECOND_DIGITS


def _spark_like(field: pa.Field) -> str:
    return "JSON" if is_json(field) else str(field.type)
