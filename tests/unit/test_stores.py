"""Store URLs and database errors, without a database: what is refused, what may pass, and what is never shown."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pymysql
import pytest
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tallymark.errors import AccessDenied, BadInput, TallymarkError, Unreachable
from tallymark.stores.failures import translate, translated
from tallymark.stores.store import Store

SECRET = "s3cr3t-w0rd"
STORE = "postgresql://shop@db/shop"


def wrapped(error: Exception, *, invalidated: bool = False) -> DBAPIError:
    return DBAPIError("SELECT 1", None, error, connection_invalidated=invalidated)


class WithState(psycopg.Error):
    """As psycopg raises it: the code is an attribute."""

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
        (WithState("value too long for type character varying(3)", "22001"), TallymarkError),
        (pymysql.err.DataError(1406, "Data too long for column 'name' at row 1"), TallymarkError),
        (sqlite3.IntegrityError("NOT NULL constraint failed: orders.id"), TallymarkError),
    ],
)
def test_a_database_error_becomes_the_one_that_says_what_to_do(error: Exception, kind: type[TallymarkError]) -> None:
    ours = translate(wrapped(error), STORE)
    assert type(ours) is kind
    assert ours.transient == (kind is Unreachable)
    assert str(ours).startswith(STORE)
    assert "\n" not in str(ours)


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


@pytest.mark.parametrize("url", ["oracle://host/shop", "redis://host", "shop.db", "", "://", "postgresql+asyncpg//x"])
def test_a_url_of_no_known_database_is_refused_with_a_way_out(url: str) -> None:
    with pytest.raises(BadInput, match=r"tallymark knows .*postgresql|write it like postgresql://"):
        Store(url)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///"])
def test_a_database_that_forgets_is_no_store(url: str) -> None:
    with pytest.raises(BadInput, match=r"write sqlite:///name\.db"):
        Store(url)


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
    store = Store(url)
    assert SECRET not in store.name
    assert "localhost:1/shop" in store.name
    with pytest.raises(TallymarkError) as caught:
        store.ping()
    assert SECRET not in f"{caught.value}"


@pytest.mark.parametrize("url", [f"oracle://shop:{SECRET}@db/shop", f"postgresql://shop:{SECRET}@db:port/shop"])
def test_a_password_is_not_in_the_refusal_of_its_url(url: str) -> None:
    with pytest.raises(BadInput) as caught:
        Store(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_looking_at_a_store_that_is_not_there_does_not_make_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="check that its directory exists"):
        Store(f"sqlite:///{tmp_path}/missing/store.db").ping()
    assert not (tmp_path / "missing").exists()
