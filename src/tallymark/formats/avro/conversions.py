"""How a number, text or bytes of the writer become a value of the reader: promotions and logical types."""

from __future__ import annotations

from typing import Any

from tallymark.formats.avro.columns import MOST_DIGITS
from tallymark.formats.avro.program import Step
from tallymark.formats.avro.schema import Schema

PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
PER_SECOND = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
DIGITS = {"millis": 3, "micros": 6}
FIRST_DAY, LAST_DAY = -719162, 2932896
"""Years 1 to 9999 in days since 1970."""
DAY_SECONDS = 86_400
LEAST, MOST = -(1 << 63), (1 << 63) - 1


class Incompatible(ValueError):
    """What one schema wrote can't be read by another. ``path`` are the fields that contain the difference."""

    def __init__(self, why: str, path: tuple[str, ...] = ()) -> None:
        self.why, self.path = why, path
        super().__init__(f"field {'.'.join(path)}: {why}" if path else why)

    def within(self, name: str) -> Incompatible:
        return Incompatible(self.why, (name, *self.path))


def promotes(writer: str, reader: str) -> bool:
    return writer == reader or reader in PROMOTIONS.get(writer, ())


def conversion(writer: Schema, reader: Schema) -> Step:
    """Return the step that reads a plain type or a fixed."""
    if not promotes(writer.type, reader.type):
        raise unreadable(writer, reader)
    if writer.type == "fixed" and writer.size != reader.size:
        raise Incompatible(f"{writer.size} bytes of {writer.label} can't be read as {reader.size} bytes")
    if writer.logical and reader.logical and _family(writer) != _family(reader):
        raise unreadable(writer, reader)
    if writer.type in ("null", "boolean"):
        return {"read": writer.type}
    step: dict[str, Any] = {"read": "bytes" if writer.type == "string" else writer.type}
    if writer.type == "fixed":
        step["size"] = writer.size
    return step | _target(writer, reader)


def unreadable(writer: Schema, reader: Schema) -> Incompatible:
    return Incompatible(f"{_described(writer)} can't be read as {_described(reader)}")


def _target(writer: Schema, reader: Schema) -> dict[str, Any]:
    kind = _kind(reader)
    if kind == "decimal":
        return {"as": kind, "precision": min(reader.precision, MOST_DIGITS), "scale": reader.scale}
    if kind == "date":
        return {"as": kind, "least": FIRST_DAY, "most": LAST_DAY}
    if kind == "time":
        return _time(writer, reader)
    if kind == "timestamp":
        return _timestamp(writer, reader)
    if kind == "fixed":
        return {"as": "bytes"}
    return {"as": kind}


def _time(writer: Schema, reader: Schema) -> dict[str, Any]:
    written, unit = _unit(writer if writer.logical else reader), _unit(reader)
    times = PER_SECOND[unit] // PER_SECOND[written]
    return {
        "as": "time",
        "least": 0,
        "most": DAY_SECONDS * PER_SECOND[written] - 1,
        "times": times,
        "digits": DIGITS[unit],
    }


def _timestamp(writer: Schema, reader: Schema) -> dict[str, Any]:
    """Convert to microseconds: through the unit of the reader, if that is the coarsest."""
    written = PER_SECOND[_unit(writer if writer.logical else reader)]
    kept = min(written, PER_SECOND[_unit(reader)], PER_SECOND["micros"])
    return {
        "as": "timestamp",
        "least": max(LEAST, FIRST_DAY * DAY_SECONDS * written),
        "most": min(MOST, (LAST_DAY + 1) * DAY_SECONDS * written - 1),
        "over": written // kept,
        "times": PER_SECOND["micros"] // kept,
    }


def _kind(schema: Schema) -> str:
    """The logical type without its unit, or the type."""
    logical = schema.logical or schema.type
    return next((kind for kind in ("timestamp", "time") if kind in logical), logical)


def _family(schema: Schema) -> tuple[str, int]:
    return _kind(schema), schema.scale


def _unit(schema: Schema) -> str:
    assert schema.logical is not None
    return schema.logical.rpartition("-")[2]


def _described(schema: Schema) -> str:
    if schema.logical == "decimal":
        return f"decimal({schema.precision}, {schema.scale})"
    return schema.logical or schema.label
