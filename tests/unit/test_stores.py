"""Store URLs and database errors, without a database: refusals, transient errors, and secrets that are never shown."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pyarrow as pa
import pymysql
import pytest
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tallymark.core.tables import TableSpec
from tallymark.errors import AccessDenied, BadInput, DataRefused, TableChanged, TallymarkError, Unreachable
from tallymark.operate import check as trial
from tallymark.stores.opening import open_store
from tallymark.stores.sql.columns import hexed
from tallymark.stores.sql.errors import translate, translated

SECRET = "s3cr3t-w0rd"
STORE = "postgresql://shop@db/shop"
BYTEWISE = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


def wrapped(error: Exception, *, invalidated: bool = False) -> DBAPIError:
    return DBAPIError("SELECT 1", None, error, connection_invalidated=invalidated)


class WithState(psycopg.Error):
    """Like psycopg's error: the code is an attribute."""

    def __init__(self, words: str, state: str) -> None:
        super().__init__(words)
        self.sqlstate = state


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (WithState("deadlock detected", "40P01"), Unreachable),
        (WithState("could not serialize access", "40001"), Unreachable),
        (WithState("the database system is shutting down", "57P03"), Unreachable),
        (WithState("sorry, too many clients already", "53300"), Unreachable),
        (psycopg.OperationalError("connection failed: connection to server at 127.0.0.1 failed"), Unreachable),
        (psycopg.OperationalError("server closed the connection unexpectedly"), Unreachable),
        (pymysql.err.OperationalError(2003, "Can't connect to MySQL server on 'db'"), Unreachable),
        (pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query"), Unreachable),
        (pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"), Unreachable),
        (pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock"), Unreachable),
        (sqlite3.OperationalError("database is locked"), Unreachable),
        (WithState("password authentication failed for user", "28P01"), AccessDenied),
        (WithState("permission denied for table orders", "42501"), AccessDenied),
        (pymysql.err.OperationalError(1045, "Access denied for user 'shop'@'db'"), AccessDenied),
        (sqlite3.OperationalError("attempt to write a readonly database"), AccessDenied),
        (WithState('database "shop" does not exist', "3D000"), BadInput),
        (pymysql.err.OperationalError(1049, "Unknown database 'shop'"), BadInput),
        (sqlite3.OperationalError("unable to open database file"), BadInput),
        (WithState("could not extend file: No space left on device", "53100"), Unreachable),
        (WithState("out of memory", "53200"), Unreachable),
        (WithState("canceling statement due to lock timeout", "55P03"), Unreachable),
        (pymysql.err.OperationalError(1021, "Disk full (/tmp); waiting for someone to free some space"), Unreachable),
        (pymysql.err.OperationalError(1030, "Got error 28 from storage engine"), Unreachable),
        (pymysql.err.OperationalError(3024, "maximum statement execution time exceeded"), Unreachable),
        (sqlite3.OperationalError("disk I/O error"), Unreachable),
        (WithState("syntax error", "42601"), TallymarkError),
    ],
)
def test_a_database_error_becomes_the_one_that_says_what_to_do(error: Exception, kind: type[TallymarkError]) -> None:
    ours = translate(wrapped(error), STORE)
    assert type(ours) is kind
    assert ours.transient == (kind is Unreachable)
    assert str(ours).startswith(STORE)
    assert "\n" not in str(ours)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (WithState('invalid input syntax for type integer: "permission denied"', "22P02"), DataRefused),
        (WithState("duplicate key value\nDETAIL:  Key (id)=(1) already exists.", "23505"), DataRefused),
        (WithState("index row size 2712 exceeds maximum", "54000"), DataRefused),
        (WithState("ON CONFLICT DO UPDATE command cannot affect row a second time", "21000"), DataRefused),
        (WithState("no such table", "P0001"), DataRefused),
        (psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"), DataRefused),
        (pymysql.err.DataError(1406, "Data too long for column 'name' at row 1"), DataRefused),
        (pymysql.err.IntegrityError(1062, "Duplicate entry 'connection refused' for key 'PRIMARY'"), DataRefused),
        (pymysql.err.OperationalError(3140, "Invalid JSON text"), DataRefused),
        (pymysql.err.OperationalError(3819, "Check constraint 'c' is violated."), DataRefused),
        (pymysql.err.ProgrammingError("nan can not be used with MySQL"), DataRefused),
        (sqlite3.IntegrityError("NOT NULL constraint failed: orders.id"), DataRefused),
        (sqlite3.DataError("string or blob too big"), DataRefused),
        (WithState('column "x" is of type bigint but expression is of type text', "42804"), TableChanged),
        (pymysql.err.OperationalError(1412, "Table definition has changed, please retry transaction"), TableChanged),
        (sqlite3.OperationalError("table orders has no column named x"), TableChanged),
    ],
)
def test_what_is_wrong_with_rows_and_tables_is_said_in_the_databases_words(
    error: Exception, kind: type[TallymarkError]
) -> None:
    ours = translate(wrapped(error), STORE)
    assert type(ours) is kind
    assert not ours.transient
    assert STORE not in str(ours)
    assert "\n" not in str(ours)


def test_bytes_become_hexadecimal_whatever_part_of_the_buffers_they_are() -> None:
    values = [b"", None, b"\x00\xff", b"abc", None]
    whole = pa.array(values, pa.binary())
    for start in range(len(values)):
        column = pa.chunked_array([whole.slice(start), whole.slice(0, start), pa.array([None], pa.binary())])
        expected = [*values[start:], *values[:start], None]
        assert hexed(column, "\\x").to_pylist() == [
            None if value is None else "\\x" + value.hex() for value in expected
        ]


def test_a_connection_that_is_gone_is_transient_whatever_it_said() -> None:
    assert translate(wrapped(psycopg.OperationalError("odd words"), invalidated=True), STORE).transient
    assert not translate(wrapped(psycopg.OperationalError("odd words")), STORE).transient


def test_errors_inside_a_block_come_out_as_ours_with_their_cause() -> None:
    cause = wrapped(pymysql.err.OperationalError(2006, "MySQL server has gone away"))
    with pytest.raises(Unreachable, match="gone away") as caught, translated(STORE):
        raise cause
    assert caught.value.__cause__ is cause
    with pytest.raises(Unreachable, match="no free connection"), translated(STORE):
        raise PoolTimeout
    with pytest.raises(TallymarkError, match="odd"), translated(STORE):
        raise ArgumentError("odd")


def test_errors_of_other_kinds_are_left_alone() -> None:
    with pytest.raises(ZeroDivisionError), translated(STORE):
        raise ZeroDivisionError


@pytest.mark.parametrize("url", ["oracle://host/shop", "shop.db", "", "://", "postgresql+asyncpg//x"])
def test_a_url_of_no_known_database_is_refused_with_a_way_out(url: str) -> None:
    with pytest.raises(BadInput, match=r"tallymark supports .*postgresql|write it like postgresql://"):
        open_store(url)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///"])
def test_a_database_that_forgets_is_no_store(url: str) -> None:
    with pytest.raises(BadInput, match=r"write sqlite:///name\.db"):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://shop:{SECRET}@localhost:1/shop",
        f"postgresql://shop@localhost:1/shop?password={SECRET}",
        f"postgresql://localhost:1/shop?user=shop&password={SECRET}&sslmode=disable",
        f"mysql://shop:{SECRET}@localhost:1/shop",
        f"mariadb://localhost:1/shop?user=shop&password={SECRET}",
    ],
)
def test_a_password_is_in_no_name_and_no_error(url: str) -> None:
    store = open_store(url)
    assert SECRET not in store.name
    assert "localhost:1/shop" in store.name
    with pytest.raises(TallymarkError) as caught:
        store.ping()
    assert SECRET not in f"{caught.value}"


@pytest.mark.parametrize("url", [f"oracle://shop:{SECRET}@db/shop", f"postgresql://shop:{SECRET}@db:port/shop"])
def test_a_password_is_not_in_the_refusal_of_its_url(url: str) -> None:
    with pytest.raises(BadInput) as caught:
        open_store(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "types"),
    [
        ("sqlite:///shop.db", ["BIGINT", "TEXT", "TEXT"]),
        ("postgresql://localhost/shop", ["BIGINT", "TEXT", "NUMERIC(10, 2)"]),
        ("mysql://localhost/shop", ["BIGINT", f"LONGTEXT {BYTEWISE}", "NUMERIC(10, 2)"]),
    ],
)
def test_check_tells_types_as_the_database_has_them(url: str, types: list[str]) -> None:
    schema = pa.schema({"id": pa.int64(), "name": pa.string(), "price": pa.decimal128(10, 2)})
    with closing(open_store(url)) as store:
        found = trial.column_types(store, TableSpec("orders", ("id",), "upsert"), schema)
    assert list(found) == ["id", "name", "price"]
    assert list(found.values()) == types


def test_looking_at_a_store_that_is_not_there_does_not_make_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="check that its directory exists"):
        open_store(f"sqlite:///{tmp_path}/missing/store.db").ping()
    assert not (tmp_path / "missing").exists()
