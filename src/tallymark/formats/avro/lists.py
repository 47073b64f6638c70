"""Decodes arrays and maps of many records at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallymark.formats.avro.cursor import Cursor, Longs, Rows
from tallymark.formats.avro.plain import text


class Reads(Protocol):
    """Reads one step of a program."""

    def read(self, cursor: Cursor) -> pa.Array: ...


class List:
    """An array: each round reads the next item of all records that have one."""

    def __init__(self, items: Reads, kind: pa.ListType) -> None:
        self._items, self._kind = items, kind

    def read(self, cursor: Cursor) -> pa.Array:
        owners, rounds = cursor.items(self._items.read)
        offsets = _offsets(owners, len(cursor))
        items = _in_order(rounds, _order(owners, offsets), self._kind.value_type)
        return pa.ListArray.from_arrays(pa.array(offsets), items, type=self._kind)


class FixedArray:
    """An array whose items have the same number of bytes: the items of all blocks are read together."""

    def __init__(self, items: Reads, size: int, kind: pa.ListType) -> None:
        self._items, self._size, self._kind = items, size, kind

    def read(self, cursor: Cursor) -> pa.Array:
        owners: list[Rows] = []
        positions: list[Longs] = []
        rows = np.flatnonzero(~cursor.refused)
        while len(rows):
            part = cursor.pick(rows)
            counts = part.blocks()
            starts, ends = part.spans(counts * self._size)
            cursor.put(rows, part)
            counts = (ends - starts) // self._size
            owners.append(np.repeat(rows, counts))
            positions.append(np.repeat(starts - self._size * (np.cumsum(counts) - counts), counts))
            positions[-1] += self._size * np.arange(len(positions[-1]))
            rows = cursor.going_on(rows[counts > 0], len(owners))
        return self._items_at(cursor, owners, positions)

    def _items_at(self, cursor: Cursor, owners: Sequence[Rows], positions: Sequence[Longs]) -> pa.Array:
        rows = np.concatenate(owners) if owners else np.zeros(0, np.intp)
        at = np.concatenate(positions) if positions else np.zeros(0, np.int64)
        offsets = _offsets([rows], len(cursor))
        if len(owners) > 2:
            # The last round found no items. If there is more than one with items, a record may have two blocks.
            order = np.argsort(rows, kind="stable")
            rows, at = rows[order], at[order]
        part = Cursor(cursor.content, cursor.words, at, at + self._size, np.zeros(len(at), bool))
        items = self._items.read(part)
        if part.refused.any():
            dead = np.zeros(len(cursor), bool)
            dead[rows[part.refused]] = True
            cursor.refuse(dead)
        return pa.ListArray.from_arrays(pa.array(offsets), items, type=self._kind)


class Map:
    def __init__(self, items: Reads, kind: pa.MapType) -> None:
        self._items, self._kind = items, kind

    def read(self, cursor: Cursor) -> pa.Array:
        owners, rounds = cursor.items(self._pair)
        offsets = _offsets(owners, len(cursor))
        order = _order(owners, offsets)
        keys = _in_order([key for key, _ in rounds], order, pa.string())
        items = _in_order([item for _, item in rounds], order, self._kind.item_type)
        _refuse_repeated(cursor, np.repeat(np.arange(len(cursor)), np.diff(offsets)), keys)
        return pa.MapArray.from_arrays(pa.array(offsets), keys, items, type=self._kind)

    def _pair(self, cursor: Cursor) -> tuple[pa.Array, pa.Array]:
        return text(cursor, *cursor.bytes()), self._items.read(cursor)


def _refuse_repeated(cursor: Cursor, rows: Rows, keys: pa.Array) -> None:
    """Refuse records that have a key twice: only the last one counts."""
    encoded = keys.dictionary_encode()
    pairs = rows * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
    if pc.count_distinct(pa.array(pairs)).as_py() < len(pairs):
        found, counts = np.unique(pairs, return_counts=True)
        repeated = np.zeros(len(cursor), bool)
        repeated[found[counts > 1] // len(encoded.dictionary)] = True
        cursor.refuse(repeated)


def _offsets(owners: Sequence[Rows], count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The offsets of lists, from the rows of all items."""
    sizes = np.zeros(count, np.int64)
    for rows in owners:
        sizes += np.bincount(rows, minlength=count)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _order(owners: Sequence[Rows], offsets: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Longs:
    """Where the items of rounds belong: a record that is in a round was in all before."""
    order = np.empty(offsets[-1], np.int64)
    done = 0
    for number, rows in enumerate(owners):
        order[offsets[rows] + number] = np.arange(done, done + len(rows))
        done += len(rows)
    return order


def _in_order(rounds: Sequence[pa.Array], order: Longs, kind: pa.DataType) -> pa.Array:
    if not rounds:
        return pa.array([], kind)
    return rounds[0] if len(rounds) == 1 else pa.concat_arrays(rounds).take(pa.array(order))
