"""Write modes of SQL databases: collations, constraints, names, and the path for many rows.

The contract of every store is in test_contract_rows.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tallymark.core.tables import OFFSET, PARTITION, TOPIC, Changes, TableSpec
from tallymark.errors import DataRefused, Unreachable
from tallymark.stores.contract import RowsRefused
from tallymark.stores.sql import mysql
from tallymark.stores.sql.store import SqlStore
from tests.support.databases import KINDS
from tests.support.stores import IGNORE, PLAIN, ROWS, UPSERT, opened, plain, prepare, put, read, write


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


@pytest.mark.parametrize("spec", [UPSERT, IGNORE], ids=lambda spec: spec.write)
def test_no_other_error_is_taken_for_a_key_that_is_there(spec: TableSpec, store: SqlStore) -> None:
    prepare(store, "CREATE TABLE things (id BIGINT PRIMARY KEY, name VARCHAR(50) NOT NULL)")
    with pytest.raises(DataRefused, match=r"(?i)null"):
        put(store, spec, plain((1, None)))
    assert read(store, spec, PLAIN) == []


@pytest.mark.parametrize("store_url", ["postgresql", "sqlite"], indirect=True)
def test_a_row_may_take_over_what_a_row_deleted_in_the_same_batch_had(store: SqlStore) -> None:
    """MySQL refuses upserts into tables with a second unique key."""
    prepare(store, "CREATE TABLE things (id BIGINT PRIMARY KEY, name VARCHAR(50) UNIQUE)")
    write(store, UPSERT, plain((1, "a")))
    write(store, UPSERT, plain((2, "a")), plain((1, "a")))
    assert read(store, UPSERT, PLAIN) == [(2, "a")]


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
    rows = plain((1, "a"), (2, "b"), (1, "c")).add_column(0, TOPIC, [["t"] * 3])
    puts = rows.add_column(1, PARTITION, [[0] * 3]).add_column(2, OFFSET, [range(3)])
    with pytest.raises(RowsRefused) as caught:
        store.apply([Changes(ROWS, puts, puts.slice(0, 0))], None)
    (refusal,) = caught.value.refusals
    assert (refusal.offset, "duplicate key" in refusal.error) == (2, True)
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
