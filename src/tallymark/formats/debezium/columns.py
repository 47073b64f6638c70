"""Converts the columns of rows in Debezium's JSON, in which dates and times are numbers, and decimals base64.

spark/jvm/DebeziumDecoder.java is the same in Java.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from tallymark.formats import fields
from tallymark.formats.fields import Convert, Pairs, Unfit, Whole

UNITS = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
"""The units of a time in a second."""
NAMED_UNITS = {
    "org.apache.kafka.connect.data.Timestamp": UNITS["millis"],
    "io.debezium.time.Timestamp": UNITS["millis"],
    "io.debezium.time.MicroTimestamp": UNITS["micros"],
    "io.debezium.time.NanoTimestamp": UNITS["nanos"],
}
DECIMAL = "org.apache.kafka.connect.data.Decimal"
SCALE = re.compile("[0-9]{1,3}")
EPOCH_DAY, EPOCH = date(1970, 1, 1).toordinal(), datetime(1970, 1, 1)
MOST_BYTES = 64
MOST_SCALE = 999
"""Limits of decimals, far beyond what a column holds."""
EXACT = Context(prec=200)
_BINARY = fields.converter(pa.binary())


class Described(NamedTuple):
    """What the schema of an event says about a column, or about the items of a column of arrays."""

    name: str | None = None
    type: str | None = None
    scale: str | None = None

    @classmethod
    def of(cls, column: Pairs) -> Described:
        given = dict(column)
        items = given.get("items")
        if isinstance(items, Pairs):
            return cls.of(items)
        parameters = given.get("parameters")
        scale = dict(parameters).get("scale") if isinstance(parameters, Pairs) else None
        return cls(_text(given.get("name")), _text(given.get("type")), _text(scale))


@dataclass(frozen=True)
class Encoding:
    """How a column is encoded. ``scale`` is that of decimals in base64, if it is not that of the column."""

    per_second: int
    is_base64: bool
    scale: int | None = None

    def described(self, column: Described) -> Encoding:
        """Return the encoding that an event's own schema describes, as far as it does."""
        units = NAMED_UNITS.get(column.name or "", self.per_second)
        if column.name == DECIMAL:
            known = column.scale is not None and SCALE.fullmatch(column.scale)
            return Encoding(units, is_base64=True, scale=int(column.scale) if known and column.scale else None)
        return replace(self, per_second=units, is_base64=self.is_base64 and column.type != "string")

    def converter(self, kind: pa.DataType) -> Convert:
        """Return the function that converts a parsed value to a column, or raises one of MISFITS."""
        if pa.types.is_list(kind):
            return fields.array(self.converter(kind.value_type))
        if pa.types.is_date(kind):
            return _date
        if pa.types.is_timestamp(kind):
            return self._timestamp(kind)
        return self._decimal(kind) if pa.types.is_decimal(kind) else fields.converter(kind)

    def _timestamp(self, kind: pa.TimestampType) -> Convert:
        from_text, per_second = fields.converter(kind), self.per_second

        def convert(value: Any) -> datetime:
            if type(value) is not Whole:
                moment: datetime = from_text(value)
                return moment
            return EPOCH + timedelta(microseconds=_long(value) * UNITS["micros"] // per_second)

        return convert

    def _decimal(self, kind: pa.Decimal128Type) -> Convert:
        from_text, context, unit = fields.converter(kind), Context(prec=kind.precision), Decimal(1).scaleb(-kind.scale)
        scale = kind.scale if self.scale is None else self.scale

        def convert(value: Any) -> Decimal:
            if type(value) is Pairs:
                found = _variable(value)
            elif type(value) is str and self.is_base64:
                found = _unscaled(value).scaleb(-scale, EXACT)
            else:
                number: Decimal = from_text(value)
                return number
            return found.quantize(unit, ROUND_HALF_UP, context)

        return convert


def _text(value: Any) -> str | None:
    """Numbers are a kind of text here, and are none."""
    return value if type(value) is str else None


def _date(value: Any) -> date:
    if type(value) is not Whole:
        day: date = fields.converter(pa.date32())(value)
        return day
    return date.fromordinal(EPOCH_DAY + _long(value))


def _long(value: Whole) -> int:
    number = int(value[:21])
    if not -(1 << 63) <= number < 1 << 63:
        raise Unfit
    return number


def _variable(value: Pairs) -> Decimal:
    """Convert a decimal that has its own scale."""
    scale, unscaled = None, None
    for name, item in value:
        if name == "scale":
            if type(item) is not Whole or not -MOST_SCALE - 1 <= _long(item) <= MOST_SCALE:
                raise Unfit
            scale = int(item)
        elif name == "value":
            unscaled = _unscaled(item)
    if scale is None or unscaled is None:
        raise Unfit
    return unscaled.scaleb(-scale, EXACT)


def _unscaled(value: Any) -> Decimal:
    content = _BINARY(value)
    if not 0 < len(content) <= MOST_BYTES:
        raise Unfit
    return Decimal(int.from_bytes(content, "big", signed=True))
