"""Rows in Redis: every write mode, every column type, and refusals."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tallymark.core.newest import finish
from tallymark.core.spans import Partition
from tallymark.core.tables import DELETED, OFFSET, PARTITION, TIMESTAMP, TOPIC, Changes, Refusal, TableSpec
from tallymark.errors import BadInput, BatchTooLarge, DataRefused
from tallymark.stores.arrow import JSON_MARK
from tallymark.stores.contract import RowsRefused
from tallymark.stores.redis import script
from tallymark.stores.redis.store import RedisStore
from tests.support.commits import take, work
from tests.support.redis import client, dump, key

FORMS = ["hash", "json"]
LATEST = TableSpec("orders", key=("id",), write="upsert")
VERSIONED = TableSpec("orders", key=("id",), write="upsert", version="v", delete="tombstone")
FIRST = TableSpec("orders", key=("id",), write="ignore")
CLICKS = TableSpec("clicks")


@pytest.fixture(params=FORMS)
def url(redis_url: str, request: pytest.FixtureRequest) -> str:
    return f"{redis_url}&rows={request.param}"


@pytest.fixture
def store(url: str) -> Iterator[RedisStore]:
    made = RedisStore(url)
    made.create_ledger()
    yield made
    made.close()


def origins(offsets: Sequence[int], topic: str = "web", partition: int = 0) -> dict[str, pa.Array]:
    count = len(offsets)
    return {
        TOPIC: pa.array([topic] * count, pa.string()),
        PARTITION: pa.array([partition] * count, pa.int32()),
        OFFSET: pa.array(offsets, pa.int64()),
        TIMESTAMP: pa.array([datetime(2026, 1, 1)] * count, pa.timestamp("us", "UTC")),
    }


def changes(spec: TableSpec, **columns: Any) -> Changes:
    """One row for each record of web[0], in order."""
    table = pa.table(columns)
    return finish(spec, pa.table({**columns, **origins(range(table.num_rows))}), "batch")


def rows(url: str, table: str = "orders") -> dict[str, dict[str, str | None]]:
    """The rows by key, as text, in either format."""
    found: dict[str, dict[str, str | None]] = {}
    for name, value in dump(url, f"{table}:").items():
        if isinstance(value, dict):
            found[name] = {field.decode(): text.decode() for field, text in value.items()}
        else:
            members = json.loads(value, parse_int=str, parse_float=str)
            found[name] = {field: text for field, text in members.items() if text is not None}
    return found


# Write modes


def test_an_upsert_overwrites_and_takes_away_what_is_null(store: RedisStore, url: str) -> None:
    store.apply([changes(LATEST, id=[1, 2], name=["a", "b"], note=["x", ""])], None)
    store.apply([changes(LATEST, id=[2, 3], name=["B", "C"], note=pa.array([None, "z"]))], None)
    assert rows(url) == {
        "1": {"id": "1", "name": "a", "note": "x"},
        "2": {"id": "2", "name": "B"},
        "3": {"id": "3", "name": "C", "note": "z"},
    }


VERSIONS: list[tuple[pa.DataType, Any, Any]] = [
    (pa.int64(), 2**53, 2**53 + 1),
    (pa.int64(), -(2**53) - 1, -(2**53)),
    (pa.int64(), 9, 10),
    (pa.int64(), -10, -9),
    (pa.int64(), -1, 0),
    (pa.int64(), -5, 5),
    (pa.float64(), 1.5, 1.25e10),
    (pa.float64(), -2.25, -2.0),
    (pa.decimal128(38, 2), Decimal("99999999999999999999.01"), Decimal("99999999999999999999.02")),
    (pa.decimal128(38, 10), Decimal("0.0000000001"), Decimal("0.0000000002")),
    (pa.timestamp("us", "UTC"), datetime(2026, 1, 1, 0, 0, 0), datetime(2026, 1, 1, 0, 0, 0, 5)),
    (pa.date32(), date(2025, 12, 31), date(2026, 1, 1)),
    (pa.string(), "B", "a"),
    (pa.string(), 'a"\\', 'a"\\b'),
    (pa.string(), "a", "ab"),
    (pa.bool_(), False, True),
]


@pytest.mark.parametrize(("kind", "low", "high"), VERSIONS, ids=str)
def test_only_a_row_of_the_same_or_a_higher_version_overwrites(
    store: RedisStore, url: str, kind: pa.DataType, low: Any, high: Any
) -> None:
    def put(version: Any, name: str, *, gone: bool = False) -> set[str | None]:
        columns = {"id": [1], "name": [name], "v": pa.array([version], kind), DELETED: [gone]}
        store.apply([changes(VERSIONED, **columns)], None)
        return {row["name"] for row in rows(url).values()}

    assert put(None, "unversioned") == {"unversioned"}
    assert put(None, "unversioned too") == {"unversioned too"}
    assert put(high, "new") == {"new"}
    assert put(low, "old") == {"new"}
    assert put(None, "none") == {"new"}
    assert put(high, "same") == {"same"}
    assert put(low, "", gone=True) == {"same"}
    assert put(high, "", gone=True) == set()
    assert put(low, "again") == set(), "the deletion is remembered"
    assert put(high, "newer") == {"newer"}
    assert put(None, "", gone=True) == set(), "a deletion without a version"


def test_a_version_that_others_have_written_is_compared_as_well(redis_url: str) -> None:
    url = f"{redis_url}&rows=json"
    server, name = client(url), key(url, "orders:1")
    for there, stays in [('{ "id": 1, "v": 7 }', True), ("not json", False), ("[1]", False), ('{"v":null}', False)]:
        server.set(name, there)
        RedisStore(url).apply([changes(VERSIONED, id=[1], v=[5])], None)
        assert (server.get(name) == there.encode()) is stays


def test_rows_without_a_key_are_named_after_their_record(store: RedisStore, url: str) -> None:
    def clicks(topic: str, partition: int, offsets: Sequence[int]) -> Changes:
        table = pa.table({"n": [*range(len(offsets))], **origins(offsets, topic, partition)})
        return finish(CLICKS, table, "batch")

    store.apply([clicks("web", 1, [2, 2, 2, 4]), clicks("web-1", 2, [3])], None)
    assert rows(url, "clicks").keys() == {"web-1-2", "web-1-2:2", "web-1-2:3", "web-1-4", "web-1-2-3"}


def test_rows_of_no_single_record_are_named_after_their_batch(store: RedisStore, url: str, group: str) -> None:
    made = work(group, "one", take(store, group, "one", [Partition("web", 0)]), 0, 2)
    store.apply(made.changes, made.entry)
    assert rows(url, "events").keys() == {f"{made.entry.batch}-1", f"{made.entry.batch}-2"}
    store.apply(made.changes, None)
    store.apply(made.changes, None)
    assert len(rows(url, "events")) == 6


KEYS = st.tuples(st.text(":%a", max_size=4), st.text(":%a", max_size=4))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=st.lists(KEYS, min_size=1, max_size=8, unique=True))
def test_keys_of_several_parts_never_collide(store: RedisStore, url: str, keys: list[tuple[str, str]]) -> None:
    server = client(url)
    for name in server.scan_iter(match=key(url, "pairs:*"), count=1000):
        server.delete(name)
    spec = TableSpec("pairs", key=("a", "b"), write="upsert")
    store.apply([changes(spec, a=[a for a, _ in keys], b=[b for _, b in keys])], None)
    assert {(row["a"], row["b"]) for row in rows(url, "pairs").values()} == set(keys)


# Types

ROW = st.fixed_dictionaries(
    {
        "flag": st.none() | st.booleans(),
        "small": st.none() | st.integers(-(2**15), 2**15 - 1),
        "whole": st.none() | st.integers(-(2**63), 2**63 - 1),
        "single": st.none() | st.floats(width=32, allow_nan=False),
        "double": st.none() | st.floats(allow_nan=False),
        "exact": st.none() | st.decimals(-(10**20), 10**20, places=10, allow_nan=False),
        "day": st.none() | st.dates(),
        "zoned": st.none() | st.datetimes(timezones=st.just(UTC)),
        "local": st.none() | st.datetimes(),
        "words": st.none() | st.text(),
        "raw": st.none() | st.binary(),
        "nested": st.none() | st.dictionaries(st.text(max_size=3), st.integers() | st.none(), max_size=2),
    }
)
TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("flag", pa.bool_()),
        ("small", pa.int16()),
        ("whole", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("exact", pa.decimal128(38, 10)),
        ("day", pa.date32()),
        ("zoned", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("words", pa.string()),
        ("raw", pa.binary()),
        pa.field("nested", pa.string(), metadata={JSON_MARK: b""}),
    ]
)
TYPED = TableSpec("types", key=("id",), write="upsert")


def as_written(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"nested": None if row["nested"] is None else json.dumps(row["nested"])}


def time_of(text: str) -> datetime:
    whole, _, fraction = text.removesuffix("Z").partition(".")
    assert len(fraction) == 6
    found = datetime.fromisoformat(f"{whole}.{fraction}")
    return found.replace(tzinfo=UTC) if text.endswith("Z") else found


PARSE: dict[str, Any] = {
    "flag": {"true": True, "false": False}.__getitem__,
    "small": int,
    "whole": int,
    "single": lambda text: pa.scalar(float(text), pa.float32()).as_py(),
    "double": float,
    "exact": Decimal,
    "day": date.fromisoformat,
    "zoned": time_of,
    "local": time_of,
    "words": str,
    "nested": json.loads,
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=st.lists(ROW, min_size=1, max_size=5))
@example(found=[dict.fromkeys(TYPES.names[1:]) | {"words": "Infinity", "double": -math.inf}])
def test_every_type_survives(redis_url: str, found: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist([{"id": at, **as_written(row)} for at, row in enumerate(found)], TYPES)
    # Columns from Spark lack the metadata: the schema has it.
    table = table.cast(TYPES.remove_metadata().set(12, pa.field("nested", pa.string())))
    for form in FORMS:
        store = RedisStore(f"{redis_url}{form}&rows={form}")
        store.create_tables([TYPED], {"types": TYPES})
        store.apply([Changes(TYPED, table, table.slice(0, 0))], None)
        there = dump(f"{redis_url}{form}", "types:")
        assert [(from_hash if form == "hash" else from_json)(there[str(at)]) for at in range(len(found))] == found
        store.close()


def from_hash(fields: dict[bytes, bytes]) -> dict[str, Any]:
    row: dict[str, Any] = {name: None for name in TYPES.names if name != "id"}
    texts = {name.decode(): value for name, value in fields.items() if name != b"id"}
    return row | {name: value if name == "raw" else PARSE[name](value.decode()) for name, value in texts.items()}


def from_json(text: bytes) -> dict[str, Any]:
    row = json.loads(text, parse_float=str)
    del row["id"]
    special: dict[str, Any] = {"flag": bool, "nested": dict, "raw": base64.b64decode}
    for name, value in row.items():
        if value is not None:
            row[name] = special[name](value) if name in special else PARSE[name](str(value))
    return dict(row)


def test_small_decimals_are_written_out(redis_url: str) -> None:
    RedisStore(redis_url).apply([changes(LATEST, id=[1], d=pa.array([Decimal("1E-10")], pa.decimal128(38, 10)))], None)
    assert rows(redis_url)["1"]["d"] == "0.0000000001"


def test_floats_are_the_shortest_that_are_exact(redis_url: str) -> None:
    single, double = pa.array([0.1], pa.float32()), pa.array([1e22], pa.float64())
    RedisStore(redis_url).apply([changes(LATEST, id=[1], s=single, d=double, n=[float("nan")])], None)
    RedisStore(f"{redis_url}&rows=json").apply([changes(FIRST, id=[2], s=single, n=[float("nan")])], None)
    there = dump(redis_url, "orders:")
    assert there["1"] == {b"id": b"1", b"s": b"0.1", b"d": b"1e+22", b"n": b"nan"}
    assert there["2"] == b'{"id":2,"s":0.1,"n":"NaN"}'


# What is refused


@pytest.mark.parametrize("spec", [LATEST, VERSIONED, FIRST], ids=lambda spec: f"{spec.write} {spec.version}")
def test_keys_of_another_type_are_refused_with_their_records(
    store: RedisStore, url: str, group: str, spec: TableSpec
) -> None:
    held = take(store, group, "one", [Partition("web", 0)])
    server = client(url)
    server.rpush(key(url, "orders:2"), "mine")
    server.sadd(key(url, "orders:4"), "mine")
    before = dump(url)
    change = changes(spec, id=[1, 2, 3, 4], v=[1, 2, 3, 4])
    entry = work(group, "one", held, 0, 4).entry
    with pytest.raises(RowsRefused) as refused:
        store.apply([change], entry)
    errors = {2: f"key {key(url, 'orders:2')} holds a list", 4: f"key {key(url, 'orders:4')} holds a set"}
    assert refused.value.refusals == [
        Refusal(Partition("web", 0), number - 1, "orders", error) for number, error in errors.items()
    ]
    with pytest.raises(RowsRefused) as refused:
        store.apply([change], entry, refusals=1)
    assert len(refused.value.refusals) == 1
    assert dump(url) == before


def test_a_deletion_of_a_key_of_another_type_is_refused(store: RedisStore, url: str) -> None:
    client(url).rpush(key(url, "orders:1"), "mine")
    with pytest.raises(RowsRefused):
        store.apply([changes(VERSIONED, id=[1], v=[1], **{DELETED: [True]})], None)
    assert dump(url, "orders:") == {"1": [b"mine"]}


def test_a_refused_row_of_no_single_record_stops_the_batch(store: RedisStore, url: str) -> None:
    client(url).rpush(key(url, "orders:1"), "mine")
    table = pa.table({"id": [1]})
    with pytest.raises(DataRefused, match=r"orders refused a row: key .* holds a list; its function merges records"):
        store.apply([Changes(LATEST, table, table.slice(0, 0))], None)


def test_a_row_of_nothing_is_refused_as_a_hash_and_kept_as_json(store: RedisStore, url: str) -> None:
    change = changes(CLICKS, a=pa.array([1, None, None]), b=pa.array([None, None, "b"]))
    if url.endswith("json"):
        store.apply([change], None)
        assert len(dump(url, "clicks:")) == 3
        return
    with pytest.raises(RowsRefused, match="1 records") as refused:
        store.apply([change], None)
    assert refused.value.refusals[0].record == (Partition("web", 0), 1)
    assert dump(url, "clicks:") == {}


def test_a_row_without_a_key_is_refused(store: RedisStore, url: str) -> None:
    with pytest.raises(RowsRefused) as refused:
        store.apply([changes(LATEST, id=pa.array([1, None]))], None)
    assert "key column id is NULL" in refused.value.refusals[0].error
    assert dump(url, "orders:") == {}


def test_a_batch_of_too_many_arguments_is_divided_or_refused(
    store: RedisStore, url: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = take(store, group, "one", [Partition("web", 0)])
    before = dump(url)
    monkeypatch.setattr(script, "MOST_ARGUMENTS", 100)
    change = changes(LATEST, id=range(50))
    with pytest.raises(BatchTooLarge, match=r"lower limits\.records"):
        store.apply([change], work(group, "one", held, 0, 50).entry)
    with pytest.raises(BadInput, match=r"lower limits\.records"):
        store.apply([change], work(group, "one", held, 0, 1).entry)
    with pytest.raises(BadInput, match=r"lower limits\.records"):
        store.apply([change], None)
    assert dump(url) == before


@pytest.mark.parametrize(
    ("spec", "schema", "complaint"),
    [
        (TableSpec("t", key=("id",), write="upsert"), {"a": pa.int64()}, "does not return column id"),
        (TableSpec("t", key=("a",), write="upsert", version="v"), {"a": pa.int64()}, "does not return column v"),
        (TableSpec("t"), {"a": pa.list_(pa.int64())}, "column a: Redis can't store list<"),
        (TableSpec("tallymark"), {"a": pa.int64()}, "name is reserved for the ledger"),
        (TableSpec("t"), {str(number): pa.int64() for number in range(4000)}, "4000 columns"),
    ],
)
def test_tables_that_can_not_be_written_are_refused(
    redis_url: str, spec: TableSpec, schema: dict[str, pa.DataType], complaint: str
) -> None:
    store = RedisStore(redis_url)
    for check in (store.check_tables, store.create_tables):
        with pytest.raises(BadInput, match=complaint):
            check([spec], {spec.name: pa.schema(schema)})


def test_as_many_columns_as_are_allowed_can_be_written(redis_url: str) -> None:
    names = [f"c{number}" for number in range(3900)]
    spec = TableSpec("wide", key=("c0",), write="upsert")
    store = RedisStore(redis_url)
    for value in (1, None):
        store.apply(
            [changes(spec, **{name: pa.array([1 if name == "c0" else value], pa.int64()) for name in names})], None
        )
    assert dump(redis_url, "wide:") == {"1": {b"c0": b"1"}}
