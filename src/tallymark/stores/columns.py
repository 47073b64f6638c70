"""Arrow types to column types, and Arrow columns to what the database drivers bind.

Rows stay Arrow until here, and are converted column by column, never row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from tallymark.errors import BadInput

JSON_MARK = b"tallymark:json"
"""Field metadata of a string column that holds JSON: an array, struct or map on the Spark side."""

_SIMPLE: list[tuple[Any, Any]] = [
    (pa.types.is_boolean, Boolean()),
    (pa.types.is_int8, SmallInteger()),
    (pa.types.is_int16, SmallInteger()),
    (pa.types.is_int32, Integer()),
    (pa.types.is_int64, BigInteger()),
    (pa.types.is_float32, Float().with_variant(mysql.FLOAT(), "mysql", "mariadb")),
    (pa.types.is_float64, Double().with_variant(mysql.DOUBLE(asdecimal=False), "mysql", "mariadb")),
    (pa.types.is_date, Date()),
    (pa.types.is_binary, LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")),
    (pa.types.is_large_binary, LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")),
]


def column_type(field: pa.Field, *, in_key: bool) -> TypeEngine[Any]:
    """The column type for an Arrow field. Keys on MySQL need a bounded, case-sensitive string."""
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
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _string_type(in_key=in_key)
    raise BadInput(f"column {field.name}: {kind} has no column type; cast it or leave it out")


def is_json(field: pa.Field) -> bool:
    return bool(field.metadata and JSON_MARK in field.metadata)


def columns_for(schema: pa.Schema, key: tuple[str, ...]) -> list[Column[Any]]:
    """The columns of a new table, with the key as its primary key."""
    return [
        Column(
            field.name,
            column_type(field, in_key=field.name in key),
            primary_key=field.name in key,
            nullable=field.name not in key,
            autoincrement=False,
        )
        for field in schema
    ]


def python_rows(rows: pa.Table, dialect: str) -> Iterator[tuple[Any, ...]]:
    """The rows as tuples of what the driver binds, converted a column at a time."""
    columns = [_bindable(column, dialect).to_pylist() for column in rows.columns]
    return zip(*columns, strict=True)


def _string_type(*, in_key: bool) -> TypeEngine[str]:
    exact = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
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
        return pc.strftime(column.cast(pa.timestamp("us")), format="%Y-%m-%d %H:%M:%S")
    if pa.types.is_timestamp(kind) and dialect == "mysql":
        return column.cast(pa.timestamp("us"))
    return column
