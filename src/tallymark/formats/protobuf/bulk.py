"""Decodes many Protobuf records at once: finds the values of each field in all records, and makes its column.

Records that are dead, and a few others, are refused. ``values.py`` decides about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallymark.formats.protobuf import values
from tallymark.formats.protobuf.cursor import Cursor, Longs, Mask, Rows, Words
from tallymark.formats.protobuf.packed import unpacked
from tallymark.formats.protobuf.plain import Plain, array
from tallymark.formats.protobuf.program import LENGTH, Program, Step, wire_of
from tallymark.formats.protobuf.walk import Visit, Walk, seen_in
from tallymark.formats.types import in_field

NO_ROW = -1


class BulkDecoder:
    """Decodes records by a program."""

    def __init__(self, program: Program) -> None:
        self._root = _spans(program.root, program.type)

    def __call__(self, content: Any, starts: Longs, ends: Longs) -> tuple[pa.Array, Mask]:
        """Return the values and which records are refused. The content is padded."""
        cursor = Cursor.of(content, starts, ends)
        return self._root.read(cursor), cursor.refused


class _Spans(Protocol):
    """Decodes values that are spans of bytes."""

    def read(self, cursor: Cursor) -> pa.Array:
        """Decode what the cursor has from its positions to its ends."""


class _Branch:
    """One of several types, each in a field of its own."""

    def __init__(self, step: Step, kind: pa.StructType) -> None:
        self._to, self._kind = step["to"], kind
        self._of = _spans(step["step"], kind.field(self._to).type)

    def read(self, cursor: Cursor) -> pa.Array:
        return in_field(self._of.read(cursor), self._to, self._kind)


class _Column(Protocol):
    """Makes the column of a field from what was found of it."""

    def column(self, cursor: Cursor, visits: Sequence[Visit]) -> pa.Array: ...


class _Message:
    def __init__(self, step: Step, kind: pa.DataType) -> None:
        self._step = step
        self._walk = Walk(step)
        self._form = step["as"]
        self._kind = kind
        self._kinds = _kinds(step, kind)
        self._columns: dict[int, _Column] = {}
        defaults = {default["to"]: default for default in step["defaults"]}
        for part in step["fields"]:
            if part["to"] >= 0:
                default = defaults.get(part["to"])
                value = None if default is None else values.default_of(step, default)
                self._columns[part["to"]] = _column(part, self._kinds[part["to"]], default, value)
        empty: dict[int, Any] = {to: [] for to in (*step["lists"], *step["maps"])}
        empty |= {to: values.default_of(step, default) for to, default in defaults.items() if to not in self._columns}
        self._unwritten = {
            to: pa.array([value], self._kinds[to]) for to, value in empty.items() if to not in self._columns
        }

    def read(self, cursor: Cursor) -> pa.Array:
        count = len(cursor)
        found = self._walk(cursor)
        columns: list[pa.Array] = []
        for to, kind in enumerate(self._kinds):
            if to in self._columns:
                columns.append(self._columns[to].column(cursor, found[to]))
            elif to in self._unwritten:
                columns.append(self._unwritten[to].take(pa.array(np.zeros(count, np.int64))))
            else:
                columns.append(pa.nulls(count, kind))
        return self._formed(cursor, columns)

    def _formed(self, cursor: Cursor, columns: list[pa.Array]) -> pa.Array:
        if self._form == "value":
            return columns[0]
        if self._form == "paths":
            return pc.binary_join(columns[0], ",")
        if self._form == "timestamp":
            return _timestamps(cursor, *(column.to_numpy(zero_copy_only=False) for column in columns))
        return pa.StructArray.from_arrays(columns, fields=list(self._kind))


def _kinds(step: Step, kind: pa.DataType) -> list[pa.DataType]:
    """The types of the fields of a message."""
    if step["as"] == "timestamp":
        return [pa.int64(), pa.int32()]
    if step["as"] == "value":
        return [kind]
    return [pa.list_(pa.field("element", pa.string()))] if step["as"] == "paths" else [field.type for field in kind]


def _timestamps(cursor: Cursor, seconds: Longs, nanos: Longs) -> pa.Array:
    bad = (seconds < values.FIRST_SECOND) | (seconds > values.LAST_SECOND) | (nanos < 0) | (nanos >= values.NANOS)
    if bad.any():
        cursor.refuse(bad)
        seconds = np.where(bad, 0, seconds)
    return array(seconds * values.MICROS + nanos // 1000, pa.timestamp("us", tz="UTC"), None)


class _Json:
    """Texts of JSON, each of which is made by itself."""

    def __init__(self, step: Step) -> None:
        self._text = values.decoder(step)

    def read(self, cursor: Cursor) -> pa.Array:
        texts = []
        for row, (start, end) in enumerate(zip(cursor.at.tolist(), cursor.end.tolist(), strict=True)):
            try:
                texts.append(self._text(cursor.content[start:end].tobytes()))
            except values.Dead:
                cursor.refused[row] = True
                texts.append("")
        return pa.array(texts, pa.string())


def _spans(step: Step, kind: pa.DataType) -> _Spans:
    if step["read"] == "branch":
        return _Branch(step, kind)
    return _Json(step) if step["read"] == "json" else _Message(step, kind)


def _column(part: Step, kind: pa.DataType, default: Step | None, value: Any) -> _Column:
    step = part["step"]
    if step["read"] == "map":
        return _Map(_Message(step["entry"], pa.struct([("key", pa.string()), ("value", kind.item_type)])), kind)
    if part["many"]:
        return _Array(step, kind)
    if step["read"] in ("message", "json"):
        return _Inner(_spans(step, kind), kind, default)
    return _Single(step, kind, default, value)


class _Single:
    """A field with a number, a text or bytes. Of several values the last one counts."""

    def __init__(self, step: Step, kind: pa.DataType, default: Step | None, value: Any) -> None:
        self._plain = Plain(step, kind)
        self._is_content = wire_of(step) == LENGTH
        # What is not found is 0, or a text without letters.
        self._is_zero = default is not None and not any(bytes.fromhex(default["bytes"]))
        self._default = None if default is None or self._is_zero else pa.scalar(value, kind)

    def column(self, cursor: Cursor, visits: Sequence[Visit]) -> pa.Array:
        count = len(cursor)
        _refuse_packed(cursor, visits)
        whole = len(visits) == 1 and visits[0].rows is None and not visits[0].is_packed
        seen = None if whole or self._is_zero else seen_in(visits, count)
        if self._is_content:
            starts, ends = (_placed(visits, name, cursor.end, whole) for name in ("starts", "ends"))
            found, bad = self._plain.contents(cursor, starts, ends, seen)
        else:
            raw = _placed(visits, "raw", np.zeros(count, np.uint64), whole)
            found, bad = self._plain.numbers(raw, seen)
        if bad is not None:
            cursor.refuse(bad if seen is None else bad & seen)
        return found if self._default is None or seen is None else pc.if_else(pa.array(seen), found, self._default)


def _placed(visits: Sequence[Visit], name: str, otherwise: Any, whole: bool) -> Any:
    """What was found in each message. Spans without bytes are at the end of the message, so that all are in order."""
    if whole:
        return getattr(visits[0], name)
    found = otherwise.copy()
    for visit in visits:
        if not visit.is_packed:
            found[slice(None) if visit.rows is None else visit.rows] = getattr(visit, name)
    return found


def _refuse_packed(cursor: Cursor, visits: Sequence[Visit]) -> None:
    """Refuse messages with several values for one."""
    for visit in visits:
        if visit.is_packed:
            cursor.refuse_rows(np.arange(len(cursor)) if visit.rows is None else visit.rows)


class _Inner:
    """A field with a message."""

    def __init__(self, inner: _Spans, kind: pa.DataType, default: Step | None) -> None:
        self._inner, self._kind, self._default = inner, kind, default

    def column(self, cursor: Cursor, visits: Sequence[Visit]) -> pa.Array:
        count = len(cursor)
        whole = len(visits) == 1 and visits[0].rows is None
        starts, ends = (_placed(visits, name, cursor.end, whole) for name in ("starts", "ends"))
        self._refuse_repeated(cursor, visits)
        if whole or self._default is not None:
            # A message that was not found has no bytes.
            return _read(self._inner, cursor, None, starts, ends)
        rows = np.flatnonzero(seen_in(visits, count))
        if not len(rows):
            return pa.nulls(count, self._kind)
        found = _read(self._inner, cursor, rows, starts[rows], ends[rows])
        places = np.full(count, NO_ROW, np.int64)
        places[rows] = np.arange(len(rows))
        return found.take(pa.array(places, mask=places == NO_ROW))

    @staticmethod
    def _refuse_repeated(cursor: Cursor, visits: Sequence[Visit]) -> None:
        """Refuse messages in which the field has several pieces."""
        if len(visits) > 1:
            times = np.zeros(len(cursor), np.int64)
            for visit in visits:
                times[slice(None) if visit.rows is None else visit.rows] += 1
            cursor.refuse(times > 1)


def _read(inner: _Spans, cursor: Cursor, rows: Rows | None, starts: Longs, ends: Longs) -> pa.Array:
    """Decode spans, which are in these messages; refuses the messages of those that are refused."""
    part = cursor.inner(starts, ends)
    found = inner.read(part)
    if part.refused.any():
        if rows is None:
            cursor.refuse(part.refused)
        else:
            cursor.refuse_rows(rows[part.refused])
    return found


class _Array:
    def __init__(self, step: Step, kind: pa.ListType) -> None:
        self._kind = kind
        self._wire = wire_of(step)
        self._read = step["read"]
        self._inner = _spans(step, kind.value_type) if step["read"] in ("message", "json") else None
        self._plain = Plain(step, kind.value_type) if self._inner is None else None

    def column(self, cursor: Cursor, visits: Sequence[Visit]) -> pa.Array:
        if self._wire == LENGTH:
            rows, offsets, starts, ends = _regrouped(visits, ("starts", "ends"), len(cursor))
            items = self._contents(cursor, rows, starts, ends)
        else:
            singles = [unpacked(cursor, visit, self._wire) if visit.is_packed else visit for visit in visits]
            rows, offsets, raw = _regrouped(singles, ("raw",), len(cursor))
            assert self._plain is not None
            items, bad = self._plain.numbers(raw.view(np.uint64), None)
            _refuse_owners(cursor, rows, bad)
        return pa.ListArray.from_arrays(pa.array(offsets), items, type=self._kind)

    def _contents(self, cursor: Cursor, rows: Rows, starts: Longs, ends: Longs) -> pa.Array:
        if self._inner is not None:
            return _read(self._inner, cursor, rows, starts, ends)
        assert self._plain is not None
        items, bad = self._plain.contents(cursor, starts, ends, None)
        _refuse_owners(cursor, rows, bad)
        return items


def _refuse_owners(cursor: Cursor, rows: Rows, bad: Mask | None) -> None:
    if bad is not None and bad.any():
        cursor.refuse_rows(rows[bad])


class _Map:
    def __init__(self, entry: _Message, kind: pa.MapType) -> None:
        self._entry, self._kind = entry, kind

    def column(self, cursor: Cursor, visits: Sequence[Visit]) -> pa.Array:
        rows, offsets, starts, ends = _regrouped(visits, ("starts", "ends"), len(cursor))
        entries = _read(self._entry, cursor, rows, starts, ends)
        keys, items = entries.flatten()
        self._refuse_repeated(cursor, rows, keys)
        return pa.MapArray.from_arrays(pa.array(offsets), keys, items, type=self._kind)

    @staticmethod
    def _refuse_repeated(cursor: Cursor, rows: Rows, keys: pa.Array) -> None:
        """Refuse records that have a key twice: only the last one counts."""
        encoded = keys.dictionary_encode()
        pairs = rows * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
        if pc.count_distinct(pa.array(pairs)).as_py() < len(pairs):
            found, counts = np.unique(pairs, return_counts=True)
            cursor.refuse_rows(found[counts > 1] // len(encoded.dictionary))


def _regrouped(visits: Sequence[Visit], names: Sequence[str], count: int) -> Any:
    """Return the messages of all values in their order, the offsets of arrays, and what was found of the values."""
    everywhere = np.arange(count)
    owners = [everywhere if visit.rows is None else visit.rows for visit in visits]
    rows = np.concatenate(owners) if owners else np.zeros(0, np.intp)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
    parts: list[Longs | Words] = []
    for name in names:
        found = [getattr(visit, name) for visit in visits]
        parts.append(np.concatenate(found) if found else np.zeros(0, np.int64))
    if len(visits) > 1:
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        parts = [part[order] for part in parts]
    return rows, offsets, *parts
