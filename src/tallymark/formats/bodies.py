"""Decodes bodies into Arrow columns: many at once, and one by one those that this refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tallymark.formats.avro.cursor import BEFORE, Longs, padded
from tallymark.formats.decoder import Decoded

FEW = 50
"""Number of bodies up to which decoding them one by one is about as fast."""
PIECE_ROWS, PIECE_BYTES = 16_384, 4 << 20
"""Limits of what is decoded at once; the arrays of larger pieces do not fit into the processor caches."""
Bodies: TypeAlias = pa.Array | pa.ChunkedArray | Sequence[bytes]
One = Callable[[bytes], Any]
"""Decodes one body. Of a dead one it raises a ValueError with the reason."""
Many = Callable[[Any, Longs, Longs], tuple[pa.Array, npt.NDArray[np.bool_]]]
"""Decodes bodies by their starts and ends in padded content. The second result are those that it refuses."""


class BodyDecoder:
    """Decodes bodies, none of which is NULL."""

    def __init__(self, kind: pa.DataType, one: One, many: Many | None) -> None:
        self._type, self._one, self._many = kind, one, many

    def __call__(self, bodies: Bodies, skipped: Longs | None = None) -> Decoded:
        """Decode bodies, without so many bytes at their starts."""
        if len(bodies) <= FEW or self._many is None:
            given = bodies.to_pylist() if isinstance(bodies, (pa.Array, pa.ChunkedArray)) else bodies
            if skipped is not None:
                given = [body[size:] for body, size in zip(given, skipped.tolist(), strict=True)]
            found, errors = self._one_by_one(given, range(len(given)))
            return Decoded(found, errors)
        pieces: list[pa.Array] = []
        errors = {}
        first = 0
        for chunk in _chunks(bodies):
            content, offsets = layout(chunk)
            for start, end in _pieces(offsets):
                sizes = None if skipped is None else skipped[first + start : first + end]
                found, dead = self._at_once(content, offsets[start : end + 1], sizes, first + start)
                pieces.append(found)
                errors.update(dead)
            first += len(chunk)
        return Decoded(pa.chunked_array(pieces, self._type), errors)

    def _one_by_one(self, bodies: Sequence[bytes], places: Sequence[int]) -> tuple[pa.Array, dict[int, str]]:
        found: list[Any] = []
        errors: dict[int, str] = {}
        for place, body in zip(places, bodies, strict=True):
            try:
                found.append(self._one(body))
            except ValueError as error:
                found.append(None)
                errors[place] = str(error)
        return pa.array(found, self._type), errors

    def _at_once(
        self, content: Any, offsets: Longs, skipped: Longs | None, first: int
    ) -> tuple[pa.Array, Mapping[int, str]]:
        assert self._many is not None
        start = int(offsets[0])
        piece = content[start : int(offsets[-1])]
        starts, ends = offsets[:-1] - start, offsets[1:] - start
        if skipped is not None:
            starts = starts + skipped
        found, refused = self._many(padded(piece), starts + BEFORE, ends + BEFORE)
        rows = np.flatnonzero(refused)
        if not len(rows):
            return found, {}
        bodies = [piece[starts[row] : ends[row]].tobytes() for row in rows]
        others, errors = self._one_by_one(bodies, [first + int(row) for row in rows])
        places = np.arange(len(found))
        places[rows] = len(found) + np.arange(len(rows))
        return pa.concat_arrays([found, others]).take(pa.array(places)), errors


def _chunks(bodies: Bodies) -> list[pa.Array]:
    if isinstance(bodies, pa.ChunkedArray):
        return list(bodies.chunks)
    return [bodies if isinstance(bodies, pa.Array) else pa.array(bodies, pa.binary())]


def layout(bodies: pa.Array) -> tuple[Any, Longs]:
    """Return the bytes of an array and the offsets of its values."""
    if not pa.types.is_large_binary(bodies.type):
        bodies = bodies.cast(pa.binary())
    width = np.dtype("<i8" if pa.types.is_large_binary(bodies.type) else "<i4")
    _, ends, content = bodies.buffers()
    if not len(bodies):
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(ends, width, len(bodies) + 1, bodies.offset * width.itemsize).astype(np.int64)
    return np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8), offsets


def _pieces(offsets: Longs) -> Iterator[tuple[int, int]]:
    """Split bodies into pieces, each of them below the limits if it has more than one body."""
    start, count = 0, len(offsets) - 1
    while start < count:
        within = int(np.searchsorted(offsets, offsets[start] + PIECE_BYTES, "right")) - 1
        end = min(count, start + PIECE_ROWS, max(start + 1, within))
        yield start, end
        start = end
