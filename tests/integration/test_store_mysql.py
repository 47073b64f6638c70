"""A real MySQL, where it differs from MariaDB: authentication, modes, indexes and restrictions of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pymysql._auth
import pytest
from sqlalchemy.engine import make_url

from tallymark.core.tables import TableSpec
from tallymark.errors import BadInput, TableMismatch
from tallymark.operate.doctor.examine import Patient, examine
from tallymark.stores.opening import open_store
from tallymark.stores.sql.staging import ATTEMPT
from tallymark.stores.sql.store import SqlStore
from tests.support.databases import create, drop, execute
from tests.support.stores import IGNORE, PLAIN, ROWS, UPSERT, opened, plain, prepare, put, read, write

MANY = pa.table([range(2_000), [f"it's \\ {number}\n" for number in range(2_000)]], schema=PLAIN)


@pytest.fixture(scope="module")
def kept_url(mysql: str) -> Iterator[str]:
    url = create(mysql)
    yield url
    drop(url)


@pytest.fixture
def store(kept_url: str) -> Iterator[SqlStore]:
    made = opened(kept_url)
    prepare(made, "DROP TABLE IF EXISTS things")
    yield made
    made.close()


@pytest.fixture
def server(mysql: str) -> Iterator[Callable[[str, str], None]]:
    """Sets a variable of the server until the test ends."""
    changed: list[str] = []

    def change(name: str, value: str) -> None:
        changed.append(name)
        execute(mysql, f"SET GLOBAL {name} = {value}")

    yield change
    execute(mysql, *(f"SET GLOBAL {name} = DEFAULT" for name in reversed(changed)))


def test_it_is_mysql(store: SqlStore) -> None:
    with store.look() as connection:
        assert not getattr(connection.dialect, "is_mariadb", True)
        assert int(connection.exec_driver_sql("SELECT VERSION()").scalar_one().partition(".")[0]) >= 8


@pytest.mark.parametrize("spec", [ROWS, UPSERT, IGNORE], ids=lambda spec: spec.write)
@pytest.mark.parametrize("rows", [MANY, MANY.slice(0, 100)], ids=["many", "few"])
def test_backslashes_stay_where_the_server_takes_them_for_plain_characters(
    rows: pa.Table, spec: TableSpec, kept_url: str, server: Callable[[str, str], None]
) -> None:
    server("sql_mode", "'STRICT_TRANS_TABLES,NO_BACKSLASH_ESCAPES'")
    store = opened(kept_url)
    prepare(store, "DROP TABLE IF EXISTS things")
    write(store, spec, rows)
    assert read(store, spec, PLAIN) == list(zip(*rows.to_pydict().values(), strict=True))
    store.close()


def test_an_index_on_an_expression_is_no_key_and_must_not_be_met(store: SqlStore) -> None:
    prepare(store, "CREATE TABLE things (id BIGINT, name VARCHAR(50), UNIQUE same ((id + 0)))")
    with pytest.raises(TableMismatch, match=r"no primary key or unique index on \(id\)"):
        store.create_tables([UPSERT], {"things": PLAIN})
    prepare(store, "ALTER TABLE things ADD PRIMARY KEY (id)")
    for spec in (UPSERT, IGNORE):
        with pytest.raises(TableMismatch, match=r"besides \(id\) it has the unique key same, .*; drop it"):
            store.create_tables([spec], {"things": PLAIN})


@pytest.mark.parametrize("collation", ["utf8mb4_0900_ai_ci", "utf8mb4_0900_as_cs", "utf8mb4_bin"])
def test_a_key_is_exact_after_the_statement_that_its_refusal_names(collation: str, store: SqlStore) -> None:
    spec = TableSpec("things", key=("name",), write="upsert")
    prepare(store, f"CREATE TABLE things (id BIGINT, name VARCHAR(50) COLLATE {collation} PRIMARY KEY)")
    with pytest.raises(TableMismatch, match=f"key column name has the collation {collation}") as refused:
        store.create_tables([spec], {"things": PLAIN})
    prepare(store, str(refused.value).partition("; ")[2])
    write(store, spec, plain((1, "a"), (2, "A"), (3, "a "), (4, "\u00e4"), (5, "a\u0308")))
    assert len(read(store, spec, PLAIN)) == 5


# Authentication


def test_a_user_with_a_password_gets_in_without_tls(mysql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its password is encrypted with the server's key, which needs a package that the extra installs."""
    execute(mysql, "CREATE USER IF NOT EXISTS shop IDENTIFIED BY 'word'", "GRANT ALL ON test.* TO shop")
    url = make_url(mysql).set(username="shop", password="word").render_as_string(hide_password=False)
    try:
        with monkeypatch.context() as without:
            without.setattr(pymysql._auth, "_have_cryptography", False)
            with pytest.raises(BadInput, match=r"cryptography.*: pip install 'tallymark\[mysql\]'"):
                open_store(url).ping()
        open_store(url).ping()
    finally:
        execute(mysql, "DROP USER shop")


# What a server forbids


def test_a_server_that_wants_primary_keys_says_what_helps(mysql: str, server: Callable[[str, str], None]) -> None:
    url = create(mysql)
    try:
        server("sql_require_primary_key", "ON")
        store = opened(url)
        store.create_ledger()
        put_by_key = pa.table([range(2_000), ["x"] * 2_000], schema=PLAIN)
        write(store, UPSERT, put_by_key)
        put(store, UPSERT, put_by_key)
        words = "requires a primary key for every table.*sql_generate_invisible_primary_key = ON.*road='driver'"
        with pytest.raises(BadInput, match=words):
            store.create_tables([TableSpec("rows")], {"rows": PLAIN})
        stages = store.stages("group", "1-a")
        assert stages is not None
        with pytest.raises(BadInput, match=words):
            stages.open(PLAIN)
        (found,) = [one for one in examine(Patient(stores=(url,))) if one.check == "sql_require_primary_key"]
        assert (found.verdict, "sql_generate_invisible_primary_key = ON" in found.advice) == ("warn", True)
        server("sql_generate_invisible_primary_key", "ON")
        store.close()
        store = opened(url)
        write(store, TableSpec("rows"), plain((1, "a")))
        assert read(store, TableSpec("rows"), PLAIN) == [(1, "a")]
        stages = store.stages("group", "1-a")
        assert stages is not None
        assert ATTEMPT not in stages.open(PLAIN).schema.names
        store.close()
    finally:
        drop(url)


def test_a_server_that_is_read_only_is_told_by_the_doctor(mysql: str, server: Callable[[str, str], None]) -> None:
    url = create(mysql)
    try:
        server("super_read_only", "ON")
        found = {one.check: one for one in examine(Patient(stores=(url,))) if one.about == "store"}
        assert found["super_read_only"].verdict == "fail"
        assert "connect to the primary" in found["super_read_only"].advice
        assert found["permissions"].verdict == "fail"
        assert "GRANT" not in found["permissions"].advice
    finally:
        execute(mysql, "SET GLOBAL super_read_only = OFF", "SET GLOBAL read_only = OFF")
        drop(url)
