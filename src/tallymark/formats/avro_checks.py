"""Checks that a Python value fits an Avro schema, and names the field that does not.

fastavro writes values that do not fit: it cuts off fractions, writes integers of any size, and takes a datetime without
a time zone for local time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

Check = Callable[[Any], None]
"""Raises ``Unfit``."""
LARGEST_FLOAT = 3.4028235677973366e38
"""From here on, rounding to 32 bits is infinite."""
SHOWN = 60
_INT, _LONG = (-(2**31), 2**31), (-(2**63), 2**63)


class Unfit(Exception):
    """``path`` are the fields that lead to the value, from its outside to its inside."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.path: list[str] = []

    def __str__(self) -> str:
        path = "".join(self.path).removeprefix(".")
        return f"{path}: {self.args[0]}" if path else str(self.args[0])


class Checks:
    """Makes the checks of schemas that fastavro has parsed. ``named`` are the types that are used by name."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._made: dict[str, Check] = {}

    def of(self, schema: Any) -> Check:
        if isinstance(schema, list):
            return self._of_union(schema)
        if isinstance(schema, str):
            # A type may contain itself: its check is looked up when it is used.
            return _PRIMITIVE[schema] if schema in _PRIMITIVE else lambda value: self._of_named(schema)(value)
        return self._of_type(schema)

    def _of_union(self, schema: list[Any]) -> Check:
        others = [self.of(branch) for branch in schema if branch != "null"]
        if len(others) == 1 and len(schema) == 2:
            return partial(_check_nullable, others[0])
        return partial(_check_union, [self.of(branch) for branch in schema], name_of(schema))

    def _of_named(self, name: str) -> Check:
        if name not in self._made:
            self._made[name] = self._of_type(self._named[name])
        return self._made[name]

    def _of_type(self, schema: Mapping[str, Any]) -> Check:
        kind = schema["type"]
        if logical := _LOGICAL.get((kind, schema.get("logicalType") or "")):
            return partial(logical, schema)
        match kind:
            case "record" | "error":
                fields = [(field["name"], self.of(field["type"]), "default" in field) for field in schema["fields"]]
                return partial(_check_record, fields, name_of(schema))
            case "array":
                return partial(_check_array, self.of(schema["items"]))
            case "map":
                return partial(_check_map, self.of(schema["values"]))
            case "enum":
                return partial(_check_enum, frozenset(schema["symbols"]), name_of(schema))
            case "fixed":
                return partial(_check_fixed, schema["size"], name_of(schema))
        return self.of(kind)


def _refuse(value: Any, kind: str, hint: str = "") -> Unfit:
    try:
        shown = repr(value)
    except Exception:  # noqa: BLE001 - the value's own code
        shown = "the value"
    return Unfit(f"{shown if len(shown) <= SHOWN else shown[:SHOWN] + '...'} does not fit {kind}{hint}")


def name_of(schema: Any) -> str:
    if isinstance(schema, list):
        return " or ".join(map(name_of, schema))
    if isinstance(schema, dict):
        return str(schema.get("logicalType") or schema.get("name") or schema["type"])
    return str(schema)


def _check_record(fields: list[tuple[str, Check, bool]], name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise _refuse(value, f"record {name}", "; write a dict")
    seen = 0
    for field, check, has_default in fields:
        if field in value:
            seen += 1
            try:
                check(value[field])
            except Unfit as unfit:
                unfit.path.insert(0, f".{field}")
                raise
        elif not has_default:
            raise Unfit(f"field {field} of {name} is missing, and has no default")
    if seen < len(value):
        extra = sorted(map(str, value.keys() - {field for field, _, _ in fields}))
        raise Unfit(f"{name} has no field {', '.join(extra)}")


def _check_array(check: Check, value: Any) -> None:
    if not isinstance(value, (list, tuple)):
        raise _refuse(value, "array", "; write a list")
    for at, item in enumerate(value):
        try:
            check(item)
        except Unfit as unfit:
            unfit.path.insert(0, f"[{at}]")
            raise


def _check_map(check: Check, value: Any) -> None:
    if not isinstance(value, dict):
        raise _refuse(value, "map", "; write a dict")
    for key, item in value.items():
        if not isinstance(key, str):
            raise _refuse(key, "the key of a map, which is text")
        try:
            check(item)
        except Unfit as unfit:
            unfit.path.insert(0, f"[{key!r}]")
            raise


def _check_nullable(check: Check, value: Any) -> None:
    if value is not None:
        check(value)


def _check_union(checks: list[Check], names: str, value: Any) -> None:
    why: Unfit | None = None
    for check in checks:
        try:
            return check(value)
        except Unfit as unfit:
            # A branch that fits in part says more than that none fits.
            why = unfit if unfit.path or why is None or not why.path else why
    raise why if why is not None and why.path else _refuse(value, names)


def _check_enum(symbols: frozenset[str], name: str, value: Any) -> None:
    if not isinstance(value, str) or value not in symbols:
        raise _refuse(value, f"enum {name}", f": {', '.join(sorted(symbols))}")


def _check_fixed(size: int, name: str, value: Any) -> None:
    if not isinstance(value, (bytes, bytearray)) or len(value) != size:
        raise _refuse(value, f"fixed {name}", f", which has {size} bytes")


def _check_null(value: Any) -> None:
    if value is not None:
        raise _refuse(value, "null")


def _check_boolean(value: Any) -> None:
    if not isinstance(value, bool):
        raise _refuse(value, "boolean")


def _check_integer(kind: str, bounds: tuple[int, int], value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not bounds[0] <= value < bounds[1]:
        raise _refuse(value, kind)


def _check_float(kind: str, largest: float, value: Any) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _refuse(value, kind)
    try:
        number = float(value)
    except OverflowError:
        raise _refuse(value, kind) from None
    if largest <= abs(number) < float("inf"):
        raise _refuse(value, kind)


def _check_text(value: Any) -> None:
    if not isinstance(value, str):
        raise _refuse(value, "string")


def _check_bytes(value: Any) -> None:
    if not isinstance(value, (bytes, bytearray)):
        raise _refuse(value, "bytes", "; encode text" if isinstance(value, str) else "")


def _check_decimal(schema: Mapping[str, Any], value: Any) -> None:
    precision, scale = schema["precision"], schema.get("scale", 0)
    kind = f"decimal({precision},{scale})"
    if not isinstance(value, Decimal):
        raise _refuse(value, kind, "; write a Decimal")
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -scale or (value and value.adjusted() + 1 + scale > precision):
        raise _refuse(value, kind)


def _check_date(schema: Mapping[str, Any], value: Any) -> None:
    if not isinstance(value, date):
        return _check_number(schema, value)
    if isinstance(value, datetime):
        raise _refuse(value, "date", ", which has no time of day; write value.date()")
    return None


def _check_time(schema: Mapping[str, Any], value: Any) -> None:
    if not isinstance(value, time):
        _check_number(schema, value)


def _check_timestamp(schema: Mapping[str, Any], value: Any) -> None:
    if not isinstance(value, datetime):
        _check_number(schema, value)
    elif value.tzinfo is None:
        raise _refuse(value, schema["logicalType"], "; add its time zone, such as tzinfo=timezone.utc")


def _check_local_timestamp(schema: Mapping[str, Any], value: Any) -> None:
    if not isinstance(value, datetime):
        _check_number(schema, value)
    elif value.tzinfo is not None:
        raise _refuse(value, schema["logicalType"], ", which has no time zone")


def _check_uuid(schema: Mapping[str, Any], value: Any) -> None:
    if isinstance(value, UUID):
        return
    try:
        UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise _refuse(value, schema["logicalType"]) from None


def _check_number(schema: Mapping[str, Any], value: Any) -> None:
    """A number is written as it is."""
    _check_integer(schema["logicalType"], _INT if schema["type"] == "int" else _LONG, value)


_PRIMITIVE: Mapping[str, Check] = {
    "null": _check_null,
    "boolean": _check_boolean,
    "int": partial(_check_integer, "int", _INT),
    "long": partial(_check_integer, "long", _LONG),
    "float": partial(_check_float, "float", LARGEST_FLOAT),
    "double": partial(_check_float, "double", float("inf")),
    "string": _check_text,
    "bytes": _check_bytes,
}
_LOGICAL: Mapping[tuple[str, str], Callable[[Mapping[str, Any], Any], None]] = {
    ("bytes", "decimal"): _check_decimal,
    ("fixed", "decimal"): _check_decimal,
    ("int", "date"): _check_date,
    ("int", "time-millis"): _check_time,
    ("long", "time-micros"): _check_time,
    ("long", "timestamp-millis"): _check_timestamp,
    ("long", "timestamp-micros"): _check_timestamp,
    ("long", "local-timestamp-millis"): _check_local_timestamp,
    ("long", "local-timestamp-micros"): _check_local_timestamp,
    ("string", "uuid"): _check_uuid,
}
