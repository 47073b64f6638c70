"""Encodes Avro values without parts: numbers, text and bytes. ``logical.py`` has those of logical types."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from tallymark.formats.avro.schema import Schema
from tallymark.formats.misfit import Misfit

Write = Callable[[Any, "Output"], None]
"""Appends the bytes of a value, or raises Misfit."""
BITS = {"int": 31, "long": 63}
PACK = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}


class Output(bytearray):
    """The bytes of one value so far. ``tried`` has what became of parts that unions have tried."""

    __slots__ = ("tried",)

    def __init__(self) -> None:
        self.tried: dict[tuple[int, int], bytes | Misfit] = {}


def name_of(schema: Schema) -> str:
    """Return what error messages call a type."""
    if schema.type == "union":
        return " or ".join(map(name_of, schema.branches))
    if schema.logical == "decimal":
        return f"decimal({schema.precision},{schema.scale})"
    return schema.logical or schema.label


def leaf(schema: Schema, *, exact: bool = False) -> Write:
    """Return the function that encodes a type without parts, without regard to its logical type.

    With ``exact`` it refuses numbers that become others: whole ones for a double, and those that a float rounds.
    """
    if schema.type in BITS:
        return whole(schema)
    if schema.type in PACK:
        return _real(schema, exact)
    return _PLAIN[schema.type](schema)


def append_long(value: int, out: Output) -> None:
    """Append a number of 64 bits, lengths and indexes included."""
    rest = (value << 1) ^ (value >> 63)
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)


def append_text(text: str, out: Output) -> None:
    try:
        content = text.encode()
    except UnicodeEncodeError:
        raise Misfit("string: it has half of a surrogate pair", text) from None
    if len(content) < 64:
        # One byte. A call takes as long as the rest of this function.
        out.append(2 * len(content))
    else:
        append_long(len(content), out)
    out += content


def _null(_: Schema) -> Write:
    def write(value: Any, out: Output) -> None:  # noqa: ARG001 - null has no bytes
        if value is not None:
            raise Misfit("null", value)

    return write


def _boolean(_: Schema) -> Write:
    def write(value: Any, out: Output) -> None:
        if not isinstance(value, bool):
            raise Misfit("boolean", value)
        out.append(value)

    return write


def whole(schema: Schema) -> Write:
    limit, name = 1 << BITS[schema.type], name_of(schema)

    def write(value: Any, out: Output) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
            raise Misfit(name, value)
        append_long(value, out)

    return write


def _real(schema: Schema, exact: bool) -> Write:
    pack, unpack, name = PACK[schema.type].pack, PACK[schema.type].unpack, schema.type

    def write(value: Any, out: Output) -> None:
        if not isinstance(value, float) and (exact or not isinstance(value, int) or isinstance(value, bool)):
            raise Misfit(name, value)
        try:
            content = pack(value)
        except (OverflowError, struct.error):
            raise Misfit(name, value) from None
        if exact and value == value and unpack(content)[0] != value:
            raise Misfit(name, value)
        out += content

    return write


def _string(_: Schema) -> Write:
    def write(value: Any, out: Output) -> None:
        if not isinstance(value, str):
            raise Misfit("string", value)
        append_text(value, out)

    return write


def _bytes(_: Schema) -> Write:
    def write(value: Any, out: Output) -> None:
        if not isinstance(value, (bytes, bytearray)):
            raise Misfit("bytes; encode text" if isinstance(value, str) else "bytes", value)
        append_long(len(value), out)
        out += value

    return write


def fixed(schema: Schema) -> Write:
    size, name = schema.size, name_of(schema)

    def write(value: Any, out: Output) -> None:
        if not isinstance(value, (bytes, bytearray)) or len(value) != size:
            raise Misfit(f"fixed {name}, which has {size} bytes", value)
        out += value

    return write


def _enum(schema: Schema) -> Write:
    places = {symbol: at for at, symbol in enumerate(schema.symbols)}
    why = f"enum {schema.name}: {', '.join(sorted(schema.symbols))}"

    def write(value: Any, out: Output) -> None:
        if not isinstance(value, str) or value not in places:
            raise Misfit(why, value)
        append_long(places[value], out)

    return write


_PLAIN: dict[str, Callable[[Schema], Write]] = {
    "null": _null,
    "boolean": _boolean,
    "string": _string,
    "bytes": _bytes,
    "fixed": fixed,
    "enum": _enum,
}
