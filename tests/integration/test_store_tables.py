"""Tables on every database: a fitting table is used unchanged, another one is refused before the first batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from sqlalchemy import inspect

from tallymark.core.tables import TableSpec
from tallymark.errors import BadInput, TableMismatch
from tallymark.stores.arrow import JSON_MARK
from tallymark.stores.sql.store import SqlStore
from tallymark.stores.sql.tables import evolve_table, existing_table
from tests.support.databases import query
from tests.support.stores import IGNORE, PLAIN, ROWS, UPSERT, opened, plain, prepare, put, read, write

EVOLVE = TableSpec("things", evolve=True)


@pytest.fixture
def store(store_url: str) -> Iterator[SqlStore]:
    made = opened(store_url)
    yield made
    made.close()


# Existing tables


@pytest.mark.parametrize("spec", [ROWS, UPSERT, IGNORE], ids=lambda spec: spec.write)
def test_a_table_that_we_made_fits(spec: TableSpec, store: SqlStore) -> None:
    for _ in range(2):
        store.create_tables([spec], {"things": PLAIN})


MISMATCHES = {
    "missing column": (ROWS, "CREATE TABLE things (id BIGINT)", "things has no column name .*evolve=True"),
    "required column": (
        ROWS,
        "CREATE TABLE things (id BIGINT, name VARCHAR(50), extra INT NOT NULL)",
        "things: column extra is NOT NULL without a default",
    ),
    "no unique key": (
        UPSERT,
        "CREATE TABLE things (id BIGINT, name VARCHAR(50))",
        r"things has no primary key or unique index on \(id\), which the upsert needs",
    ),
    "no unique key to look at": (
        IGNORE,
        "CREATE TABLE things (id BIGINT, name VARCHAR(50))",
        r"things has no primary key or unique index on \(id\), which the ignore needs",
    ),
    "key of more columns": (
        UPSERT,
        "CREATE TABLE things (id BIGINT, name VARCHAR(50), PRIMARY KEY (id, name))",
        r"things has no primary key or unique index on \(id\)",
    ),
}
TYPE_MISMATCHES = {
    "wrong type": ("CREATE TABLE things (id BIGINT, name DOUBLE PRECISION)", "name is DOUBLE.* rows' string"),
    "text for a number": ("CREATE TABLE things (id VARCHAR(20), name VARCHAR(20))", "id is VARCHAR.* rows' int64"),
    "smaller integer": ("CREATE TABLE things (id INTEGER, name VARCHAR(20))", "id is INTEGER.* rows' int64"),
    "smallest integer": ("CREATE TABLE things (id SMALLINT, name VARCHAR(20))", "id is SMALLINT.* rows' int64"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_a_table_that_cannot_take_the_rows_is_refused(case: str, store: SqlStore) -> None:
    spec, statement, words = MISMATCHES[case]
    prepare(store, statement)
    with pytest.raises(TableMismatch, match=words):
        store.create_tables([spec], {"things": PLAIN})


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
@pytest.mark.parametrize("evolve", [False, True])
@pytest.mark.parametrize("case", TYPE_MISMATCHES)
def test_a_column_that_cannot_hold_the_values_is_refused(
    case: str, evolve: bool, kind: str, database: Callable[[str], str]
) -> None:
    statement, words = TYPE_MISMATCHES[case]
    store = opened(database(kind))
    prepare(store, statement)
    with pytest.raises(TableMismatch, match=rf"things: column {words}"):
        store.create_tables([TableSpec("things", evolve=evolve)], {"things": PLAIN})
    store.close()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
@pytest.mark.parametrize(
    ("declared", "arrow"),
    [("REAL", pa.float64()), ("NUMERIC(10, 2)", pa.decimal128(12, 2)), ("NUMERIC(10, 2)", pa.decimal128(10, 4))],
)
def test_a_column_that_would_round_the_values_is_refused(
    declared: str, arrow: pa.DataType, kind: str, database: Callable[[str], str]
) -> None:
    store = opened(database(kind))
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
def test_a_table_with_more_than_the_rows_have_is_fine(statement: str, store: SqlStore, store_url: str) -> None:
    prepare(store, statement)
    write(store, ROWS, plain((2**53, "x")))
    assert query(store_url, "SELECT name, id FROM things") == [("x", 2**53)]


@pytest.mark.parametrize("spec", [ROWS, UPSERT, IGNORE], ids=lambda spec: spec.write)
def test_values_go_to_their_columns_whatever_the_order_of_the_table(
    spec: TableSpec, store: SqlStore, store_url: str
) -> None:
    prepare(store, "CREATE TABLE things (c BIGINT, a BIGINT, id BIGINT PRIMARY KEY, b BIGINT)")
    schema = pa.schema([(name, pa.int64()) for name in ("a", "b", "c", "id")])
    write(store, spec, pa.table([[1], [2], [3], [4]], schema=schema))
    assert query(store_url, "SELECT a, b, c, id FROM things") == [(1, 2, 3, 4)]


def test_an_upsert_may_use_any_unique_index(store: SqlStore, store_url: str) -> None:
    prepare(
        store, "CREATE TABLE things (id BIGINT, name VARCHAR(50))", "CREATE UNIQUE INDEX things_by_id ON things (id)"
    )
    for name in ("old", "new"):
        write(store, UPSERT, plain((1, name)))
    assert query(store_url, "SELECT * FROM things") == [(1, "new")]


def test_a_table_without_transactions_is_refused(database: Callable[[str], str]) -> None:
    store = opened(database("mariadb"))
    prepare(store, "CREATE TABLE things (id BIGINT, name VARCHAR(50)) ENGINE = MyISAM")
    with pytest.raises(TableMismatch, match="table things uses the engine MyISAM, which has no transactions"):
        store.create_tables([ROWS], {"things": PLAIN})
    store.close()


def test_a_key_or_version_that_the_rows_do_not_have_is_refused(store: SqlStore) -> None:
    with pytest.raises(TableMismatch, match="table things: the key column no is not in the rows, which have id, name"):
        store.create_tables([TableSpec("things", key=("no",), write="upsert")], {"things": PLAIN})
    with pytest.raises(TableMismatch, match="table things: the version column no is not in the rows"):
        store.create_tables([TableSpec("things", key=("id",), write="upsert", version="no")], {"things": PLAIN})


# Types that can't be stored


@pytest.mark.parametrize(
    "kind", [pa.null(), pa.duration("us"), pa.month_day_nano_interval(), pa.time64("us"), pa.list_(pa.int64())], ids=str
)
def test_a_type_without_a_column_type_is_refused_by_name(kind: pa.DataType, store: SqlStore) -> None:
    schema = pa.schema([("id", pa.int64()), ("odd", kind)])
    with pytest.raises(BadInput, match=r"column odd: .* has no column type; cast it"):
        store.create_tables([ROWS], {"things": schema})
    prepare(store, "CREATE TABLE things (id BIGINT, odd VARCHAR(50))")
    with pytest.raises(BadInput, match=r"column odd: .* has no column type; cast it"):
        store.check_tables([ROWS], {"things": schema})


@pytest.mark.parametrize(
    "field",
    [
        pa.field("v", pa.bool_()),
        pa.field("v", pa.binary()),
        pa.field("v", pa.string(), metadata={JSON_MARK: b"1"}),
    ],
    ids=str,
)
def test_a_version_without_an_order_is_refused(field: pa.Field, store: SqlStore) -> None:
    spec = TableSpec("things", key=("id",), write="upsert", version="v")
    with pytest.raises(TableMismatch, match=r"table things: version v is .*, which has no order"):
        store.check_tables([spec], {"things": pa.schema([pa.field("id", pa.int64()), field])})


def test_a_decimal_is_a_version_where_the_database_can_compare_it(store: SqlStore, store_url: str) -> None:
    spec = TableSpec("things", key=("id",), write="upsert", version="v")
    schema = pa.schema([("id", pa.int64()), ("v", pa.decimal128(10, 2))])
    if store.dialect.name == "sqlite":
        with pytest.raises(TableMismatch, match=r"version v is decimal128\(10, 2\), which SQLite stores as text"):
            store.create_tables([spec], {"things": schema})
        return
    for version in (9, 10, 8):
        write(store, spec, pa.table([[1], [version]], schema=schema))
    assert query(store_url, "SELECT v FROM things") == [(10,)]


def test_a_decimal_with_more_places_than_mysql_has_is_refused(database: Callable[[str], str]) -> None:
    store = opened(database("mariadb"))
    for scale, fits in ((30, True), (31, False)):
        schema = pa.schema([("id", pa.int64()), ("d", pa.decimal128(38, scale))])
        if fits:
            store.create_tables([ROWS], {"things": schema})
            continue
        with pytest.raises(TableMismatch, match=r"column d is decimal128\(38, 31\), and MySQL has at most 30 digits"):
            store.check_tables([TableSpec("others")], {"others": schema})
    store.close()


# Creating and evolving


def test_a_table_that_is_not_to_be_created_is_refused_when_it_is_absent(store: SqlStore) -> None:
    spec = TableSpec("things", create=False)
    for refuse in (store.check_tables, store.create_tables):
        with pytest.raises(TableMismatch, match="table things does not exist, and create=False"):
            refuse([spec], {"things": PLAIN})
    prepare(store, "CREATE TABLE things (id BIGINT, name VARCHAR(50))")
    write(store, spec, plain((1, "a")))
    assert read(store, spec, PLAIN) == [(1, "a")]


def evolved(store: SqlStore, spec: TableSpec, schema: pa.Schema) -> None:
    with store.transaction() as connection:
        table = existing_table(connection, spec, schema)
        assert table is not None
        grown = evolve_table(connection, table, spec, schema)
        assert set(schema.names) <= set(grown.columns.keys())


WIDER = pa.schema(
    [
        *PLAIN,
        ("tiny", pa.int8()),
        ("Per%cent", pa.string()),
        ("order", pa.timestamp("us", "UTC")),
        ("amount", pa.decimal128(20, 4)),
        ("raw", pa.binary()),
        pa.field("data", pa.string(), metadata={JSON_MARK: b"1"}),
    ]
)


def test_columns_that_the_table_lacks_are_added(store: SqlStore) -> None:
    write(store, EVOLVE, plain((1, "a")))
    evolved(store, EVOLVE, WIDER)
    row = pa.Table.from_pylist([{"id": 2, "tiny": 3, "Per%cent": "x", "raw": b"\x00", "data": "[1]"}], WIDER)
    put(store, EVOLVE, row)
    assert read(store, EVOLVE, WIDER) == [(1, "a", *[None] * 6), (2, None, 3, "x", None, None, b"\x00", [1])]
    evolved(store, EVOLVE, WIDER)


def test_looking_at_a_table_that_may_evolve_changes_nothing(store: SqlStore) -> None:
    prepare(store, "CREATE TABLE things (id BIGINT)")
    store.check_tables([EVOLVE], {"things": PLAIN})
    with store.look() as connection:
        assert [column["name"] for column in inspect(connection).get_columns("things")] == ["id"]
