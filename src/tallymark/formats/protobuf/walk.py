"""Finds the values of all fields in many messages at once.

Serializers write fields by number, so one walk over the numbers finds nearly everything: at each field, the messages
whose next tag is the field's move past its value. What is left is in another order, and found by further walks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tallymark.formats.avro.cursor import FEW_ROWS, FIRST_ROUNDS
from tallymark.formats.protobuf.cursor import Cursor, Longs, Mask, Rows, Words
from tallymark.formats.protobuf.program import LENGTH, Step, wire_of

RARE = 8
"""After the first walks, messages that are fewer than this part of all are read one by one."""


@dataclass(frozen=True)
class Visit:
    """Values of one field, one in each of some messages: numbers as they are written, or spans. No rows are all."""

    rows: Rows | None
    raw: Words | None
    starts: Longs | None
    ends: Longs | None
    is_packed: bool = False


class Walk:
    """Walks over the fields of a message type."""

    def __init__(self, step: Step) -> None:
        self._fields = [_Field(at, part) for at, part in enumerate(step["fields"]) if part["to"] >= 0]
        fields = iter(self._fields)
        self._stops: list[_Field | _Skipped] = [
            next(fields) if part["to"] >= 0 else _Skipped(part["number"]) for part in step["fields"]
        ]
        """The fields in the order of their numbers."""
        tags = [tag for field in self._fields for tag in field.tags]
        self._known = np.zeros(max(tags, default=0) + 2, bool)
        self._known[[0, *tags]] = True
        self._numbers = np.array([field.number for field in self._fields], np.int64)
        self._clearing = np.array([part["number"] for part in step["fields"] if part["to"] < 0 and part["clears"]])
        self._oneofs = [(field, field.clears) for field in self._fields if field.clears]

    def __call__(self, cursor: Cursor) -> dict[int, list[Visit]]:
        """Return what was found for each place of the message's fields in the program."""
        found: dict[int, list[Visit]] = {field.to: [] for field in self._fields}
        tags = cursor.tags()
        walks = 0
        while tags.any():
            rows = np.flatnonzero(tags)
            if walks >= FIRST_ROUNDS and len(rows) < max(FEW_ROWS, len(tags) // RARE):
                cursor.refuse_rows(rows)
                break
            for stop in self._stops:
                if isinstance(stop, _Field):
                    tags = self._take(stop, cursor, tags, found[stop.to])
                else:
                    self._skip(cursor, tags, np.flatnonzero(tags >> 3 == stop.number), stop.number)
            self._skip(cursor, tags, self._unknown(tags, np.arange(len(tags))))
            walks += 1
        self._refuse_several_members(cursor, found)
        return found

    @staticmethod
    def _take(field: _Field, cursor: Cursor, tags: Longs, visits: list[Visit]) -> Longs:
        """Read the field in the messages where it is the next one, until it is in none."""
        for tag, is_packed in field.forms:
            which = tags == tag
            if len(which) and which.all():
                visits.append(_visit(None, cursor, field.wire, is_packed))
                tags = cursor.tags()
                which = tags == tag
            rows = np.flatnonzero(which)
            rounds = 0
            while len(rows):
                rounds += 1
                if rounds > FIRST_ROUNDS and len(rows) < FEW_ROWS:
                    cursor.refuse_rows(rows)
                    tags[rows] = 0
                    break
                part = cursor.part(rows)
                visits.append(_visit(rows, part, field.wire, is_packed))
                tags[rows] = part.tags()
                cursor.put(rows, part)
                rows = rows[tags[rows] == tag]
        return tags

    def _skip(self, cursor: Cursor, tags: Longs, rows: Rows, number: int | None = None) -> None:
        """Skip what these messages have next, until it is a field of the reader, or has another number than this."""
        rounds = 0
        while len(rows):
            rounds += 1
            numbers = tags[rows] >> 3
            # A known number with another wire type is an error; a member of a oneof may clear another one.
            refused = np.isin(numbers, self._numbers) | np.isin(numbers, self._clearing)
            if rounds > FIRST_ROUNDS and len(rows) < FEW_ROWS:
                refused[:] = True
            if refused.any():
                cursor.refuse_rows(rows[refused])
                tags[rows[refused]] = 0
                rows = rows[~refused]
            part = cursor.part(rows)
            part.skip(tags[rows] & 7)
            tags[rows] = part.tags()
            cursor.put(rows, part)
            rows = self._unknown(tags, rows) if number is None else rows[tags[rows] >> 3 == number]

    def _unknown(self, tags: Longs, rows: Rows) -> Rows:
        """Those of the messages whose next field is unknown."""
        return rows[~self._known[np.minimum(tags[rows], len(self._known) - 1)]]

    def _refuse_several_members(self, cursor: Cursor, found: dict[int, list[Visit]]) -> None:
        """Refuse messages with several members of a oneof: only the last one counts."""
        for field, others in self._oneofs:
            if found[field.to]:
                own = seen_in(found[field.to], len(cursor))
                for other in others:
                    if other > field.to and found[other]:
                        cursor.refuse(own & seen_in(found[other], len(cursor)))


@dataclass(frozen=True)
class _Skipped:
    """A field that the reader does not have."""

    number: int


class _Field:
    def __init__(self, at: int, part: Step) -> None:
        self.at = at
        self.to: int = part["to"]
        self.number: int = part["number"]
        self.clears: Sequence[int] = part["clears"]
        self.wire = wire_of(part["step"])
        self.forms = [(self.number << 3 | self.wire, False)]
        """The tags of the field, and whether several values follow."""
        if part["packed"]:
            self.forms.insert(0, (self.number << 3 | LENGTH, True))
        self.tags = [tag for tag, _ in self.forms]


def seen_in(visits: Sequence[Visit], count: int) -> Mask:
    """In which messages something was found."""
    found = np.zeros(count, bool)
    for visit in visits:
        found[slice(None) if visit.rows is None else visit.rows] = True
    return found


def _visit(rows: Rows | None, cursor: Cursor, wire: int, is_packed: bool) -> Visit:
    if is_packed or wire == LENGTH:
        starts, ends = cursor.contents()
        return Visit(rows, None, starts, ends, is_packed)
    return Visit(rows, cursor.raw(wire), None, None)
