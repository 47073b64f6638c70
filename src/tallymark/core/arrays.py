"""JSON arrays as text, for the merge function ``append``: elements keep their text, because no value is converted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

SPACE = " \t\n\r"
_STEP = np.zeros(256, np.int8)
_STEP[[ord(mark) for mark in "[{"]], _STEP[[ord(mark) for mark in "]}"]] = 1, -1
_MARKS = _STEP != 0
_MARKS[ord(",")] = True


def no_array(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Mark the JSON values that are not arrays; NULL is not marked."""
    return pc.fill_null(pc.invert(pc.starts_with(pc.utf8_ltrim(column, SPACE), "[")), False)


def joined(column: pa.ChunkedArray, starts: npt.NDArray[np.bool_], bound: int) -> pa.ChunkedArray:
    """Append the arrays of each group; of more than ``bound`` elements the last stay. ``starts`` marks the groups."""
    firsts = np.flatnonzero(starts)
    inner = pc.binary_slice(pc.utf8_trim(column, SPACE).cast(pa.binary()), 1, -1).cast(pa.string())
    filled = pc.fill_null(pc.not_equal(pc.utf8_trim(inner, SPACE), ""), False).to_numpy()
    offsets = np.append(0, np.cumsum(np.add.reduceat(filled, firsts, dtype=np.int64)))
    groups = pa.LargeListArray.from_arrays(pa.array(offsets), inner.filter(pa.array(filled)).combine_chunks())
    texts = pc.binary_join_element_wise("[", pc.binary_join(groups, ","), "]", "")
    # Only these may have too many elements; the others do not become Python objects.
    long = pc.greater_equal(pc.count_substring(texts, ","), bound)
    if pc.any(long).as_py():
        last = [bounded(text, bound) for text in texts.filter(long).to_pylist()]
        texts = pc.replace_with_mask(texts, long, pa.array(last, texts.type))
    known = np.logical_or.reduceat(column.is_valid().to_numpy(), firsts)
    return pa.chunked_array([pc.if_else(pa.array(known), texts, None)]).cast(column.type)


def appended(stored: Any, given: str, bound: int) -> str:
    """Append an array to a stored value, which is valid JSON or None. Raises ValueError if it is no array."""
    if not isinstance(stored, str) or not stored.lstrip(SPACE).startswith("["):
        raise ValueError("the stored value is no JSON array")
    inner = [text.strip(SPACE)[1:-1] for text in (stored, given)]
    return bounded(f"[{','.join(text for text in inner if text.strip(SPACE))}]", bound)


def bounded(text: str, bound: int) -> str:
    """Return the last elements of an array, which is valid JSON."""
    if text.count(",") < bound:
        return text
    raw = text.encode()
    commas = _commas(raw)
    return text if len(commas) < bound else f"[{raw[commas[-bound] + 1 :].decode()}"


def _commas(array: bytes) -> npt.NDArray[np.int64]:
    """Return the places of the commas between the elements."""
    # From left to right, so that the quote after an escaped backslash stays.
    data = np.frombuffer(array.replace(b"\\\\", b"..").replace(b'\\"', b".."), np.uint8)
    in_text = np.logical_xor.accumulate(data == ord('"'))
    marks = np.flatnonzero(_MARKS[data] & ~in_text)
    steps = _STEP[data[marks]]
    between: npt.NDArray[np.int64] = marks[(steps == 0) & (np.cumsum(steps) == 1)]
    return between
