"""Decodes Avro bodies into Arrow columns, as docs/avro.md specifies.

Many bodies are decoded at once (``bulk.py``). Bodies that this refuses, and small batches, are decoded one by one
(``values.py``), which says why a body is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from tallymark.formats.avro import values
from tallymark.formats.avro.bulk import BulkDecoder
from tallymark.formats.avro.cursor import BEFORE, Longs, padded
from tallymark.formats.avro.program import Program
from tallymark.formats.decoder import Decoded

FEW = 50
"""Number of bodies up to which decoding them one by one is about as fast."""
PIECE_ROWS, PIECE_BYTES = 16_384, 4 << 20
"""Limits of what is decoded at once; the arrays of larger pieces do not fit into the processor caches."""


def decode(program: Program, bodies: pa.Array | pa.ChunkedArray | Sequence[bytes]) -> Decoded:
    """Decode bodies, none of which is NULL."""
    decoder = _decoder(program)
    if len(bodies) <= FEW or not program.in_bulk:
        given = bodies.to_pylist() if isinstance(bodies, (pa.Array, pa.ChunkedArray)) else bodies
        found, errors = decoder.one_by_one(given, range(len(given)))
        return Decoded(found, errors)
    pieces: list[pa.Array] = []
    errors = {}
    first = 0
    for chunk in _chunks(bodies):
        content, offsets = _layout(chunk)
        for start, end in _pieces(offsets):
            found, dead = decoder.at_once(content, offsets[start : end + 1], first + start)
            pieces.append(found)
            errors.update(dead)
        first += len(chunk)
    return Decoded(pa.chunked_array(pieces, program.type), errors)


class _Decoder:
    """The functions and objects of a program."""

    def __init__(self, program: Program) -> None:
        self._type = program.type
        self._one: Callable[[bytes], Any] = values.decoder(program.root, program.skips)
        self._bulk = BulkDecoder(program) if program.in_bulk else None

    def one_by_one(self, bodies: Sequence[bytes], places: Sequence[int]) -> tuple[pa.Array, dict[int, str]]:
        found: list[Any] = []
        errors: dict[int, str] = {}
        for place, body in zip(places, bodies, strict=True):
            try:
                found.append(self._one(body))
            except values.Dead as error:
                found.append(None)
                errors[place] = str(error)
        return pa.array(found, self._type), errors

    def at_once(self, content: Any, offsets: Longs, first: int) -> tuple[pa.Array, Mapping[int, str]]:
        assert self._bulk is not None
        start = int(offsets[0])
        piece = content[start : int(offsets[-1])]
        ends = offsets - start
        found, refused = self._bulk(padded(piece), ends[:-1] + BEFORE, ends[1:] + BEFORE)
        rows = np.flatnonzero(refused)
        if not len(rows):
            return found, {}
        bodies = [piece[ends[row] : ends[row + 1]].tobytes() for row in rows]
        others, errors = self.one_by_one(bodies, [first + int(row) for row in rows])
        places = np.arange(len(found))
        places[rows] = len(found) + np.arange(len(rows))
        return pa.concat_arrays([found, others]).take(pa.array(places)), errors


@lru_cache(maxsize=256)
def _decoder(program: Program) -> _Decoder:
    return _Decoder(program)


def _chunks(bodies: pa.Array | pa.ChunkedArray | Sequence[bytes]) -> list[pa.Array]:
    if isinstance(bodies, pa.ChunkedArray):
        return list(bodies.chunks)
    return [bodies if isinstance(bodies, pa.Array) else pa.array(bodies, pa.binary())]


def _layout(bodies: pa.Array) -> tuple[Any, Longs]:
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
