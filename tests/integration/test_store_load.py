"""LOAD DATA LOCAL: the server only warns about bad values, so its warnings are checked; and it may be disabled."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy.engine import make_url

from tallymark.core.tables import TableSpec
from tallymark.errors import DataRefused
from tallymark.stores.sql import myload, mysql
from tallymark.stores.sql.store import SqlStore
from tests.support.stores import IGNORE, PLAIN, ROWS, UPSERT, opened, prepare, put, read, write

MANY = 2 * mysql.MANY
SPECS = [ROWS, UPSERT, IGNORE]


@pytest.fixture
def url(database: Callable[[str], str]) -> str:
    return database("mariadb")


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    made = opened(url)
    yield made
    made.close()


def many(**at_500: object) -> pa.Table:
    """Thousands of rows, one of them different."""
    ids, names = list(range(MANY)), [f"name {number}" for number in range(MANY)]
    ids[500], names[500] = at_500.get("id", 500), at_500.get("name", "x")  # type: ignore[call-overload]
    return pa.table([ids, names], schema=PLAIN)


BAD = {
    "too long": ("id BIGINT PRIMARY KEY, name VARCHAR(9)", many(name="x" * 10)),
    "null": ("id BIGINT PRIMARY KEY, name VARCHAR(9) NOT NULL", many(name=None)),
    "out of range": ("id INT PRIMARY KEY, name TEXT", many(id=2**31)),
    "not a number": ("id BIGINT PRIMARY KEY, name DOUBLE", many(name="x")),
    "no such emoji": ("id BIGINT PRIMARY KEY, name TEXT CHARACTER SET latin1", many(name="🐘")),
    "against a check": ("id BIGINT PRIMARY KEY CHECK (id >= 0), name TEXT", many(id=-1)),
    "not json": ("id BIGINT PRIMARY KEY, name JSON", many(name="{")),
}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.write)
@pytest.mark.parametrize("case", BAD)
def test_one_bad_row_among_many_is_refused_and_none_stays(case: str, spec: TableSpec, store: SqlStore) -> None:
    columns, rows = BAD[case]
    prepare(store, f"CREATE TABLE things ({columns})")
    with pytest.raises(DataRefused):
        put(store, spec, rows)
    with store.look() as connection:
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM things").scalar() == 0


def test_a_duplicate_among_many_is_refused_and_not_skipped(store: SqlStore) -> None:
    prepare(store, "CREATE TABLE things (id BIGINT PRIMARY KEY, name TEXT)")
    with pytest.raises(DataRefused, match="Duplicate entry '499' for key 'PRIMARY'"):
        put(store, ROWS, many(id=499))
    assert read(store, ROWS, PLAIN) == []
    put(store, ROWS, many())
    assert len(read(store, ROWS, PLAIN)) == MANY


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, logger="tallymark")
    return lambda: [record.getMessage() for record in caplog.records if "LOAD DATA" in record.getMessage()]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.write)
def test_where_loading_is_forbidden_rows_go_by_insert_and_one_line_says_so(
    spec: TableSpec, url: str, lines: Callable[[], list[str]]
) -> None:
    store = opened(make_url(url).update_query_dict({"local_infile": "0"}).render_as_string(hide_password=False))
    for start in (0, MANY):
        write(store, spec, pa.table([range(start, start + MANY), ["x"] * MANY], schema=PLAIN))
    assert read(store, spec, PLAIN) == [(number, "x") for number in range(2 * MANY)]
    (line,) = lines()
    assert line.startswith("LOAD DATA LOCAL not available, using INSERT error=")
    store.close()


def test_a_user_who_may_not_make_temporary_tables_can_upsert(
    url: str, store: SqlStore, lines: Callable[[], list[str]]
) -> None:
    user = f"u{make_url(url).database}"
    rights = "SELECT, INSERT, UPDATE, DELETE, CREATE"
    prepare(store, f"CREATE USER {user} IDENTIFIED BY 'x'", f"GRANT {rights} ON {make_url(url).database}.* TO {user}")
    limited = opened(make_url(url).set(username=user, password="x").render_as_string(hide_password=False))
    write(limited, UPSERT, many())
    assert len(read(store, UPSERT, PLAIN)) == MANY
    assert len(lines()) == 1
    limited.close()
    prepare(store, f"DROP USER {user}")


def test_without_files_in_memory_there_is_one_on_disk(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    write(store, ROWS, many())
    assert len(read(store, ROWS, PLAIN)) == MANY


def test_a_leftover_of_a_batch_that_failed_is_in_nobodys_way(store: SqlStore) -> None:
    prepare(store, "CREATE TABLE things (id BIGINT PRIMARY KEY CHECK (id >= 0), name TEXT)")
    for _ in range(2):
        with pytest.raises(DataRefused):
            put(store, UPSERT, many(id=-1))
    put(store, UPSERT, many())
    assert len(read(store, UPSERT, PLAIN)) == MANY


# Rows larger than a packet


@pytest.fixture
def limit(store: SqlStore) -> int:
    with store.look() as connection:
        return int(connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one())


@pytest.mark.parametrize(("letter", "written"), [("x", 1), ("'", 2), ("\\", 2)], ids=["plain", "quotes", "slashes"])
def test_a_row_larger_than_a_packet_is_refused_with_the_limit(
    letter: str, written: int, store: SqlStore, limit: int
) -> None:
    store.create_tables([ROWS], {"things": PLAIN})
    with pytest.raises(DataRefused, match=rf"the row has {limit} bytes, more than max_allowed_packet={limit}"):
        put(store, ROWS, pa.table([[1, 2], ["a", letter * (limit // written)]], schema=PLAIN))


def test_the_largest_row_that_is_let_through_arrives(store: SqlStore, limit: int) -> None:
    longest = "x" * (limit - mysql.REST)
    write(store, ROWS, pa.table([[1], [longest]], schema=PLAIN))
    with store.look() as connection:
        assert connection.exec_driver_sql("SELECT LENGTH(name) FROM things").scalar() == len(longest)
    with pytest.raises(DataRefused, match="max_allowed_packet"):
        put(store, ROWS, pa.table([[1], [longest + "x"]], schema=PLAIN))


def test_the_driver_sends_files_only_while_rows_are_loaded(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may answer any statement with a request for a file."""
    asked: list[bool] = []
    load = myload.load

    def watched(connection: Any, *arguments: Any) -> None:
        asked.append(connection.connection.driver_connection._local_infile)
        load(connection, *arguments)
        asked.append(connection.connection.driver_connection._local_infile)

    monkeypatch.setattr(mysql, "load", watched)
    prepare(store, "CREATE TABLE things (id BIGINT PRIMARY KEY, name TEXT)")
    put(store, ROWS, many())
    assert asked == [False, False]
