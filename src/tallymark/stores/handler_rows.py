"""Convert the rows that a handler writes, dicts or Arrow, to the Arrow tables that bulk loading takes."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from tallymark.core.newest import finish
from tallymark.core.tables import (
    DELETED,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    Changes,
    TableSpec,
    no_key,
    unusable_rows,
    visible,
)
from tallymark.errors import BadInput, DataRefused, TableMismatch
from tallymark.stores.arrow import JSON_MARK, is_json

Rows: TypeAlias = Mapping[str, Any] | Iterable[Mapping[str, Any]] | pa.Table | pa.RecordBatch

_PLAIN = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}
"""Types that Spark does not have, and the types that replace them."""
_STRICT = (bytes, date, datetime)
"""Types that Arrow would silently convert to the type of the column's first value."""


@dataclass(frozen=True)
class Given:
    """The rows. ``inferred``: their types are inferred from the values, so columns of other types are acceptable."""

    rows: pa.Table
    inferred: bool

    @classmethod
    def of(cls, table: str, rows: Rows, arrays: Collection[str] = ()) -> Given:
        """Convert the rows. ``arrays`` are columns that hold JSON arrays, even if all values are NULL."""
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if hasattr(rows, "__arrow_c_stream__"):
            return cls(_nulls_as_json(_plain_table(table, visible(pa.table(rows))), arrays), inferred=False)
        listed = [rows] if isinstance(rows, Mapping) else list(rows)
        return cls(_nulls_as_json(_table_of(table, listed), arrays), inferred=True)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Rows of equal shape can be written to a table in the same way."""
        json_columns = tuple(field.name for field in self.rows.schema if is_json(field))
        return self.rows.schema.remove_metadata(), json_columns, self.inferred


def changes(spec: TableSpec, rows: pa.Table, deleted: pa.ChunkedArray | None = None) -> Changes:
    """Return one row for each key, sorted by key. ``deleted`` marks the rows that delete their key."""
    numbered = _numbered(rows)
    return finish(spec, numbered if deleted is None else numbered.append_column(DELETED, deleted), "")


def deleted_rows(spec: TableSpec, rows: Rows) -> pa.ChunkedArray | None:
    """Return which rows of ``records.changes()`` delete their key; None for other tables than replicas."""
    if not spec.is_replica:
        return None
    if not isinstance(rows, pa.Table) or DELETED not in rows.column_names:
        raise BadInput(f"table {spec.name}: write='replica' takes records.changes(), and these rows are not of it")
    return rows[DELETED]


def check_mergeable(change: Changes) -> None:
    """Refuse rows with values that can't be merged."""
    for refusal in unusable_rows(change.spec, change.puts) if change.spec.write == "merge" else ():
        raise DataRefused(f"table {change.spec.name}: {refusal.error}")


def check_keys(spec: TableSpec, given: Given) -> None:
    """Refuse rows without the key or version columns, or with NULL or NaN in a key."""
    for name in [*spec.key, *([spec.version] if spec.version else [])]:
        if name not in given.rows.column_names:
            error = DataRefused if given.inferred else TableMismatch
            raise error(f"table {spec.name}: no row has column {name} of key= or version=")
    if any(pc.any(no_key(given.rows[name])).as_py() for name in spec.key):
        refusal = unusable_rows(spec, _numbered(given.rows))[0]
        raise DataRefused(f"table {spec.name}: {refusal.error}")


def _numbered(rows: pa.Table) -> pa.Table:
    """Add the row's number as its offset, so that the later of two rows is the newer version."""
    count = rows.num_rows
    hidden = {
        TOPIC: pa.repeat("", count),
        PARTITION: pa.repeat(pa.scalar(0, pa.int32()), count),
        OFFSET: pa.array(range(count), pa.int64()),
        TIMESTAMP: pa.repeat(pa.scalar(0, pa.timestamp("us", "UTC")), count),
    }
    for name, column in hidden.items():
        rows = rows.append_column(name, column)
    return rows


def with_wide_sums(spec: TableSpec, given: Given, schema: pa.Schema) -> pa.Schema:
    """Return the schema with all digits for sums of inferred decimals: one batch does not show how large a total is."""
    if not given.inferred:
        return schema
    sums = [name for name, function in spec.functions.items() if function == "sum"]
    wide = [
        field.with_type(pa.decimal128(38, field.type.scale))
        if field.name in sums and pa.types.is_decimal128(field.type)
        else field
        for field in schema
    ]
    return pa.schema(wide)


def cast(table: str, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast the rows to the columns and types of the schema. Raises if a value would be lost."""
    columns = [_cast(table, field.name, rows[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _table_of(table: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    for row in rows:
        if not isinstance(row, Mapping):
            raise BadInput(f"table {table}: rows must be dicts or an Arrow table, not {type(row).__name__}")
    names = list(dict.fromkeys(name for row in rows for name in row))
    fields, columns = [], []
    for name in names:
        if not isinstance(name, str):
            raise BadInput(f"table {table}: column name {name!r} must be a string")
        field, column = _inferred(table, name, [row.get(name) for row in rows])
        fields.append(field)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _inferred(table: str, name: str, values: list[Any]) -> tuple[pa.Field, pa.Array]:
    kinds = {type(value) for value in values} - {type(None)}
    if any(issubclass(kind, Mapping | list | tuple | set) for kind in kinds):
        return _json_field(name), _jsons(table, name, values)
    zones = {value.tzinfo is None for value in values if isinstance(value, datetime)}
    if len(zones) > 1 or (len(kinds) > 1 and any(kind in _STRICT for kind in kinds)):
        found = "times with and without a zone" if len(zones) > 1 else " and ".join(sorted(k.__name__ for k in kinds))
        raise DataRefused(f"table {table}: column {name} has {found}; use one of them")
    if kinds == {UUID}:
        values = [None if value is None else str(value) for value in values]
    try:
        return _plain_column(table, pa.field(name, pa.null()), pa.array(values))
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise DataRefused(f"table {table}: column {name}: {error}") from error


def _plain_table(table: str, rows: pa.Table) -> pa.Table:
    if len(set(rows.column_names)) < rows.num_columns:
        raise BadInput(f"table {table}: several columns have the same name; rename them")
    plain = [_plain_column(table, field, column) for field, column in zip(rows.schema, rows.columns, strict=True)]
    return pa.Table.from_arrays([column for _, column in plain], schema=pa.schema([field for field, _ in plain]))


def _plain_column(table: str, field: pa.Field, column: Any) -> tuple[pa.Field, Any]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_nested(kind):
        return _json_field(field.name), _jsons(table, field.name, column.to_pylist(maps_as_pydicts="strict"))
    if pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", "UTC" if kind.tz else None)
    elif pa.types.is_fixed_size_binary(kind):
        kind = pa.binary()
    kind = _PLAIN.get(kind, kind)
    return field.with_type(kind), _cast(table, field.name, column, kind)


def _cast(table: str, name: str, column: Any, kind: pa.DataType) -> Any:
    try:
        return column if column.type == kind else column.cast(kind)
    except pa.ArrowException as error:
        raise DataRefused(f"table {table}: column {name}: {error}") from error


def _nulls_as_json(rows: pa.Table, names: Collection[str]) -> pa.Table:
    for at, field in enumerate(rows.schema):
        if field.name in names and pa.types.is_null(field.type):
            rows = rows.set_column(at, _json_field(field.name), rows[field.name].cast(pa.string()))
    return rows


def _json_field(name: str) -> pa.Field:
    return pa.field(name, pa.string(), metadata={JSON_MARK: b"1"})


def _jsons(table: str, name: str, values: Iterable[Any]) -> pa.Array:
    try:
        texts = [None if value is None else json.dumps(value, allow_nan=False, default=_in_json) for value in values]
    except (TypeError, ValueError) as error:
        raise DataRefused(f"table {table}: column {name} can't be written as JSON: {error}") from error
    return pa.array(texts, pa.string())


def _in_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    return dict(value) if isinstance(value, Mapping) else list(value)
