"""Tables on every database: what fits is taken as it is, what does not is refused before the first batch."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Column, MetaData, Table, select
from sqlalchemy.engine import make_url

from tallymark.errors import AccessDenied, BadInput, TableMismatch, TallymarkError, Unreachable
from tallymark.shape import TableSpec
from tallymark.stores.columns import JSON_MARK, column_type
from tallymark.stores.store import Store
from tests.support.databases import query

ROWS = TableSpec("things")
UPSERT = TableSpec("things", key=("id",), write="upsert")
PLAIN = pa.schema([("id", pa.int64()), ("name", pa.string())])
SECRET = "hunter2-öß"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    made = Store(store_url)
    yield made
    made.close()


def prepare(store: Store, *statements: str) -> None:
    with store.transaction() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def write(store: Store, spec: TableSpec, rows: pa.Table) -> None:
    store.create_tables([spec], {spec.name: rows.schema})
    with store.transaction() as connection:
        store.write(connection, spec, rows)


def read(store: Store, spec: TableSpec, schema: pa.Schema) -> list[tuple[Any, ...]]:
    """The rows through SQLAlchemy's own types, ordered by the first column."""
    columns = [Column(field.name, column_type(field, in_key=field.name in spec.key)) for field in schema]
    table = Table(spec.name, MetaData(), *columns)
    with store.look() as connection:
        return [tuple(row) for row in connection.execute(select(table).order_by(table.columns[0]))]


# Tables that are there already


@pytest.mark.parametrize("spec", [ROWS, UPSERT], ids=["append", "upsert"])
def test_a_table_that_we_made_fits(spec: TableSpec, store: Store) -> None:
    for _ in range(2):
        store.create_tables([spec], {"things": PLAIN})


MISMATCHES = {
    "missing column": (ROWS, "CREATE TABLE things (id BIGINT)", "things has no column name"),
    "required column": (
        ROWS,
        "CREATE TABLE things (id BIGINT, name VARCHAR(50), extra INT NOT NULL)",
        "things: column extra is NOT NULL without a default",
    ),
    "no unique key": (
        UPSERT,
        "CREATE TABLE things (id BIGINT, name VARCHAR(50))",
        r"things has no primary key or unique index on \(id\)",
    ),
    "key of more columns": (
        UPSERT,
        "CREATE TABLE things (id BIGINT, name VARCHAR(50), PRIMARY KEY (id, name))",
        r"things has no primary key or unique index on \(id\)",
    ),
}
TYPE_MISMATCHES = {
    "wrong type": ("CREATE TABLE things (id BIGINT, name DOUBLE PRECISION)", "name"),
    "text for a number": ("CREATE TABLE things (id VARCHAR(20), name VARCHAR(20))", "id"),
    "smaller integer": ("CREATE TABLE things (id INTEGER, name VARCHAR(20))", "id"),
    "smallest integer": ("CREATE TABLE things (id SMALLINT, name VARCHAR(20))", "id"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_a_table_that_cannot_take_the_rows_is_refused(case: str, store: Store) -> None:
    spec, statement, words = MISMATCHES[case]
    prepare(store, statement)
    with pytest.raises(TableMismatch, match=words):
        store.create_tables([spec], {"things": PLAIN})


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
@pytest.mark.parametrize("case", TYPE_MISMATCHES)
def test_a_column_that_cannot_hold_the_values_is_refused(case: str, kind: str, database: Callable[[str], str]) -> None:
    statement, column = TYPE_MISMATCHES[case]
    store = Store(database(kind))
    prepare(store, statement)
    with pytest.raises(TableMismatch, match=rf"things: column {column} is .* can't hold the rows'"):
        store.create_tables([ROWS], {"things": PLAIN})
    store.close()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
@pytest.mark.parametrize(
    ("declared", "arrow"),
    [("REAL", pa.float64()), ("NUMERIC(10, 2)", pa.decimal128(12, 2)), ("NUMERIC(10, 2)", pa.decimal128(10, 4))],
)
def test_a_column_that_would_round_the_values_is_refused(
    declared: str, arrow: pa.DataType, kind: str, database: Callable[[str], str]
) -> None:
    store = Store(database(kind))
    declared = "FLOAT" if declared == "REAL" and kind == "mariadb" else declared
    prepare(store, f"CREATE TABLE things (id BIGINT, amount {declared})")
    with pytest.raises(TableMismatch, match="things: column amount"):
        store.create_tables([ROWS], {"things": pa.schema([("id", pa.int64()), ("amount", arrow)])})
    store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE things (id BIGINT, name VARCHAR(50), extra INT)",
        "CREATE TABLE things (id BIGINT, name VARCHAR(50), extra INT NOT NULL DEFAULT 3)",
        "CREATE TABLE things (name VARCHAR(50), id DECIMAL(20, 0))",
    ],
)
def test_a_table_with_more_than_the_rows_have_is_fine(statement: str, store: Store, store_url: str) -> None:
    prepare(store, statement)
    write(store, ROWS, pa.table({"id": [2**53], "name": ["x"]}, schema=PLAIN))
    assert query(store_url, "SELECT name, id FROM things") == [("x", 2**53)]


@pytest.mark.parametrize("spec", [ROWS, UPSERT], ids=["append", "upsert"])
def test_values_go_to_their_columns_whatever_the_order_of_the_table(
    spec: TableSpec, store: Store, store_url: str
) -> None:
    prepare(store, "CREATE TABLE things (c BIGINT, a BIGINT, id BIGINT PRIMARY KEY, b BIGINT)")
    schema = pa.schema([(name, pa.int64()) for name in ("a", "b", "c", "id")])
    write(store, spec, pa.table([[1], [2], [3], [4]], schema=schema))
    assert query(store_url, "SELECT a, b, c, id FROM things") == [(1, 2, 3, 4)]


def test_an_upsert_may_use_any_unique_index(store: Store, store_url: str) -> None:
    prepare(
        store,
        "CREATE TABLE things (id BIGINT, name VARCHAR(50))",
        "CREATE UNIQUE INDEX things_by_id ON things (id)",
    )
    for name in ("old", "new"):
        write(store, UPSERT, pa.table({"id": [1], "name": [name]}, schema=PLAIN))
    assert query(store_url, "SELECT * FROM things") == [(1, "new")]


def test_a_table_without_transactions_is_refused(database: Callable[[str], str]) -> None:
    store = Store(database("mariadb"))
    prepare(store, "CREATE TABLE things (id BIGINT, name VARCHAR(50)) ENGINE = MyISAM")
    with pytest.raises(TableMismatch, match="table things uses the engine MyISAM, which has no transactions"):
        store.create_tables([ROWS], {"things": PLAIN})
    store.close()


def test_on_mysql_a_second_unique_key_is_refused_for_an_upsert(database: Callable[[str], str]) -> None:
    """There a row that meets another key overwrites the row it met, silently."""
    store = Store(database("mariadb"))
    prepare(store, "CREATE TABLE things (id BIGINT PRIMARY KEY, name VARCHAR(50) UNIQUE)")
    with pytest.raises(TableMismatch, match=r"things: .*\(name\)"):
        store.create_tables([UPSERT], {"things": PLAIN})
    prepare(store, "CREATE TABLE numbered (serial BIGINT AUTO_INCREMENT PRIMARY KEY, id BIGINT UNIQUE, name TEXT)")
    store.create_tables([TableSpec("numbered", key=("id",), write="upsert")], {"numbered": PLAIN})
    store.close()


def test_a_key_that_the_rows_do_not_have_is_refused(store: Store) -> None:
    with pytest.raises(TableMismatch, match="table things: the key column no is not in the rows, which have id, name"):
        store.create_tables([TableSpec("things", key=("no",), write="upsert")], {"things": PLAIN})


# Values

TEXTS = [
    None,
    "",
    " ",
    "'",
    '"',
    '""',
    "\\",
    "\\N",
    "\\.",
    "a,b;c\td",
    "line\nbreak\r\nand\rmore",
    "100%",
    "%s %(id)s :id ?",
    "🐘 größe 漢字",
    "NULL",
    "x" * 70_000,
]


@pytest.mark.parametrize("spec", [ROWS, UPSERT], ids=["append", "upsert"])
def test_text_comes_back_as_it_went_in(spec: TableSpec, store: Store) -> None:
    rows = pa.table({"id": range(len(TEXTS)), "name": TEXTS}, schema=PLAIN)
    write(store, spec, rows)
    assert [name for _, name in read(store, spec, PLAIN)] == TEXTS


def test_text_comes_back_as_it_went_in_when_it_is_all_there_is(store: Store) -> None:
    """A line of COPY that holds nothing else could be taken for its end."""
    schema = pa.schema([("name", pa.string())])
    write(store, ROWS, pa.table({"name": TEXTS}, schema=schema))
    found = [name for (name,) in read(store, ROWS, schema)]
    assert sorted(map(repr, found)) == sorted(map(repr, TEXTS))


NOON = datetime(2026, 1, 31, 12, 0, 0, 123456)
VALUES: list[tuple[str, pa.DataType, list[Any]]] = [
    ("tiny", pa.int8(), [-128, 127, None]),
    ("small", pa.int16(), [-(2**15), 2**15 - 1, None]),
    ("middle", pa.int32(), [-(2**31), 2**31 - 1, None]),
    ("large", pa.int64(), [-(2**63), 2**63 - 1, None]),
    ("single", pa.float32(), [1.5, -0.25, None]),
    ("double", pa.float64(), [0.1, 1e300, -5e-324]),
    ("flag", pa.bool_(), [True, False, None]),
    ("day", pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None]),
    ("local", pa.timestamp("us"), [NOON, datetime(1970, 1, 1), None]),
    ("binary", pa.binary(), [b"", bytes(range(256)), None]),
    ("large_text", pa.large_string(), ["", "a\nb", None]),
    ("group", pa.string(), ["a", "", None]),
]


@pytest.mark.parametrize("write_mode", ["append", "upsert"])
def test_values_of_every_type_come_back_as_they_went_in(write_mode: Any, store: Store) -> None:
    spec = TableSpec("things", key=("id",) if write_mode == "upsert" else (), write=write_mode)
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, kind, _ in VALUES)])
    rows = pa.table([[0, 1, 2], *(values for _, _, values in VALUES)], schema=schema)
    write(store, spec, rows)
    assert read(store, spec, schema) == list(zip([0, 1, 2], *(values for _, _, values in VALUES), strict=True))


def test_moments_are_stored_in_utc(store: Store) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "America/New_York"))])
    moment = NOON.replace(tzinfo=timezone.utc)
    write(store, ROWS, pa.table([[0, 1], [moment, None]], schema=schema))
    ((_, found), (_, nothing)) = read(store, ROWS, schema)
    assert (found if found.tzinfo else found.replace(tzinfo=timezone.utc)) == moment
    assert nothing is None


def test_a_time_without_a_zone_is_utc_whatever_the_server_thinks(database: Callable[[str], str]) -> None:
    url = database("postgresql")
    admin = Store(url)
    prepare(admin, f"ALTER DATABASE {make_url(url).database} SET timezone = 'Asia/Tokyo'")
    prepare(admin, "CREATE TABLE things (id BIGINT, at TIMESTAMP WITH TIME ZONE)")
    store = Store(url)
    write(store, ROWS, pa.table([[0], [NOON]], schema=pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])))
    assert query(url, "SELECT at = '2026-01-31 12:00:00.123456Z' FROM things") == [(True,)]
    store.close()
    admin.close()


def test_decimals_keep_every_digit(store: Store, store_url: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("amount", pa.decimal128(38, 10))])
    amounts = [Decimal("1234567890123456789012345678.0123456789"), Decimal("-0.0000000001"), None]
    write(store, ROWS, pa.table([[0, 1, 2], amounts], schema=schema))
    found = [amount for (amount,) in query(store_url, "SELECT amount FROM things ORDER BY id")]
    assert [None if amount is None else Decimal(str(amount)) for amount in found] == amounts


def test_json_stays_json(store: Store, store_url: str) -> None:
    value = {"a": [1, None, "ü'\"\\"], "b": {"c": True}}
    field = pa.field("data", pa.string(), metadata={JSON_MARK: b"1"})
    schema = pa.schema([pa.field("id", pa.int64()), field])
    write(store, ROWS, pa.table([[0, 1], [json.dumps(value), None]], schema=schema))
    found = [data for (data,) in query(store_url, "SELECT data FROM things ORDER BY id")]
    assert [json.loads(data) if isinstance(data, str) else data for data in found] == [value, None]


def test_not_a_number_and_infinity_where_the_database_has_them(database: Callable[[str], str]) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    rows = pa.table([[0, 1, 2], [math.nan, math.inf, -math.inf]], schema=schema)
    store = Store(database("postgresql"))
    write(store, ROWS, rows)
    found = [x for _, x in read(store, ROWS, schema)]
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]
    store.close()
    mysql = Store(database("mariadb"))
    with pytest.raises(TallymarkError, match="nan"):
        write(mysql, ROWS, rows)
    assert read(mysql, ROWS, schema) == []
    mysql.close()


def test_a_value_that_is_too_long_is_an_error_and_never_cut(database: Callable[[str], str]) -> None:
    for kind in ("postgresql", "mariadb"):
        url = database(kind)
        store = Store(url)
        prepare(store, "CREATE TABLE things (id BIGINT, name VARCHAR(3))")
        with pytest.raises(TallymarkError, match="too long"):
            write(store, ROWS, pa.table({"id": [1], "name": ["abcd"]}, schema=PLAIN))
        assert query(url, "SELECT * FROM things") == []
        store.close()


def test_an_upsert_overwrites_all_other_columns(store: Store, store_url: str) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("x", pa.string())])
    spec = TableSpec("pairs", key=("a", "b"), write="upsert")
    write(store, spec, pa.table([[1, 1, 2], ["A", "a", "a"], ["old", "old", "old"]], schema=schema))
    write(store, spec, pa.table([[1, 2, 3], ["a", "a", "a"], ["new", None, "new"]], schema=schema))
    found = query(store_url, "SELECT a, b, x FROM pairs")
    assert set(found) == {(1, "A", "old"), (1, "a", "new"), (2, "a", None), (3, "a", "new")}


def test_an_upsert_of_keys_alone_leaves_them_there_once(store: Store, store_url: str) -> None:
    schema = pa.schema([("id", pa.int64())])
    for _ in range(2):
        write(store, UPSERT, pa.table([[1, 2]], schema=schema))
    assert query(store_url, "SELECT id FROM things ORDER BY id") == [(1,), (2,)]


def test_two_upserts_fit_in_one_transaction(store: Store, store_url: str) -> None:
    specs = [TableSpec(name, key=("id",), write="upsert") for name in ("one", "two")]
    store.create_tables(specs, {"one": PLAIN, "two": PLAIN})
    with store.transaction() as connection:
        for spec in specs:
            store.write(connection, spec, pa.table({"id": [1], "name": [spec.name]}, schema=PLAIN))
    assert query(store_url, "SELECT name FROM one UNION SELECT name FROM two ORDER BY name") == [("one",), ("two",)]


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
]


@pytest.mark.parametrize("write_mode", ["append", "upsert"])
@pytest.mark.parametrize("table", ["Order", "select", "per%cent", "MixedCase", "a b:c"])
def test_any_name_can_be_a_table_or_a_column(table: str, write_mode: Any, store: Store) -> None:
    spec = TableSpec(table, key=("Key%",) if write_mode == "upsert" else (), write=write_mode)
    schema = pa.schema([("Key%", pa.int64()), *((name, pa.string()) for name in NAMES)])
    rows = pa.table([[1, 2], *([name, None] for name in NAMES)], schema=schema)
    write(store, spec, rows)
    if write_mode == "upsert":
        write(store, spec, rows)
    assert read(store, spec, schema) == [(1, *NAMES), (2, *[None] * len(NAMES))]


# Errors


def messages(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def check_discreet(error: BaseException, *, words: Sequence[str]) -> None:
    """One line, with the words an operator needs, and never the password."""
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
    store = Store(f"{scheme}://me:{SECRET}@127.0.0.1:{closed_port()}/db")
    with pytest.raises(Unreachable) as told:
        store.ping()
    check_discreet(told.value, words=["127.0.0.1", "check that it runs"])
    assert told.value.transient


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_an_unknown_database_is_named(kind: str, servers: dict[str, str]) -> None:
    url = make_url(servers[kind]).set(database="nowhere", password=SECRET if kind == "postgresql" else None)
    store = Store(url.render_as_string(hide_password=False))
    with pytest.raises(BadInput) as told:
        store.ping()
    check_discreet(told.value, words=["nowhere", "create the database first"])


def test_a_wrong_password_is_refused(database: Callable[[str], str]) -> None:
    url = database("mariadb")
    admin = Store(url)
    user = f"u{make_url(url).database}"
    prepare(admin, f"CREATE USER {user} IDENTIFIED BY 'right'", f"GRANT ALL ON *.* TO {user}")
    store = Store(make_url(url).set(username=user, password=SECRET).render_as_string(hide_password=False))
    with pytest.raises(AccessDenied) as told:
        store.ping()
    check_discreet(told.value, words=[user, "check the user, the password"])
    assert not told.value.transient
    prepare(admin, f"DROP USER {user}")
    admin.close()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_user_who_may_not_create_tables_is_told(kind: str, database: Callable[[str], str]) -> None:
    url = make_url(database(kind))
    admin = Store(url.render_as_string(hide_password=False))
    user = f"u{url.database}"
    if kind == "postgresql":
        prepare(admin, f"CREATE ROLE {user} LOGIN")
    else:
        prepare(admin, f"CREATE USER {user} IDENTIFIED BY '{SECRET}'", f"GRANT SELECT ON {url.database}.* TO {user}")
    store = Store(url.set(username=user, password=SECRET).render_as_string(hide_password=False))
    with pytest.raises(AccessDenied) as told:
        store.create_ledger()
    check_discreet(told.value, words=["denied", "permissions"])
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
        Store(url)
    check_discreet(told.value, words=["store"])


def test_a_file_in_a_directory_that_is_not_there_is_named() -> None:
    store = Store("sqlite:////nowhere/at/all.db")
    with pytest.raises(BadInput, match=r"nowhere/at/all\.db: the file can't be opened"):
        store.ping()
