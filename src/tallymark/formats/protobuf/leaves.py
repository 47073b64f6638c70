"""Encodes Protobuf values without fields: numbers, text, bytes and enums, and the messages that are such values."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from tallymark.formats.avro.logical import micros_since_epoch
from tallymark.formats.misfit import Misfit
from tallymark.formats.protobuf.columns import TIMESTAMP
from tallymark.formats.protobuf.numbers import INT, RANGES, number_encoder, varint
from tallymark.formats.protobuf.program import GROUP, LENGTH, VARINT, WIRE
from tallymark.formats.protobuf.schema import Field, listed_symbols
from tallymark.formats.protobuf.values import FIRST_SECOND, LAST_SECOND

DEEPEST = 100
"""Maximum nesting of messages, entries of maps included, beyond which the official libraries do not read them."""
WIRES = {**WIRE, "string": LENGTH, "group": GROUP}
"""The wire types of fields; all others are varints."""
DIGITS = re.compile("-?[0-9]{1,20}")
TRUTHS = {"true": True, "false": False}
MICROS = 1_000_000


class Output(bytearray):
    """The bytes of one message so far. ``depth`` is the number of messages around it."""

    __slots__ = ("depth",)

    def __init__(self, depth: int = 0) -> None:
        super().__init__()
        self.depth = depth

    def inside(self) -> Output:
        """Return the output for a message in this one, without bytes."""
        if self.depth >= DEEPEST:
            raise Misfit(f"messages are nested more than {DEEPEST} levels deep")
        return Output(self.depth + 1)

    def add(self, content: bytes | bytearray) -> None:
        """Append bytes after their length."""
        self += varint(len(content))
        self += content


Write = Callable[[Any, Output], None]
"""Appends the bytes of a value, or raises Misfit."""


def tag(number: int, kind: str) -> bytes:
    """Return what precedes the value of a field."""
    return varint(number << 3 | WIRES.get(kind, VARINT))


def leaf(field: Field) -> Write:
    """Return the function that encodes a type without fields."""
    if field.type == "enum":
        return _enum(field)
    plain = {"string": write_text, "bytes": _bytes, "bool": _boolean}.get(field.type)
    if plain is not None:
        return plain
    return _whole(field.type) if field.type in RANGES else _real(field.type)


def key(field: Field) -> Write:
    """Return the function that encodes the key of a map. All keys may be text, as decoders return them."""
    write = leaf(field)
    if field.type == "string":
        return write

    def write_key(value: Any, out: Output) -> None:
        if not isinstance(value, str):
            write(value, out)
        elif field.type == "bool" and value in TRUTHS:
            write(TRUTHS[value], out)
        elif field.type != "bool" and DIGITS.fullmatch(value):
            write(int(value), out)
        else:
            raise Misfit(field.type, value)

    return write_key


def write_text(value: Any, out: Output) -> None:
    if not isinstance(value, str):
        raise Misfit("string", value)
    try:
        out.add(value.encode())
    except UnicodeEncodeError:
        raise Misfit("string: it has half of a surrogate pair", value) from None


def write_timestamp(value: Any, out: Output) -> None:
    """Append the fields of a Timestamp."""
    micros, hint = micros_since_epoch(value)
    if micros is None:
        raise Misfit(TIMESTAMP + (hint or "; write a datetime"), value)
    seconds, rest = divmod(micros, MICROS)
    if not FIRST_SECOND <= seconds <= LAST_SECOND:
        raise Misfit(f"{TIMESTAMP}, which ends with the years 1 and 9999 in UTC", value)
    for number, part, kind in ((1, seconds, "int64"), (2, rest * 1000, "int32")):
        if part:
            out += tag(number, kind) + number_encoder(kind)(part)


def write_paths(value: Any, out: Output) -> None:
    """Append the fields of a FieldMask: its paths, which have commas between them."""
    if not isinstance(value, str):
        raise Misfit("google.protobuf.FieldMask; write its paths with commas between them", value)
    for path in value.split(",") if value else ():
        out += tag(1, "string")
        write_text(path, out)


def _boolean(value: Any, out: Output) -> None:
    if not isinstance(value, bool):
        raise Misfit("bool", value)
    out.append(value)


def _bytes(value: Any, out: Output) -> None:
    if not isinstance(value, (bytes, bytearray)):
        raise Misfit("bytes; encode text" if isinstance(value, str) else "bytes", value)
    out.add(value)


def _whole(kind: str) -> Write:
    (least, most), encode = RANGES[kind], number_encoder(kind)
    # Decoders return these as Decimal.
    is_decimal = kind in ("uint64", "fixed64")

    def write(value: Any, out: Output) -> None:
        number = _integral(value) if is_decimal and isinstance(value, Decimal) else value
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise Misfit(kind, value)
        out += encode(number)

    return write


def _integral(value: Decimal) -> int | None:
    # Decimals may have exponents with which int() takes forever.
    if not value.is_finite() or value.adjusted() > len(str(RANGES["uint64"][1])):
        return None
    return int(value) if value == value.to_integral_value() else None


def _real(kind: str) -> Write:
    encode = number_encoder(kind)

    def write(value: Any, out: Output) -> None:
        if not isinstance(value, (float, int)) or isinstance(value, bool):
            raise Misfit(kind, value)
        try:
            out += encode(value)
        except (OverflowError, struct.error):
            raise Misfit(kind, value) from None

    return write


def _enum(field: Field) -> Write:
    numbers, encode = field.numbers, number_encoder("enum")
    why = f"an enum of {listed_symbols(field)}"

    def write(value: Any, out: Output) -> None:
        number: Any = value
        if isinstance(value, str):
            # Decoders return the digits of a number without a name.
            number = numbers.get(value, int(value) if DIGITS.fullmatch(value) else None)
        if not isinstance(number, int) or isinstance(number, bool) or not INT[0] <= number <= INT[1]:
            raise Misfit(why, value)
        out += encode(number)

    return write
