"""The bytes for COPY are those that PostgreSQL's documentation describes, row by row."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, Enum, MetaData, Numeric, Table
from sqlalchemy import types as sql
from sqlalchemy.dialects import postgresql

from tallymark.errors import DataRefused
from tallymark.stores.sql import pgcopy

DAY, MOMENT = date(2000, 1, 1), datetime(2000, 1, 1, tzinfo=UTC)
ANY_BYTES, ANY_TEXT = st.binary(max_size=5), st.text(max_size=5)
WHOLE = {bits: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64)}
Kind = tuple[Any, pa.DataType, st.SearchStrategy[Any], Callable[[Any], bytes]]
KINDS: dict[str, Kind] = {
    "boolean": (sql.Boolean(), pa.bool_(), st.booleans(), lambda one: bytes([one])),
    "smallint": (sql.SmallInteger(), pa.int16(), WHOLE[16], lambda one: struct.pack(">h", one)),
    "integer": (sql.Integer(), pa.int32(), WHOLE[32], lambda one: struct.pack(">i", one)),
    "bigint": (sql.BigInteger(), pa.int64(), WHOLE[64], lambda one: struct.pack(">q", one)),
    "real": (sql.REAL(), pa.float32(), st.floats(width=32), lambda one: struct.pack(">f", one)),
    "double": (sql.Double(), pa.float64(), st.floats(), lambda one: struct.pack(">d", one)),
    "date": (sql.Date(), pa.date32(), st.dates(), lambda one: struct.pack(">i", (one - DAY).days)),
    "timestamp": (
        sql.DateTime(timezone=True),
        pa.timestamp("us", "UTC"),
        st.datetimes(timezones=st.just(UTC)),
        lambda one: struct.pack(">q", (one - MOMENT) // (datetime.resolution)),
    ),
    "text": (sql.Text(), pa.string(), ANY_TEXT, str.encode),
    "bytea": (sql.LargeBinary(), pa.binary(), ANY_BYTES, bytes),
    "jsonb": (postgresql.JSONB(), pa.string(), st.just("{}"), lambda one: b"\1" + one.encode()),
}


def table(kinds: list[str]) -> Table:
    return Table("t", MetaData(), *(Column(f"c{at}", KINDS[kind][0]) for at, kind in enumerate(kinds)))


def expected(kinds: list[str], rows: list[list[Any]]) -> bytes:
    found = b""
    for row in rows:
        found += struct.pack(">h", len(kinds))
        for kind, one in zip(kinds, row, strict=True):
            field = None if one is None else KINDS[kind][3](one)
            found += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return found


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[Any]]]:
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6))
    # Columns with and without NULL are encoded by different code.
    cells = [KINDS[kind][2] if draw(st.booleans()) else st.none() | KINDS[kind][2] for kind in kinds]
    return kinds, draw(st.lists(st.tuples(*cells).map(list), min_size=1, max_size=6))


@given(tables(), st.integers(0, 3))
def test_rows_are_packed_as_postgresql_reads_them(made: tuple[list[str], list[list[Any]]], first: int) -> None:
    kinds, rows = made
    columns = [pa.chunked_array([pa.array([row[at] for row in rows], KINDS[kind][1])]) for at, kind in enumerate(kinds)]
    found = pa.table(columns, [f"c{at}" for at in range(len(kinds))]).slice(first)
    forms = pgcopy.forms(table(kinds), found.column_names)
    assert forms is not None
    assert b"".join(pgcopy.stream([found], forms)) == pgcopy.START + expected(kinds, rows[first:]) + pgcopy.END


def test_a_number_that_does_not_fit_its_column_is_refused_by_name() -> None:
    forms = pgcopy.forms(table(["smallint"]), ["c0"])
    assert forms is not None
    with pytest.raises(DataRefused, match=r"column c0: .*70000"):
        pgcopy.encode(pa.table({"c0": [70_000]}), forms)


@pytest.mark.parametrize("kind", [Numeric(), Enum("a", "b")])
def test_other_types_are_left_to_csv(kind: Any) -> None:
    assert pgcopy.forms(Table("t", MetaData(), Column("c0", kind)), ["c0"]) is None
