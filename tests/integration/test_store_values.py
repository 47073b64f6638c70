"""Values on every database are read back unchanged, or are refused."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import make_url

from tallymark.core.tables import TableSpec
from tallymark.errors import DataRefused, TallymarkError
from tallymark.stores.arrow import JSON_MARK
from tallymark.stores.sql import mysql
from tallymark.stores.sql.store import SqlStore
from tests.support.databases import KINDS, query
from tests.support.stores import PLAIN, ROWS, UPSERT, opened, prepare, put, read, write

few = settings(
    max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)
numbers = count()
TEXTS = [
    None,
    "",
    " ",
    "'",
    '"',
    '""',
    "\\",
    '\\"',
    "\\N",
    "\\.",
    "a,b;c\td",
    "line\nbreak\r\nand\rmore",
    "\x1a\x7f\x85\u2028",
    "100%",
    "%s %(id)s :id ?",
    "🐘 größe 漢字",
    "NULL",
    "null",
    "x" * 70_000,
]


@pytest.fixture(params=[*KINDS, "mariadb-many"])
def store_url(request: pytest.FixtureRequest, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A new database of each kind, and the bulk path if it is a different one."""
    kind, _, many = request.param.partition("-")
    monkeypatch.setattr(mysql, "MANY", 1 if many else 1_000)
    return database(kind)


@pytest.fixture
def store(store_url: str) -> Iterator[SqlStore]:
    made = opened(store_url)
    yield made
    made.close()


# Arbitrary values


def texts(forbidden: str, **limits: int) -> st.SearchStrategy[str]:
    letters = st.characters(exclude_categories=["Cs"], exclude_characters=forbidden)
    nasty = st.sampled_from([text for text in TEXTS if text is not None and len(text) < 50])
    return st.one_of(nasty, st.text(letters, **limits))


def documents(text: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | text
    inner = st.recursive(leaves, lambda some: st.lists(some, max_size=3), max_leaves=5)
    return st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)).map(json.dumps)


def decimals(scale: int) -> st.SearchStrategy[Decimal]:
    whole = st.integers(-(10**38) + 1, 10**38 - 1)
    return whole.map(lambda number: Decimal(number).scaleb(-scale, Context(prec=40)))


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def columns(store: SqlStore) -> dict[pa.Field, st.SearchStrategy[Any]]:
    text = texts("\x00" if store.dialect.name == "postgresql" else "", max_size=20)
    single: dict[str, Any] = {"width": 32, "allow_nan": False, "allow_infinity": False}
    moments = st.datetimes(timezones=st.just(UTC))
    return {
        pa.field("flag", pa.bool_()): st.booleans(),
        pa.field("tiny", pa.int8()): integers(8),
        pa.field("small", pa.int16()): integers(16),
        pa.field("middle", pa.int32()): integers(32),
        pa.field("large", pa.int64()): integers(64),
        pa.field("single", pa.float32()): st.floats(**single),
        pa.field("double", pa.float64()): st.floats(allow_nan=False, allow_infinity=False),
        pa.field("decimal", pa.decimal128(38, 30)): decimals(30),
        pa.field("whole", pa.decimal128(38, 0)): decimals(0),
        pa.field("group", pa.string()): text,
        pa.field("wide", pa.large_string()): text,
        pa.field("raw", pa.binary()): st.binary(max_size=20),
        pa.field("day", pa.date32()): st.dates(),
        pa.field("local", pa.timestamp("us")): st.datetimes(),
        pa.field("moment", pa.timestamp("us", "UTC")): moments,
        pa.field("data", pa.string(), metadata={JSON_MARK: b"1"}): documents(text),
    }


def as_read(value: Any, field: pa.Field) -> Any:
    """The value that a driver returns, in one format for all drivers."""
    if value is None:
        return None
    if JSON_MARK in (field.metadata or {}):
        return json.loads(value) if isinstance(value, str) else value
    if pa.types.is_float32(field.type):
        return struct.unpack("f", struct.pack("f", value))
    if pa.types.is_decimal(field.type):
        return Decimal(str(value))
    if pa.types.is_timestamp(field.type) and field.type.tz:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value
    return value


def check(store: SqlStore, spec: TableSpec, schema: pa.Schema, expected: Sequence[Sequence[Any]]) -> None:
    def shaped(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
        return [[as_read(value, field) for value, field in zip(row, schema, strict=True)] for row in rows]

    assert shaped(read(store, spec, schema)) == shaped(expected)


@few
@given(data=st.data())
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_any_values_come_back_as_they_went_in(mode: Any, store: SqlStore, data: st.DataObject) -> None:
    kinds = columns(store)
    spec = TableSpec(f"t{next(numbers)}", key=("id",) if mode == "upsert" else (), write=mode)
    schema = pa.schema([pa.field("id", pa.int64()), *kinds])
    row = st.tuples(*(st.none() | values for values in kinds.values()))
    expected: dict[int, tuple[Any, ...]] = {}
    for generation in data.draw(st.lists(st.lists(row, min_size=1, max_size=4), min_size=1, max_size=2)):
        first = len(expected) if mode == "append" else 0
        rows = [(first + number, *values) for number, values in enumerate(generation)]
        write(store, spec, pa.table(list(zip(*rows, strict=True)), schema=schema))
        expected |= {row[0]: row for row in rows}
        check(store, spec, schema, [expected[number] for number in sorted(expected)])


@few
@given(data=st.data())
def test_any_text_is_a_key_of_its_own(store: SqlStore, data: st.DataObject) -> None:
    """Also if it differs only by case, an accent or a trailing space."""
    text = texts("\x00" if store.dialect.name == "postgresql" else "", max_size=10)
    close = st.sampled_from(["a", "A", "á", "a ", " a", "a\t", "a\x01", "", " "])
    keys = sorted(data.draw(st.sets(text | close, min_size=1, max_size=8)), key=str.encode)
    spec = TableSpec(f"t{next(numbers)}", key=("k",), write="upsert")
    schema = pa.schema([("id", pa.int64()), ("k", pa.string())])
    for generation in range(2):
        rows = pa.table([[generation * 10 + at for at in range(len(keys))], keys], schema=schema)
        write(store, spec, rows)
    assert read(store, spec, schema) == [(10 + at, key) for at, key in enumerate(keys)]


# Chosen values


@pytest.mark.parametrize("spec", [ROWS, UPSERT], ids=["append", "upsert"])
def test_text_comes_back_as_it_went_in(spec: TableSpec, store: SqlStore) -> None:
    rows = pa.table({"id": range(len(TEXTS)), "name": TEXTS}, schema=PLAIN)
    write(store, spec, rows)
    assert [name for _, name in read(store, spec, PLAIN)] == TEXTS


def test_text_comes_back_as_it_went_in_when_it_is_all_there_is(store: SqlStore) -> None:
    """A COPY line that holds nothing else could be taken for the end."""
    schema = pa.schema([("name", pa.string())])
    write(store, ROWS, pa.table({"name": TEXTS}, schema=schema))
    found = [name for (name,) in read(store, ROWS, schema)]
    assert sorted(map(repr, found)) == sorted(map(repr, TEXTS))


LARGEST = (2 - 2**-23) * 2.0**127
LIMITS: list[tuple[str, pa.DataType, list[Any]]] = [
    ("tiny", pa.int8(), [-128, 127, None]),
    ("large", pa.int64(), [-(2**63), 2**63 - 1, None]),
    ("single", pa.float32(), [LARGEST, -(2.0**-149), None]),
    ("double", pa.float64(), [0.1, 1.7976931348623157e308, -5e-324]),
    ("flag", pa.bool_(), [True, False, None]),
    ("day", pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None]),
    ("local", pa.timestamp("us"), [datetime.min, datetime.max, None]),
    ("binary", pa.binary(), [b"", bytes(range(256)), None]),
    ("view", pa.large_binary(), [b"\\x", b"\x00", None]),
]


@pytest.mark.parametrize("spec", [ROWS, UPSERT], ids=["append", "upsert"])
def test_the_limits_of_every_type_come_back_as_they_went_in(spec: TableSpec, store: SqlStore) -> None:
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, kind, _ in LIMITS)])
    whole = pa.table([[0, 1, 2], *(values for _, _, values in LIMITS)], schema=schema)
    # Slices of tables start in the middle of their buffers.
    write(store, spec, pa.concat_tables([whole.slice(0, 1), whole.slice(1)]))
    check(store, spec, schema, list(zip([0, 1, 2], *(values for _, _, values in LIMITS), strict=True)))


NOON = datetime(2026, 1, 31, 12, 0, 0, 123456)


def test_moments_are_stored_in_utc(store: SqlStore) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "America/New_York"))])
    moment = NOON.replace(tzinfo=UTC)
    write(store, ROWS, pa.table([[0, 1], [moment, None]], schema=schema))
    check(store, ROWS, schema, [(0, moment), (1, None)])


def test_a_time_without_a_zone_is_utc_whatever_the_server_thinks(database: Callable[[str], str]) -> None:
    url = database("postgresql")
    admin = opened(url)
    prepare(admin, f"ALTER DATABASE {make_url(url).database} SET timezone = 'Asia/Tokyo'")
    prepare(admin, "CREATE TABLE things (id BIGINT, at TIMESTAMP WITH TIME ZONE)")
    store = opened(url)
    write(store, ROWS, pa.table([[0], [NOON]], schema=pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])))
    assert query(url, "SELECT at = '2026-01-31 12:00:00.123456Z' FROM things") == [(True,)]
    store.close()
    admin.close()


def test_not_a_number_and_infinity_are_kept_or_refused(store: SqlStore) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    store.create_tables([ROWS], {"things": schema})
    keeps = {"postgresql": [math.nan, math.inf, -math.inf], "sqlite": [math.inf, -math.inf], "mysql": []}
    kept = keeps[store.dialect.name]
    for x in (math.nan, math.inf, -math.inf):
        row = pa.table([[1], [x]], schema=schema)
        if str(x) in map(str, kept):
            put(store, ROWS, row)
            continue
        with pytest.raises(DataRefused):
            put(store, ROWS, row)
    assert sorted(str(x) for _, x in read(store, ROWS, schema)) == sorted(map(str, kept))


@pytest.mark.parametrize("store_url", ["postgresql", "mariadb", "mariadb-many"], indirect=True)  # in SQLite it fits
def test_a_value_that_is_too_long_is_an_error_and_never_cut(store: SqlStore) -> None:
    prepare(store, "CREATE TABLE things (id BIGINT, name VARCHAR(3))")
    with pytest.raises(TallymarkError, match=r"too long|truncated"):
        write(store, ROWS, pa.table({"id": [1], "name": ["abcd"]}, schema=PLAIN))
    assert read(store, ROWS, PLAIN) == []


def test_bytes_that_are_no_text_are_refused_by_postgresql(database: Callable[[str], str]) -> None:
    store = opened(database("postgresql"))
    store.create_tables([ROWS], {"things": PLAIN})
    with pytest.raises(DataRefused, match="invalid byte sequence"):
        put(store, ROWS, pa.table([[1], ["a\x00b"]], schema=PLAIN))
    store.close()
