"""One JSON value after the other: what its fields are by the types of a schema, with the verdicts of Spark's road.

Numbers stay text until their type is known, and objects keep all their names, since Spark looks at every one of them.
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

from tallymark import ddl

Convert = Callable[[Any], Any]

LONE_SURROGATES = re.compile("[\ud800-\udfff]")
ESCAPED = re.compile('["\\\\\x00-\x1f\ud800-\udfff\U00010000-\U0010ffff]')
SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
BASE64 = re.compile(r"(?:[\0- ]*[A-Za-z0-9+/]{2}(?:[A-Za-z0-9+/]{2}|[A-Za-z0-9+/]=|==))*[\0- ]*")
PADDED = re.compile(r"[^=]*={0,2}")
DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
MINUTE = DAY + "[T ](?:[01][0-9]|2[0-3]):[0-9]{2}"
SECOND = MINUTE + ":[0-9]{2}(?:[.][0-9]+)?"
CLOCK = f"{DAY}|{MINUTE}|{SECOND}"
MOMENT = f"{DAY}|{MINUTE}|{SECOND}(?: ?(?:Z|UTC|[+-][0-9]{{2}}(?::?[0-9]{{2}})?))?"
"""How a DATE, a TIMESTAMP_NTZ and a TIMESTAMP are written, by the rules that the engines of Python and Java share."""
DATE, ZONELESS, ZONED = re.compile(DAY), re.compile(CLOCK), re.compile(MOMENT)
ZONE = re.compile(r" ?([+-])([0-9]{2}):?([0-9]{2})?$")
SECONDS_END, MICROS_END = len("2026-01-31T12:00:00"), len("2026-01-31T12:00:00.123456")
WIDEST_ZONE = timedelta(hours=18)
SHOWN = 60
"""Characters of a value that the words about it repeat."""


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


def converter(kind: pa.DataType) -> Convert:
    """What makes a field from its parsed value, or raises one of MISFITS."""
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
    """Which part of a value does not fit, and why, such as ``items[2].price: 'x' does not fit DOUBLE``."""
    for step, item, convert, inner in _parts(value, kind):
        try:
            convert(item)
        except MISFITS:
            return misfit(item, inner, path + step)
    return f"{path.lstrip('.')}: {_shown(value)} does not fit {ddl.name(kind)}"


def _parts(value: Any, kind: pa.DataType) -> Iterator[tuple[str, Any, Convert, pa.DataType]]:
    """What a value holds that its type says something about: where it is, and how it is converted."""
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
    raise ValueError(f"{constant} is no number")


_DECODER = json.JSONDecoder(parse_int=Whole, parse_float=Real, parse_constant=_no_number, object_pairs_hook=Pairs)


def _struct(kind: pa.StructType) -> Convert:
    fields = {field.name: converter(field.type) for field in kind}

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
    """Of digits behind the microseconds the calendar knows nothing."""
    if len(text) > SECONDS_END:
        text = text[:MICROS_END].ljust(MICROS_END, "0")
    return datetime.fromisoformat(text)


def _ahead_of_utc(zone: re.Match[str]) -> timedelta:
    sign, hours, minutes = zone.groups(default="0")
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    if offset > WIDEST_ZONE or int(minutes) > 59:
        raise Unfit
    return -offset if sign == "-" else offset
