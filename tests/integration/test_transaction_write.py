"""``db.write`` on SQL databases: dicts and Arrow, every mode, existing and missing tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from sqlalchemy import inspect, text

from tallymark.errors import BadInput, DataRefused, TableChanged, TableMismatch
from tallymark.stores.sql import mysql
from tallymark.stores.sql.store import SqlStore
from tests.support.background import Background
from tests.support.databases import KINDS, MYSQL, create, drop
from tests.support.stores import opened, prepare

DAY = datetime(2026, 1, 31, 12, 30, 0, 5)
ID = UUID(int=7)


@pytest.fixture(scope="module", params=[*KINDS, MYSQL])
def kept_url(
    request: pytest.FixtureRequest, servers: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """One database of each kind for all tests: creating one takes longer than most of them."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('kept') / 'store.db'}"
        return
    server = request.getfixturevalue("mysql") if request.param == MYSQL else servers[request.param]
    url = create(server)
    yield url
    drop(url)


@pytest.fixture
def store(kept_url: str) -> Iterator[SqlStore]:
    made = opened(kept_url)
    with made.look() as connection:
        tables = inspect(connection).get_table_names()
    prepare(made, *(f"DROP TABLE {table}" for table in tables))
    yield made
    made.close()


def nothing() -> None:
    """No entry: rows alone."""


def write(store: SqlStore, table: str, *given: Any, **options: Any) -> None:
    with store.begin(nothing) as db:
        for rows in given:
            db.write(table, rows, **options)


def rows(store: SqlStore, table: str, *columns: str) -> list[tuple[Any, ...]]:
    with store.look() as connection:
        found = connection.execute(text(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {columns[0]}"))
        return [tuple(row) for row in found]


def test_a_table_is_made_of_dicts(store: SqlStore) -> None:
    given = [
        {"id": 1, "name": "a", "amount": Decimal("1.50"), "price": 1.5, "day": date(2026, 1, 31), "at": DAY},
        {"id": 2, "yes": True, "raw": b"\x00\xff", "more": {"a": [1, None]}, "uuid": ID, "amount": Decimal(2)},
    ]
    write(store, "made", given, key="id", write="upsert")
    # Later values are wider than those that the column was created from.
    write(store, "made", {"id": 3, "amount": Decimal("123456789.000001"), "more": None}, key="id", write="upsert")
    names = ("id", "name", "amount", "price", "day", "at", "yes", "raw", "more", "uuid")
    found = rows(store, "made", *names)
    plain = [[None if cell is None else str(cell) for cell in row] for row in found]
    assert [row[:2] for row in found] == [(1, "a"), (2, None), (3, None)]
    assert [Decimal(row[2]) for row in found] == [Decimal("1.50"), 2, Decimal("123456789.000001")]
    assert plain[0][3:6] == ["1.5", "2026-01-31", "2026-01-31 12:30:00.000005"]
    assert plain[1][6] in ("True", "1")
    assert found[1][7] == b"\x00\xff"
    assert plain[1][8] in ('{"a": [1, null]}', "{'a': [1, None]}")
    assert plain[1][9] == str(ID)


def test_rows_may_be_dicts_one_dict_an_iterator_or_arrow(store: SqlStore) -> None:
    arrow = pa.table({"id": [4, 5]})
    write(store, "made", [{"id": 1}], {"id": 2}, iter([{"id": 3}]), arrow, arrow.to_batches()[0], [], arrow.slice(0, 0))
    assert rows(store, "made", "id") == [(1,), (2,), (3,), (4,), (4,), (5,), (5,)]


@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
def test_of_several_rows_for_a_key_one_counts(store: SqlStore, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql, "MANY", 1 if many else 1_000)
    given = [{"id": 2, "v": 5, "x": "a"}, {"id": 1, "v": 9, "x": "b"}, {"id": 2, "v": 4, "x": "c"}]
    for table, options, expected in [
        ("latest", {"write": "upsert"}, [(1, "b"), (2, "c")]),
        ("first", {"write": "ignore"}, [(1, "b"), (2, "a")]),
        ("highest", {"write": "upsert", "version": "v"}, [(1, "b"), (2, "a")]),
    ]:
        # Within one write, over two writes, and as Arrow.
        for number, writes in enumerate([[given], [given[:2], given[2:]], [pa.Table.from_pylist(given)]]):
            write(store, f"{table}{number}", *writes, key=["id"], **options)
            assert rows(store, f"{table}{number}", "id", "x") == expected


def test_an_upsert_of_none_overwrites(store: SqlStore) -> None:
    write(store, "made", {"id": 1, "name": "a", "n": 1}, key="id", write="upsert")
    write(store, "made", {"id": 1, "name": None, "n": None, "unheard_of": None}, key="id", write="upsert")
    assert rows(store, "made", "id", "name", "n") == [(1, None, None)]


def test_numbers_fit_the_columns_that_are_there(store: SqlStore) -> None:
    floats = "FLOAT" if store.dialect.name == "mysql" else "REAL"
    prepare(store, f"CREATE TABLE things (id INTEGER PRIMARY KEY, s SMALLINT, d DOUBLE PRECISION, r {floats})")
    write(store, "things", {"id": 1, "s": 2, "d": 3, "r": 0.5}, key="id", write="upsert")
    write(store, "things", [{"id": 2, "s": None, "d": None, "r": None}])
    assert rows(store, "things", "id", "s", "d", "r") == [(1, 2, 3.0, 0.5), (2, None, None, None)]
    if store.dialect.name != "sqlite":
        with pytest.raises(DataRefused, match="column s"):
            write(store, "things", {"id": 3, "s": 70_000})
        with pytest.raises(DataRefused, match="column s is SMALLINT and can't hold the rows' string"):
            write(store, "things", {"id": 3, "s": "x"})
        with pytest.raises(TableMismatch, match="column s is SMALLINT"):
            write(store, "things", pa.table({"id": pa.array([3], pa.int32()), "s": [3]}))
    with pytest.raises(TableMismatch, match="no column extra"):
        write(store, "things", {"id": 3, "extra": 1})


def test_times_keep_their_instant(store: SqlStore) -> None:
    there = DAY.replace(tzinfo=timezone(timedelta(hours=2)))
    write(store, "made", [{"id": 1, "at": there}, {"id": 2, "at": there.astimezone(UTC)}])
    write(store, "made", pa.table({"id": [3], "at": pa.array([there], pa.timestamp("ns", "Europe/Berlin"))}))
    assert {str(at)[:26] for _, at in rows(store, "made", "id", "at")} >= {"2026-01-31 10:30:00.000005"}
    assert len({at for _, at in rows(store, "made", "id", "at") if _ < 3}) == 1


def test_columns_are_added_where_the_table_may_evolve(store: SqlStore) -> None:
    write(store, "made", {"id": 1})
    write(store, "made", {"id": 2, "name": "b"}, evolve=True)
    assert rows(store, "made", "id", "name") == [(1, None), (2, "b")]
    with pytest.raises(BadInput, match="table made: evolve='follow' is not known here; set evolve=True to add columns"):
        write(store, "made", {"id": 3}, evolve="follow")


def test_a_row_that_is_refused_takes_back_its_write_alone(store: SqlStore) -> None:
    prepare(store, "CREATE TABLE things (id INTEGER PRIMARY KEY, n INTEGER CHECK (n < 10))")

    def refused(db: Any) -> None:
        with pytest.raises(DataRefused):
            db.write("things", [{"id": 2, "n": 2}, {"id": 3, "n": 30}])

    with store.begin(nothing) as db:
        db.write("things", {"id": 1, "n": 1})
        refused(db)
        assert db.written == {"things": 1}
        db.write("things", {"id": 4, "n": 4})
    assert rows(store, "things", "id") == [(1,), (4,)]


REFUSED: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
    (DataRefused, "key column id is NULL", [{"id": None, "x": 1}, {"id": 1}], {"key": "id", "write": "upsert"}),
    (DataRefused, "key column id is NULL", {"id": None, "x": 1}, {"key": "id", "write": "upsert"}),
    (TableMismatch, "no row has column id", pa.table({"x": [1]}), {"key": "id", "write": "upsert"}),
    (DataRefused, "no row has column id", [{"x": 1}], {"key": "id", "write": "upsert"}),
    (DataRefused, "column x", [{"x": 1}, {"x": "a"}], {}),
    (BadInput, "x is always None", [{"id": 1, "x": None}], {}),
    (BadInput, "does not exist, and create=False", [{"id": 1}], {"create": False}),
    (BadInput, "needs key=", [{"id": 1}], {"write": "upsert"}),
    (BadInput, "are reserved", [{"id": 1}], {"table": "tallymark_x"}),
    (BadInput, "has no column type", [{"x": timedelta(1)}], {}),
]


def test_what_can_not_be_written_is_refused(store: SqlStore) -> None:
    for error, words, given, options in REFUSED:
        with pytest.raises(error, match=words):
            write(store, options.get("table", "made"), given, **{k: v for k, v in options.items() if k != "table"})
    with store.look() as connection:
        assert not connection.dialect.has_table(connection, "made")


def test_a_table_that_was_rolled_back_is_made_again(store: SqlStore) -> None:
    def undone() -> None:
        with store.begin(nothing) as db:
            db.write("made", {"id": 1})
            raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            undone()
    write(store, "made", {"id": 2})
    assert rows(store, "made", "id") == [(2,)]


def test_a_table_that_was_dropped_is_noticed_and_made_again(store: SqlStore) -> None:
    write(store, "made", {"id": 1})
    prepare(store, "DROP TABLE made")
    with pytest.raises(TableChanged):
        write(store, "made", {"id": 2})
    write(store, "made", {"id": 3})
    assert rows(store, "made", "id") == [(3,)]


def test_a_table_is_looked_up_once(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store, "made", {"id": 1})
    monkeypatch.delattr("tallymark.stores.sql.transaction.fit")
    write(store, "made", {"id": 2}, {"id": 3})
    assert rows(store, "made", "id") == [(1,), (2,), (3,)]


def test_two_members_may_make_the_same_table_at_once(store: SqlStore) -> None:
    started = threading.Barrier(4)

    def member(number: int) -> None:
        with store.begin(nothing) as db:
            started.wait(10)
            for again in range(3):
                db.write("made", {"id": 10 * number + again}, key="id", write="upsert")
            db.write("others", {"id": number, "x": 1})

    for running in [Background(partial(member, number)).start() for number in range(4)]:
        running.result()
    assert len(rows(store, "made", "id")) == 12
    assert len(rows(store, "others", "id")) == 4


def test_the_transaction_survives_losing_the_race_for_a_table(database: Callable[[str], str]) -> None:
    store = opened(database("postgresql"))
    with store.begin(nothing) as db:
        db.write("before", {"id": 1})
        rival = opened(store.engine.url.render_as_string(hide_password=False))
        waiting = Background(lambda: write(rival, "made", {"id": 1}))
        db.execute("CREATE TABLE made (id BIGINT)")
        waiting.start()
        db.write("made", {"id": 2})
    waiting.result()
    rival.close()
    assert rows(store, "made", "id") == [(1,), (2,)]
    store.close()


def test_mysql_adds_no_column_to_a_table_in_use(database: Callable[[str], str]) -> None:
    store = opened(database("mariadb"))
    with pytest.raises(BadInput, match="write the rows with this column first"):
        write(store, "made", {"id": 1}, {"id": 2, "name": "b"}, evolve=True)
    write(store, "made", {"id": 2, "name": "b"}, {"id": 1}, evolve=True)
    assert rows(store, "made", "id", "name") == [(1, None), (2, "b")]
    store.close()
