"""Separates keys and values from the ids of the schemas that they were written with, as Confluent's clients write them.

In the framing of a schema registry, a content starts with the magic byte 0 and the id of its schema, four bytes in
network order. With ids in headers, a header has either these five bytes, or the byte 1 and the 16 bytes of the
schema's GUID, and the content has no prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tallymark.formats.value import Part

Id = int | str
"""The number of a schema, or its GUID."""
HEADERS: Mapping[Part, str] = {"key": "__key_schema_id", "value": "__value_schema_id"}
ID, GUID = 0, 1
"""The magic bytes before a number and before a GUID."""
PREFIX, GUID_PREFIX = 5, 17
NONE = -1
Codes = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Identified:
    """Contents without their framing, and the ids of their schemas.

    ``ids`` are the distinct ids, and ``codes`` has the index of each content's id in it. ``errors`` maps the rows
    without a readable id to errors. In these rows, and in those of tombstones, the code is -1 and the body NULL.
    ``rests`` are what follows each of the ids in headers; if they are asked for, the pairs are distinct.
    """

    bodies: pa.BinaryArray
    ids: tuple[Id, ...]
    codes: Codes
    errors: Mapping[int, str]
    rests: tuple[bytes, ...] = ()

    def rows_of(self, at: int) -> npt.NDArray[np.int64]:
        """Return the rows whose id is ``ids[at]``."""
        return np.flatnonzero(self.codes == at)


def framed(contents: pa.Array | pa.ChunkedArray) -> Identified:
    """Take the ids from the first five bytes of contents."""
    contents = _whole(contents)
    bounds, data = _parts(contents)
    present = _mask(contents.is_valid())
    numbers = np.zeros(len(contents), np.int32)
    good = present & (np.diff(bounds) >= PREFIX)
    prefixes = data[bounds[:-1][good][:, None] + np.arange(PREFIX)]
    numbers[good] = np.ascontiguousarray(prefixes[:, 1:]).view(">i4").reshape(-1)
    good[good] = prefixes[:, 0] == ID
    encoded = pa.array(numbers, mask=~good).dictionary_encode()
    bad = np.flatnonzero(present & ~good)
    return Identified(
        _bodies(contents.type, bounds, data, good),
        tuple(encoded.dictionary.to_pylist()),
        _codes(encoded.indices),
        {int(row): framing_error(contents[int(row)].as_py()) for row in bad},
    )


def in_headers(
    contents: pa.Array | pa.ChunkedArray,
    headers: pa.Array | pa.ChunkedArray,
    part: Part = "value",
    *,
    rests: bool = False,
) -> Identified:
    """Take the ids from headers, which are a list of structs with ``key`` and ``value`` for each record."""
    contents = _whole(contents)
    encoded = _last(_whole(headers), HEADERS[part]).dictionary_encode()
    known = [_header_id(header, rests) for header in encoded.dictionary.to_pylist()]
    places: dict[tuple[Id, bytes], int] = {}
    for one in known:
        if one is not None:
            places.setdefault(one, len(places))
    # The last is the code of records without such a header, which have the code -1.
    renumbered = np.array([NONE if one is None else places[one] for one in known] + [NONE], np.int32)
    codes = renumbered[_codes(encoded.indices)]
    present = _mask(contents.is_valid())
    codes[~present] = NONE
    bad = np.flatnonzero(present & (codes == NONE))
    errors = {int(row): header_error(encoded[int(row)].as_py(), part) for row in bad}
    ids, after = (tuple(name for name, _ in places), tuple(rest for _, rest in places))
    return Identified(_without(contents, bad), ids, codes, errors, after)


def framing_error(content: bytes) -> str:
    """Say why a content is not in the framing of a registry."""
    if content[:1] == bytes([ID]) or not content:
        return f"has {len(content)} bytes: the registry's framing needs the magic byte 0 and four bytes of an id"
    return f"starts with {content[:1].hex()} instead of the magic byte 0: the value is not in the registry's framing"


def header_error(header: bytes | None, part: Part = "value") -> str:
    """Say why a header has no id; None is a header that is missing, or has no value."""
    name = HEADERS[part]
    if header is None:
        return f"the header {name} is missing: it has the id of the schema"
    usage = "the byte 0 and four bytes of an id, or the byte 1 and 16 bytes of a GUID"
    if header[:1] in (bytes([ID]), bytes([GUID])):
        return f"the header {name} has {len(header)} bytes instead of {usage}"
    return f"the header {name} starts with {header[:1].hex() or 'nothing'} instead of {usage}"


def prefix(id: int) -> bytes:
    """Return the framing of contents with this id; it is also the header's value."""
    return bytes([ID]) + id.to_bytes(4)


def guid_header(guid: str) -> bytes:
    """Return the header's value for this GUID."""
    return bytes([GUID]) + UUID(guid).bytes


def _header_id(header: bytes, with_rest: bool) -> tuple[Id, bytes] | None:
    """Return the id, and what follows it if that is asked for: the message indexes of Protobuf."""
    if header[:1] == bytes([ID]) and len(header) >= PREFIX:
        return int.from_bytes(header[1:PREFIX], signed=True), header[PREFIX:] if with_rest else b""
    if header[:1] == bytes([GUID]) and len(header) >= GUID_PREFIX:
        return str(UUID(bytes=header[1:GUID_PREFIX])), header[GUID_PREFIX:] if with_rest else b""
    return None


def _last(headers: pa.ListArray, name: str) -> pa.Array:
    """Return the value of the last header with this name of each record, as Java's clients read it; NULL without."""
    pairs = headers.flatten()
    found = np.flatnonzero(_mask(pc.fill_null(pc.equal(pairs.field("key"), name), False)))
    last = np.full(len(headers), NONE, np.int64)
    # Of several assignments to one place, the last one counts.
    last[np.asarray(pc.list_parent_indices(headers))[found]] = found
    return pairs.field("value").take(pa.array(last, mask=last == NONE))


def _whole(values: pa.Array | pa.ChunkedArray) -> Any:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _parts(contents: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Return where contents begin and end, and the bytes of all."""
    _, offsets, data = contents.buffers()
    width = _width(contents.type)
    if not len(contents):
        return np.zeros(1, width), np.zeros(0, np.uint8)
    bounds = np.frombuffer(offsets, width)[contents.offset : contents.offset + len(contents) + 1]
    # NumPy does not accept a buffer without bytes.
    return bounds, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)


def _bodies(kind: pa.DataType, bounds: npt.NDArray[Any], data: npt.NDArray[np.uint8], good: Mask) -> pa.Array:
    """Return what follows the prefixes; NULL where it is not good.

    Arrow's own ``binary_slice`` allocates too little if a content is shorter than the prefix.
    """
    first = bounds[0]
    starts, lengths = bounds[:-1] - first, np.diff(bounds)
    keep = np.ones(bounds[-1] - first, np.bool_)
    keep[starts[good][:, None] + np.arange(PREFIX)] = False
    for row in np.flatnonzero(~good & (lengths > 0)):
        keep[starts[row] : starts[row] + lengths[row]] = False
    offsets = np.zeros(len(bounds), bounds.dtype)
    np.cumsum(np.where(good, lengths - PREFIX, 0), out=offsets[1:])
    valid = None if good.all() else pa.py_buffer(np.packbits(good, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(data[first : bounds[-1]][keep])]
    return pa.Array.from_buffers(kind, len(good), buffers)


def _width(kind: pa.DataType) -> type[np.signedinteger[Any]]:
    return np.int64 if pa.types.is_large_binary(kind) else np.int32


def _mask(values: pa.Array) -> Mask:
    return np.array(values.to_numpy(zero_copy_only=False), np.bool_)


def _codes(indices: pa.Array) -> Codes:
    return np.array(pc.fill_null(indices, NONE), np.int32)


def _without(contents: pa.Array, rows: Sequence[int] | npt.NDArray[np.int64]) -> pa.Array:
    """Return the contents with NULL in these rows."""
    if not len(rows):
        return contents
    keep = np.ones(len(contents), np.bool_)
    keep[rows] = False
    return pc.if_else(pa.array(keep), contents, None)
