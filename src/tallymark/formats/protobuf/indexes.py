"""Message indexes: they follow the id of a schema, and name the message of a record by its places in the file.

They are the number of indexes and the indexes, first that of a message at the top level, then those of nested ones, all
as zigzag varints. A single byte 0 is the first message.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tallymark.formats.avro.cursor import BEFORE, Longs, Rows, padded
from tallymark.formats.bodies import layout
from tallymark.formats.protobuf.body import Body, Dead
from tallymark.formats.protobuf.cursor import Cursor
from tallymark.formats.protobuf.numbers import varint, zigzag
from tallymark.formats.protobuf.plain import binary, whole

Indexes = tuple[int, ...]
FIRST: Indexes = (0,)
MOST = 100
"""Maximum number of indexes: messages are not nested more deeply."""
UNREADABLE = "the message indexes after the id of the schema can't be read"


def parse(content: bytes) -> tuple[Indexes, int]:
    """Return the indexes at the start of bytes, and the number of their bytes; raises Dead."""
    body = Body(content)
    try:
        count = _zigzag(body.varint())
        if not 0 <= count <= MOST:
            raise Dead(UNREADABLE)
        indexes = tuple(_zigzag(body.varint()) for _ in range(count))
    except Dead:
        raise Dead(UNREADABLE) from None
    return indexes or FIRST, body.at


def encoded(indexes: Indexes) -> bytes:
    """Write indexes as Confluent's clients do."""
    return b"\0" if indexes == FIRST else b"".join(varint(zigzag(number)) for number in (len(indexes), *indexes))


def split(bodies: pa.Array) -> Iterator[tuple[Indexes | None, Rows, Longs]]:
    """Yield the indexes that occur, the rows that have them, and the number of bytes of the indexes in each row.

    Rows whose indexes can't be read come with None.
    """
    content, offsets = layout(bodies)
    if not len(bodies):
        return
    everything = np.arange(len(bodies))
    filled = offsets[:-1] < offsets[1:]
    if filled.all() and not content[offsets[:-1]].any():
        yield FIRST, everything, np.ones(len(bodies), np.int64)
        return
    cursor = Cursor.of(padded(content), offsets[:-1] + BEFORE, offsets[1:] + BEFORE)
    starts = cursor.at.copy()
    _move_past(cursor)
    prefixes = binary(cursor, starts, np.where(cursor.refused, starts, cursor.at), None).dictionary_encode()
    codes = prefixes.indices.to_numpy()
    for code, prefix in enumerate(prefixes.dictionary.to_pylist()):
        rows = np.flatnonzero(codes == code)
        try:
            indexes, size = parse(prefix)
        except Dead:
            yield None, rows, np.zeros(len(rows), np.int64)
        else:
            yield indexes, rows, np.full(len(rows), size, np.int64)


def _move_past(cursor: Cursor) -> None:
    left = whole("sint64", cursor.varints()).astype(np.int64)
    cursor.refuse((left < 0) | (left > MOST))
    rows = np.flatnonzero((left > 0) & ~cursor.refused)
    while len(rows):
        part = cursor.part(rows)
        part.varints()
        cursor.put(rows, part)
        left[rows] -= 1
        rows = rows[(left[rows] > 0) & ~part.refused]


def _zigzag(found: int) -> int:
    return (found >> 1) ^ -(found & 1)
