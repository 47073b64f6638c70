"""Encodes the values of Avro's logical types, as docs/reference/avro.md says; their plain numbers and bytes, too."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_PREC, Context, Decimal, Inexact, InvalidOperation
from typing import Any
from uuid import UUID

from tallymark.formats.avro.conversions import LEAST, PER_SECOND
from tallymark.formats.avro.leaves import BITS, Output, Write, append_long, append_text, fixed, name_of, whole
from tallymark.formats.avro.scalars import UUID as UUID_TEXT
from tallymark.formats.avro.schema import Schema
from tallymark.formats.misfit import Misfit

EPOCH, LOCAL_EPOCH, FIRST_ORDINAL = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1), 719163
MICROSECOND = timedelta(microseconds=1)
CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])(?:\.([0-9]{1,6}))?")
DURATION, DURATION_LIMIT = ("months", "days", "millis"), 1 << 32
Converted = tuple[Any, str]
"""What is stored, or None with a hint what else to write."""


def logical_leaf(schema: Schema, *, exact: bool = False) -> Write:
    """Encode a logical type. Its number, or the bytes of a fixed, are encoded as they are, unless ``exact``."""
    assert schema.logical is not None
    if schema.logical == "decimal":
        return _decimal(schema)
    if schema.type == "string":
        return _uuid_text
    convert = {"date": _days, "uuid": _uuid_bytes, "duration": _duration_bytes}.get(schema.logical) or _ticks(schema)
    raw = whole(schema) if schema.type in BITS else fixed(schema)
    stored = int if schema.type in BITS else (bytes, bytearray)
    name = name_of(schema)

    def write(value: Any, out: Output) -> None:
        if isinstance(value, stored):
            if exact:
                raise Misfit(name, value)
            return raw(value, out)
        found, hint = convert(value)
        if found is None:
            raise Misfit(name + hint, value)
        try:
            raw(found, out)
        except Misfit:
            raise Misfit(name, value) from None

    return write


def _days(value: Any) -> Converted:
    if isinstance(value, datetime):
        return None, ", which has no time of day; write value.date()"
    return (value.toordinal() - FIRST_ORDINAL, "") if isinstance(value, date) else (None, "")


def _ticks(schema: Schema) -> Callable[[Any], Converted]:
    """Return the conversion of a time of day or a timestamp. It cuts off digits beyond the unit."""
    assert schema.logical is not None
    kind, unit = schema.logical.rsplit("-", 1)
    micros_of = {"time": _micros_of_day, "timestamp": micros_since_epoch, "local-timestamp": _local_micros}[kind]
    per_second = PER_SECOND[unit]

    def convert(value: Any) -> Converted:
        micros, hint = micros_of(value)
        if micros is None:
            return None, hint
        found = micros * per_second // 1_000_000
        # The decoder rounds the first nanoseconds down to a microsecond that begins before them.
        return (LEAST if LEAST - found < 1_000 and found < LEAST else found), hint

    return convert


def _micros_of_day(value: Any) -> Converted:
    if isinstance(value, str) and (parts := CLOCK.fullmatch(value)):
        hour, minute, second = map(int, parts.group(1, 2, 3))
        micros = int((parts[4] or "").ljust(6, "0"))
    elif isinstance(value, time) and value.utcoffset() is None:
        hour, minute, second, micros = value.hour, value.minute, value.second, value.microsecond
    else:
        return None, ", which has no time zone" if isinstance(value, time) else ""
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros, ""


def micros_since_epoch(value: Any) -> Converted:
    """Convert a time with a zone."""
    if not isinstance(value, datetime):
        return None, ""
    if value.utcoffset() is None:
        return None, "; add its time zone, such as tzinfo=timezone.utc"
    return (value - EPOCH) // MICROSECOND, ""


def _local_micros(value: Any) -> Converted:
    if not isinstance(value, datetime):
        return None, ""
    if value.utcoffset() is not None:
        return None, ", which has no time zone"
    return (value - LOCAL_EPOCH) // MICROSECOND, ""


def _decimal(schema: Schema) -> Write:
    precision, scale, size, name = schema.precision, schema.scale, schema.size, name_of(schema)
    is_fixed = schema.type == "fixed"
    unit = Decimal(1).scaleb(-scale)
    context = Context(prec=min(precision, MAX_PREC), traps=[Inexact, InvalidOperation])

    def write(value: Any, out: Output) -> None:
        if not isinstance(value, Decimal):
            raise Misfit(f"{name}; write a Decimal", value)
        if not value.is_finite():
            raise Misfit(name, value)
        try:
            number = int(value.quantize(unit, context=context).scaleb(scale, context))
        except ArithmeticError:
            raise Misfit(name, value) from None
        if is_fixed:
            out += number.to_bytes(size, "big", signed=True)
            return
        length = (number if number >= 0 else ~number).bit_length() // 8 + 1
        append_long(length, out)
        out += number.to_bytes(length, "big", signed=True)

    return write


def _uuid_text(value: Any, out: Output) -> None:
    if not isinstance(value, UUID) and not (isinstance(value, str) and UUID_TEXT.fullmatch(value)):
        raise Misfit("uuid", value)
    append_text(str(value), out)


def _uuid_bytes(value: Any) -> Converted:
    if isinstance(value, str) and UUID_TEXT.fullmatch(value):
        value = UUID(value)
    return (value.bytes if isinstance(value, UUID) else None), ""


def _duration_bytes(value: Any) -> Converted:
    hint = ", a dict of months, days and millis"
    if not isinstance(value, dict) or value.keys() != set(DURATION):
        return None, hint
    parts = [value[name] for name in DURATION]
    if not all(type(part) is int and 0 <= part < DURATION_LIMIT for part in parts):
        return None, hint
    return struct.pack("<III", *parts), ""
