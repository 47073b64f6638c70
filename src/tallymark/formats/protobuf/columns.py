"""The column type of a Protobuf message, of the types of ``formats/schema.py`` and of Spark's conversion to Arrow.

A field has no column if it is a group, or a message in which no field has a column, such as ``google.protobuf.Empty``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tallymark.formats.protobuf.schema import Field, Message, SchemaInvalid
from tallymark.formats.types import field_names

DEEPEST = 64
"""Maximum nesting of messages: beyond it Python may exceed its stack, and Arrow can't transport a column."""
MOST_COLUMNS = 100_000
"""Maximum number of fields at all levels: a small schema that uses its messages many times may describe millions."""
PLAIN = {
    "int32": pa.int32(),
    "sint32": pa.int32(),
    "sfixed32": pa.int32(),
    "uint32": pa.int64(),
    "fixed32": pa.int64(),
    "int64": pa.int64(),
    "sint64": pa.int64(),
    "sfixed64": pa.int64(),
    "uint64": pa.decimal128(20, 0),
    "fixed64": pa.decimal128(20, 0),
    "float": pa.float32(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
}
PACKAGE = "google.protobuf."
TIMESTAMP = f"{PACKAGE}Timestamp"
FIELD_MASK = f"{PACKAGE}FieldMask"
JSON = {f"{PACKAGE}Struct": "struct", f"{PACKAGE}Value": "value", f"{PACKAGE}ListValue": "list"}
WRAPPERS = {
    f"{PACKAGE}{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
"""Messages that wrap a value, which may be missing."""
SPECIAL = {TIMESTAMP, FIELD_MASK, *JSON, *WRAPPERS}
"""Messages whose columns are no structs."""


class Columns:
    """The columns of messages, each found once."""

    def __init__(self) -> None:
        self._open: list[Message] = []
        """The messages that contain the current type."""
        self._count = 0
        self._empty: dict[Message, bool] = {}

    def type(self, message: Message) -> pa.DataType:
        """Return the type of the column that holds a message; raises SchemaInvalid if there is none."""
        if message.name in JSON or message.name == FIELD_MASK:
            return pa.string()
        if message.name == TIMESTAMP:
            return pa.timestamp("us", tz="UTC")
        if message.name in WRAPPERS:
            return PLAIN[message.fields[0].type]
        if self.is_empty(message):
            raise SchemaInvalid(f"message {message.name} has no fields, so it has no column type")
        return self._struct(message)

    def fields(self, message: Message) -> list[Field]:
        """Return the fields that have a column."""
        return [field for field in message.fields if field.type != "group" and not self._is_empty_field(field)]

    def is_empty(self, message: Message) -> bool:
        """Whether no field of a message has a column: neither it nor any message in it has a plain field."""
        if message not in self._empty:
            self._empty[message] = not any(one.name in SPECIAL or _has_plain(one) for one in _inside(message))
        return self._empty[message]

    def _is_empty_field(self, field: Field) -> bool:
        if field.message is None:
            return False
        # The key of a map's entry is plain, but without a value it has no column.
        value = field.message.fields[1] if field.is_map else field
        return value.type == "group" or (value.message is not None and self.is_empty(value.message))

    def _struct(self, message: Message) -> pa.DataType:
        if len(self._open) > DEEPEST:
            raise SchemaInvalid(f"its messages are nested more than {DEEPEST} levels deep")
        if message in self._open:
            raise SchemaInvalid(f"message {message.name} contains itself, so it has no column type")
        fields = self.fields(message)
        _check_distinct([field.name for field in fields], f"message {message.name}")
        self._open.append(message)
        found = pa.struct([pa.field(field.name, self._column(field)) for field in fields])
        self._open.pop()
        return found

    def _column(self, field: Field) -> pa.DataType:
        self._count += 1
        if self._count > MOST_COLUMNS:
            raise SchemaInvalid(f"it has more than {MOST_COLUMNS} fields")
        if field.message is not None and field.is_map:
            return pa.map_(pa.string(), pa.field("value", self._column(field.message.fields[1])))
        found = PLAIN[field.type] if field.message is None else self.type(field.message)
        return pa.list_(pa.field("element", found)) if field.is_repeated else found


def arrow_type(reader: Message) -> pa.DataType:
    """Return the type of the column that holds a message; raises SchemaInvalid if there is none."""
    return Columns().type(reader)


def types_type(readers: Sequence[Message]) -> pa.StructType:
    """Return the type of the column that holds one of several messages, each in a field of its own."""
    names = field_names([reader.name for reader in readers])
    _check_distinct(names, "a value of several messages")
    return pa.struct([pa.field(name, arrow_type(reader)) for name, reader in zip(names, readers, strict=True)])


def _inside(message: Message) -> Iterator[Message]:
    """Yield a message and all messages of its fields."""
    seen, waiting = {message}, [message]
    while waiting:
        one = waiting.pop()
        yield one
        for field in one.fields:
            if field.type == "message" and field.message is not None:
                inner = field.message.fields[1].message if field.is_map else field.message
                if inner is not None and inner not in seen:
                    seen.add(inner)
                    waiting.append(inner)


def _has_plain(message: Message) -> bool:
    def is_plain(field: Field) -> bool:
        if field.message is not None and field.is_map:
            return field.message.fields[1].message is None
        return field.message is None

    return any(map(is_plain, message.fields))


def _check_distinct(names: Sequence[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise SchemaInvalid(
                f"{where} has two fields {name.lower()}; Spark and databases ignore upper and lower case"
            )
        seen.add(name.lower())
