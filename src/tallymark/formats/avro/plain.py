"""Decodes numbers, texts and bytes of many records at once into Arrow arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tallymark.formats.avro.cursor import Cursor, Longs, Words
from tallymark.formats.avro.program import Step

UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
INSTANT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z$"
AFTER_MICROS = r"^(.{19}(?:\.[0-9]{1,6})?)[0-9]*Z$"
UUID_GROUPS = ((0, 8), (9, 4), (14, 4), (19, 4), (24, 12))
"""Positions and lengths of the groups of digits in a UUID."""
HEX = np.frombuffer(bytes(range(256)).hex().encode(), np.uint8).reshape(256, 2)
INT_LIMIT = 1 << 31
LONG_DIGITS = 18
"""Digits of which every number fits in 64 bits."""
FLOAT: np.dtype[Any] = np.dtype("<f4")
DOUBLE: np.dtype[Any] = np.dtype("<f8")
MIDNIGHT = b"00:00:00.000000"


class Plain:
    """Decodes a type without parts."""

    def __init__(self, step: Step, kind: pa.DataType) -> None:
        self._kind = kind
        self._step = step
        self._convert = getattr(self, f"_{step['read']}")

    def read(self, cursor: Cursor) -> pa.Array:
        return self._convert(cursor)

    def _null(self, cursor: Cursor) -> pa.Array:
        return pa.nulls(len(cursor), self._kind)

    def _dead(self, cursor: Cursor) -> pa.Array:
        cursor.refuse(np.ones(len(cursor), bool))
        return pa.nulls(len(cursor), self._kind)

    def _boolean(self, cursor: Cursor) -> pa.Array:
        found = cursor.content.take(cursor.fixed(1))
        cursor.refuse(found > 1)
        return pa.array(found == 1)

    def _int(self, cursor: Cursor) -> pa.Array:
        found = cursor.longs()
        cursor.refuse((found < -INT_LIMIT) | (found >= INT_LIMIT))
        return self._number(cursor, found)

    def _long(self, cursor: Cursor) -> pa.Array:
        return self._number(cursor, cursor.longs())

    def _number(self, cursor: Cursor, found: Longs) -> pa.Array:
        kind = self._step["as"]
        if kind in ("date", "time", "timestamp"):
            bad = (found < self._step["least"]) | (found > self._step["most"])
            if bad.any():
                cursor.refuse(bad)
                found = np.where(bad, 0, found)
        if kind == "time":
            return _times(found * self._step["times"], self._step["digits"])
        if kind == "timestamp":
            found = _timestamps(found, self._step["over"], self._step["times"])
        return _numbers(found.astype(_numpy_type(self._kind), copy=False), self._kind)

    def _float(self, cursor: Cursor) -> pa.Array:
        words = cursor.words[cursor.fixed(4)]
        found = words.astype(np.uint32).view(FLOAT)
        # NumPy warns of signaling NaN.
        with np.errstate(invalid="ignore"):
            return _numbers(found.astype(_numpy_type(self._kind), copy=False), self._kind)

    def _double(self, cursor: Cursor) -> pa.Array:
        return _numbers(cursor.words[cursor.fixed(8)].view(DOUBLE), self._kind)

    def _bytes(self, cursor: Cursor) -> pa.Array:
        starts, ends = cursor.bytes()
        return self._content(cursor, starts, ends)

    def _fixed(self, cursor: Cursor) -> pa.Array:
        size, kind = self._step["size"], self._step["as"]
        if kind in ("uuid", "duration"):
            starts = cursor.fixed(size)
            first, second = cursor.words[starts], cursor.words[starts + 8]
            return _uuids(first, second) if kind == "uuid" else _durations(first, second, self._kind)
        starts, ends = cursor.spans(np.full(len(cursor), size, np.int64))
        return self._content(cursor, starts, ends)

    def _content(self, cursor: Cursor, starts: Longs, ends: Longs) -> pa.Array:
        kind = self._step["as"]
        if kind == "decimal":
            return _decimals(cursor, starts, ends, self._kind)
        if kind == "bytes":
            return binary(cursor, starts, ends)
        found = text(cursor, starts, ends)
        if kind == "uuid":
            cursor.refuse(~_flags(pc.match_substring_regex(found, UUID)))
            found = pc.ascii_lower(found)
        return _instants(cursor, found) if kind == "instant-text" else found

    def _enum(self, cursor: Cursor) -> pa.Array:
        symbols: list[str | None] = self._step["symbols"]
        found = cursor.longs()
        unknown = (found < 0) | (found >= len(symbols))
        if unknown.any():
            cursor.refuse(unknown)
            found = np.where(unknown, 0, found)
        if None in symbols:
            cursor.refuse(np.array([symbol is None for symbol in symbols])[found])
        return pa.array(symbols, pa.string()).take(pa.array(found))


def binary(cursor: Cursor, starts: Longs, ends: Longs) -> pa.Array:
    """Copy bytes out of the records. An array with the bytes between them, too, needs no copy; every other is taken."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(cursor.content)]
    return pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers).take(pa.array(np.arange(0, 2 * count, 2)))


def text(cursor: Cursor, starts: Longs, ends: Longs) -> pa.Array:
    """Copy texts out of the records. Records whose text is not UTF-8 are refused."""
    found = binary(cursor, starts, ends)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        bad = np.array([not _is_text(content) for content in found.to_pylist()])
    cursor.refuse(bad)
    return pc.if_else(pa.array(bad), pa.scalar(b"", pa.binary()), found).cast(pa.string())


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _numbers(found: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(found), [None, pa.py_buffer(np.ascontiguousarray(found))])


def _numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    if pa.types.is_floating(kind):
        return FLOAT if kind == pa.float32() else DOUBLE
    return np.dtype("<i4") if kind.bit_width == 32 else np.dtype("<i8")


def _timestamps(found: Longs, over: int, times: int) -> Longs:
    if over > 1:
        found = found // over
    return found * times if times > 1 else found


def _flags(found: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    return np.asarray(found.to_numpy(zero_copy_only=False))


def _texts(letters: npt.NDArray[np.uint8]) -> pa.Array:
    """Texts of one length, from a row for each."""
    count, length = letters.shape
    offsets = np.arange(0, count * length + 1, length, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])


def _times(found: Longs, digits: int) -> pa.Array:
    """Times of day from their milliseconds or microseconds."""
    letters = np.tile(np.frombuffer(MIDNIGHT[: 9 + digits], np.uint8), (len(found), 1))
    rest = found
    for place in range(8 + digits, 8, -1):
        letters[:, place] += (rest % 10).astype(np.uint8)
        rest = rest // 10
    for start, size in ((6, 60), (3, 60), (0, 24)):
        part = (rest % size).astype(np.uint8)
        letters[:, start] += part // 10
        letters[:, start + 1] += part % 10
        rest = rest // size
    return _texts(letters)


def _instants(cursor: Cursor, found: pa.Array) -> pa.Array:
    """Timestamps from text in UTC. Text in other forms is decoded one by one."""
    good = pc.and_(pc.match_substring_regex(found, INSTANT), pc.invert(pc.starts_with(found, "0000")))
    try:
        clocks = pc.if_else(good, pc.replace_substring_regex(found, AFTER_MICROS, r"\1"), "1970-01-01T00:00:00")
        times = clocks.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        good, times = pc.less(pc.binary_length(found), 0), pa.nulls(len(found), pa.timestamp("us"))
    cursor.refuse(~_flags(good))
    return times.cast(pa.timestamp("us", tz="UTC"))


def _uuids(first: Words, second: Words) -> pa.Array:
    content = np.stack([first, second], axis=1).view(np.uint8)
    digits = HEX[content].reshape(len(first), 32)
    letters = np.full((len(first), 36), ord("-"), np.uint8)
    done = 0
    for start, length in UUID_GROUPS:
        letters[:, start : start + length] = digits[:, done : done + length]
        done += length
    return _texts(letters)


def _durations(first: Words, second: Words, kind: pa.StructType) -> pa.Array:
    low = np.uint64(0xFFFFFFFF)
    parts = [first & low, first >> np.uint64(32), second & low]
    return pa.StructArray.from_arrays([_numbers(part.view(np.int64), pa.int64()) for part in parts], fields=list(kind))


def _decimals(cursor: Cursor, starts: Longs, ends: Longs, kind: pa.Decimal128Type) -> pa.Array:
    """Decimals from numbers of up to 16 bytes. Longer ones may have few digits, too, and are decoded one by one."""
    sizes = ends - starts
    cursor.refuse((sizes == 0) | (sizes > 16))
    sizes = np.clip(sizes, 0, 16)
    low = _extended(cursor.words[ends - 8], np.minimum(sizes, 8))
    high = low >> 63
    if len(sizes) and sizes.max() > 8:
        # The bytes before those in ``low``: with fewer than 9 bytes, what is read here is not used.
        more = _extended(cursor.words[ends - 16], np.maximum(sizes - 8, 1))
        high = np.where(sizes > 8, more, high)
    bad = _is_beyond(high, low, kind.precision)
    cursor.refuse(bad)
    numbers = np.stack([low, high], axis=1)
    numbers[bad] = 0
    return pa.Array.from_buffers(kind, len(sizes), [None, pa.py_buffer(numbers)])


def _extended(words: Words, sizes: Longs) -> Longs:
    """The signed numbers in the last bytes of words that have the most significant byte first."""
    spare = (8 - sizes) * 8
    # Two shifts, because a shift by 64 bits has no effect.
    half = (spare >> 1).astype(np.uint64)
    rest = (spare - (spare >> 1)).astype(np.uint64)
    raised = (words.byteswap() << half) << rest
    return np.asarray((raised.view(np.int64) >> half.view(np.int64)) >> rest.view(np.int64))


def _is_beyond(high: Longs, low: Longs, precision: int) -> npt.NDArray[np.bool_]:
    """Whether numbers of 128 bits have too many digits."""
    limit = 10**precision
    if precision <= LONG_DIGITS:
        return np.asarray((high != low >> 63) | (low <= -limit) | (low >= limit))
    negative = high < 0
    low_size = np.where(negative, -low, low).view(np.uint64)
    high_size = np.where(negative, ~high + (low == 0), high).view(np.uint64)
    most_high, most_low = np.uint64(limit >> 64), np.uint64(limit & ((1 << 64) - 1))
    return np.asarray((high_size > most_high) | ((high_size == most_high) & (low_size >= most_low)))
