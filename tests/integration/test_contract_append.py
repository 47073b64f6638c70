"""The contract of every store for the merge function ``append``, as docs/reference/merging.md specifies it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from tallymark.core.newest import finish
from tallymark.core.spans import Partition
from tallymark.core.tables import OFFSET, PARTITION, TIMESTAMP, TOPIC, TableSpec
from tallymark.errors import BadInput, DataRefused, TableMismatch
from tallymark.stores.arrow import JSON_MARK
from tallymark.stores.contract import RowsRefused, Store
from tallymark.stores.opening import open_store
from tallymark.stores.sql import mysql, tables
from tests.support import databases
from tests.support.databases import KINDS, execute
from tests.support.redis import client, key
from tests.support.truth import rows

numbers = count()
SCHEMA = pa.schema([("id", pa.int64()), pa.field("log", pa.string(), metadata={JSON_MARK: b"1"})])


@pytest.fixture(params=[*KINDS, "mysql", "mariadb-many", "redis"])
def url(request: pytest.FixtureRequest, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> str:
    kind, _, other = request.param.partition("-")
    monkeypatch.setattr(mysql, "MANY", 1 if other == "many" else 1_000)
    if kind == databases.MYSQL:
        return databases.create(request.getfixturevalue(databases.MYSQL))
    return database(kind)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


def spec(most: int = 3) -> TableSpec:
    return TableSpec(f"t{next(numbers)}", ("id",), "merge", merge=(("log", f"append({most})"),))


def batch(*logs: tuple[int, str | None]) -> pa.Table:
    found = pa.Table.from_pylist([{"id": number, "log": log} for number, log in logs], SCHEMA)
    for name, kind, value in ((TOPIC, pa.string(), "t"), (PARTITION, pa.int32(), 0), (TIMESTAMP, pa.int64(), None)):
        found = found.append_column(name, pa.array([value] * len(logs), kind))
    return found.append_column(OFFSET, pa.array(range(len(logs)), pa.int64()))


def put(store: Store, wanted: TableSpec, *logs: tuple[int, str | None]) -> None:
    store.create_tables([wanted], {wanted.name: SCHEMA})
    store.apply([finish(wanted, batch(*logs), "batch")], None)


def texts(url: str, table: str) -> dict[int, str | None]:
    """The stored text: a driver may convert JSON to lists, with rounded numbers."""
    log = "log" if url.startswith("redis") else f"CAST(log AS {'CHAR' if url.startswith('mysql') else 'TEXT'})"
    return {int(number): None if text is None else str(text) for number, text in rows(url, table, "id", log)}


def logs(url: str, table: str) -> dict[int, Any]:
    return {number: None if text is None else json.loads(text) for number, text in texts(url, table).items()}


def test_the_last_elements_stay_in_the_order_of_the_records(store: Store, url: str) -> None:
    wanted = spec()
    put(store, wanted, (1, "[1]"), (2, "[1, 2, 3, 4, 5]"), (1, "[2]"), (3, None), (4, "[]"), (5, None))
    assert logs(url, wanted.name) == {1: [1, 2], 2: [3, 4, 5], 3: None, 4: [], 5: None}
    put(store, wanted, (1, None), (2, '[{"a": [6, 7]}]'), (1, "[3,4]"), (3, "[ ]"), (4, "[]"), (5, '["x"]'))
    assert logs(url, wanted.name) == {1: [2, 3, 4], 2: [4, 5, {"a": [6, 7]}], 3: [], 4: [], 5: ["x"]}
    put(store, wanted, (1, "[]"), (2, "[7, 8, 9, 10]"), (3, "[1]"), (4, None), (5, "[null]"))
    assert logs(url, wanted.name) == {1: [2, 3, 4], 2: [8, 9, 10], 3: [1], 4: [], 5: ["x", None]}
    put(store, wanted, (6, "[1, 2, 3, 4]"))
    assert logs(url, wanted.name)[6] == [2, 3, 4]


def test_one_element_stays(store: Store, url: str) -> None:
    wanted = spec(1)
    for at in range(3):
        put(store, wanted, (1, f"[{at}]"))
        assert logs(url, wanted.name) == {1: [at]}


ELEMENTS = ["1.50", "12345678901234567890123", "-0", "1e2", r'"a,]\"\\"', r'"\u00e9"', '{"b":1.50,"a":[1,{"b":"}"}]}']


def test_elements_keep_their_text(store: Store, url: str) -> None:
    wanted, kept = spec(20), ELEMENTS
    if store.name.startswith("mysql") and not _is_mariadb(url):
        pytest.skip("MySQL stores JSON in a form of its own")
    for each in ELEMENTS:
        put(store, wanted, (1, f"[{each}]"))
    (text,) = texts(url, wanted.name).values()
    # MariaDB puts spaces between the parts of an object.
    compact = (text or "").replace(": ", ":").replace(", ", ",")
    assert compact == f"[{','.join(kept)}]"


def _is_mariadb(url: str) -> bool:
    [(version,)] = databases.query(url, "SELECT VERSION()")
    return "MariaDB" in str(version)


@pytest.mark.parametrize("stored", ['{"a": 1}', "5", '"x"', "null"])
def test_a_stored_value_that_is_no_array_refuses_the_record_and_stays(stored: str, store: Store, url: str) -> None:
    wanted = spec()
    put(store, wanted, (1, "[0]"), (2, "[0]"))
    replace(url, wanted.name, stored)
    with pytest.raises(RowsRefused) as refused:
        put(store, wanted, (1, "[1]"), (2, None), (2, "[1]"))
    (refusal,) = refused.value.refusals
    assert refusal.record[0] == Partition("t", 0)
    assert "is no JSON array, as append needs it" in refusal.error
    assert "log" in refusal.error
    assert logs(url, wanted.name) == {1: json.loads(stored), 2: [0]}
    put(store, wanted, (1, None), (2, "[1]"))
    assert logs(url, wanted.name) == {1: json.loads(stored), 2: [0, 1]}


@pytest.mark.parametrize("kind", ["sqlite", "mariadb", "redis"])
@pytest.mark.parametrize("stored", ["[1", '["]', "[1]]", "[{]}", "", "text"])
def test_a_stored_text_that_is_no_json_refuses_the_record_and_stays(
    stored: str, kind: str, database: Callable[[str], str]
) -> None:
    url, wanted = database(kind), spec()
    if kind != "redis":
        execute(url, f"CREATE TABLE {wanted.name} (id BIGINT NOT NULL PRIMARY KEY, log LONGTEXT)")
    store = open_store(url)
    put(store, wanted, (1, "[0]"))
    replace(url, wanted.name, stored)
    with pytest.raises(RowsRefused) as refused:
        put(store, wanted, (1, "[1]"))
    assert "is no JSON array, as append needs it" in refused.value.refusals[0].error
    assert texts(url, wanted.name) == {1: stored}
    store.close()


def replace(url: str, table: str, value: str) -> None:
    """As another program would."""
    if url.startswith("redis"):
        client(url).hset(key(url, f"{table}:1"), "log", value)
    else:
        execute(url, f"UPDATE {table} SET log = '{value}' WHERE id = 1")


def test_handlers_append_lists(store: Store, url: str) -> None:
    name, merge = f"t{next(numbers)}", {"log": "append(4)"}
    for first in (1, 10):
        with store.begin(lambda: None) as db:
            db.write(name, {"id": 1, "log": [first]}, key="id", write="merge", merge=merge)
            db.write(name, [{"id": 1, "log": (first + 1, {"a": "é"})}, {"id": 2}], key="id", write="merge", merge=merge)
            with suppress(ZeroDivisionError), db.savepoint():
                db.write(name, {"id": 1, "log": [0]}, key="id", write="merge", merge=merge)
                raise ZeroDivisionError
            db.write(name, {"id": 1, "log": None}, key="id", write="merge", merge=merge)
            db.write(name, pa.table({"id": [2], "log": [[first, 5]]}), key="id", write="merge", merge=merge)
    assert logs(url, name) == {1: [2, {"a": "é"}, 10, 11, {"a": "é"}][-4:], 2: [1, 5, 10, 5]}


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ({"a": 1}, DataRefused, "column log is no JSON array, as append needs it"),
        ("[1]", BadInput, "column log is string, and append needs an array"),
        (1, BadInput, "column log is int64, and append needs an array"),
    ],
)
def test_handlers_append_nothing_but_lists(value: Any, error: type[Exception], words: str, store: Store) -> None:
    refused = pytest.raises(error, match=words)
    with refused, store.begin(lambda: None) as db:
        db.write("t", {"id": 1, "log": value}, key="id", write="merge", merge={"log": "append(4)"})


def test_handlers_merge_no_value_that_is_not_finite(store: Store) -> None:
    refused = pytest.raises(DataRefused, match="column n is not finite, as sum needs it")
    with refused, store.begin(lambda: None) as db:
        db.write("t", [{"id": 1, "n": 1.0}, {"id": 1, "n": float("nan")}], key="id", write="merge", merge={"n": "sum"})


FITTING = {"sqlite": ["JSON", "TEXT"], "postgresql": ["JSON", "JSONB"], "mariadb": ["JSON", "LONGTEXT"]}


@pytest.mark.parametrize(("kind", "column"), [(kind, column) for kind in FITTING for column in FITTING[kind]])
def test_arrays_are_appended_to_columns_that_are_there(kind: str, column: str, database: Callable[[str], str]) -> None:
    url, wanted = database(kind), spec()
    execute(url, f"CREATE TABLE {wanted.name} (id BIGINT NOT NULL PRIMARY KEY, log {column})")
    store = open_store(url)
    for each in ("[1.50, 2]", "[3]", '[{"b": 1, "a": 2}]'):
        put(store, wanted, (1, each))
    assert logs(url, wanted.name) == {1: [2, 3, {"b": 1, "a": 2}]}
    store.close()


@pytest.mark.parametrize(("kind", "column"), [("postgresql", "TEXT"), ("sqlite", "BLOB"), ("mariadb", "BLOB")])
def test_columns_of_other_types_are_refused(kind: str, column: str, database: Callable[[str], str]) -> None:
    url, wanted = database(kind), spec()
    execute(url, f"CREATE TABLE {wanted.name} (id BIGINT NOT NULL PRIMARY KEY, log {column})")
    store = open_store(url)
    with pytest.raises(TableMismatch, match="column log is "):
        put(store, wanted, (1, "[1]"))
    assert rows(url, wanted.name, "id") == Counter()
    store.close()


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_server_without_ranges_is_refused_at_the_start(
    kind: str, database: Callable[[str], str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = database(kind) if kind == "mariadb" else databases.create(request.getfixturevalue("mysql"))
    monkeypatch.setattr(tables, "RANGES", {True: ("MariaDB", (99, 1)), False: ("MySQL", (99, 1))})
    store = open_store(url)
    with pytest.raises(TableMismatch, match=r"append needs (MariaDB|MySQL) 99\.1 or later, and this is "):
        put(store, spec(), (1, "[1]"))
    store.close()


def test_a_large_array_is_appended_in_linear_time(store: Store, url: str) -> None:
    """10 MB, of which Redis, too, finds the end of each element."""
    wanted, size, some = spec(4), 10_000_000, 1_000_000
    if url.startswith("mysql"):
        pytest.skip("larger than a packet of the server")
    for each in (f'["{"a" * size}"]', '["' + r"\"[," * (size // 4) + '"]', f"[[{'[[]],' * (some // 5)}1]]"):
        began = time.monotonic()
        put(store, wanted, (1, each))
        assert time.monotonic() - began < 15
    assert [len(element) for element in logs(url, wanted.name)[1]] == [size, size // 4 * 3, some // 5 + 1]
