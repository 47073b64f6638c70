"""Converts one number, text or some bytes to the value of a column."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tallymark.formats import fields
from tallymark.formats.avro.body import Dead, utf8
from tallymark.formats.avro.program import Step
from tallymark.formats.avro.schema import cut

UUID = re.compile("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
EXACT = Context(prec=76)
EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_MOMENT = fields.converter(pa.timestamp("us", tz="UTC"))

Convert = Callable[[Any], Any]


def number(step: Step) -> Convert | None:
    """Return the conversion of a whole number; None if it stays what it is."""
    if step["as"] in ("int", "long"):
        return None
    if step["as"] in ("float", "double"):
        # Python converts to FLOAT through DOUBLE, which rounds twice.
        return float if step["as"] == "double" else lambda number: float(np.int64(number).astype(np.float32))
    if step["as"] == "date":
        return _in_range(step, int)
    return _in_range(step, _time(step) if step["as"] == "time" else _timestamp(step))


def _in_range(step: Step, convert: Convert) -> Convert:
    least, most, kind = step["least"], step["most"], step["as"].upper()

    def checked(number: int) -> Any:
        if not least <= number <= most:
            raise Dead(f"{number} is no {kind}")
        return convert(number)

    return checked


def _time(step: Step) -> Convert:
    times, digits = step["times"], step["digits"]
    unit = 10**digits

    def convert(number: int) -> str:
        seconds, fraction = divmod(number * times, unit)
        minutes, second = divmod(seconds, 60)
        return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}.{fraction:0{digits}}"

    return convert


def _timestamp(step: Step) -> Convert:
    over, times = step["over"], step["times"]
    return lambda number: number // over * times


def decimal(step: Step) -> Convert:
    precision, scale = step["precision"], step["scale"]
    limit = 10**precision

    def convert(content: bytes) -> Decimal:
        if not content:
            raise Dead("a DECIMAL has no bytes")
        number = int.from_bytes(content, "big", signed=True)
        if abs(number) >= limit:
            raise Dead(f"a number does not fit DECIMAL({precision},{scale})")
        return Decimal(number).scaleb(-scale, EXACT)

    return convert


def instant(text: str) -> int:
    """Return the microseconds of a time that is text, in one of the forms of docs/reference/json.md."""
    try:
        moment: datetime = _MOMENT(text)
        return (moment.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
    except fields.MISFITS:
        raise Dead(f"{cut(text)!r} is no TIMESTAMP") from None


def uuid_of_text(content: bytes) -> str:
    text = utf8(content)
    if not UUID.fullmatch(text):
        raise Dead(f"{cut(text)!r} is no UUID")
    return text.lower()


def uuid_of_bytes(content: bytes) -> str:
    return str(uuid.UUID(bytes=content))
