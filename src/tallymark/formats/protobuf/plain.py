"""Makes Arrow arrays of the numbers, texts and bytes of many records."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tallymark.formats.protobuf.cursor import Cursor, Longs, Mask, Words
from tallymark.formats.protobuf.program import Step

LOW = np.uint64(0xFFFFFFFF)
ONE = np.uint64(1)
MOST_NAMES = 1024
"""Numbers of an enum below this are looked up."""
Numbers = npt.NDArray[np.int64] | npt.NDArray[np.uint64]


class Plain:
    """Makes the column of a step without parts."""

    def __init__(self, step: Step, kind: pa.DataType) -> None:
        self._step, self._kind = step, kind
        if step["as"] == "enum":
            symbols = {int(number): name for number, name in step["symbols"].items()}
            self._symbols = symbols
            known = min(MOST_NAMES, max((number for number in symbols if number < MOST_NAMES), default=-1) + 1)
            self._names = pa.array([symbols.get(number) or str(number) for number in range(known)], pa.string())

    def numbers(self, raw: Words, seen: Mask | None) -> tuple[pa.Array, Mask | None]:
        """Return the column, and which numbers do not fit. It is NULL where nothing was seen."""
        if self._step["read"] in ("float", "double"):
            return self._floats(raw, seen), None
        found = whole(self._step["read"], raw)
        bad = None
        if "least" in self._step:
            bad = found < self._step["least"]
        if "most" in self._step:
            above = found > found.dtype.type(self._step["most"])
            bad = above if bad is None else bad | above
        return self._converted(found, seen), bad

    def contents(self, cursor: Cursor, starts: Longs, ends: Longs, seen: Mask | None) -> tuple[pa.Array, Mask | None]:
        """Return the column, and which texts are not UTF-8."""
        found = binary(cursor, starts, ends, seen)
        if self._step["as"] == "bytes":
            return found, None
        try:
            return found.cast(pa.string()), None
        except pa.ArrowInvalid:
            bad = np.array([not _is_text(content) for content in found.to_pylist()])
        return pc.if_else(pa.array(bad), pa.scalar(b"", pa.binary()), found).cast(pa.string()), bad

    def _floats(self, raw: Words, seen: Mask | None) -> pa.Array:
        if self._step["read"] == "double":
            return array(raw.view(np.float64), self._kind, seen)
        found: npt.NDArray[Any] = (raw & LOW).astype(np.uint32).view(np.float32)
        if self._step["as"] == "double":
            # Some NaNs are signals, of which NumPy would warn.
            with np.errstate(invalid="ignore"):
                found = found.astype(np.float64)
        return array(found, self._kind, seen)

    def _converted(self, found: Numbers, seen: Mask | None) -> pa.Array:
        kind = self._step["as"]
        if kind == "int":
            return array(found.astype(np.int32), self._kind, seen)
        if kind == "long":
            return array(found.astype(np.int64, copy=False), self._kind, seen)
        if kind == "decimal":
            return array(np.stack([found.astype(np.uint64), np.zeros(len(found), np.uint64)], axis=1), self._kind, seen)
        mask = None if seen is None else ~seen
        if kind == "boolean":
            return pa.array(found != 0, mask=mask)
        if kind == "truth":
            return pa.array(["false", "true"]).take(pa.array((found != 0).astype(np.int8), mask=mask))
        if kind == "text":
            return pa.array(found, mask=mask).cast(pa.string())
        return self._enum(found.astype(np.int64, copy=False), mask)

    def _enum(self, found: Longs, mask: Mask | None) -> pa.Array:
        if not len(found) or (found.min() >= 0 and found.max() < len(self._names)):
            return self._names.take(pa.array(found, mask=mask))
        numbers, places = np.unique(found, return_inverse=True)
        names = pa.array([self._symbols.get(number) or str(number) for number in numbers.tolist()], pa.string())
        return names.take(pa.array(places, mask=mask))


def whole(kind: str, raw: Words) -> Numbers:
    """Return the numbers that were written with a type; those of 32 bits lose the bits above."""
    if kind == "bool":
        return np.asarray((raw != 0).astype(np.int64))
    if kind in ("uint64", "fixed64"):
        return raw
    if kind in ("uint32", "fixed32"):
        return (raw & LOW).view(np.int64)
    if kind in ("int32", "sfixed32"):
        return np.asarray((raw & LOW).astype(np.uint32).view(np.int32).astype(np.int64))
    if kind in ("sint32", "sint64"):
        number = raw & LOW if kind == "sint32" else raw
        return np.asarray((number >> ONE).view(np.int64) ^ -(number & ONE).view(np.int64))
    return np.asarray(raw.view(np.int64))


def array(found: npt.NDArray[Any], kind: pa.DataType, seen: Mask | None) -> pa.Array:
    valid = None if seen is None else pa.py_buffer(np.packbits(seen, bitorder="little"))
    return pa.Array.from_buffers(kind, len(found), [valid, pa.py_buffer(np.ascontiguousarray(found))])


def binary(cursor: Cursor, starts: Longs, ends: Longs, seen: Mask | None) -> pa.Array:
    """Copy bytes out of the records. An array with the bytes between them, too, needs no copy; every other is taken."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(cursor.content)]
    whole = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return whole.take(pa.array(np.arange(0, 2 * count, 2), mask=None if seen is None else ~seen))


def _is_text(content: bytes | None) -> bool:
    try:
        (content or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
