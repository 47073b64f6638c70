"""Map Arrow types to column types, and Arrow columns to values that database drivers bind.

Rows stay Arrow up to this module and are converted column by column, never row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    JSON,
    REAL,
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Enum,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Text,
    Uuid,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import NullType, TypeEngine, _Binary

from tallymark.errors import BadInput
from tallymark.stores.arrow import OFF_CALENDAR, is_json, off_calendar

_SIMPLE: list[tuple[Any, Any]] = [
    (pa.types.is_boolean, Boolean()),
    (pa.types.is_int8, SmallInteger()),
    (pa.types.is_int16, SmallInteger()),
    (pa.types.is_int32, Integer()),
    (pa.types.is_int64, BigInteger()),
    (pa.types.is_float32, REAL().with_variant(mysql.FLOAT(), "mysql", "mariadb")),
    (pa.types.is_float64, Double().with_variant(mysql.DOUBLE(asdecimal=False), "mysql", "mariadb")),
    (pa.types.is_date, Date()),
]

_FAMILIES: list[tuple[type[Any], str]] = [
    (Boolean, "boolean"),
    (Integer, "integer"),
    (Float, "float"),
    (Numeric, "decimal"),
    (JSON, "json"),
    (DateTime, "timestamp"),
    (Date, "date"),
    (LargeBinary, "binary"),
    (_Binary, "binary"),
    (String, "string"),
]


def column_type(field: pa.Field, *, in_key: bool, collation: str = "utf8mb4_bin") -> TypeEngine[Any]:
    """Return the column type for an Arrow field. Keys on MySQL need a bounded string and an exact collation."""
    kind = field.type
    if is_json(field):
        return JSON()
    for matches, sql_type in _SIMPLE:
        if matches(kind):
            result: TypeEngine[Any] = sql_type
            return result
    if pa.types.is_decimal(kind):
        # SQLite has no exact decimal: text keeps every digit.
        return Numeric(kind.precision, kind.scale).with_variant(Text(), "sqlite")
    if pa.types.is_timestamp(kind):
        return DateTime(timezone=kind.tz is not None).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    if is_binary(kind):
        return LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    if is_text(kind):
        return _string_type(in_key, collation)
    raise BadInput(f"column {field.name}: {kind} has no column type; cast it or leave it out")


def family(kind: TypeEngine[Any]) -> str | None:
    """Return the family of a column type; None for unknown types."""
    return next((name for cls, name in _FAMILIES if isinstance(kind, cls)), None)


def plain(column: Column[Any]) -> TypeEngine[Any]:
    """Return the type of a column, or the base type if it is a domain."""
    return column.type.data_type if isinstance(column.type, postgresql.DOMAIN) else column.type


def is_uuid(column: Column[Any]) -> bool:
    return isinstance(plain(column), Uuid)


def has_own_text(column: Column[Any]) -> bool:
    """Whether the column's type is not text but is written as text: UUIDs, enums, addresses, intervals."""
    kind = plain(column)
    return isinstance(kind, Uuid | Enum) or (family(kind) is None and not isinstance(kind, NullType))


def most_characters(column: Column[Any]) -> int | None:
    """Return the maximum length of text in the column; None if it has no limit or holds no text."""
    kind = plain(column)
    # The length of a SET is that of its longest member.
    return kind.length if isinstance(kind, String) and not isinstance(kind, Enum | mysql.SET) else None


def is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def columns_for(schema: pa.Schema, key: tuple[str, ...], collation: str = "utf8mb4_bin") -> list[Column[Any]]:
    """Return the columns of a new table, with the key as primary key. Only MySQL uses the collation of keys."""
    return [
        Column(
            field.name,
            column_type(field, in_key=field.name in key, collation=collation if field.name in key else "utf8mb4_bin"),
            primary_key=field.name in key,
            nullable=field.name not in key,
            autoincrement=False,
        )
        for field in schema
    ]


def python_rows(rows: pa.Table, dialect: str) -> Iterator[tuple[Any, ...]]:
    """Yield rows as tuples of values that the driver binds, converted column by column."""
    columns = [_bindable(column, dialect).to_pylist() for column in rows.columns]
    return zip(*columns, strict=True)


def hexed(column: pa.ChunkedArray, prefix: str = "") -> pa.ChunkedArray:
    """Convert bytes to hexadecimal text, a chunk at a time."""
    digits = pa.chunked_array([_hexed(chunk) for chunk in column.chunks if len(chunk)], pa.large_string())
    before, between = (pa.scalar(mark, pa.large_string()) for mark in (prefix, ""))
    return pc.binary_join_element_wise(before, digits, between)


def _hexed(chunk: pa.Array) -> pa.Array:
    chunk = chunk.cast(pa.large_binary())
    _, offsets, data = chunk.buffers()
    ends = pa.Array.from_buffers(pa.int64(), len(chunk) + 1, [None, offsets], offset=chunk.offset)
    start, stop = ends[0].as_py(), ends[-1].as_py()
    digits = pa.py_buffer(memoryview(data or b"")[start:stop].hex().encode())
    places = pc.multiply(pc.subtract(ends, start), 2)
    text = pa.Array.from_buffers(pa.large_string(), len(chunk), [None, places.buffers()[1], digits])
    return pc.if_else(chunk.is_valid(), text, None)


def _string_type(in_key: bool, collation: str) -> TypeEngine[str]:
    exact = {"charset": "utf8mb4", "collation": collation}
    if in_key:
        return (
            String(255).with_variant(mysql.VARCHAR(255, **exact), "mysql", "mariadb").with_variant(Text(), "postgresql")
        )
    return Text().with_variant(mysql.LONGTEXT(**exact), "mysql", "mariadb")


def _bindable(column: pa.ChunkedArray, dialect: str) -> pa.ChunkedArray:
    kind = column.type
    if dialect == "sqlite" and (pa.types.is_decimal(kind) or pa.types.is_date(kind)):
        return column.cast(pa.string())
    if pa.types.is_timestamp(kind) and dialect == "sqlite":
        if pc.any(off_calendar(column)).as_py():
            raise OverflowError(OFF_CALENDAR)
        return pc.strftime(column.cast(pa.timestamp("us")), format="%Y-%m-%d %H:%M:%S")
    if pa.types.is_timestamp(kind) and dialect == "mysql":
        return column.cast(pa.timestamp("us"))
    return column
