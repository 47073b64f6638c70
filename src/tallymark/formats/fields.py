"""Decodes JSON values individually by a schema, and accepts and refuses the same values as Spark.

Numbers stay text until their type is known. Objects keep duplicate names, because Spark checks every occurrence.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa

from tallymark.formats import schema as ddl

Convert = Callable[[Any], Any]

LONE_SURROGATES = re.compile("[\ud800-\udfff]")
ESCAPED = re.compile('["\\\\\x00-\x1f\ud800-\udfff\U00010000-\U0010ffff]')
SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?0*[0-9]{1,3})?")
BASE64 = re.compile(r"(?:[\0- ]*[A-Za-z0-9+/]{2}(?:[A-Za-z0-9+/]{2}|[A-Za-z0-9+/]=|==))*[\0- ]*")
PADDED = re.compile(r"[^=]*={0,2}")
DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
HOURS = "[T ](?:[01][0-9]|2[0-3]):[0-9]{2}"
SECONDS = ":[0-9]{2}(?:[.][0-9]+)?"
ZONE_NAME = " ?(?:Z|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)"
CLOCK = f"{DAY}(?:{HOURS}(?:{SECONDS})?)?"
MOMENT = f"{DAY}(?:{HOURS}(?:{SECONDS}(?:{ZONE_NAME})?)?)?"
"""Regular expressions for DATE, TIMESTAMP_NTZ and TIMESTAMP, in the syntax that Python and Java share."""
DATE, ZONELESS, ZONED = re.compile(DAY), re.compile(CLOCK), re.compile(MOMENT)
ZONE = re.compile(r" ?([+-])([0-9]{2}):?([0-9]{2})?$")
SECONDS_END, MICROS_END = len("2026-01-31T12:00:00"), len("2026-01-31T12:00:00.123456")
WIDEST_ZONE = timedelta(hours=18)
LONGEST = 1000
"""Maximum digits of a number and characters of a DECIMAL in a string, because Java needs quadratic time for them."""
LONGEST_NAME = 50_000
"""Maximum length of a name in UTF-16 units: a limit of Spark's parser that can't be configured."""
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
    return (_DECODER if len(text) <= LONGEST_NAME // 2 else _NAMES_CHECKED).decode(text)


def converter(kind: pa.DataType, counts: bool = True) -> Convert:
    """Return the function that converts a parsed value to a field, or raises one of MISFITS.

    A field does not count (``counts=False``) if another field of the same name follows. It only has to be accepted by
    Spark's parser.
    """
    if pa.types.is_struct(kind):
        return _struct(kind, counts)
    if pa.types.is_list(kind):
        return _array(kind, counts)
    if pa.types.is_map(kind):
        return _map(kind, counts)
    return _scalar(kind) if counts else _replaced(kind)


def _replaced(kind: pa.DataType) -> Convert:
    if pa.types.is_string(kind) or pa.types.is_temporal(kind):
        return lambda _: None
    if pa.types.is_floating(kind):
        return lambda value: _typed(value, Whole, Real)
    return _scalar(pa.int16() if kind == pa.int8() else kind)


def _scalar(kind: pa.DataType) -> Convert:
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
    return f"{path.lstrip('.')}: {_shown(value)} does not fit {ddl.name(kind)}"


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


def _shown(value: Any) -> str:
    if isinstance(value, (Pairs, list)):
        return "an object" if isinstance(value, Pairs) else "an array"
    if isinstance(value, bool):
        return json.dumps(value)
    return _cut(value) if isinstance(value, (Whole, Real)) else repr(_cut(value))


def _cut(text: str) -> str:
    return str(text) if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _named(pairs: list[tuple[str, Any]]) -> Pairs:
    for name, _ in pairs:
        if len(name) > LONGEST_NAME // 2 and len(name.encode("utf-16-le", "surrogatepass")) > 2 * LONGEST_NAME:
            raise Unfit(f"a name has more than {LONGEST_NAME} characters")
    return Pairs(pairs)


_DECODER, _NAMES_CHECKED = (
    json.JSONDecoder(parse_int=Whole, parse_float=Real, parse_constant=_no_number, object_pairs_hook=pairs)
    for pairs in (Pairs, _named)
)


def _struct(kind: pa.StructType, counts: bool) -> Convert:
    fields = {field.name: converter(field.type, counts) for field in kind}
    replaced = {field.name: converter(field.type, counts=False) for field in kind} if counts else fields

    def convert(value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, item in _typed(value, Pairs):
            if name in fields:
                if found.get(name) is not None:
                    replaced[name](found[name])
                found[name] = item
        return {name: None if item is None else fields[name](item) for name, item in found.items()}

    return convert


def _array(kind: pa.ListType, counts: bool) -> Convert:
    element = converter(kind.value_type, counts)
    return lambda value: [None if item is None else element(item) for item in _typed(value, list)]


def _map(kind: pa.MapType, counts: bool) -> Convert:
    element = converter(kind.item_type, counts)
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
        if (type(value) is str and len(value) > LONGEST) or not DECIMAL.fullmatch(text):
            raise Unfit
        return Decimal(text).quantize(unit, ROUND_HALF_UP, context)

    return convert


def _boolean(value: Any) -> Any:
    return _typed(value, bool)


def _double(value: Any) -> float:
    return _finite(value, float(_typed(value, Whole, Real)))


def _float(value: Any) -> float:
    # Converting via a double would round twice.
    return _finite(value, pa.scalar(str(_typed(value, Whole, Real))).cast(pa.float32()).as_py())


def _finite(value: Any, number: float) -> float:
    if abs(number) == float("inf"):
        raise Unfit
    return number + 0.0 if type(value) is Whole else number  # -0 is an integer, and integers have no negative zero


def _string(value: Any) -> str:
    if type(value) is str:
        return LONE_SURROGATES.sub("?", value)
    return _rendered(value)


def _rendered(value: Any) -> str:
    """Return the JSON text that Spark stores if a STRING field holds another type."""
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
    """Format a number with the shortest digits that identify it, in Java's notation."""
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    mantissa, power = f"{Decimal(repr(number)).normalize():E}".split("E")
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}E{int(power)}"


def _binary(value: Any) -> bytes:
    if not BASE64.fullmatch(_typed(value, str)):
        raise Unfit
    return b"".join(map(base64.b64decode, PADDED.findall(value)))


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
