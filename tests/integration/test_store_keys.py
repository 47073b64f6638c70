"""Keys of existing tables: only a key that compares as exactly as the records' bytes is accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy.exc import DBAPIError

from tallymark.core.tables import Changes, TableSpec
from tallymark.errors import DataRefused, TableMismatch
from tallymark.stores.arrow import JSON_MARK
from tallymark.stores.sql.store import SqlStore
from tests.support.databases import query
from tests.support.stores import IGNORE, PLAIN, UPSERT, opened, plain, prepare, put, write

BY_NAME = TableSpec("things", key=("name",), write="upsert")
CASELESS = "CREATE COLLATION IF NOT EXISTS caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
EXACT_MARIADB = "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"


@pytest.fixture
def made(database: Callable[[str], str]) -> Iterator[Callable[..., SqlStore]]:
    """``made("sqlite", "CREATE TABLE ...")``: a store where these statements have run."""
    stores: list[SqlStore] = []

    def make(kind: str, *statements: str) -> SqlStore:
        stores.append(opened(database(kind)))
        prepare(stores[-1], *statements)
        return stores[-1]

    yield make
    for store in stores:
        store.close()


COARSE = {
    "mariadb": {
        "VARCHAR(50)": "collation .*_ci",
        "VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin": "collation utf8mb4_bin",
        f"CHAR(5) {EXACT_MARIADB}": "CHAR.* pads values",
        f"ENUM('a', 'b') {EXACT_MARIADB}": "ENUM.* not compared as text",
    },
    "postgresql": {
        "CITEXT": "CITEXT, which ignores case",
        "CHAR(5)": r"CHAR\(5\), which pads values",
        "TEXT COLLATE caseless": "collation caseless",
        "INET": "INET, which is not compared as the rows' string",
    },
    "sqlite": {
        "TEXT COLLATE NOCASE": "is declared with a collation",
        "VARCHAR(50) COLLATE RTRIM": "is declared with a collation",
        "INTEGER": "INTEGER, which converts text to numbers",
    },
}


@pytest.mark.parametrize("kind", COARSE)
def test_a_key_that_is_compared_more_coarsely_than_by_bytes_is_refused(
    kind: str, made: Callable[..., SqlStore]
) -> None:
    """Of two records whose keys differ in the batch and not in the table, the older one could win."""
    store = made(kind, *([CASELESS, "CREATE EXTENSION citext"] if kind == "postgresql" else []))
    for declared, words in COARSE[kind].items():
        prepare(store, f"CREATE TABLE things (id BIGINT, name {declared} PRIMARY KEY)")
        for spec in (BY_NAME, TableSpec("things", key=("name",), write="ignore")):
            with pytest.raises(TableMismatch, match=words) as refused:
                store.create_tables([spec], {"things": PLAIN})
        if kind != "sqlite":
            prepare(store, str(refused.value).partition("; ")[2])
            write(store, BY_NAME, plain((1, "a"), (2, "A"), (3, "a ")))
            with store.look() as connection:
                assert connection.exec_driver_sql("SELECT count(*) FROM things").scalar() == 3
        prepare(store, "DROP TABLE things")


def test_a_collation_is_seen_where_only_the_column_or_only_the_index_has_it(made: Callable[..., SqlStore]) -> None:
    plain_column = "CREATE TABLE things (id BIGINT, name TEXT)"
    store = made("sqlite", plain_column, "CREATE UNIQUE INDEX by_name ON things (name COLLATE NOCASE)")
    with pytest.raises(TableMismatch, match=r"by_name .*has the collation NOCASE"):
        store.create_tables([BY_NAME], {"things": PLAIN})
    prepare(
        store,
        "DROP TABLE things",
        "CREATE TABLE things (id BIGINT, name TEXT COLLATE NOCASE)",
        "CREATE UNIQUE INDEX by_name ON things (name COLLATE BINARY)",
    )
    with pytest.raises(TableMismatch, match="key column name is declared with a collation"):
        store.create_tables([BY_NAME], {"things": PLAIN})
    store = made("postgresql", CASELESS, plain_column, "CREATE UNIQUE INDEX by_name ON things (name COLLATE caseless)")
    with pytest.raises(TableMismatch, match=r"by_name .*nondeterministic collation caseless"):
        store.create_tables([BY_NAME], {"things": PLAIN})


def test_bytes_that_are_filled_up_are_no_key(made: Callable[..., SqlStore]) -> None:
    store = made("mariadb", "CREATE TABLE things (name BINARY(4) PRIMARY KEY)")
    schema = pa.schema([("name", pa.binary())])
    with pytest.raises(TableMismatch, match=r"BINARY\(4\), which pads values.*VARBINARY\(4\)") as refused:
        store.create_tables([BY_NAME], {"things": schema})
    prepare(store, str(refused.value).partition("; ")[2])
    store.create_tables([BY_NAME], {"things": schema})


def test_json_that_is_compared_by_its_meaning_is_no_key(made: Callable[..., SqlStore]) -> None:
    store = made("postgresql", "CREATE TABLE things (id BIGINT, name JSONB PRIMARY KEY)")
    schema = pa.schema([("id", pa.int64()), pa.field("name", pa.string(), metadata={JSON_MARK: b"1"})])
    with pytest.raises(TableMismatch, match="JSONB, which is not compared as text"):
        store.create_tables([BY_NAME], {"things": schema})


@pytest.mark.parametrize("kind", ["UUID", "own_id"])
def test_a_uuid_is_a_key_if_it_is_spelled_as_the_database_does(kind: str, made: Callable[..., SqlStore]) -> None:
    store = made("postgresql", "CREATE DOMAIN own_id AS UUID", f"CREATE TABLE things (id BIGINT, name {kind} UNIQUE)")
    upper, lower = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    write(store, BY_NAME, plain((1, lower)))
    # A key that is deleted and then written again is in both.
    store.apply([Changes(BY_NAME, plain((3, lower)), plain((2, lower)))], None)
    url = store.engine.url.render_as_string(hide_password=False)
    assert query(url, "SELECT id FROM things") == [(3,)]
    for odd in (upper, "{" + lower + "}", lower.replace("-", "")):
        for change in (Changes(BY_NAME, plain((4, odd)), plain()), Changes(BY_NAME, plain(), plain((4, odd)))):
            with pytest.raises(DataRefused, match=r"key column name is a UUID.*lower\(name\)"):
                store.apply([change], None)
    assert query(url, "SELECT id FROM things") == [(3,)]


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_deletion_never_takes_a_key_for_another_that_is_longer_by_a_space(
    kind: str, made: Callable[..., SqlStore]
) -> None:
    exact = " CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin" if kind == "mariadb" else ""
    store = made(kind, f"CREATE TABLE things (id BIGINT, name VARCHAR(5){exact} UNIQUE)")
    write(store, BY_NAME, plain((1, "large")))
    with suppress(DataRefused):
        store.apply([Changes(BY_NAME, plain(), plain((2, "large ")))], None)
    url = store.engine.url.render_as_string(hide_password=False)
    assert query(url, "SELECT id FROM things") == [(1,)]


DECIMALS = {
    "mariadb": f"VARCHAR(60) {EXACT_MARIADB}",
    "postgresql": "VARCHAR(60)",
}


@pytest.mark.parametrize("kind", DECIMALS)
def test_a_decimal_in_a_column_of_text_is_neither_key_nor_version(kind: str, made: Callable[..., SqlStore]) -> None:
    """MySQL compares text with a number as floating point: a deletion would also delete rows of other keys."""
    money = pa.decimal128(38, 2)
    store = made(kind, f"CREATE TABLE things (name {DECIMALS[kind]} PRIMARY KEY, at {DECIMALS[kind]})")
    schema = pa.schema([("name", money), ("at", money)])
    words = r"column name is VARCHAR.* stores the rows' decimal128\(38, 2\) as text, .*; .* to NUMERIC\(38, 2\)"
    for spec in (BY_NAME, TableSpec("things", key=("name",), write="ignore")):
        with pytest.raises(TableMismatch, match=words):
            store.create_tables([spec], {"things": schema})
    with pytest.raises(TableMismatch, match="column at is VARCHAR"):
        store.create_tables(
            [TableSpec("things", key=("name",), write="upsert", version="at")],
            {"things": pa.schema([("name", pa.string()), ("at", money)])},
        )
    store.create_tables([TableSpec("things")], {"things": schema})
    for rows in (pa.table([[Decimal("12.50")], [None]], schema=schema), {"name": Decimal("12.50")}):
        with pytest.raises(TableMismatch, match="column name is VARCHAR"), store.begin(lambda: None) as db:
            db.write("things", rows, key="name", write="upsert")


@pytest.mark.parametrize("sort", [pa.int64(), pa.float64()])
def test_on_sqlite_a_number_in_a_column_of_text_is_no_version(sort: pa.DataType, made: Callable[..., SqlStore]) -> None:
    """As text, 9 is greater than 10."""
    store = made("sqlite", "CREATE TABLE things (id BIGINT PRIMARY KEY, at VARCHAR(20))")
    schema = pa.schema([("id", pa.int64()), ("at", sort)])
    with pytest.raises(TableMismatch, match=r"column at is VARCHAR.* as text"):
        store.create_tables([TableSpec("things", ("id",), "upsert", "at")], {"things": schema})
    store.create_tables([UPSERT], {"things": schema})


BIG = 2**53
EXACT_PAIRS: dict[tuple[str, str], tuple[pa.DataType, list[Any]]] = {
    ("mariadb", "DECIMAL(38,2)"): (pa.decimal128(38, 2), [Decimal(f"{10**20}.50"), Decimal(f"{10**20}.51")]),
    ("mariadb", "DECIMAL(38,0)"): (pa.int64(), [BIG, BIG + 1]),
    ("mariadb", "DATETIME"): (pa.date32(), [date(2024, 1, 1), date(2024, 1, 2)]),
    ("mariadb", "FLOAT"): (pa.float32(), [0.1, 0.2]),
    ("postgresql", "NUMERIC(38,2)"): (pa.decimal128(38, 2), [Decimal(f"{10**20}.50"), Decimal(f"{10**20}.51")]),
    ("postgresql", "NUMERIC"): (pa.int64(), [BIG, BIG + 1]),
    ("postgresql", "TIMESTAMPTZ"): (pa.date32(), [date(2024, 1, 1), date(2024, 1, 2)]),
    ("sqlite", "TEXT"): (pa.decimal128(38, 2), [Decimal(f"{10**20}.50"), Decimal(f"{10**20}.51")]),
    ("sqlite", "VARCHAR(50)"): (pa.int64(), [BIG, BIG + 1]),
    ("sqlite", "NUMERIC"): (pa.int64(), [BIG, BIG + 1]),
    ("sqlite", "CHAR(10)"): (pa.date32(), [date(2024, 1, 1), date(2024, 1, 2)]),
    ("sqlite", "DATE"): (pa.date32(), [date(2024, 1, 1), date(2024, 1, 2)]),
}


@pytest.mark.parametrize(("kind", "declared"), EXACT_PAIRS)
def test_a_key_that_is_taken_deletes_and_overwrites_its_own_row_alone(
    kind: str, declared: str, made: Callable[..., SqlStore]
) -> None:
    sort, (one, other) = EXACT_PAIRS[kind, declared]
    store = made(kind, f"CREATE TABLE things (id BIGINT, name {declared} NOT NULL UNIQUE)")

    def table(*found: tuple[int, Any]) -> pa.Table:
        return pa.table(
            [pa.array([id for id, _ in found], pa.int64()), pa.array([v for _, v in found], sort)], ["id", "name"]
        )

    write(store, BY_NAME, table((1, one), (2, other)))
    write(store, BY_NAME, table((3, one)))
    url = store.engine.url.render_as_string(hide_password=False)
    assert sorted(query(url, "SELECT id FROM things")) == [(2,), (3,)]
    store.apply([Changes(BY_NAME, table(), table((0, one)))], None)
    assert query(url, "SELECT id FROM things") == [(2,)]


INEXACT = [
    ("mariadb", f"VARCHAR(50) {EXACT_MARIADB}", pa.int64()),
    ("mariadb", f"VARCHAR(50) {EXACT_MARIADB}", pa.date32()),
    ("mariadb", "DOUBLE", pa.int64()),
    ("mariadb", "DOUBLE", pa.decimal128(38, 2)),
    ("postgresql", "TEXT", pa.int64()),
    ("postgresql", "TEXT", pa.date32()),
    ("postgresql", "DOUBLE PRECISION", pa.int64()),
    ("postgresql", "DOUBLE PRECISION", pa.decimal128(38, 2)),
    ("sqlite", "TEXT", pa.float64()),
    ("sqlite", "DOUBLE", pa.int64()),
    ("sqlite", "DOUBLE", pa.decimal128(38, 2)),
    ("sqlite", "NUMERIC", pa.decimal128(38, 2)),
]


@pytest.mark.parametrize(("kind", "declared", "sort"), INEXACT)
def test_a_key_that_the_column_would_round_or_convert_is_refused(
    kind: str, declared: str, sort: pa.DataType, made: Callable[..., SqlStore]
) -> None:
    store = made(kind, f"CREATE TABLE things (id BIGINT, name {declared} NOT NULL UNIQUE)")
    with pytest.raises(TableMismatch, match="column name"):
        store.create_tables([BY_NAME], {"things": pa.schema([("id", pa.int64()), ("name", sort)])})


def test_several_members_of_a_set_are_no_long_text(made: Callable[..., SqlStore]) -> None:
    store = made("mariadb", "CREATE TABLE things (id BIGINT PRIMARY KEY, name SET('a', 'b', 'cc'))")
    write(store, UPSERT, plain((1, "a,b,cc")))
    assert query(store.engine.url.render_as_string(hide_password=False), "SELECT name FROM things") == [("a,b,cc",)]


NO_KEYS = {
    "postgresql": {
        "CREATE UNIQUE INDEX one ON things (id) WHERE name IS NOT NULL": "one .*only some of the rows",
        "CREATE UNIQUE INDEX one ON things (abs(id))": r"no primary key or unique index on \(id",
        "CREATE UNIQUE INDEX one ON things (id, abs(id))": r"no primary key or unique index on \(id",
        "ALTER TABLE things ADD CONSTRAINT one UNIQUE (id) DEFERRABLE": "one .* is deferrable",
        "ALTER TABLE things ADD PRIMARY KEY (id), ADD UNIQUE (id) DEFERRABLE": "is deferrable",
    },
    "sqlite": {
        "CREATE UNIQUE INDEX one ON things (id) WHERE name IS NOT NULL": "one .*only some of the rows",
        "CREATE UNIQUE INDEX one ON things (abs(id))": r"no primary key or unique index on \(id",
    },
}


@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection")
@pytest.mark.parametrize("kind", NO_KEYS)
def test_an_index_that_does_not_tell_all_rows_apart_is_no_key(kind: str, made: Callable[..., SqlStore]) -> None:
    store = made(kind)
    for index, words in NO_KEYS[kind].items():
        prepare(store, "CREATE TABLE things (id BIGINT, name VARCHAR(50))", index)
        for spec in (UPSERT, IGNORE):
            with pytest.raises(TableMismatch, match=words):
                store.create_tables([spec], {"things": PLAIN})
        prepare(store, "DROP TABLE things")


def test_an_index_that_could_not_be_built_is_no_key(made: Callable[..., SqlStore]) -> None:
    store = made("postgresql", "CREATE TABLE things (id BIGINT, name TEXT)", "INSERT INTO things VALUES (1), (1)")
    concurrently = store.engine.execution_options(isolation_level="AUTOCOMMIT")
    with concurrently.connect() as connection, pytest.raises(DBAPIError, match="could not create unique index"):
        connection.exec_driver_sql("CREATE UNIQUE INDEX CONCURRENTLY one ON things (id)")
    with pytest.raises(TableMismatch, match=r"one .* is not valid"):
        store.create_tables([UPSERT], {"things": PLAIN})


def test_a_key_with_more_in_its_index_than_it_compares_is_fine(made: Callable[..., SqlStore]) -> None:
    store = made(
        "postgresql",
        "CREATE TABLE things (id BIGINT, name TEXT)",
        "CREATE UNIQUE INDEX one ON things (id) INCLUDE (name)",
    )
    for name in ("old", "new"):
        write(store, UPSERT, plain((1, name)))
    assert query(store.engine.url.render_as_string(hide_password=False), "SELECT * FROM things") == [(1, "new")]


MET = {
    "id BIGINT PRIMARY KEY, name VARCHAR(300), UNIQUE by_name (name(191))": "by_name",
    "id BIGINT PRIMARY KEY, name TEXT, short CHAR(3) AS (LEFT(name, 3)) STORED UNIQUE": "short",
    "id BIGINT PRIMARY KEY, name TEXT, shop INT NOT NULL DEFAULT 1 UNIQUE": "shop",
    "id BIGINT PRIMARY KEY, name TEXT, at DATETIME DEFAULT NOW() UNIQUE": "at",
    "id BIGINT PRIMARY KEY, name TEXT, shop INT NOT NULL DEFAULT 1, UNIQUE by_two (shop, name(9))": "by_two",
    f"id BIGINT PRIMARY KEY, name VARCHAR(50) {EXACT_MARIADB} UNIQUE": "name",
    # A row that collides here has collided with its own key.
    "id BIGINT PRIMARY KEY, name VARCHAR(50), shop INT NOT NULL DEFAULT 1, UNIQUE (shop, id, name)": None,
    "serial BIGINT AUTO_INCREMENT PRIMARY KEY, id BIGINT UNIQUE, name TEXT": None,
    "id BIGINT PRIMARY KEY, name TEXT, other INT UNIQUE": None,
}


def test_on_mysql_a_unique_key_that_a_row_can_meet_besides_its_own_is_refused(made: Callable[..., SqlStore]) -> None:
    """MySQL updates the row of any unique key with a collision, or ignores the new row."""
    store = made("mariadb")
    for columns, met in MET.items():
        prepare(store, f"CREATE TABLE things ({columns})")
        for spec in (UPSERT, IGNORE):
            if met is None:
                store.create_tables([spec], {"things": PLAIN})
                continue
            with pytest.raises(TableMismatch, match=rf"besides \(id\) it has the unique key {met}, .*; drop it"):
                store.create_tables([spec], {"things": PLAIN})
        store.create_tables([TableSpec("things")], {"things": PLAIN})
        prepare(store, "DROP TABLE things")


def test_on_mysql_the_beginning_of_a_column_is_no_key(made: Callable[..., SqlStore]) -> None:
    columns = f"id BIGINT, name VARCHAR(300) {EXACT_MARIADB}, UNIQUE (name(191))"
    store = made("mariadb", f"CREATE TABLE things ({columns})")
    with pytest.raises(TableMismatch, match="covers only the first 191 of name"):
        store.create_tables([BY_NAME], {"things": PLAIN})
    prepare(store, "ALTER TABLE things ADD UNIQUE whole (name)")
    with pytest.raises(TableMismatch, match=r"besides \(name\) it has the unique key name,"):
        store.create_tables([BY_NAME], {"things": PLAIN})


def test_on_mysql_zero_is_a_key_like_any_other(made: Callable[..., SqlStore]) -> None:
    """In a column with AUTO_INCREMENT the server would store the next number instead."""
    store = made("mariadb", "CREATE TABLE things (id BIGINT AUTO_INCREMENT PRIMARY KEY, name TEXT)")
    for name in ("old", "new"):
        write(store, UPSERT, plain((0, name)))
    assert query(store.engine.url.render_as_string(hide_password=False), "SELECT * FROM things") == [(0, "new")]


# Values that a column would change


SECONDS = {"mariadb": ["DATETIME", "TIMESTAMP(3) NULL"], "postgresql": ["TIMESTAMP(0)", "TIMESTAMPTZ(5)"]}


@pytest.mark.parametrize("kind", SECONDS)
def test_a_column_that_cuts_fractions_of_a_second_is_refused(kind: str, made: Callable[..., SqlStore]) -> None:
    store = made(kind)
    for declared in SECONDS[kind]:
        prepare(store, f"CREATE TABLE things (id BIGINT, at {declared})")
        for zone in ("UTC", None):
            schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", zone))])
            with pytest.raises(TableMismatch, match=r"things: column at is .* truncates fractions of a second"):
                store.create_tables([TableSpec("things")], {"things": schema})
        days = pa.schema([("id", pa.int64()), ("at", pa.date32())])
        store.create_tables([TableSpec("things")], {"things": days})
        prepare(store, "DROP TABLE things")


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_spaces_that_a_column_would_cut_off_are_refused(kind: str, made: Callable[..., SqlStore]) -> None:
    """Both servers refuse a text that is too long, unless the excess is only spaces."""
    exact = EXACT_MARIADB if kind == "mariadb" else ""
    store = made(kind, f"CREATE TABLE things (id BIGINT, name VARCHAR(3) {exact} PRIMARY KEY)")
    for spec in (BY_NAME, TableSpec("things")):
        with pytest.raises(DataRefused, match="too long for column name, which holds at most 3 characters"):
            put(store, spec, plain((1, "äbc"), (2, "äbc ")))
    write(store, BY_NAME, plain((1, "äbc")))
