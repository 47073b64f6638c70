"""Decodes JSON values one by one by a schema, as docs/reference/json.md specifies.

spark/jvm/JsonDecoder.java is the same in Java. Numbers stay text until their type is known. Objects keep repeated
names, because each of the values has to fit.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa

from tallymark.formats import schema as ddl

Convert = Callable[[Any], Any]

LONE_SURROGATES = re.compile("[\ud800-\udfff]")
DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?0*[0-9]{1,3})?")
BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
HOURS = "[T ](?:[01][0-9]|2[0-3]):[0-9]{2}"
SECONDS = ":[0-9]{2}(?:[.][0-9]+)?"
ZONE_NAME = " ?(?:Z|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)"
CLOCK = f"{DAY}(?:{HOURS}(?:{SECONDS})?)?"
MOMENT = f"{DAY}(?:{HOURS}(?:{SECONDS}(?:{ZONE_NAME})?)?)?"
DATE, ZONELESS, ZONED = re.compile(DAY), re.compile(CLOCK), re.compile(MOMENT)
ZONE = re.compile(r" ?([+-])([0-9]{2}):?([0-9]{2})?$")
SECONDS_END, MICROS_END = len("2026-01-31T12:00:00"), len("2026-01-31T12:00:00.123456")
WIDEST_ZONE = timedelta(hours=18)
LONGEST = 1000
"""Maximum digits of a number and characters of a DECIMAL in a string: exact numbers take quadratic time."""
SHOWN = 60
"""Maximum number of characters of a value that an error message quotes."""


MISFITS = (ValueError, ArithmeticError, RecursionError)
"""Exceptions of parsing and converting a dead value: ArithmeticError if a date or a number is too large."""


class Unfit(ValueError):
    """The value is JSON, but does not fit the schema."""


class Whole(str):
    """The text of a number without fraction or exponent."""

    __slots__ = ()


class Real(str):
    """The text of a number with a fraction or an exponent."""

    __slots__ = ()


class Pairs(tuple[tuple[str, Any], ...]):
    """An object: all pairs of name and value, including duplicate names."""

    __slots__ = ()


def parse(value: bytes) -> Any:
    """Parse strict JSON; raises ValueError (UnicodeDecodeError, Unfit) or RecursionError if it is invalid."""
    text = value.decode("utf-8")
    if text.startswith("\ufeff"):
        raise json.JSONDecodeError("Unexpected UTF-8 BOM", text, 0)
    return _DECODER.decode(text)


def converter(kind: pa.DataType) -> Convert:
    """Return the function that converts a parsed value to a field, or raises one of MISFITS."""
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_list(kind):
        return _array(kind)
    if pa.types.is_map(kind):
        return _map(kind)
    if pa.types.is_integer(kind):
        return _integer(kind)
    if pa.types.is_decimal(kind):
        return _decimal(kind)
    return {
        pa.string(): _string,
        pa.bool_(): _boolean,
        pa.float64(): _double,
        pa.float32(): _float,
        pa.binary(): _binary,
        pa.date32(): _date,
        pa.timestamp("us"): _local_time,
        pa.timestamp("us", tz="UTC"): _moment,
    }[kind]


def misfit(value: Any, kind: pa.DataType, path: str = "") -> str:
    """Describe which part of a value does not fit, such as ``items[2].price: 'x' does not fit DOUBLE``."""
    for step, item, convert, inner in _parts(value, kind):
        try:
            convert(item)
        except MISFITS:
            return misfit(item, inner, path + step)
    return f"{path.lstrip('.')}: {shown(value)} does not fit {ddl.name(kind)}"


def _parts(value: Any, kind: pa.DataType) -> Iterator[tuple[str, Any, Convert, pa.DataType]]:
    """Yield the path, value, converter and type of each part of a value that its type describes."""
    if pa.types.is_struct(kind) and type(value) is Pairs:
        kinds = {field.name: (converter(field.type), field.type) for field in kind}
        yield from ((f".{name}", item, *kinds[name]) for name, item in value if name in kinds and item is not None)
    elif pa.types.is_map(kind) and type(value) is Pairs:
        convert = converter(kind.item_type)
        yield from ((f".{_cut(name)}", item, convert, kind.item_type) for name, item in value if item is not None)
    elif pa.types.is_list(kind) and type(value) is list:
        convert = converter(kind.value_type)
        yield from ((f"[{at}]", item, convert, kind.value_type) for at, item in enumerate(value) if item is not None)


def shown(value: Any) -> str:
    """Return what an error message quotes of a parsed value."""
    if isinstance(value, (Pairs, list)):
        return "an object" if isinstance(value, Pairs) else "an array"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _cut(value) if isinstance(value, (Whole, Real)) else repr(_cut(value))


def _cut(text: str) -> str:
    return str(text) if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


_DECODER = json.JSONDecoder(parse_int=Whole, parse_float=Real, parse_constant=_no_number, object_pairs_hook=Pairs)


def _struct(kind: pa.StructType) -> Convert:
    return struct({field.name: converter(field.type) for field in kind})


def struct(fields: Mapping[str, Convert]) -> Convert:
    """Return the function that converts an object whose fields are converted by these."""
    return lambda value: {
        name: None if item is None else fields[name](item) for name, item in _typed(value, Pairs) if name in fields
    }


def _array(kind: pa.ListType) -> Convert:
    return array(converter(kind.value_type))


def array(element: Convert) -> Convert:
    """Return the function that converts an array whose elements are converted by this."""
    return lambda value: [None if item is None else element(item) for item in _typed(value, list)]


def _map(kind: pa.MapType) -> Convert:
    element = converter(kind.item_type)

    def convert(value: Any) -> list[tuple[str, Any]]:
        pairs = _typed(value, Pairs)
        return list({_string(name): None if item is None else element(item) for name, item in pairs}.items())

    return convert


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
        text = _typed(value, str, Whole, Real)
        if (type(value) is str and len(value) > LONGEST) or not DECIMAL.fullmatch(text):
            raise Unfit
        return Decimal(text).quantize(unit, ROUND_HALF_UP, context)

    return convert


def _boolean(value: Any) -> Any:
    return _typed(value, bool)


def _double(value: Any) -> float:
    return _finite(float(_typed(value, Whole, Real)))


def _float(value: Any) -> float:
    # Converting via a double would round twice.
    return _finite(pa.scalar(str(_typed(value, Whole, Real))).cast(pa.float32()).as_py())


def _finite(number: float) -> float:
    if abs(number) == float("inf"):
        raise Unfit
    return number


def _string(value: Any) -> str:
    return LONE_SURROGATES.sub("\ufffd", value if type(value) is str else compact(value))


def compact(value: Any) -> str:
    """Return the JSON text of a value without white space, with numbers as they are and the shortest escapes."""
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{compact(name)}:{compact(item)}" for name, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(compact, value)) + "]"
    return str(value) if isinstance(value, (Whole, Real)) else json.dumps(value, ensure_ascii=False)


def _binary(value: Any) -> bytes:
    if not BASE64.fullmatch(_typed(value, str)):
        raise Unfit
    return base64.b64decode(value)


def _date(value: Any) -> date:
    return date.fromisoformat(_written(value, DATE))


def _local_time(value: Any) -> datetime:
    return _time(_written(value, ZONELESS))


def _moment(value: Any) -> datetime:
    text = _written(value, ZONED)
    zone = ZONE.search(text, SECONDS_END)
    return _time(text.rstrip(" ZUTC")) if zone is None else _time(text[: zone.start()]) - _ahead_of_utc(zone)


def _written(value: Any, form: re.Pattern[str]) -> str:
    if not form.fullmatch(_typed(value, str)):
        raise Unfit
    return str(value)


def _time(text: str) -> datetime:
    """Parse a time. Digits after the microseconds are cut off, because ``datetime`` can't hold them."""
    if len(text) > SECONDS_END:
        text = text[:MICROS_END].ljust(MICROS_END, "0")
    return datetime.fromisoformat(text)


def _ahead_of_utc(zone: re.Match[str]) -> timedelta:
    sign, hours, minutes = zone.groups(default="0")
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    if offset > WIDEST_ZONE or int(minutes) > 59:
        raise Unfit
    return -offset if sign == "-" else offset
