"""Random Protobuf schemas and messages; the official runtime writes them, and says what they hold."""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from importlib import import_module
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from tallymark.formats.protobuf.compiler import compiled
from tallymark.formats.protobuf.schema import Files, Message, parse

F = descriptor_pb2.FieldDescriptorProto
PLAIN = [kind for kind in range(1, 19) if kind not in (F.TYPE_GROUP, F.TYPE_MESSAGE, F.TYPE_ENUM)]
KEYS = [kind for kind in PLAIN if kind not in (F.TYPE_DOUBLE, F.TYPE_FLOAT, F.TYPE_BYTES)]
WELL_KNOWN = ["Timestamp", "Duration", "Struct", "Value", "ListValue", "FieldMask", "Any", "Int64Value", "UInt64Value"]
WELL_KNOWN += ["StringValue", "BytesValue", "BoolValue", "DoubleValue", "FloatValue", "Int32Value", "UInt32Value"]
IMPORTS = ["any", "duration", "field_mask", "struct", "timestamp", "wrappers", "empty"]
LETTERS = ["", "a", "zoë", "\0", '"\\\n\x1f', "日本語", "😀", "x" * 130]
NUMBERS = [
    0,
    1,
    2,
    127,
    128,
    300,
    1 << 14,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
]
REALS = [0.0, -0.0, 1.0, -1.5, 0.1, 1e21, 1e-7, 123456789.125, 5e-324, 2.0**-44, 1e20, float("inf"), float("nan")]


class Schema:
    """One FileDescriptorSet: what the official runtime makes of it, and what tallymark does."""

    def __init__(self, content: bytes) -> None:
        self.files: Files = parse(content)
        self._pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
            self._pool.Add(file)

    @classmethod
    def of(cls, text: str, syntax: str = "proto3") -> Schema:
        imports = "".join(f'import "google/protobuf/{name}.proto"; ' for name in IMPORTS if "google.protobuf." in text)
        first = "syntax" if syntax.startswith("proto") else "edition"
        return cls(compiled(f'{first} = "{syntax}"; {imports}{text}'))

    def message(self, name: str = "M") -> Message:
        return self.files.message(name)

    def official(self, name: str = "M") -> Any:
        """The official class of a message."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))


class Schemas:
    """Makes schemas. All messages are in one file, and use only those before them."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance

    def file(self) -> Any:
        file = descriptor_pb2.FileDescriptorProto(name="m.proto", syntax=self.chance.choice(["proto2", "proto3"]))
        file.dependency.extend(f"google/protobuf/{name}.proto" for name in IMPORTS)
        enum = file.enum_type.add(name="E")
        for number, name in enumerate(("NONE", "ONE", "TWO")):
            enum.value.add(name=name, number=number)
        enum.value.add(name="FAR", number=-5 if file.syntax == "proto2" else 1_000_000)
        for name in ("A", "B", "M"):
            self._message(file, name)
        return file

    def _message(self, file: Any, name: str) -> None:
        known = [one.name for one in file.message_type]
        message = file.message_type.add(name=name)
        numbers = self.chance.sample([*range(1, 20), 100, 2000, 19_999 + 1], self.chance.randrange(1, 8))
        for at, number in enumerate(numbers):
            self._field(file, message, known, f"f{at}", number)

    def _field(self, file: Any, message: Any, known: Sequence[str], name: str, number: int) -> None:
        field = message.field.add(name=name, number=number, label=F.LABEL_OPTIONAL)
        self._type(field, known)
        way = self.chance.randrange(8)
        if way < 2:
            field.label = F.LABEL_REPEATED
            if field.type in PLAIN and field.type not in (F.TYPE_STRING, F.TYPE_BYTES) and self.chance.random() < 0.5:
                field.options.packed = self.chance.random() < 0.5
        elif way == 2:
            self._map(message, field)
        elif way == 3:
            if not message.oneof_decl:
                message.oneof_decl.add(name="one")
            field.oneof_index = 0
        elif way == 4 and file.syntax == "proto2" and field.type == F.TYPE_INT32:
            field.default_value = "-7"

    def _type(self, field: Any, known: Sequence[str]) -> None:
        way = self.chance.randrange(10)
        if way == 0:
            field.type, field.type_name = F.TYPE_ENUM, ".E"
        elif way == 1:
            field.type, field.type_name = F.TYPE_MESSAGE, f".google.protobuf.{self.chance.choice(WELL_KNOWN)}"
        elif way == 2 and known:
            field.type, field.type_name = F.TYPE_MESSAGE, f".{self.chance.choice(known)}"
        else:
            field.type = self.chance.choice(PLAIN)

    def _map(self, message: Any, field: Any) -> None:
        entry = message.nested_type.add(name=f"{field.name.upper()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=F.LABEL_OPTIONAL, type=self.chance.choice(KEYS))
        value = entry.field.add(name="value", number=2, label=F.LABEL_OPTIONAL, type=field.type)
        if field.type_name:
            value.type_name = field.type_name
        field.label, field.type, field.type_name = F.LABEL_REPEATED, F.TYPE_MESSAGE, f".{message.name}.{entry.name}"

    def evolved(self, file: Any) -> Any:
        """Change a file: fields come, go, and change their types."""
        found = copy.deepcopy(file)
        for message in found.message_type:
            for field in message.field:
                if field.type in PLAIN and self.chance.random() < 0.3 and not field.default_value:
                    field.type = self.chance.choice(PLAIN)
                    field.ClearField("options")
            gone = [field for field in message.field if self.chance.random() < 0.2]
            for field in gone[: len(message.field) - 1]:
                if not field.HasField("oneof_index"):
                    message.field.remove(field)
            message.field.add(name="new", number=90, label=F.LABEL_OPTIONAL, type=self.chance.choice(PLAIN))
        return found


def schema_of(file: Any) -> Schema:
    own = descriptor_pb2.FileDescriptorSet()
    for name in IMPORTS:
        import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR.CopyToProto(own.file.add())
    own.file.add().CopyFrom(file)
    return Schema(own.SerializeToString())


def fill(chance: Random, message: Any) -> None:
    """Set fields of a message at random."""
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        message.seconds, message.nanos = (
            chance.choice([0, -62_135_596_800, 253_402_300_799]),
            chance.choice([0, 999, 999_999_999]),
        )
        return
    if name in ("google.protobuf.Struct", "google.protobuf.ListValue", "google.protobuf.Value"):
        fill_json(chance, message, 3)
        return
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.3:
            continue
        if is_map(field):
            fill_map(chance, getattr(message, field.name), field)
        elif field.message_type is not None:
            for _ in range(chance.randrange(4) if field.is_repeated else 1):
                inner = getattr(message, field.name)
                if not field.is_repeated:
                    inner.SetInParent()
                fill(chance, inner.add() if field.is_repeated else inner)
        elif field.is_repeated:
            getattr(message, field.name).extend(plain(chance, field) for _ in range(chance.randrange(4)))
        else:
            setattr(message, field.name, plain(chance, field))


def is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def fill_map(chance: Random, found: Any, field: Any) -> None:
    key, value = field.message_type.fields
    for _ in range(chance.randrange(4)):
        if value.message_type is None:
            found[plain(chance, key)] = plain(chance, value)
        else:
            fill(chance, found[plain(chance, key)])


def fill_json(chance: Random, message: Any, depth: int) -> None:
    json_format.ParseDict(json_value(chance, message.DESCRIPTOR.name, depth), message)


def json_value(chance: Random, kind: str, depth: int) -> Any:
    if kind == "Struct":
        return {chance.choice(LETTERS): json_value(chance, "Value", depth - 1) for _ in range(chance.randrange(3))}
    if kind == "ListValue":
        return [json_value(chance, "Value", depth - 1) for _ in range(chance.randrange(3))]
    plain_value = [None, True, False, chance.choice(LETTERS), chance.choice(REALS[:-2]), chance.gauss(0, 1e10)]
    nested = [] if depth <= 0 else ["Struct", "ListValue"]
    chosen = chance.choice([*plain_value, *nested])
    return json_value(chance, chosen, depth) if isinstance(chosen, str) and chosen in nested else chosen


def plain(chance: Random, field: Any) -> Any:
    kind = field.type
    if kind == F.TYPE_ENUM:
        closed = field.enum_type.is_closed if hasattr(field.enum_type, "is_closed") else False
        return chance.choice([value.number for value in field.enum_type.values] + ([] if closed else [7]))
    if kind == F.TYPE_BOOL:
        return chance.random() < 0.5
    if kind == F.TYPE_STRING:
        return chance.choice(LETTERS)
    if kind == F.TYPE_BYTES:
        return chance.randbytes(chance.randrange(5))
    if kind in (F.TYPE_DOUBLE, F.TYPE_FLOAT):
        found = chance.choice(REALS)
        return struct.unpack("<f", struct.pack("<f", found))[0] if kind == F.TYPE_FLOAT else found
    bits = 32 if kind in (F.TYPE_INT32, F.TYPE_UINT32, F.TYPE_SINT32, F.TYPE_FIXED32, F.TYPE_SFIXED32) else 64
    number = chance.choice(NUMBERS) % (1 << bits)
    if kind in (F.TYPE_UINT32, F.TYPE_UINT64, F.TYPE_FIXED32, F.TYPE_FIXED64):
        return number
    return number - (1 << bits) if number >= 1 << (bits - 1) else number


def in_column(message: Any) -> Any:
    """What the column holds of an official message, as Arrow's ``to_pylist`` returns it; None without a column."""
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        micros = message.seconds * 1_000_000 + message.nanos // 1000
        return datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC")) + timedelta(microseconds=micros)
    if name == "google.protobuf.FieldMask":
        return ",".join(message.paths)
    if name.endswith("Value") and name.startswith("google.protobuf.") and name[16:] not in ("Value", "ListValue"):
        return in_plain(message.DESCRIPTOR.fields[0], message.value)
    return {field.name: in_field(message, field) for field in message.DESCRIPTOR.fields if has_column(field)}


def has_column(field: Any) -> bool:
    kind = field.message_type
    if kind is None or field.type == F.TYPE_GROUP:
        return kind is None
    if is_map(field):
        return has_column(kind.fields[1])
    return any(map(has_column, kind.fields))


def in_field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if is_map(field):
        key, inner = field.message_type.fields
        text = {True: "true", False: "false"} if key.type == F.TYPE_BOOL else None
        return sorted((text[one] if text else str(one), in_value(inner, value[one])) for one in value)
    if field.is_repeated:
        return [in_value(field, one) for one in value]
    if field.has_presence and not message.HasField(field.name):
        return in_value(field, field.default_value) if field.has_default_value and not field.containing_oneof else None
    return in_value(field, value)


def in_value(field: Any, value: Any) -> Any:
    if field.message_type is None:
        return in_plain(field, value)
    name = field.message_type.full_name
    if name in ("google.protobuf.Struct", "google.protobuf.ListValue", "google.protobuf.Value"):
        return Json(json_format.MessageToDict(value))
    return in_column(value)


def in_plain(field: Any, value: Any) -> Any:
    if field.type == F.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return Decimal(value) if field.type in (F.TYPE_UINT64, F.TYPE_FIXED64) else value


class Json:
    """Equal to the JSON text of a value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Json({self.value!r})"


def corrupted(chance: Random, body: bytes) -> Iterator[bytes]:
    """The body cut off, with more bytes, with other ones, and twice."""
    yield body[: chance.randrange(len(body) + 1)]
    yield body + chance.randbytes(chance.randrange(1, 4))
    yield body + body
    changed = bytearray(body)
    for _ in range(min(len(body), 2)):
        changed[chance.randrange(len(body))] = chance.choice(
            (0, 1, 0x0B, 0x0C, 0x7F, 0x80, 0xFF, chance.randrange(256))
        )
    yield bytes(changed)


def varint(number: int) -> bytes:
    """A number of variable length."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def tagged(number: int, value: int | bytes) -> bytes:
    """A field with a number, or with bytes and their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value
