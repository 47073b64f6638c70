"""Rows in PostgreSQL's binary COPY format, made by Arrow's own kernels: the server takes half as long as for CSV.

A row is the number of its fields, and for each field its length and its bytes, numbers with the highest byte first.
Each of these pieces is a column of bytes; joined row by row, their buffer is what COPY reads. Fields have to be exactly
of their column's type, so a table with a column that is not in ``FORMS`` goes by CSV.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Table
from sqlalchemy import types as sql
from sqlalchemy.dialects import postgresql

from tallymark.errors import DataRefused

START = b"PGCOPY\n\xff\r\n\0" + bytes(8)
END = b"\xff\xff"
EPOCH_DAYS = 10_957
"""From 1970 to 2000, where PostgreSQL begins to count."""
EPOCH_MICROS = EPOCH_DAYS * 86_400_000_000

Form = Callable[[pa.ChunkedArray], pa.Array]


def forms(table: Table, columns: Sequence[str]) -> list[Form] | None:
    """How to write each of these columns; None if one of them is of a type that we leave to CSV."""
    found = [_form(table.c[name].type) for name in columns]
    return [form for form in found if form is not None] if None not in found else None


def encode(rows: pa.Table, forms: Sequence[Form]) -> memoryview:
    """Rows, between START and END."""
    empty = pa.scalar(b"", pa.binary())
    pieces: list[Any] = [pa.scalar(len(forms).to_bytes(2, "big"), pa.binary())]
    for name, column, form in zip(rows.column_names, rows.columns, forms, strict=True):
        try:
            value = form(column)
        except pa.ArrowInvalid as error:
            raise DataRefused(f"column {name}: {error}") from error
        pieces += [_swapped(pc.fill_null(pc.binary_length(value), -1), "i"), pc.fill_null(value, empty)]
    joined = pc.binary_join_element_wise(*pieces, empty)
    joined = joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
    _, offsets, data = joined.buffers()
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[joined.offset] : ends[joined.offset + len(joined)]]


def _numbers(code: str, kind: pa.DataType, shift: int = 0) -> Form:
    def form(column: pa.ChunkedArray) -> pa.Array:
        return _swapped(pc.subtract(column.cast(kind), pa.scalar(shift, kind)) if shift else column.cast(kind), code)

    return form


def _swapped(column: pa.ChunkedArray | pa.Array, code: str) -> pa.Array:
    """Numbers as bytes, the highest first; NULL stays NULL."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    width, valid = array(code).itemsize, pc.is_valid(whole)
    whole = pc.fill_null(whole, 0)
    here = slice(whole.offset * width, (whole.offset + len(whole)) * width)
    numbers = array(code, bytes(memoryview(whole.buffers()[1])[here]))
    numbers.byteswap()
    fixed = pa.Array.from_buffers(pa.binary(width), len(whole), [None, pa.py_buffer(numbers)])
    return pc.if_else(valid, fixed.cast(pa.binary()), pa.scalar(None, pa.binary()))


def _bytes(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return (whole.cast(pa.string()) if pa.types.is_decimal(whole.type) else whole).cast(pa.binary())


def _booleans(column: pa.ChunkedArray) -> pa.Array:
    return pc.if_else(column.combine_chunks(), pa.scalar(b"\1", pa.binary()), pa.scalar(b"\0", pa.binary()))


def _dates(column: pa.ChunkedArray) -> pa.Array:
    return _numbers("i", pa.int32(), EPOCH_DAYS)(column.cast(pa.int32()))


def _times(column: pa.ChunkedArray) -> pa.Array:
    zone = getattr(column.type, "tz", None)
    return _numbers("q", pa.int64(), EPOCH_MICROS)(column.cast(pa.timestamp("us", zone)).cast(pa.int64()))


FORMS: list[tuple[tuple[type[Any], ...], Form]] = [
    ((sql.Boolean,), _booleans),
    ((sql.SmallInteger,), _numbers("h", pa.int16())),
    ((sql.BigInteger,), _numbers("q", pa.int64())),
    ((sql.Integer,), _numbers("i", pa.int32())),
    ((sql.REAL,), _numbers("f", pa.float32())),
    ((sql.Double,), _numbers("d", pa.float64())),
    ((sql.DateTime,), _times),
    ((sql.Date,), _dates),
    ((postgresql.JSONB,), lambda column: pc.binary_join_element_wise(b"\1", _bytes(column), b"")),
    ((sql.LargeBinary, sql.JSON, sql.String), _bytes),
]


def _form(kind: sql.TypeEngine[Any]) -> Form | None:
    if isinstance(kind, sql.Enum):
        return None
    return next((form for classes, form in FORMS if isinstance(kind, classes)), None)
