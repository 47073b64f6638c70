"""The contract of every store for deletions with a version: an older record that arrives later brings no row back.

Random batches are compared with the documented rule in test_newest.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy.engine import make_url

from tallymark.core.claims import Advance, Claim, PositionChanges, Restart
from tallymark.core.progress import Step
from tallymark.core.retention import Retention
from tallymark.core.spans import Partition, Tally
from tallymark.core.tables import Changes, TableSpec, WrittenTable
from tallymark.errors import AccessDenied, Fenced, TableMismatch
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tallymark.stores.redis.keys import escaped
from tallymark.stores.sql import mysql
from tallymark.stores.sql.deletions import name_of
from tallymark.stores.sql.store import SqlStore
from tests.support import databases
from tests.support.background import wait_for
from tests.support.commits import SEVERAL_WRITERS, SINCE, moving, take
from tests.support.stores import read
from tests.support.truth import rows

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
SPEC = TableSpec("orders", ("id",), "upsert", "v", "value.op = 'd'")
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("name", pa.string())])
WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
    "mysql": "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status "
    "WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
}
Row = tuple[Any, Any]
"""Key and version."""


@pytest.fixture(params=[*databases.KINDS, "mariadb-many", "redis", "redis-json"])
def url(request: pytest.FixtureRequest, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> str:
    kind, _, other = request.param.partition("-")
    monkeypatch.setattr(mysql, "MANY", 1 if other == "many" else 1_000)
    return database(kind) + ("&rows=json" if other == "json" else "")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = open_store(url)
    made.create_ledger()
    yield made
    made.close()


def batch(spec: TableSpec, schema: pa.Schema, *, puts: Sequence[Row] = (), deletes: Sequence[Row] = ()) -> Changes:
    """A batch whose rows have one column for the key, the version, and then a name."""

    def table(pairs: Sequence[Row]) -> pa.Table:
        names = schema.names
        return pa.Table.from_pylist([{names[0]: k, names[1]: v, names[2]: f"{k} {v}"} for k, v in pairs], schema)

    return Changes(spec, table(puts), table(deletes))


def versions(store: Store, url: str, spec: TableSpec, schema: pa.Schema, *batches: dict[str, Any]) -> list[Any]:
    """The versions in the table after these batches."""
    store.create_tables([spec], {spec.name: schema})
    for each in batches:
        store.apply([batch(spec, schema, **each)], None)
    return sorted(version for (version,) in rows(url, spec.name, schema.names[1]).elements())


@pytest.mark.parametrize(
    ("batches", "there"),
    [
        ([{"puts": [(1, 10)]}, {"deletes": [(1, 12)]}, {"puts": [(1, 11)]}], []),
        ([{"deletes": [(1, 12)]}, {"puts": [(1, 11)]}], []),
        ([{"deletes": [(1, 12)]}, {"puts": [(1, None)]}], []),
        ([{"deletes": [(1, 12)]}, {"puts": [(1, 12)]}], [12]),
        ([{"deletes": [(1, 12)]}, {"puts": [(1, 13), (2, 11)]}, {"puts": [(1, 12)]}], [11, 13]),
        ([{"deletes": [(1, 12)]}, {"deletes": [(1, 9)]}, {"puts": [(1, 11)]}], []),
        ([{"deletes": [(1, 12)]}, {"deletes": [(1, None)]}, {"puts": [(1, 11)]}], [11]),
        ([{"deletes": [(1, 12)]}, {"deletes": [(1, None), (1, 5)]}, {"puts": [(1, 4)]}], []),
        ([{"deletes": [(1, None)]}, {"puts": [(1, 1)]}], [1]),
        ([{"puts": [(1, 10)]}, {"deletes": [(1, 9)]}, {"puts": [(1, 8)]}], [10]),
    ],
)
def test_an_older_row_stays_away(batches: Any, there: list[int], store: Store, url: str) -> None:
    assert versions(store, url, SPEC, SCHEMA, *batches) == there


@pytest.mark.parametrize(
    ("kind", "older", "deleted", "newer"),
    [
        (pa.string(), "Z", "a", "b"),
        (pa.string(), "a", "ä", "é"),
        (pa.timestamp("us", "UTC"), *(datetime(2026, 1, 1, 12, 0, 0, micro, UTC) for micro in (1, 2, 3))),
        (pa.date32(), *(datetime(2026, 1, day, tzinfo=UTC).date() for day in (1, 2, 3))),
        (pa.float64(), 9.5, 10.25, 100.0),
        (pa.int64(), 2**53, 2**53 + 1, 2**53 + 2),
        (pa.decimal128(30, 2), Decimal("9.99"), Decimal("10.00"), Decimal("10.01")),
    ],
)
def test_versions_of_every_type_are_compared_as_within_a_batch(
    kind: pa.DataType, older: Any, deleted: Any, newer: Any, store: Store, url: str
) -> None:
    if pa.types.is_decimal(kind) and url.startswith("sqlite"):
        with pytest.raises(TableMismatch, match="stores as text"):
            store.create_tables([SPEC], {"orders": SCHEMA.set(1, pa.field("v", kind))})
        return
    schema = SCHEMA.set(1, pa.field("v", kind))
    first = {"deletes": [(1, deleted), (2, deleted)]}, {"puts": [(1, older), (2, newer)]}
    assert len(versions(store, url, SPEC, schema, *first)) == 1


def test_names_and_keys_of_every_kind_are_remembered(store: Store, url: str) -> None:
    odd = TableSpec('odd "table" 100% `x` ' + "é" * 20, ('k "%`', "b"), "upsert", "v %s", "value IS NULL")
    schema = pa.schema([('k "%`', pa.string()), ("b", pa.binary()), ("v %s", pa.int64())])
    if url.startswith("redis"):
        schema = schema.append(pa.field("more", pa.string()))
    if url.startswith(("mysql", "mariadb")):
        # MySQL has no key on a column of unlimited length, and no such long name with backticks.
        odd, schema = replace(odd, key=odd.key[:1], name="odd 100%"), schema.remove(1)

    def table(*pairs: tuple[str, int]) -> pa.Table:
        named = [dict.fromkeys(schema.names, b"\x00\xff") | {'k "%`': key, "v %s": version} for key, version in pairs]
        return pa.Table.from_pylist(
            [{name: row[name] for name in schema.names if name != "more"} for row in named], schema
        )

    store.create_tables([odd], {odd.name: schema})
    store.apply([Changes(odd, table(), table(("A ", 5)))], None)
    store.apply([Changes(odd, table(("A", 4), ("A ", 4), ("a ", 4)), table())], None)
    if isinstance(store, SqlStore):
        assert [row[0] for row in read(store, odd, schema)] == ["A", "a "]
    else:
        assert sorted(rows(url, escaped(odd.name), 'k "%`').elements()) == [("A",), ("a ",)]


def test_deletions_are_forgotten_by_age(store: Store, url: str) -> None:
    group = "orders-to-shop"
    claims = take(store, group, "first", [ZERO])
    store.create_tables([SPEC], {"orders": SCHEMA})
    step = Advance(ZERO, 0, 1, claims[ZERO].epoch, Tally(applied=1), SINCE)
    entry = replace(moving(group, step).entry, tables=[WrittenTable("orders", "upsert")])
    store.apply([batch(SPEC, SCHEMA, deletes=[(1, 12), (2, 12)])], entry)

    def prune(ahead: timedelta, *, execute: bool = True) -> int:
        counts = store.prune(group, Retention().cutoffs(datetime.now(UTC) + ahead), execute=execute)
        return next(count for name, count in counts.items() if "deletions" in name)

    assert prune(timedelta(days=29)) == 0
    assert prune(timedelta(days=31), execute=False) == 2
    store.apply([batch(SPEC, SCHEMA, puts=[(1, 11)])], None)
    assert not rows(url, "orders", "v")
    assert prune(timedelta(days=31)) == 2
    store.apply([batch(SPEC, SCHEMA, puts=[(1, 11)])], None)
    assert list(rows(url, "orders", "v").elements()) == [(11,)]


def test_a_table_that_is_emptied_forgets_its_deletions(store: Store, url: str) -> None:
    group = "orders-to-shop"
    claims = take(store, group, "first", [ZERO])
    store.create_tables([SPEC], {"orders": SCHEMA})
    commit(store, group, claims, ZERO, batch(SPEC, SCHEMA, puts=[(2, 1)], deletes=[(1, 12)]))
    to_start = PositionChanges({}, {ZERO: Restart(0, "by hand", emptied=True)}, ["orders"])
    store.journal().move(group, [ZERO], lambda *_: to_start, "op@host", SINCE)
    assert not rows(url, "orders", "v")
    store.apply([batch(SPEC, SCHEMA, puts=[(1, 11)])], None)
    assert list(rows(url, "orders", "v").elements()) == [(11,)]


def test_a_refused_batch_remembers_nothing(store: Store, url: str) -> None:
    group = "orders-to-shop"
    stale = take(store, group, "first", [ZERO])
    take(store, group, "second", [ZERO])
    store.create_tables([SPEC], {"orders": SCHEMA})
    step = Advance(ZERO, 0, 1, stale[ZERO].epoch, Tally(applied=1), SINCE)
    with pytest.raises(Fenced):
        store.apply([batch(SPEC, SCHEMA, deletes=[(1, 12)])], moving(group, step).entry)
    store.apply([batch(SPEC, SCHEMA, puts=[(1, 11)])], None)
    assert list(rows(url, "orders", "v").elements()) == [(11,)]


@SEVERAL_WRITERS
def test_a_batch_sees_the_deletion_of_a_batch_that_is_being_committed(store: Store, url: str) -> None:
    """Like a backfill, which does not own its partition, beside the owner."""
    group = "orders-to-shop"
    claims = take(store, group, "first", [ZERO, ONE])
    store.create_tables([SPEC], {"orders": SCHEMA})
    commit(store, group, claims, ZERO, batch(SPEC, SCHEMA, puts=[(7, 1)]))
    written, resume = Event(), Event()

    def pausing(step: Step) -> None:
        if step is Step.WRITTEN:
            written.set()
            assert resume.wait(20)

    with ThreadPoolExecutor() as pool:
        deleting = pool.submit(commit, store, group, claims, ZERO, batch(SPEC, SCHEMA, deletes=[(1, 12)]), pausing, 1)
        assert written.wait(20)
        putting = pool.submit(commit, store, group, claims, ONE, batch(SPEC, SCHEMA, puts=[(1, 11), (2, 1)]))
        if not url.startswith("redis"):
            wait_for(lambda: databases.query(url, WAITING[url.split(":")[0].split("+")[0]]) != [(0,)])
        resume.set()
        deleting.result(20)
        putting.result(20)
    assert sorted(rows(url, "orders", "id").elements()) == [(2,), (7,)]


def commit(
    store: Store,
    group: str,
    claims: dict[Partition, Claim],
    partition: Partition,
    change: Changes,
    on_step: Callable[[Step], None] = lambda _: None,
    start: int = 0,
) -> None:
    step = Advance(partition, start, start + 1, claims[partition].epoch, Tally(applied=1), SINCE)
    entry = replace(moving(group, step).entry, tables=[WrittenTable("orders", "upsert")])
    store.apply([change], entry, on_step)


@pytest.mark.parametrize("url", databases.KINDS, indirect=True)
def test_a_table_that_was_dropped_begins_without_deletions(store: Store, url: str) -> None:
    assert versions(store, url, SPEC, SCHEMA, {"deletes": [(1, 12)]}) == []
    databases.execute(url, "DROP TABLE orders")
    assert versions(store, url, SPEC, SCHEMA, {"puts": [(1, 11)]}) == [11]


@pytest.mark.parametrize("url", ["postgresql", "mariadb"], indirect=True)
def test_a_key_that_no_longer_fits_is_refused(store: Store, url: str) -> None:
    databases.execute(url, "CREATE TABLE orders (id INTEGER PRIMARY KEY, v BIGINT, name VARCHAR(50))")
    narrow = SCHEMA.set(0, pa.field("id", pa.int32()))
    store.create_tables([SPEC], {"orders": narrow})
    kind = "MODIFY id" if url.startswith(("mysql", "mariadb")) else "ALTER COLUMN id TYPE"
    databases.execute(url, f"ALTER TABLE orders {kind} BIGINT")
    with pytest.raises(TableMismatch, match=r"tallymark_deleted_orders.*drop tallymark_deleted_orders"):
        store.create_tables([SPEC], {"orders": SCHEMA})


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_enums_uuids_and_collations_of_the_key_are_those_of_the_table(store: Store, url: str) -> None:
    databases.execute(
        url,
        "CREATE TYPE region AS ENUM ('eu', 'us')",
        'CREATE TABLE orders (id UUID, r region, c TEXT COLLATE "C", v TEXT, PRIMARY KEY (id, r, c))',
    )
    spec = replace(SPEC, key=("id", "r", "c"))
    schema = pa.schema([(name, pa.string()) for name in ("id", "r", "c", "v")])
    key = {"id": "6b1c0a1e-0d2b-4c6e-8f00-3a1f4f1a2b3c", "r": "us", "c": "é"}
    store.create_tables([spec], {"orders": schema})
    empty = schema.empty_table()
    store.apply([Changes(spec, empty, pa.Table.from_pylist([key | {"v": "b"}], schema))], None)
    store.apply([Changes(spec, pa.Table.from_pylist([key | {"v": "B"}], schema), empty)], None)
    assert not rows(url, "orders", "v")


def test_a_user_who_may_not_create_tables_gets_the_statement(database: Callable[[str], str]) -> None:
    url = database("postgresql")
    databases.execute(
        url,
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, v BIGINT, name TEXT)",
        "DROP ROLE IF EXISTS reader_only",
        "CREATE ROLE reader_only LOGIN",
        "GRANT ALL ON orders TO reader_only",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    )
    store = open_store(make_url(url).set(username="reader_only").render_as_string(hide_password=False))
    try:
        with pytest.raises(AccessDenied, match=r"administrator create it: CREATE TABLE tallymark_deleted_orders \("):
            store.create_tables([SPEC], {"orders": SCHEMA})
    finally:
        store.close()
        databases.execute(url, "DROP OWNED BY reader_only", "DROP ROLE reader_only")


def test_long_names_are_shortened() -> None:
    assert name_of("orders") == "tallymark_deleted_orders"
    assert len(name_of("é" * 40).encode()) < 63
    assert name_of("é" * 40) != name_of("é" * 41)
