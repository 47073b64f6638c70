"""Gives Avro schemas their column types.

The types are those of ``formats/schema.py`` and of Spark's conversion to Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tallymark.formats.avro.schema import DEEPEST, Schema, SchemaInvalid, repeated
from tallymark.formats.types import field_names

MOST_DIGITS = 38
MOST_COLUMNS = 100_000
"""Maximum number of fields at all levels: a small schema that uses its records many times may describe millions."""
PLAIN = {
    "null": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
LOGICAL = {
    "uuid": pa.string(),
    "date": pa.date32(),
    "time-millis": pa.string(),
    "time-micros": pa.string(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "timestamp-nanos": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("us"),
    "instant-text": pa.timestamp("us", tz="UTC"),
    "duration": pa.struct([(name, pa.int64()) for name in ("months", "days", "millis")]),
}


def arrow_type(reader: Schema) -> pa.DataType:
    """Return the type of the column that holds values of a schema; raises SchemaInvalid if there is none."""
    return _Columns().type(reader)


def branch_names(branches: Sequence[Schema]) -> list[str]:
    """Name the fields that hold the branches of a union."""
    names = field_names([branch.label for branch in branches])
    _check_distinct(names, "a union")
    return names


def not_null(union: Schema) -> list[Schema]:
    """The branches of a union that are not null."""
    return [branch for branch in union.branches if branch.type != "null"]


class _Columns:
    def __init__(self) -> None:
        self._open: list[Schema] = []
        """The records that contain the current type."""
        self._count = 0

    def type(self, schema: Schema) -> pa.DataType:
        self._count += schema.type != "union"
        if self._count > MOST_COLUMNS:
            raise SchemaInvalid(f"it has more than {MOST_COLUMNS} fields")
        if schema.type == "record":
            return self._record(schema)
        if schema.type == "union":
            return self._union(schema)
        if schema.type == "array":
            return pa.list_(pa.field("element", self.type(schema.item)))
        if schema.type == "map":
            return pa.map_(pa.string(), pa.field("value", self.type(schema.item)))
        if schema.logical == "decimal":
            return pa.decimal128(min(schema.precision, MOST_DIGITS), schema.scale)
        return LOGICAL[schema.logical] if schema.logical else PLAIN[schema.type]

    def _record(self, schema: Schema) -> pa.DataType:
        if len(self._open) > DEEPEST:
            raise SchemaInvalid(f"its records are nested more than {DEEPEST} levels deep")
        if schema in self._open:
            raise SchemaInvalid(f"record {schema.name} contains itself, so it has no column type")
        if not schema.fields:
            raise SchemaInvalid(f"record {schema.name} has no fields, so it has no column type")
        names = [field.name for field in schema.fields]
        _check_distinct(names, f"record {schema.name}")
        self._open.append(schema)
        found = self._struct(names, [field.schema for field in schema.fields])
        self._open.pop()
        return found

    def _union(self, schema: Schema) -> pa.DataType:
        branches = not_null(schema)
        if len(branches) <= 1:
            return self.type(branches[0] if branches else schema.branches[0])
        return self._struct(branch_names(branches), branches)

    def _struct(self, names: Sequence[str], schemas: Sequence[Schema]) -> pa.DataType:
        fields = []
        for name, schema in zip(names, schemas, strict=True):
            fields.append(pa.field(name, self.type(schema)))
        return pa.struct(fields)


def _check_distinct(names: Sequence[str], where: str) -> None:
    for twice in repeated([name.lower() for name in names]):
        raise SchemaInvalid(f"{where} has two fields {twice}; Spark and databases ignore upper and lower case")
