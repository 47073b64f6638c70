"""Projects the message that wrote records to the message of their reader: by field number, as Protobuf does.

Numbers are converted by their value, because the writer's types are known: a number that does not fit is dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tallymark.formats.protobuf.columns import FIELD_MASK, JSON, SPECIAL, TIMESTAMP, WRAPPERS, Columns, types_type
from tallymark.formats.protobuf.numbers import LONG, RANGES, number_encoder, varint
from tallymark.formats.protobuf.program import Program, Step
from tallymark.formats.protobuf.schema import Field, Message

WHOLE = {"bool": "boolean", "enum": "enum", **dict.fromkeys(("int32", "sint32", "sfixed32"), "int")}
"""What whole numbers become: otherwise a BIGINT, or a DECIMAL if they do not fit."""
UNPACKED = ("string", "bytes", "message", "group")


class Incompatible(ValueError):
    """What one message wrote can't be read by another. ``path`` are the fields that contain the difference."""

    def __init__(self, why: str, path: tuple[str, ...] = ()) -> None:
        self.why, self.path = why, path
        super().__init__(f"field {'.'.join(path)}: {why}" if path else why)

    def within(self, name: str) -> Incompatible:
        return Incompatible(self.why, (name, *self.path))


def projection(writer: Message, reader: Message) -> Program:
    """Return the program that decodes what ``writer`` wrote into the column of ``reader``; raises Incompatible."""
    columns = Columns()
    # First, because it refuses a reader that contains itself.
    column = columns.type(reader)
    try:
        return Program(_Projection(columns).message(writer, reader), column)
    except RecursionError:
        raise Incompatible("its messages are nested too deeply") from None


def one_of(writer: Message, readers: Sequence[Message]) -> Program | None:
    """Return the program that decodes into the column of several messages; None if the writer's is none of them."""
    at = next((at for at, reader in enumerate(readers) if reader.name == writer.name), None)
    if at is None:
        return None
    program = projection(writer, readers[at])
    kind = types_type(readers)
    step: Step = {"read": "branch", "to": at, "width": len(readers), "name": kind[at].name, "step": program.root}
    return Program(step, kind)


class _Projection:
    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def message(self, writer: Message, reader: Message) -> Step:
        if (writer.name in SPECIAL or reader.name in SPECIAL) and writer.name != reader.name:
            raise Incompatible(f"{writer.name} can't be read as {reader.name}")
        if reader.name in JSON:
            return {"read": "json", "of": JSON[reader.name]}
        fields = list(reader.fields) if reader.name in SPECIAL else self._columns.fields(reader)
        return {
            "read": "message",
            "as": _form(reader),
            "name": reader.name,
            "width": len(fields),
            "fields": self._fields(writer, fields),
            "lists": [to for to, field in enumerate(fields) if field.is_repeated and not field.is_map],
            "maps": [to for to, field in enumerate(fields) if field.is_map],
            "defaults": [{"to": to, **_default(field)} for to, field in enumerate(fields) if _has_default(field)],
        }

    def _fields(self, writer: Message, fields: list[Field]) -> list[Step]:
        places = {field.number: to for to, field in enumerate(fields)}
        members: dict[str, list[int]] = {}
        for field in writer.fields:
            if field.oneof and field.number in places:
                members.setdefault(field.oneof, []).append(places[field.number])
        found: list[Step] = []
        for field in sorted(writer.fields, key=lambda field: field.number):
            to = places.get(field.number, -1)
            clears = [place for place in members.get(field.oneof, ()) if place != to]
            part: dict[str, Any] = {"number": field.number, "name": field.name, "to": to, "clears": clears}
            if to >= 0:
                part |= self._place(field, fields[to])
            found.append(part)
        return found

    def _place(self, writer: Field, reader: Field) -> Step:
        packed = writer.is_repeated and writer.type not in UNPACKED
        try:
            step = self._step(writer, reader)
        except Incompatible as error:
            raise error.within(reader.name) from None
        return {"name": reader.name, "step": step, "many": reader.is_repeated and not reader.is_map, "packed": packed}

    def _step(self, writer: Field, reader: Field) -> Step:
        if (
            writer.is_map != reader.is_map
            or writer.type == "group"
            or (writer.message is None) != (reader.message is None)
        ):
            raise Incompatible(f"{_described(writer)} can't be read as {_described(reader)}")
        if writer.message is not None and reader.message is not None:
            if writer.is_map:
                return {"read": "map", "entry": self._entry(writer.message, reader.message)}
            return self.message(writer.message, reader.message)
        return conversion(writer, reader)

    def _entry(self, writer: Message, reader: Message) -> Step:
        """Entries always have a key and a value: what was not written is the default, or a message without fields."""
        fields, defaults = [], []
        for to, (written, read) in enumerate(zip(writer.fields, reader.fields, strict=True)):
            step = self._step(written, read)
            default = _default(read)
            if to == 0:
                step, default = _as_text(step), {**default, "step": _as_text(default["step"])}
            name = "key" if to == 0 else "value"
            fields.append(
                {"number": to + 1, "name": name, "to": to, "clears": [], "step": step, "many": False, "packed": False}
            )
            defaults.append({"to": to, **default})
        return {
            "read": "message",
            "as": "struct",
            "name": reader.name,
            "width": 2,
            "fields": fields,
            "lists": [],
            "maps": [],
            "defaults": defaults,
        }


def _default(field: Field) -> dict[str, Any]:
    """How to decode what a field holds if it was not written; without a step, as what was written."""
    if field.message is not None:
        return {"bytes": "00"}
    return {"step": conversion(field, field), "bytes": _encoded(field).hex()}


def conversion(writer: Field, reader: Field) -> Step:
    """Return the step that reads a type without parts."""
    if writer.type in RANGES and reader.type in RANGES:
        return _whole(writer, reader)
    if writer.type in ("string", "bytes") and reader.type in ("string", "bytes"):
        return {"read": "bytes", "as": reader.type}
    if writer.type == reader.type or (writer.type, reader.type) == ("float", "double"):
        return {"read": writer.type, "as": reader.type}
    raise Incompatible(f"{_described(writer)} can't be read as {_described(reader)}")


def _whole(writer: Field, reader: Field) -> Step:
    least, most = RANGES[writer.type]
    lowest, highest = RANGES[reader.type]
    found: dict[str, Any] = {"read": "int32" if writer.type == "enum" else writer.type}
    found["as"] = WHOLE.get(reader.type, "decimal" if highest > LONG[1] else "long")
    if found["as"] == "enum":
        names = {**writer.symbols, **reader.symbols}
        found["symbols"] = {str(number): name for number, name in names.items()}
    if found["as"] != "boolean" and least < lowest:
        found["least"] = lowest
    if found["as"] != "boolean" and most > highest:
        found["most"] = highest
    return found


def _as_text(step: Step) -> Step:
    return step if step["read"] == "bytes" else {**step, "as": "truth" if step["as"] == "boolean" else "text"}


def _form(message: Message) -> str:
    if message.name in WRAPPERS:
        return "value"
    return {TIMESTAMP: "timestamp", FIELD_MASK: "paths"}.get(message.name, "struct")


def _has_default(field: Field) -> bool:
    return field.default is not None


def _encoded(field: Field) -> bytes:
    """The default of a field as it would be written; without a default, that of its type."""
    value = field.default
    if value is None:
        # Of an enum, the first name.
        value = "" if field.type in ("string", "bytes") else next(iter(field.symbols), 0)
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return varint(len(value)) + value
    return number_encoder(field.type)(value)


def _described(field: Field) -> str:
    if field.is_map:
        return "a map"
    return field.message.name if field.message is not None else field.type
