"""Errors of real databases become tallymark's errors: transient, the row's or the table's fault, without a password."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence

import pytest
from sqlalchemy.engine import make_url

from tallymark.core.spans import Partition
from tallymark.core.tables import TableSpec
from tallymark.errors import AccessDenied, BadInput, DataRefused, TableChanged, Unreachable
from tallymark.stores.sql.store import SqlStore
from tests.support.background import wait_for
from tests.support.commits import take, work
from tests.support.databases import KINDS, query
from tests.support.stores import PLAIN, ROWS, UPSERT, opened, plain, prepare, put

SECRET = "hunter2-öß"


@pytest.fixture
def store(store_url: str) -> Iterator[SqlStore]:
    made = opened(store_url)
    yield made
    made.close()


# Rows and tables

REFUSED = {
    "duplicate": ("CREATE TABLE things (id BIGINT UNIQUE, name TEXT)", KINDS),
    "null": ("CREATE TABLE things (id BIGINT, name VARCHAR(9) NOT NULL)", KINDS),
    "check": ("CREATE TABLE things (id BIGINT, name VARCHAR(9), CHECK (id > 5))", KINDS),
    "foreign key": (
        "CREATE TABLE others (id BIGINT PRIMARY KEY); "
        "CREATE TABLE things (id BIGINT, name VARCHAR(9), FOREIGN KEY (id) REFERENCES others (id))",
        ("postgresql", "mariadb"),
    ),
    "too long": ("CREATE TABLE things (id BIGINT, name VARCHAR(1))", ("postgresql", "mariadb")),
    "out of range": ("CREATE TABLE things (id SMALLINT, name TEXT)", ("postgresql", "mariadb")),
    "no number": ("CREATE TABLE things (id BIGINT, name NUMERIC(5, 1))", ("postgresql", "mariadb")),
    "no date": ("CREATE TABLE things (id BIGINT, name DATE)", ("postgresql", "mariadb")),
    "no whole number": ("CREATE TABLE things (name INTEGER PRIMARY KEY, id BIGINT)", ("sqlite",)),
}
TRIGGERS = {
    "postgresql": (
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'not today'; END$$",
        "CREATE TRIGGER t BEFORE INSERT ON things FOR EACH ROW EXECUTE FUNCTION no()",
    ),
    "mariadb": (
        "CREATE TRIGGER t BEFORE INSERT ON things FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not today'",
    ),
    "sqlite": ("CREATE TRIGGER t BEFORE INSERT ON things BEGIN SELECT RAISE(ABORT, 'not today'); END",),
}
CASES = [(case, kind) for case, (_, kinds) in REFUSED.items() for kind in kinds]


@pytest.mark.parametrize(("case", "kind"), CASES)
def test_a_value_that_the_database_refuses_is_the_rows_fault(
    case: str, kind: str, database: Callable[[str], str]
) -> None:
    store = opened(database(kind))
    statements, _ = REFUSED[case]
    prepare(store, *statements.split("; "))
    name = None if case == "null" else "connection refused"
    with pytest.raises(DataRefused) as told:
        put(store, ROWS, plain((1, "a"), (2**20, name), (1, "x")) if case != "null" else plain((1, name)))
    assert "\n" not in str(told.value)
    assert store.name not in str(told.value)
    assert not told.value.transient
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_trigger_refuses_is_the_rows_fault(kind: str, database: Callable[[str], str]) -> None:
    store = opened(database(kind))
    prepare(store, "CREATE TABLE things (id BIGINT, name TEXT)", *TRIGGERS[kind])
    with pytest.raises(DataRefused, match=r"^not today"):
        put(store, ROWS, plain((1, "a")))
    store.close()


@pytest.mark.parametrize(
    "change",
    ["DROP TABLE things", "ALTER TABLE things DROP COLUMN name", "ALTER TABLE things RENAME TO gone"],
)
@pytest.mark.parametrize("spec", [ROWS, UPSERT], ids=lambda spec: spec.write)
def test_a_table_that_was_altered_meanwhile_is_not_the_rows_fault(
    spec: TableSpec, change: str, store: SqlStore
) -> None:
    store.create_tables([spec], {"things": PLAIN})
    with pytest.raises(TableChanged, match=r"things|name"):
        put(store, spec, plain((1, "a")), after=change)


def test_a_key_that_lost_its_index_is_a_change_of_the_table(database: Callable[[str], str]) -> None:
    for kind in ("postgresql", "sqlite"):
        store = opened(database(kind))
        prepare(store, "CREATE TABLE things (id BIGINT, name TEXT)", "CREATE UNIQUE INDEX by_id ON things (id)")
        with pytest.raises(TableChanged):
            put(store, UPSERT, plain((1, "a")), after="DROP INDEX by_id")
        store.close()


# Servers


def test_a_full_disk_is_transient_and_says_so(database: Callable[[str], str]) -> None:
    sqlite = opened(database("sqlite"))
    sqlite.create_tables([ROWS], {"things": PLAIN})
    with pytest.raises(Unreachable, match=r"is out of disk space or memory: .*full"):
        prepare(sqlite, "PRAGMA max_page_count = 1", "INSERT INTO things VALUES (1, printf('%.*c', 100000, 'x'))")
    sqlite.close()
    mariadb = opened(database("mariadb"))
    small = ["SET max_heap_table_size = 16384", "CREATE TABLE small (x CHAR(255)) ENGINE = MEMORY"]
    with pytest.raises(Unreachable, match=r"is out of disk space or memory: .*full"):
        prepare(mariadb, *small, *["INSERT INTO small VALUES ('x') " + ", ('x')" * 999] * 9)
    mariadb.close()


def test_a_statement_that_takes_too_long_is_transient(database: Callable[[str], str]) -> None:
    endless = "SELECT SUM(a.seq * b.seq) FROM seq_1_to_100000 a, seq_1_to_100000 b"
    slow = {
        "postgresql": ("SET LOCAL statement_timeout = 20", "SELECT pg_sleep(5)"),
        "mariadb": ("SET max_statement_time = 0.02", endless),
    }
    for kind, statements in slow.items():
        store = opened(database(kind))
        with pytest.raises(Unreachable, match="canceled a statement"):
            prepare(store, *statements)
        store.close()


def test_a_connection_that_breaks_during_copy_is_transient(database: Callable[[str], str]) -> None:
    url = database("postgresql")
    store = opened(url)
    prepare(
        store,
        "CREATE TABLE things (id BIGINT, name TEXT)",
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END$$",
        "CREATE TRIGGER t BEFORE INSERT ON things FOR EACH ROW EXECUTE FUNCTION die()",
    )
    with pytest.raises(Unreachable, match="terminating connection"):
        put(store, ROWS, plain(*((number, "x") for number in range(1000))))
    store.close()


def test_a_handler_that_thinks_for_too_long_is_told_so(database: Callable[[str], str]) -> None:
    """Uses the server's message that ended the connection, not that of the rollback that fails afterwards."""
    url = database("postgresql")
    store = opened(url)
    store.create_ledger()
    claims = take(store, "group", "me", [Partition("web", 0)])

    def think() -> None:
        with store.begin(lambda: work("group", "me", claims, 0, 3).entry) as db:
            db.execute("SET idle_in_transaction_session_timeout = 10")
            idle = "SELECT 1 FROM pg_stat_activity WHERE state LIKE 'idle in%' AND datname = current_database()"
            wait_for(lambda: query(url, idle) == [])

    with pytest.raises(Unreachable, match="idle-in-transaction"):
        think()
    store.close()


def messages(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def check_discreet(error: BaseException, *, words: Sequence[str]) -> None:
    """One line, with the words that an operator needs, without the password."""
    assert "\n" not in str(error)
    for word in words:
        assert word in str(error)
    for message in messages(error):
        assert SECRET not in message


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_database_that_does_not_answer_is_unreachable(scheme: str) -> None:
    store = opened(f"{scheme}://me:{SECRET}@127.0.0.1:{closed_port()}/db")
    with pytest.raises(Unreachable) as told:
        store.ping()
    check_discreet(told.value, words=["127.0.0.1", "check that it runs"])
    assert told.value.transient


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_an_unknown_database_is_named(kind: str, servers: dict[str, str]) -> None:
    url = make_url(servers[kind]).set(database="nowhere", password=SECRET if kind == "postgresql" else None)
    store = opened(url.render_as_string(hide_password=False))
    with pytest.raises(BadInput) as told:
        store.ping()
    check_discreet(told.value, words=["nowhere", "create the database first"])


def test_a_wrong_password_is_refused(database: Callable[[str], str]) -> None:
    url = database("mariadb")
    admin = opened(url)
    user = f"u{make_url(url).database}"
    prepare(admin, f"CREATE USER {user} IDENTIFIED BY 'right'", f"GRANT ALL ON *.* TO {user}")
    store = opened(make_url(url).set(username=user, password=SECRET).render_as_string(hide_password=False))
    with pytest.raises(AccessDenied) as told:
        store.ping()
    check_discreet(told.value, words=[user, "check the user, the password"])
    assert not told.value.transient
    prepare(admin, f"DROP USER {user}")
    admin.close()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_user_who_may_not_create_tables_is_told(kind: str, database: Callable[[str], str]) -> None:
    url = make_url(database(kind))
    admin = opened(url.render_as_string(hide_password=False))
    user = f"u{url.database}"
    if kind == "postgresql":
        prepare(admin, f"CREATE ROLE {user} LOGIN")
    else:
        prepare(admin, f"CREATE USER {user} IDENTIFIED BY '{SECRET}'", f"GRANT SELECT ON {url.database}.* TO {user}")
    store = opened(url.set(username=user, password=SECRET).render_as_string(hide_password=False))
    with pytest.raises(AccessDenied) as told:
        store.create_ledger()
    check_discreet(told.value, words=["denied", "tallymark ledger create"])
    with pytest.raises(AccessDenied):
        store.create_tables([ROWS], {"things": PLAIN})
    store.close()
    prepare(admin, f"DROP {'ROLE' if kind == 'postgresql' else 'USER'} {user}")
    admin.close()


@pytest.mark.parametrize(
    "url",
    [f"postgresql://me:{SECRET}@host:port/db", f"nonsense {SECRET}", f"oracle://me:{SECRET}@host/db", "sqlite://"],
)
def test_a_url_that_makes_no_sense_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(BadInput) as told:
        opened(url)
    check_discreet(told.value, words=["store"])


def test_a_file_in_a_directory_that_is_not_there_is_named() -> None:
    store = opened("sqlite:////nowhere/at/all.db")
    with pytest.raises(BadInput, match=r"nowhere/at/all\.db: the file can't be opened"):
        store.ping()
