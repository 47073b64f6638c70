"""One JSON value after the other: what its fields are by the types of a schema, with the verdicts of Spark's road.

Numbers stay text until their type is known, and objects keep all their names, since Spark looks at every one of them.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa

Convert = Callable[[Any], Any]

LONE_SURROGATES = re.compile("[\ud800-\udfff]")
ESCAPED = re.compile('["\\\\\x00-\x1f\ud800-\udfff\U00010000-\U0010ffff]')
SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
BASE64 = re.compile(r"(?:[\0- ]*[A-Za-z0-9+/]{4})*(?:[\0- ]*[A-Za-z0-9+/]{2}(?:[A-Za-z0-9+/]=|==))?[\0- ]*")
BLANK = "".join(map(chr, [*range(0x21), 0x7F]))
DATE = re.compile(r"\+?([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^.0-9].*)?)?)?)?)?"
)
ZONE = re.compile(r"Z|(?:UTC|GMT|UT)?(?:([+-])(?:([0-9]{1,2})(?::([0-9]{1,2}))?|([0-9]{2})([0-9]{2})))?")
UTC, WIDEST_ZONE = timedelta(), timedelta(hours=18)


MISFITS = (ValueError, ArithmeticError, RecursionError)
"""What parsing and converting raise for a value that is to die: ArithmeticError if a date or a number is too large."""


class Unfit(ValueError):
    """The value is JSON, but does not fit the schema."""


class Whole(str):
    """A number without fraction or exponent, as it was written."""

    __slots__ = ()


class Real(str):
    """A number with a fraction or an exponent, as it was written."""

    __slots__ = ()


class Pairs(tuple[tuple[str, Any], ...]):
    """An object: every name with its value, also where a name stands twice."""

    __slots__ = ()


def parse(value: bytes) -> Any:
    """One JSON text, strictly; ValueError (UnicodeDecodeError) or RecursionError if it is none."""
    text = value.decode("utf-8")
    if text.startswith("\ufeff"):
        raise json.JSONDecodeError("Unexpected UTF-8 BOM", text, 0)
    return _DECODER.decode(text)


def converter(kind: pa.DataType, top: bool = False) -> Convert:
    """What makes a field from its parsed value, or raises one of MISFITS. ``top`` is for the object's own fields."""
    if pa.types.is_struct(kind):
        return _struct(kind, top=False)
    if pa.types.is_list(kind):
        return _array(kind)
    if pa.types.is_map(kind):
        return _map(kind)
    if pa.types.is_integer(kind):
        return _integer(kind)
    if pa.types.is_decimal(kind):
        return _decimal(kind)
    if kind == pa.timestamp("us"):
        # Spark leaves out the zone of a field, and refuses it further down.
        return _local_time if top else _zoneless_time
    return {
        pa.string(): _string,
        pa.bool_(): _boolean,
        pa.float64(): _double,
        pa.float32(): _float,
        pa.binary(): _binary,
        pa.date32(): _date,
        pa.timestamp("us", tz="UTC"): _moment,
    }[kind]


def objects(kind: pa.StructType) -> Convert:
    """What makes a whole value."""
    return _struct(kind, top=True)


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


_DECODER = json.JSONDecoder(parse_int=Whole, parse_float=Real, parse_constant=_no_number, object_pairs_hook=Pairs)


def _struct(kind: pa.StructType, top: bool) -> Convert:
    fields = {field.name: converter(field.type, top) for field in kind}

    def convert(value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, item in _typed(value, Pairs):
            if name in fields:
                found[name] = None if item is None else fields[name](item)
        return found

    return convert


def _array(kind: pa.ListType) -> Convert:
    element = converter(kind.value_type)
    return lambda value: [None if item is None else element(item) for item in _typed(value, list)]


def _map(kind: pa.MapType) -> Convert:
    element = converter(kind.item_type)
    return lambda value: [
        (_string(name), None if item is None else element(item)) for name, item in _typed(value, Pairs)
    ]


def _typed(value: Any, *types: type) -> Any:
    if type(value) not in types:
        raise Unfit
    return value


def _integer(kind: pa.DataType) -> Convert:
    limit = 1 << (kind.bit_width - 1)

    def convert(value: Any) -> int:
        number = int(_typed(value, Whole)[:21])
        if not -limit <= number < limit:
            raise Unfit
        return number

    return convert


def _decimal(kind: pa.Decimal128Type) -> Convert:
    context = Context(prec=kind.precision)
    unit = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Decimal:
        text = value.replace(",", "") if type(value) is str else _typed(value, Whole, Real)
        if not DECIMAL.fullmatch(text):
            raise Unfit
        return Decimal(text).quantize(unit, ROUND_HALF_UP, context)

    return convert


def _boolean(value: Any) -> Any:
    return _typed(value, bool)


def _double(value: Any) -> float:
    return _finite(value, float(_typed(value, Whole, Real)))


def _float(value: Any) -> float:
    # By way of a double it would be rounded twice.
    return _finite(value, pa.scalar(str(_typed(value, Whole, Real))).cast(pa.float32()).as_py())


def _finite(value: Any, number: float) -> float:
    if abs(number) == float("inf"):
        raise Unfit
    return number + 0.0 if type(value) is Whole else number  # -0 is a whole number, and they have one zero


def _string(value: Any) -> str:
    if type(value) is str:
        return LONE_SURROGATES.sub("?", value)
    return _rendered(value)


def _rendered(value: Any) -> str:
    """JSON as Spark writes what it finds in place of a string."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{_rendered(name)}:{_rendered(item)}" for name, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_rendered, value)) + "]"
    if isinstance(value, Whole):
        return "0" if value == "-0" else str(value)
    if isinstance(value, Real):
        return _java_double(_double(value))
    return '"' + ESCAPED.sub(_escape, value) + '"'


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    if character in SHORT_ESCAPES:
        return SHORT_ESCAPES[character]
    units = character.encode("utf-16-be", "surrogatepass").hex().upper()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _java_double(number: float) -> str:
    """The shortest digits that mean the number, in the notation of Java."""
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    mantissa, power = f"{Decimal(repr(number)).normalize():E}".split("E")
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}E{int(power)}"


def _binary(value: Any) -> bytes:
    if not BASE64.fullmatch(_typed(value, str)):
        raise Unfit
    return base64.b64decode(value)


def _date(value: Any) -> date:
    found = DATE.fullmatch(_typed(value, str).strip(BLANK))
    if not found:
        raise Unfit
    year, month, day = (int(part or 1) for part in found.groups())
    return date(year, month, day)


def _moment(value: Any) -> datetime:
    time, zone = _time(value)
    return time - zone if zone else time


def _local_time(value: Any) -> datetime:
    return _time(value)[0]


def _zoneless_time(value: Any) -> datetime:
    time, zone = _time(value)
    if zone is not None:
        raise Unfit
    return time


def _time(value: Any) -> tuple[datetime, timedelta | None]:
    """A date with or without a time of day, and how far its zone is ahead of UTC."""
    found = TIMESTAMP.fullmatch(_typed(value, str).lstrip(" ").rstrip(BLANK))
    if not found:
        raise Unfit
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    micros = int(fraction[:6].ljust(6, "0")) if fraction else 0
    time = datetime(int(year), int(month), int(day or 1), int(hour or 0), int(minute or 0), int(second or 0), micros)
    return time, _offset(zone) if zone else None


def _offset(zone: str) -> timedelta:
    if zone == "Z":
        return UTC
    found = ZONE.fullmatch(zone.strip(BLANK))
    if not found:
        raise Unfit
    sign, hours, minutes, short_hours, short_minutes = found.groups()
    minutes = int(minutes or short_minutes or 0)
    offset = timedelta(hours=int(hours or short_hours or 0), minutes=minutes)
    if offset > WIDEST_ZONE or minutes > 59:
        raise Unfit
    return -offset if sign == "-" else offset
