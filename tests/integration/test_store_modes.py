"""Write modes with existing rows: append, upsert with and without a version, ignore, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tallymark.core.tables import OFFSET, PARTITION, TOPIC, Changes, TableSpec
from tallymark.errors import DataRefused, Unreachable
from tallymark.stores.sql import mysql
from tallymark.stores.sql.store import SqlStore
from tests.support.databases import KINDS, query
from tests.support.stores import IGNORE, PLAIN, ROWS, UPSERT, opened, plain, prepare, put, read, write

few = settings(
    max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)
numbers = count()


@pytest.fixture(params=[*KINDS, "mariadb-many"])
def store_url(request: pytest.FixtureRequest, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A new database of each kind, and the bulk path if it is a different one."""
    kind, _, many = request.param.partition("-")
    monkeypatch.setattr(mysql, "MANY", 1 if many else 1_000)
    monkeypatch.setattr(mysql, "DELETED_AT_ONCE", 2)
    return database(kind)


@pytest.fixture
def store(store_url: str) -> Iterator[SqlStore]:
    made = opened(store_url)
    yield made
    made.close()


# Against a model

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64()), ("x", pa.int64())])
KEYS = [(a, b) for a in (1, 2) for b in ("k", "K")]
versions = st.none() | st.integers(0, 3)
Batch = list[tuple[tuple[int, str], int | None, bool]]
batches = st.lists(
    st.lists(st.tuples(st.sampled_from(KEYS), versions, st.booleans()), max_size=4, unique_by=lambda row: row[0]),
    min_size=1,
    max_size=5,
)
Table = dict[tuple[int, str], tuple[int | None, int]]


def newer(spec: TableSpec, there: tuple[int | None, int] | None, version: int | None) -> bool:
    if there is None or spec.version is None or there[0] is None:
        return True
    return version is not None and version >= there[0]


def applied(spec: TableSpec, table: Table, batch: Batch, x: int) -> Table:
    """A simple model of the table after the batch."""
    after = dict(table)
    for key, version, delete in batch:
        there = table.get(key)
        if delete and (version is None or newer(spec, there, version)):
            after.pop(key, None)
        elif not delete and newer(spec, there, version) and not (spec.write == "ignore" and there):
            after[key] = (version, x)
    return after


@few
@given(batches=batches)
@pytest.mark.parametrize(
    ("mode", "version"), [("upsert", None), ("upsert", "v"), ("ignore", None)], ids=["upsert", "version", "ignore"]
)
def test_rows_meet_rows_as_the_mode_says(mode: Any, version: str | None, store: SqlStore, batches: list[Batch]) -> None:
    spec = TableSpec(f"t{next(numbers)}", key=("a", "b"), write=mode, version=version)
    expected: Table = {}
    for x, batch in enumerate(batches):
        batch = [row if mode == "upsert" else (*row[:2], False) for row in batch]
        rows = [(*key, number, x) for key, number, _ in sorted(batch)] if batch else []
        table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
        going = pa.array([delete for _, _, delete in sorted(batch)], pa.bool_())
        keep = pa.array([not delete for _, _, delete in sorted(batch)], pa.bool_())
        write(store, spec, table.filter(keep), table.filter(going))
        expected = applied(spec, expected, batch, x)
        found = {(a, b): (v, x) for a, b, v, x in read(store, spec, SCHEMA)}
        assert found == expected


# By example


def test_append_keeps_equal_rows(store: SqlStore) -> None:
    for _ in range(2):
        write(store, ROWS, plain((1, "a"), (1, "a")))
    assert read(store, ROWS, PLAIN) == [(1, "a")] * 4


def test_an_upsert_overwrites_all_other_columns(store: SqlStore, store_url: str) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("x", pa.string())])
    spec = TableSpec("pairs", key=("a", "b"), write="upsert")
    write(store, spec, pa.table([[1, 1, 2], ["A", "a", "a"], ["old", "old", "old"]], schema=schema))
    write(store, spec, pa.table([[1, 2, 3], ["a", "a", "a"], ["new", None, "new"]], schema=schema))
    found = query(store_url, "SELECT a, b, x FROM pairs")
    assert set(found) == {(1, "A", "old"), (1, "a", "new"), (2, "a", None), (3, "a", "new")}


@pytest.mark.parametrize("spec", [UPSERT, IGNORE], ids=lambda spec: spec.write)
def test_keys_alone_are_there_once(spec: TableSpec, store: SqlStore, store_url: str) -> None:
    schema = pa.schema([("id", pa.int64())])
    for _ in range(2):
        write(store, spec, pa.table([[1, 2]], schema=schema))
    assert query(store_url, "SELECT id FROM things ORDER BY id") == [(1,), (2,)]


COLLATIONS = {"postgresql": '"en-x-icu"', "mysql": "utf8mb4_general_ci", "sqlite": "NOCASE"}


def test_a_version_of_text_is_compared_by_its_bytes(store: SqlStore) -> None:
    """As within a batch, whatever the column's collation."""
    collation = COLLATIONS[store.dialect.name]
    prepare(store, f"CREATE TABLE things (id BIGINT PRIMARY KEY, name VARCHAR(50) COLLATE {collation})")
    spec = replace(UPSERT, version="name")
    for version in ("A", "a", "B"):
        write(store, spec, plain((1, version)))
    assert read(store, spec, PLAIN) == [(1, "a")]
    write(store, spec, plain(), plain((1, "Z")))
    assert read(store, spec, PLAIN) == [(1, "a")]
    write(store, spec, plain(), plain((1, "a")))
    assert read(store, spec, PLAIN) == []
    write(store, spec, plain((1, "a")))
    write(store, spec, plain(), plain((1, None)))
    assert read(store, spec, PLAIN) == [], "a deletion without a version"


def test_two_upserts_fit_in_one_transaction(store: SqlStore, store_url: str) -> None:
    specs = [TableSpec(name, key=("id",), write="upsert") for name in ("one", "two")]
    for spec in specs:
        write(store, spec, plain())
    store.apply([Changes(spec, plain((1, spec.name)), plain()) for spec in specs], None)
    assert query(store_url, "SELECT name FROM one UNION SELECT name FROM two ORDER BY name") == [("one",), ("two",)]


@pytest.mark.parametrize("spec", [UPSERT, IGNORE], ids=lambda spec: spec.write)
def test_no_other_error_is_taken_for_a_key_that_is_there(spec: TableSpec, store: SqlStore) -> None:
    prepare(store, "CREATE TABLE things (id BIGINT PRIMARY KEY, name VARCHAR(50) NOT NULL)")
    with pytest.raises(DataRefused, match=r"(?i)null"):
        put(store, spec, plain((1, None)))
    assert read(store, spec, PLAIN) == []


NAMES = [
    "group",
    "Select",
    "percent%",
    "%s",
    "two words",
    "dash-ed",
    "quo'te",
    "co:lon",
    'dou"ble',
    "ünï",
    "(x)",
    "a.b",
    ".x",
    "back`tick",
]


@pytest.mark.parametrize("mode", ["append", "upsert", "version", "ignore"])
@pytest.mark.parametrize("table", ["Order", "Per%cent 'Mixed' \"Case\":x"])
def test_any_name_can_be_a_table_or_a_column(table: str, mode: Any, store: SqlStore) -> None:
    spec = TableSpec(table, key=("Key%", "ke y") if mode != "append" else (), write=mode.replace("version", "upsert"))
    spec = replace(spec, version="percent%") if mode == "version" else spec
    schema = pa.schema([("Key%", pa.int64()), ("ke y", pa.int64()), *((name, pa.string()) for name in NAMES)])
    rows = pa.table([[1, 2], [1, 2], *([name, None] for name in NAMES)], schema=schema)
    for _ in range(1 if mode == "append" else 2):
        write(store, spec, rows)
    assert read(store, spec, schema) == [(1, 1, *NAMES), (2, 2, *[None] * len(NAMES))]
    if spec.write == "upsert":
        write(store, spec, rows.slice(0, 0), rows.slice(0, 1))
        assert read(store, spec, schema) == [(2, 2, *[None] * len(NAMES))]


def test_a_deferred_constraint_fails_before_the_commit(database: Callable[[str], str]) -> None:
    """At COMMIT the error would name no row."""
    store = opened(database("postgresql"))
    prepare(store, "CREATE TABLE things (id BIGINT UNIQUE DEFERRABLE INITIALLY DEFERRED, name TEXT)")
    store.create_tables([ROWS], {"things": PLAIN})
    with store._trial() as connection:
        store.dialect.put(connection, store._tables["things"], ROWS, plain((1, "a"), (1, "b")))
        with pytest.raises(Exception, match="duplicate key"):
            store.dialect.check_constraints(connection)
    store.close()


def test_a_column_that_was_widened_meanwhile_takes_the_rows_at_the_next_try(database: Callable[[str], str]) -> None:
    """COPY writes numbers in the width of the column: no record is at fault if the column is wider now."""
    store, schema = opened(database("postgresql")), pa.schema([("id", pa.int32())])
    store.create_tables([ROWS], {"things": schema})
    prepare(store, "ALTER TABLE things ALTER COLUMN id TYPE BIGINT")
    rows = pa.table({"id": [1, 2]}, schema=schema)
    origin = {TOPIC: ["t", "t"], PARTITION: [0, 0], OFFSET: [0, 1]}
    puts = pa.table({"id": rows["id"], **origin})
    changes = [Changes(ROWS, puts, puts.slice(0, 0))]
    with pytest.raises(Unreachable, match="a table was altered"):
        store.apply(changes, None)
    store.apply(changes, None)
    assert read(store, ROWS, schema) == [(1,), (2,)]
    store.close()
