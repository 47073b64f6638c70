"""Decodes Protobuf records one by one, and says why a record is dead. ``bulk.py`` decodes the same, many at once.

Values are those that Arrow converts to the column: structs are tuples, maps lists of pairs, timestamps numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Protocol

from tallymark.formats.protobuf.body import Body, Dead
from tallymark.formats.protobuf.json_text import NotFinite, json_text
from tallymark.formats.protobuf.json_tree import TREES
from tallymark.formats.protobuf.program import LENGTH, Step, wire_of

__all__ = ["Dead", "decoder", "default_of"]

SHOWN = 60
"""Maximum number of characters of a map's key that an error message quotes."""
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""Years 1 to 9999."""
MICROS, NANOS = 1_000_000, 1_000_000_000
FLOATS = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}
SIZES = {"fixed32": 4, "sfixed32": 4, "float": 4}

Read = Callable[[Body], Any]
Found = list[Any]


def decoder(root: Step) -> Callable[[bytes], Any]:
    """Return the function that decodes a record, or raises Dead."""
    if root["read"] == "branch":
        return _branch(root)
    reader = _reader(root)

    def decode(content: bytes) -> Any:
        state = reader.new()
        reader.into(Body(content), state)
        return reader.finish(state)

    return decode


def _branch(root: Step) -> Callable[[bytes], Any]:
    """Return the function that decodes a record of one of several types."""
    one, to, width = decoder(root["step"]), root["to"], root["width"]
    before, after = (None,) * to, (None,) * (width - to - 1)
    return lambda content: (*before, one(content), *after)


def default_of(message: Step, default: Step) -> Any:
    """Return what a place of a message holds if nothing was written."""
    own = (part["step"] for part in message["fields"] if part["to"] == default["to"])
    step = default.get("step") or next(own)
    return _value(_reader(step), Body(bytes.fromhex(default["bytes"])))


class _Reader(Protocol):
    """Reads a value that may be written in several pieces, which are merged."""

    wire: int

    def new(self) -> Any:
        """The state before the first piece."""

    def into(self, body: Body, state: Any) -> None:
        """Add a piece to the state."""

    def finish(self, state: Any) -> Any:
        """The value."""


class _Plain:
    """A value without pieces: the last one counts."""

    def __init__(self, step: Step) -> None:
        self.wire = wire_of(step)
        self.read: Read = _bytes(step) if self.wire == LENGTH else _number(step)

    def new(self) -> Found:
        return [None]

    def into(self, body: Body, state: Found) -> None:
        state[0] = self.read(body)

    def finish(self, state: Found) -> Any:
        return state[0]


class _Message:
    wire = LENGTH

    def __init__(self, step: Step) -> None:
        self._form = _FORMS[step["as"]]
        self._empty: Found = [None] * step["width"]
        self._fields = {part["number"]: _Field(part) for part in step["fields"]}
        self._merged = [field for field in self._fields.values() if field.is_merged]
        self._lists: Sequence[int] = [*step["lists"], *step["maps"]]
        self._defaults = [(default["to"], default_of(step, default)) for default in step["defaults"]]

    def new(self) -> Found:
        return self._empty.copy()

    def into(self, body: Body, state: Found) -> None:
        fields = self._fields
        while body.at < body.end:
            number, wire = body.tag()
            field = fields.get(number)
            if field is None:
                body.skip(number, wire)
                continue
            try:
                field.read(body, wire, state)
            except Dead as error:
                raise error.within(f".{field.name}") from None

    def finish(self, state: Found) -> Any:
        for field in self._merged:
            if state[field.to] is not None:
                try:
                    state[field.to] = field.reader.finish(state[field.to])
                except Dead as error:
                    raise error.within(f".{field.name}") from None
        for to in self._lists:
            if state[to] is None:
                state[to] = []
        for to, default in self._defaults:
            if state[to] is None:
                state[to] = default
        return self._form(state)


class _Field:
    """A field of a message: where its values go, and how they are read."""

    def __init__(self, part: Step) -> None:
        self.name: str = part["name"]
        self.to: int = part["to"]
        self._number: int = part["number"]
        self._clears: Sequence[int] = part["clears"]
        self.is_merged = False
        if self.to >= 0:
            self.reader = _reader(part["step"])
            self._is_packed: bool = part["packed"]
            self._is_many: bool = part["many"]
            self.is_merged = not self._is_many and not isinstance(self.reader, _Plain)

    def read(self, body: Body, wire: int, state: Found) -> None:
        for place in self._clears:
            state[place] = None
        if self.to < 0:
            body.skip(self._number, wire)
        elif wire == self.reader.wire:
            self._add(body, state)
        elif wire == LENGTH and self._is_packed:
            end = body.enter()
            while body.at < body.end:
                self._add(body, state)
            body.leave(end)
        else:
            raise Dead(f"it has the wire type {wire} instead of {self.reader.wire}")

    def _add(self, body: Body, state: Found) -> None:
        reader, to = self.reader, self.to
        if self.is_merged:
            if state[to] is None:
                state[to] = reader.new()
            _piece(reader, body, state[to])
        elif self._is_many:
            if state[to] is None:
                state[to] = []
            items = state[to]
            try:
                items.append(_value(reader, body))
            except Dead as error:
                raise error.within(f"[{len(items)}]") from None
        else:
            state[to] = _value(reader, body)


class _Map:
    wire = LENGTH

    def __init__(self, step: Step) -> None:
        self._entry = _Message(step["entry"])

    def new(self) -> dict[str, Any]:
        return {}

    def into(self, body: Body, state: dict[str, Any]) -> None:
        entry = self._entry.new()
        try:
            self._entry.into(body, entry)
            key, value = self._entry.finish(entry)
        except Dead as error:
            if error.path.startswith(".value") and isinstance(entry[0], str):
                raise Dead(error.why, f".{_cut(entry[0])}{error.path.removeprefix('.value')}") from None
            raise
        state[key] = value

    def finish(self, state: dict[str, Any]) -> list[tuple[str, Any]]:
        return list(state.items())


class _Json:
    wire = LENGTH

    def __init__(self, step: Step) -> None:
        self._tree = TREES[step["of"]]

    def new(self) -> Any:
        return self._tree()

    def into(self, body: Body, state: Any) -> None:
        state.read(body, 0)

    def finish(self, state: Any) -> str:
        try:
            return json_text(state.plain())
        except NotFinite as error:
            raise Dead(str(error)) from None


def _reader(step: Step) -> _Reader:
    if step["read"] == "message":
        return _Message(step)
    if step["read"] == "map":
        return _Map(step)
    return _Json(step) if step["read"] == "json" else _Plain(step)


def _piece(reader: _Reader, body: Body, state: Any) -> None:
    end = body.enter()
    reader.into(body, state)
    body.leave(end)


def _value(reader: _Reader, body: Body) -> Any:
    """Read a value of one piece."""
    if isinstance(reader, _Plain):
        return reader.read(body)
    state = reader.new()
    _piece(reader, body, state)
    return reader.finish(state)


def _number(step: Step) -> Read:
    kind = step["read"]
    if kind in FLOATS:
        unpack, size = FLOATS[kind].unpack, FLOATS[kind].size
        return lambda body: unpack(body.take(size, f"a {kind}"))[0]
    whole, convert = _whole(kind), _conversion(step)
    if "least" not in step and "most" not in step:
        return whole if convert is None else lambda body: convert(whole(body))
    least, most = step.get("least", -(1 << 64)), step.get("most", 1 << 64)

    def read(body: Body) -> Any:
        found = whole(body)
        if not least <= found <= most:
            raise Dead(f"{found} does not fit")
        return found if convert is None else convert(found)

    return read


def _whole(kind: str) -> Callable[[Body], int]:
    """Return the function that reads a whole number; numbers of 32 bits lose the bits above, as everywhere."""
    if kind == "bool":
        return lambda body: int(body.varint() != 0)
    if "fixed" in kind:
        size, signed = SIZES.get(kind, 8), kind.startswith("s")
        return lambda body: int.from_bytes(body.take(size, f"a {kind}"), "little", signed=signed)
    if kind == "uint64":
        return lambda body: body.varint()
    if kind == "uint32":
        return lambda body: body.varint() & 0xFFFFFFFF
    if kind.startswith("sint"):
        mask = 0xFFFFFFFF if kind == "sint32" else 0xFFFFFFFFFFFFFFFF

        def zigzag(body: Body) -> int:
            found = body.varint() & mask
            return (found >> 1) ^ -(found & 1)

        return zigzag
    bits = 32 if kind == "int32" else 64
    half, whole = 1 << (bits - 1), 1 << bits
    return lambda body: ((body.varint() + half) & (whole - 1)) - half


def _conversion(step: Step) -> Callable[[int], Any] | None:
    """Return what becomes of a whole number; None if it stays what it is."""
    if step["as"] == "enum":
        symbols = {int(number): name for number, name in step["symbols"].items()}
        return lambda number: symbols.get(number) or str(number)
    found: dict[str, Callable[[int], Any]] = {
        "decimal": Decimal,
        "boolean": bool,
        "text": str,
        "truth": lambda number: "true" if number else "false",
    }
    return found.get(step["as"])


def _bytes(step: Step) -> Read:
    return Body.text if step["as"] == "string" else Body.content_of


def _timestamp(state: Found) -> int:
    seconds, nanos = state
    if not FIRST_SECOND <= seconds <= LAST_SECOND or not 0 <= nanos < NANOS:
        raise Dead(f"{seconds} seconds and {nanos} nanoseconds are no TIMESTAMP")
    found: int = seconds * MICROS + nanos // 1000
    return found


_FORMS: dict[str, Callable[[Found], Any]] = {
    "struct": tuple,
    "value": lambda state: state[0],
    "paths": lambda state: ",".join(state[0]),
    "timestamp": _timestamp,
}


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
