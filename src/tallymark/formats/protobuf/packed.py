"""Reads packed arrays of numbers in many messages at once."""

from __future__ import annotations

import numpy as np

from tallymark.formats.protobuf.cursor import SIZES, Cursor, Longs, Rows, Words
from tallymark.formats.protobuf.program import VARINT
from tallymark.formats.protobuf.walk import Visit

LAST = 128
"""Bytes below this end a number."""


def unpacked(cursor: Cursor, visit: Visit, wire: int) -> Visit:
    """Return the numbers of packed arrays, each with its message. Messages with a broken array are refused."""
    assert visit.starts is not None
    assert visit.ends is not None
    rows: Rows = np.arange(len(cursor)) if visit.rows is None else visit.rows
    starts, sizes = visit.starts, visit.ends - visit.starts
    is_open = (sizes > 0) & (cursor.content.take(visit.ends - 1) >= LAST)
    broken = is_open if wire == VARINT else sizes % SIZES[wire] != 0
    if broken.any():
        cursor.refuse_rows(rows[broken])
        rows, starts, sizes = rows[~broken], starts[~broken], sizes[~broken]
    places, raw = _varints(cursor, rows, starts, sizes) if wire == VARINT else _fixed(cursor, starts, sizes, wire)
    return Visit(rows[places], raw, None, None)


def _fixed(cursor: Cursor, starts: Longs, sizes: Longs, wire: int) -> tuple[Rows, Words]:
    counts = sizes // SIZES[wire]
    places = np.repeat(np.arange(len(starts)), counts)
    return places, cursor.words[starts[places] + _within(counts) * SIZES[wire]]


def _varints(cursor: Cursor, rows: Rows, starts: Longs, sizes: Longs) -> tuple[Rows, Words]:
    places = np.repeat(np.arange(len(starts)), sizes)
    at = starts[places] + _within(sizes)
    found = cursor.content.take(at)
    if not len(found) or found.max() < LAST:
        return places, found.astype(np.uint64)
    is_last = found < LAST
    is_first = np.ones(len(found), bool)
    is_first[1:] = is_last[:-1]
    numbers = cursor.inner(at[is_first], at[is_last] + 1)
    raw = numbers.varints()
    places = places[is_first]
    if numbers.refused.any():
        cursor.refuse_rows(rows[places[numbers.refused]])
    return places, raw


def _within(counts: Longs) -> Longs:
    """The numbers from 0 to each count."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
