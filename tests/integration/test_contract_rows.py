"""The contract of every store for write modes with existing rows: append, upsert, version, ignore, delete.

Which row of a key is the newest within a batch is in test_newest.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tallymark.core.tables import OFFSET, PARTITION, TOPIC, Changes, TableSpec
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tallymark.stores.sql import mysql
from tests.support.databases import KINDS
from tests.support.stores import IGNORE, ROWS, UPSERT, plain, write
from tests.support.truth import rows

few = settings(
    max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)
numbers = count()


@pytest.fixture(params=[*KINDS, "mariadb-many", "redis", "redis-json"])
def url(request: pytest.FixtureRequest, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A new store of each kind, also with its second path or format for rows, if it has one."""
    kind, _, other = request.param.partition("-")
    monkeypatch.setattr(mysql, "MANY", 1 if other == "many" else 1_000)
    monkeypatch.setattr(mysql, "DELETED_AT_ONCE", 2)
    return database(kind) + ("&rows=json" if other == "json" else "")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = open_store(url)
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
def test_rows_meet_rows_as_the_mode_says(
    mode: Any, version: str | None, store: Store, url: str, batches: list[Batch]
) -> None:
    spec = TableSpec(f"t{next(numbers)}", key=("a", "b"), write=mode, version=version)
    expected: Table = {}
    for x, batch in enumerate(batches):
        batch = [row if mode == "upsert" else (*row[:2], False) for row in batch]
        given = [(*key, number, x) for key, number, _ in sorted(batch)] if batch else []
        table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in given], SCHEMA)
        going = pa.array([delete for _, _, delete in sorted(batch)], pa.bool_())
        keep = pa.array([not delete for _, _, delete in sorted(batch)], pa.bool_())
        write(store, spec, table.filter(keep), table.filter(going))
        expected = applied(spec, expected, batch, x)
        found = {(a, b): (v, x) for a, b, v, x in rows(url, spec.name, *SCHEMA.names)}
        assert found == expected


# By example


def test_append_keeps_equal_rows(store: Store, url: str) -> None:
    for _ in range(2):
        write(store, ROWS, plain((1, "a"), (1, "a")))
    assert rows(url, "things", "id", "name") == {(1, "a"): 4}


def test_an_upsert_overwrites_all_other_columns(store: Store, url: str) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("x", pa.string())])
    spec = TableSpec("pairs", key=("a", "b"), write="upsert")
    write(store, spec, pa.table([[1, 1, 2], ["A", "a", "a"], ["old", "old", "old"]], schema=schema))
    write(store, spec, pa.table([[1, 2, 3], ["a", "a", "a"], ["new", None, "new"]], schema=schema))
    found = rows(url, "pairs", "a", "b", "x")
    assert set(found) == {(1, "A", "old"), (1, "a", "new"), (2, "a", None), (3, "a", "new")}


@pytest.mark.parametrize(("lower", "higher"), [(9, 10), (-10, -9), (-1, 1), (2**53, 2**53 + 1)])
def test_a_version_is_compared_as_a_number_and_an_equal_one_overwrites(
    lower: int, higher: int, store: Store, url: str
) -> None:
    spec = TableSpec("t", key=("a", "b"), write="upsert", version="v")

    def row(version: int, x: int) -> pa.Table:
        return pa.table([[1], ["k"], [version], [x]], schema=SCHEMA)

    for version, x, there in ((lower, 1, 1), (higher, 2, 2), (lower, 3, 2), (higher, 4, 4)):
        write(store, spec, row(version, x))
        assert set(rows(url, "t", "v", "x")) == {(higher if x > 1 else lower, there)}
    write(store, spec, row(lower, 5).slice(0, 0), row(lower, 5))
    assert set(rows(url, "t", "x")) == {(4,)}
    write(store, spec, row(higher, 6).slice(0, 0), row(higher, 6))
    assert set(rows(url, "t", "x")) == set()


def test_several_rows_of_a_record_are_all_appended(store: Store, url: str) -> None:
    origin = pa.table({TOPIC: ["t", "t", "t"], PARTITION: [0, 0, 0], OFFSET: [5, 5, 6]})
    puts = plain((1, "a"), (1, "a"), (2, "b"))
    write(store, ROWS, puts.slice(0, 0))
    for name in origin.column_names:
        puts = puts.append_column(name, origin[name])
    store.apply([Changes(ROWS, puts, puts.slice(0, 0))], None)
    assert rows(url, "things", "id", "name") == {(1, "a"): 2, (2, "b"): 1}


@pytest.mark.parametrize("spec", [UPSERT, IGNORE], ids=lambda spec: spec.write)
def test_keys_alone_are_there_once(spec: TableSpec, store: Store, url: str) -> None:
    schema = pa.schema([("id", pa.int64())])
    for _ in range(2):
        write(store, spec, pa.table([[1, 2]], schema=schema))
    assert rows(url, "things", "id") == {(1,): 1, (2,): 1}


def test_two_upserts_fit_in_one_transaction(store: Store, url: str) -> None:
    specs = [TableSpec(name, key=("id",), write="upsert") for name in ("one", "two")]
    for spec in specs:
        write(store, spec, plain())
    store.apply([Changes(spec, plain((1, spec.name)), plain()) for spec in specs], None)
    assert [rows(url, spec.name, "name") for spec in specs] == [{("one",): 1}, {("two",): 1}]
