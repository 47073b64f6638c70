"""Decodes many Avro records at once: walks the program once, and reads each field of all records together.

Records that are dead, and a few others, are refused. ``values.py`` decides about them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tallymark.formats.avro import values
from tallymark.formats.avro.cursor import Cursor, Longs, Mask, Rows
from tallymark.formats.avro.lists import FixedArray, List, Map, Reads
from tallymark.formats.avro.plain import Plain
from tallymark.formats.avro.program import Program, Skips, Step, width
from tallymark.formats.types import in_field

Skip = Callable[[Cursor], None]
Parts = list[tuple[Rows, pa.Array]]
"""Some rows of a column."""


class BulkDecoder:
    """Decodes records by a program."""

    def __init__(self, program: Program) -> None:
        self._root = _Steps(program.skips).read(program.root, program.type)

    def __call__(self, content: Any, starts: Longs, ends: Longs) -> tuple[pa.Array, Mask]:
        """Return the values and which records are refused. The content is padded; the records in it are in order."""
        cursor = Cursor.of(content, starts, ends)
        found = self._root.read(cursor)
        return found, cursor.refused | (cursor.at != cursor.end)


class _Steps:
    """Makes the objects for steps."""

    def __init__(self, skips: Skips) -> None:
        self._skips = skips

    def read(self, step: Step, kind: pa.DataType) -> Reads:
        if step["read"] == "record":
            return _Record(step, kind, self)
        if step["read"] == "array":
            items, size = self.read(step["items"], kind.value_type), width(step["items"])
            return List(items, kind) if size is None else FixedArray(items, size, kind)
        if step["read"] == "map":
            return Map(self.read(step["values"], kind.item_type), kind)
        if step["read"] == "branch":
            return _Branch(step, kind, self)
        if step["read"] == "union":
            return _WideUnion(step, kind, self) if step["width"] else _Union(step, kind, self)
        return Plain(step, kind)

    def skip(self, step: Step) -> Skip:
        kind = step["skip"]
        if kind == "varint":
            return _skip_longs
        if kind == "bytes":
            return _skip_bytes
        if kind == "fixed":
            size = step["size"]
            return lambda cursor: _skip_fixed(cursor, size)
        if kind == "record":
            return _in_turn([self.skip(part) for part in self._skips[step["name"]]])
        if kind == "union":
            branches = [self.skip(branch) for branch in step["branches"]]
            return lambda cursor: _skip_union(cursor, branches)
        if kind == "map":
            return _skipping_items(_in_turn([_skip_bytes, self.skip(step["values"])]))
        if step["items"].get("size") == 0:
            return _skip_empty
        return _skipping_items(self.skip(step["items"]))


class _Record:
    def __init__(self, step: Step, kind: pa.StructType, steps: _Steps) -> None:
        self._fields = list(kind)
        self._skips: list[tuple[int, Any]] = []
        self._parts: list[tuple[int, Reads | None, Skip | None]] = []
        for part in step["fields"]:
            to, inner = part["to"], part["step"]
            if to < 0:
                self._parts.append((to, None, steps.skip(inner)))
            else:
                self._parts.append((to, steps.read(inner, kind[to].type), None))
        self._defaults = {default["to"]: _constant(default, kind[default["to"]].type) for default in step["defaults"]}

    def read(self, cursor: Cursor) -> pa.Array:
        count = len(cursor)
        found: list[pa.Array | None] = [None] * len(self._fields)
        for to, read, skip in self._parts:
            if read is not None:
                found[to] = read.read(cursor)
            elif skip is not None:
                skip(cursor)
        for at, column in enumerate(found):
            if column is None:
                found[at] = self._unwritten(at, count)
        return pa.StructArray.from_arrays(found, fields=self._fields)

    def _unwritten(self, at: int, count: int) -> pa.Array:
        if at in self._defaults:
            return self._defaults[at].take(pa.array(np.zeros(count, np.int64)))
        return pa.nulls(count, self._fields[at].type)


def _constant(default: Step, kind: pa.DataType) -> pa.Array:
    return pa.array([values.decoder(default["step"], {})(bytes.fromhex(default["bytes"]))], kind)


class _Union:
    """The branches have the same type, or are NULL."""

    def __init__(self, step: Step, kind: pa.DataType, steps: _Steps) -> None:
        self._kind = kind
        self._branches = [steps.read(branch, kind) for branch in step["branches"]]
        self._is_null = [branch["read"] == "null" for branch in step["branches"]]

    def read(self, cursor: Cursor) -> pa.Array:
        parts: Parts = []
        for branch, rows, part in _branches(cursor, len(self._branches)):
            if not self._is_null[branch]:
                parts.append((rows, self._branches[branch].read(part)))
                cursor.put(rows, part)
        return _merged(parts, len(cursor), self._kind)


class _WideUnion:
    """A struct with a field for each branch of the reader."""

    def __init__(self, step: Step, kind: pa.StructType, steps: _Steps) -> None:
        self._fields = list(kind)
        self._branches: list[tuple[int, Reads] | None] = []
        for branch in step["branches"]:
            if branch["read"] == "branch":
                self._branches.append((branch["to"], steps.read(branch["step"], kind[branch["to"]].type)))
            else:
                self._branches.append(None if branch["read"] == "null" else (0, steps.read(branch, kind[0].type)))

    def read(self, cursor: Cursor) -> pa.Array:
        columns: list[Parts] = [[] for _ in self._fields]
        is_null = np.ones(len(cursor), bool)
        for at, rows, part in _branches(cursor, len(self._branches)):
            branch = self._branches[at]
            if branch is not None:
                to, inner = branch
                columns[to].append((rows, inner.read(part)))
                is_null[rows] = False
                cursor.put(rows, part)
        found = [_merged(parts, len(cursor), field.type) for parts, field in zip(columns, self._fields, strict=True)]
        return pa.StructArray.from_arrays(found, fields=self._fields, mask=pa.array(is_null))


class _Branch:
    """One branch of a union of the reader, of what the writer had no union for."""

    def __init__(self, step: Step, kind: pa.StructType, steps: _Steps) -> None:
        self._to, self._kind = step["to"], kind
        self._part = steps.read(step["step"], kind[self._to].type)

    def read(self, cursor: Cursor) -> pa.Array:
        return in_field(self._part.read(cursor), self._to, self._kind)


def _branches(cursor: Cursor, count: int) -> Any:
    """Read the branches of unions. Yields each that occurs, with its records and a cursor of them."""
    index = cursor.longs()
    cursor.refuse((index < 0) | (index >= count))
    index[cursor.refused] = -1
    for branch in range(count):
        rows = np.flatnonzero(index == branch)
        if len(rows):
            yield branch, rows, cursor.pick(rows)


def _merged(parts: Parts, count: int, kind: pa.DataType) -> pa.Array:
    """A column with these rows; all others are NULL."""
    if not parts:
        return pa.nulls(count, kind)
    if len(parts) == 1 and len(parts[0][1]) == count:
        return parts[0][1]
    places, missing = np.zeros(count, np.int64), np.ones(count, bool)
    done = 0
    for rows, _ in parts:
        places[rows] = np.arange(done, done + len(rows))
        missing[rows] = False
        done += len(rows)
    whole = parts[0][1] if len(parts) == 1 else pa.concat_arrays([column for _, column in parts])
    return whole.take(pa.array(places, mask=missing))


def _skip_longs(cursor: Cursor) -> None:
    cursor.longs()


def _skip_bytes(cursor: Cursor) -> None:
    cursor.bytes()


def _skip_fixed(cursor: Cursor, size: int) -> None:
    if size:
        cursor.fixed(size)


def _in_turn(skips: Sequence[Skip]) -> Skip:
    def skip(cursor: Cursor) -> None:
        for each in skips:
            each(cursor)

    return skip


def _skip_union(cursor: Cursor, branches: Sequence[Skip]) -> None:
    for branch, rows, part in _branches(cursor, len(branches)):
        branches[branch](part)
        cursor.put(rows, part)


def _skipping_items(skip: Skip) -> Skip:
    def skip_items(cursor: Cursor) -> None:
        cursor.items(skip)

    return skip_items


def _skip_empty(cursor: Cursor) -> None:
    """Skip arrays whose items take no bytes: only their blocks have to be found."""
    rows, rounds = np.flatnonzero(~cursor.refused), 0
    while len(rows):
        part = cursor.pick(rows)
        counts = part.longs()
        sized = np.flatnonzero(counts < 0)
        if len(sized):
            inner = part.pick(sized)
            inner.longs()
            part.put(sized, inner)
        cursor.put(rows, part)
        rounds += 1
        rows = cursor.going_on(rows[(counts != 0) & ~part.refused], rounds)
