"""Programs that decode Avro: a tree of steps, plain JSON, which ``values.py``, ``bulk.py`` and Java interpret.

A step has either ``read`` or ``skip``, the Avro type that was written. A step that reads returns the value of a column:

    null
    boolean
    int, long           as: int, long, float, double, or
                            date, within ``least`` and ``most``
                            time, within them, ``times`` a factor, as text with so many ``digits`` of the second
                            timestamp, within them, floored to a multiple of ``over``, ``times`` a factor
    float, double       as: float, double
    bytes               as: bytes, string, uuid, instant-text (a timestamp), or decimal with ``precision`` and ``scale``
    fixed, size         as: bytes, uuid, duration, decimal
    enum, symbols       the text for each index, null if there is none; then ``written`` has what was written
    array, items        ``empty`` if items take no bytes
    map, values
    record, fields      in the order of the bytes: ``to`` is the place in a struct of ``width`` fields, -1 to skip it
            defaults    other fields: the result of a step on ``bytes`` in hexadecimal. All others are NULL
    union, branches     a step for each index; if ``width`` is not 0, each of them is branch, null or dead
    branch, step        a struct of ``width`` fields, all of them NULL but the one at ``to``
    dead, why, path     the value can't be read

A step that skips checks only what it needs to find the end:

    varint, bytes, fixed (size), array (items), map (values), union (branches)
    record, name        its fields are a list of steps in ``skips``, by its name, because it may contain itself
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

Step = Mapping[str, Any]
Skips = Mapping[str, Sequence[Step]]

DEEPEST_SKIP = 200
"""Maximum nesting of records in a field that is skipped."""
MOST_EMPTY = 10_000
"""Maximum number of items that take no bytes in one record: a few bytes may otherwise describe billions."""
DEEPEST_BULK = 50
"""Nesting of skipped records beyond which records are decoded one by one, as those that contain themselves."""
MOST_STEPS = 100_000
"""Number of steps beyond which records are decoded one by one, because most steps of a large program are not taken."""


@dataclass(frozen=True, eq=False)
class Program:
    """Decodes what one schema wrote into the column of another."""

    root: Step = field(repr=False)
    skips: Skips = field(repr=False)
    type: pa.DataType
    is_nullable: bool
    """Whether the value of a valid record may be NULL."""

    @cached_property
    def in_bulk(self) -> bool:
        """Whether many records are decoded at once."""
        return _is_in_bulk(self.root, self.skips)

    def as_json(self) -> str:
        return json.dumps({"root": self.root, "skips": self.skips}, separators=(",", ":"))


def width(step: Step) -> int | None:
    """Return the number of bytes of a value if all values have the same."""
    kind = step.get("read", step.get("skip"))
    if kind == "record" and "fields" in step:
        sizes = [width(part["step"]) for part in step["fields"]]
        return None if None in sizes else sum(size for size in sizes if size is not None)
    if kind == "branch":
        return width(step["step"])
    sizes_of = {"boolean": 1, "float": 4, "double": 8, "fixed": step.get("size")}
    return sizes_of.get(kind or "")


def _is_in_bulk(root: Step, skips: Skips) -> bool:
    waiting: list[tuple[Step, frozenset[str]]] = [(root, frozenset())]
    for _ in range(MOST_STEPS):
        if not waiting:
            return True
        step, inside = waiting.pop()
        if step.get("empty"):
            return False
        if step.get("skip") == "record":
            name = step["name"]
            if name in inside or len(inside) >= DEEPEST_BULK:
                return False
            waiting += [(part, inside | {name}) for part in skips[name]]
        waiting += [(part, inside) for part in _parts(step)]
    return False


def _parts(step: Step) -> Iterator[Step]:
    yield from (step[key] for key in ("items", "values", "step") if key in step)
    yield from step.get("branches", ())
    yield from (part["step"] for part in step.get("fields", ()))
