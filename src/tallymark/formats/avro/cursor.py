"""Positions in many records at once: reads the same element of all of them with a few operations on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing import Self

Rows = npt.NDArray[np.intp]
Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Result = TypeVar("Result")

BEFORE, AFTER = 16, 24
"""Bytes that surround the records: reading words beyond a record must not leave the buffer."""
MORE_BITS = np.uint64(0x8080808080808080)
LOW_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)
ONES = np.uint64(0x0101010101010101)
GROUPS = (
    # The 7-bit groups of a number become pairs, then fours, then one number.
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)
ONE, SEVEN, LAST_BYTE = np.uint64(1), np.uint64(7), np.uint64(56)
FEW_ROWS, FIRST_ROUNDS = 32, 32
"""After the first rounds, arrays of so few records are read one by one: a round would cost more."""


def padded(content: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    found = np.zeros(BEFORE + len(content) + AFTER, np.uint8)
    found[BEFORE : BEFORE + len(content)] = content
    return found


class Cursor:
    """``at`` and ``end`` are positions in ``content``, one for each record.

    ``refused`` are records that are dead, or that have to be decoded one by one. They stay at their ends, where
    reading returns values without meaning.
    """

    __slots__ = ("at", "content", "end", "refused", "words")

    def __init__(self, content: npt.NDArray[np.uint8], words: Words, at: Longs, end: Longs, refused: Mask) -> None:
        self.content, self.words = content, words
        self.at, self.end, self.refused = at, end, refused

    @classmethod
    def of(cls, content: npt.NDArray[np.uint8], starts: Longs, ends: Longs) -> Self:
        """``content`` is padded, and so are the positions."""
        words: Words = np.ndarray((len(content) - 7,), "<u8", content.data, strides=(1,))
        return cls(content, words, starts.copy(), ends, np.zeros(len(starts), bool))

    def __len__(self) -> int:
        return len(self.at)

    def pick(self, rows: Rows) -> Cursor:
        """A cursor of some of the records."""
        return Cursor(self.content, self.words, self.at[rows], self.end[rows], self.refused[rows])

    def put(self, rows: Rows, part: Cursor) -> None:
        """Move to where a cursor of some of the records is."""
        self.at[rows] = part.at
        self.refused[rows] = part.refused

    def refuse(self, which: Mask) -> None:
        if which.any():
            self.refused |= which
            self.at = np.where(which, self.end, self.at)

    def fixed(self, size: int) -> Longs:
        """Move past so many bytes. Returns where they start."""
        starts = self.at
        self.at = starts + size
        self.refuse(self.at > self.end)
        return starts

    def spans(self, sizes: Longs) -> tuple[Longs, Longs]:
        """Move past so many bytes. Returns where they start and end; refused records have none."""
        bad = (sizes < 0) | (sizes > self.end - self.at)
        if bad.any():
            sizes = np.where(bad, 0, sizes)
            self.refuse(bad)
        starts = self.at
        self.at = starts + sizes
        return starts, self.at

    def bytes(self) -> tuple[Longs, Longs]:
        """Read a length, and move past so many bytes."""
        return self.spans(self.longs())

    def longs(self) -> Longs:
        """Read numbers of variable length."""
        first = self.content.take(self.at)
        if not len(first) or first.max() < 128:
            self.at = self.at + 1
            found = first.astype(np.int64)
            found = (found >> 1) ^ -(found & 1)
        else:
            number = self.numbers()
            found = (number >> ONE).view(np.int64) ^ -(number & ONE).view(np.int64)
        self.refuse(self.at > self.end)
        return found

    def numbers(self) -> Words:
        """Read numbers of variable length as they are written, without their sign."""
        word = self.words[self.at]
        stops = ~word & MORE_BITS
        # All bits before the first byte that does not announce another; all bits if there is none.
        before = (stops & (~stops + ONE)) - ONE
        number = word & before & LOW_BITS
        for low, high, shift in GROUPS:
            number = (number & low) | ((number & high) >> shift)
        sizes = ((before & ONES) * ONES) >> LAST_BYTE
        long = np.flatnonzero(stops == 0)
        self.at = self.at + sizes.astype(np.int64)
        if len(long):
            self._last_bytes(long, number)
        return np.asarray(number)

    def _last_bytes(self, rows: Rows, number: Words) -> None:
        """Add the ninth and the tenth byte of numbers."""
        at = self.at[rows]
        # Beyond a record's end, any bytes do: it will be refused.
        ninth, tenth = (self.content.take(at + n).astype(np.uint64) for n in (0, 1))
        is_ten = ninth > 127
        number[rows] |= ((ninth & np.uint64(127)) << LAST_BYTE) | np.where(is_ten, tenth << np.uint64(63), np.uint64(0))
        self.at[rows] += np.where(is_ten, 2, 1)
        too_long = np.zeros(len(self), bool)
        too_long[rows] = is_ten & (tenth > 1)
        self.refuse(too_long)

    def blocks(self) -> Longs:
        """Read the number of items of the next block; 0 for refused records."""
        counts = self.longs()
        sized = np.flatnonzero(counts < 0)
        if len(sized):
            counts[sized] = -counts[sized]
            part = self.pick(sized)
            part.longs()
            self.put(sized, part)
        self.refuse((counts < 0) | (counts > self.end - self.at))
        counts[self.refused] = 0
        return counts

    def items(self, read: Callable[[Cursor], Result]) -> tuple[list[Rows], list[Result]]:
        """Read the items of an array: in each round the next item of all records that have one.

        Returns for each round the records and what ``read`` returned for them.
        """
        left = np.zeros(len(self), np.int64)
        rows = waiting = np.flatnonzero(~self.refused)
        owners: list[Rows] = []
        results: list[Result] = []
        while True:
            if len(waiting):
                part = self.pick(waiting)
                left[waiting] = part.blocks()
                self.put(waiting, part)
                rows = rows[left[rows] > 0]
            rows = self.going_on(rows, len(owners))
            if not len(rows):
                return owners, results
            part = self.pick(rows)
            results.append(read(part))
            owners.append(rows)
            self.put(rows, part)
            rows = rows[~part.refused]
            left[rows] -= 1
            waiting = rows[left[rows] == 0]

    def going_on(self, rows: Rows, rounds: int) -> Rows:
        """Return the records that are read in another round. A few that need many more than others are refused."""
        if rounds < FIRST_ROUNDS or len(rows) >= FEW_ROWS:
            return rows
        which = np.zeros(len(self), bool)
        which[rows] = True
        self.refuse(which)
        return rows[:0]
