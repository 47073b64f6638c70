"""Programs that decode Protobuf: a tree of steps, plain JSON, which ``values.py``, ``bulk.py`` and Java interpret.

A step reads one value. ``read`` is how it was written:

    int32, uint32, int64, uint64, sint32, sint64, bool, fixed32, sfixed32, fixed64, sfixed64
            as: int, long, decimal, boolean, text (the digits), truth (true or false, as text), or
                enum with ``symbols``, which maps numbers to names; of other numbers, the digits.
            A number below ``least`` or above ``most`` does not fit; they are missing if every number fits
    float, double       as: float, double
    bytes               as: bytes, string
    message, width      as: struct, or what becomes of a struct:
                            timestamp, of seconds and nanoseconds
                            value, the only field
                            paths, the texts of the only field, joined by commas
            name        the message's, for errors
            fields      by number: ``to`` is the place in a struct of ``width`` fields, -1 to skip the field;
                        ``step`` reads a value; ``many`` if the place holds an array; ``packed`` if several values may
                        be written as one; ``clears`` are the places of the other members of a oneof
            lists, maps     the places of arrays and of maps, which are empty if nothing was written
            defaults    what other places hold if nothing was written: the result of ``step``, or without it of the
                        field's own step, on ``bytes`` in hexadecimal. Still others are NULL
    map, entry          the entry is a message with the key, as text, and the value
    json, of            a Struct, a Value or a ListValue, as its JSON text
    branch, step        only of a whole value, one of several types: a struct of ``width`` fields, all of them NULL but
                        the one at ``to``

Other fields are skipped by their wire types.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

Step = Mapping[str, Any]

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = range(6)
"""The wire types."""
DEEPEST_GROUP = 100
"""Maximum nesting of groups that are skipped."""
DEEPEST_JSON = 50
"""Maximum nesting of the objects and arrays of a Struct, a Value or a ListValue."""
MOST_STEPS = 100_000
"""Number of steps beyond which records are decoded one by one, because most steps of a large program are not taken."""
WIRE = {
    "fixed64": FIXED64,
    "sfixed64": FIXED64,
    "double": FIXED64,
    "fixed32": FIXED32,
    "sfixed32": FIXED32,
    "float": FIXED32,
    "bytes": LENGTH,
    "message": LENGTH,
    "map": LENGTH,
    "json": LENGTH,
}
"""The wire types of steps; all others read a varint."""


@dataclass(frozen=True, eq=False)
class Program:
    """Decodes what one message wrote into the column of another."""

    root: Step
    type: pa.DataType

    @cached_property
    def in_bulk(self) -> bool:
        """Whether many records are decoded at once."""
        waiting = [self.root]
        for _ in range(MOST_STEPS):
            if not waiting:
                return True
            waiting += _parts(waiting.pop())
        return False

    def as_json(self) -> str:
        return json.dumps(self.root, separators=(",", ":"))


def wire_of(step: Step) -> int:
    """The wire type of the values that a step reads."""
    return WIRE.get(step["read"], VARINT)


def _parts(step: Step) -> Iterator[Step]:
    yield from (step[key] for key in ("entry", "step") if key in step)
    for part in (*step.get("fields", ()), *step.get("defaults", ())):
        yield part.get("step", {})
