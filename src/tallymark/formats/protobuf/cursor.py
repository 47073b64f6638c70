"""Positions in many Protobuf messages at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tallymark.formats.avro.cursor import Cursor as Positions
from tallymark.formats.avro.cursor import Longs, Mask, Rows, Words
from tallymark.formats.protobuf.body import MOST_TAG
from tallymark.formats.protobuf.program import FIXED32, FIXED64, LENGTH, VARINT

__all__ = ["Cursor", "Longs", "Mask", "Rows", "Words"]

FIRST_TAG = 8
"""The least tag: a field with the number 1."""
SIZES = {FIXED64: 8, FIXED32: 4}
BYTE_BITS = 0x7F


class Cursor(Positions):
    """Every method reads the same of all messages. Refused messages stay at their ends."""

    __slots__ = ()

    def inner(self, starts: Longs, ends: Longs) -> Cursor:
        """A cursor of messages in these spans."""
        return Cursor(self.content, self.words, starts.copy(), ends, np.zeros(len(starts), bool))

    def part(self, rows: Rows) -> Cursor:
        """A cursor of some of the messages."""
        return Cursor(self.content, self.words, self.at[rows], self.end[rows], self.refused[rows])

    def refuse_rows(self, rows: Rows) -> None:
        if len(rows):
            which = np.zeros(len(self), bool)
            which[rows] = True
            self.refuse(which)

    def varints(self) -> Words:
        """Read numbers of variable length."""
        first = self.content.take(self.at)
        if not len(first) or first.max() <= BYTE_BITS:
            self.at = self.at + 1
            found = first.astype(np.uint64)
        else:
            found = self.numbers()
        self.refuse(self.at > self.end)
        return found

    def contents(self) -> tuple[Longs, Longs]:
        """Read a length, and move past so many bytes. Returns where they start and end."""
        starts, ends = self.spans(self.varints().view(np.int64))
        # A copy, because ``put`` changes positions where they are.
        return starts, ends.copy()

    def tags(self) -> Longs:
        """Read the tags of the next fields; 0 for messages that have no more, and for refused ones."""
        more = self.at < self.end
        if more.all():
            return self._tags()
        found = np.zeros(len(self), np.int64)
        rows = np.flatnonzero(more)
        if len(rows):
            part = self.part(rows)
            found[rows] = part._tags()
            self.put(rows, part)
        return found

    def _tags(self) -> Longs:
        found = self.varints().view(np.int64)
        bad = (found < FIRST_TAG) | (found > MOST_TAG)
        if bad.any():
            self.refuse(bad)
        if self.refused.any():
            found = np.where(self.refused, 0, found)
        return found

    def raw(self, wire: int) -> Words:
        """Read a number of this wire type; only the bytes that it has are meant."""
        return self.varints() if wire == VARINT else self.words[self.fixed(SIZES[wire])]

    def skip(self, wires: npt.NDArray[np.int64]) -> None:
        """Move past values of these wire types. Groups are refused."""
        if not len(wires) or (wires == wires[0]).all():
            self._skip(int(wires[0]) if len(wires) else VARINT)
            return
        for wire in np.unique(wires).tolist():
            rows = np.flatnonzero(wires == wire)
            part = self.part(rows)
            part._skip(wire)
            self.put(rows, part)

    def _skip(self, wire: int) -> None:
        if wire == VARINT:
            self.varints()
        elif wire == LENGTH:
            self.contents()
        elif wire in SIZES:
            self.fixed(SIZES[wire])
        else:
            self.refuse(np.ones(len(self), bool))
