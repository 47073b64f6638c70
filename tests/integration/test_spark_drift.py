"""Every path of a pipeline counts the same fields that the schema does not name, and only those of applied records."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import tallymark as tm
from tallymark.core.drift import Found
from tallymark.core.spans import Partition, Span, Tally
from tallymark.core.tables import TableSpec
from tallymark.errors import Drifted
from tallymark.formats.framing import prefix
from tests.support import databases
from tests.support.drift import DDL, SCHEMA, SCHEMA_WITH_MAP, WITH_MAP, unnamed, value
from tests.support.kafka import Topics
from tests.support.paths import Function
from tests.support.registry import SchemaRegistry
from tests.support.standing import standing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tallymark.spark.reader import Path

COUNT = 400
FUNCTIONS: dict[str, dict[str, Function]] = {
    "picks": {"ids": lambda records: records.select("value.id")},
    "computes": {"ids": lambda records: records.selectExpr("value.id + 1 AS id")},
    "merges": {"counts": lambda records: records.groupBy("value.name").count()},
    "several": {
        "ids": lambda records: records.selectExpr("value.id + 1 AS id"),
        "names": lambda records: records.selectExpr("upper(value.name) AS name"),
    },
    "needs a cache": {"twice": lambda records: records.alias("a").join(records.select("offset"), "offset")},
    "fails": {"ids": lambda records: records.selectExpr("value.id", "1 / (offset - 7) AS x")},
}


def by_id(records: DataFrame) -> DataFrame:
    return records.selectExpr("value.id + 1 AS id")


SHORT = [("direct", "picks"), ("tasks", "picks"), ("tasks", "needs a cache")]
"""The paths and functions of the normal run."""


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    random, name = Random(7), topics.create(2)
    for partition in range(2):
        values = [value(random, any_types=True) for _ in range(COUNT)]
        topics.send_to(name, partition, [*values[:300], None, b"garbage", *values[300:]])
    return name


def expected(topics: Topics, topic: str, schema: dict[str, Any], alive: set[tuple[int, int]]) -> dict[Partition, Any]:
    found: dict[Partition, dict[str, Found]] = {}
    for (number, offset), content in sorted(topics.committed(topic).items()):
        if content is not None and (number, offset) in alive:
            fields = found.setdefault(Partition(topic, number), {})
            for name in unnamed(content, schema):
                fields[name] = fields[name] + Found(1, offset) if name in fields else Found(1, offset)
    return found


WAYS = [
    pytest.param(path, name, marks=() if (path, name) in SHORT else pytest.mark.faults)
    for path in ("direct", "tasks")
    for name in FUNCTIONS
]


@pytest.mark.parametrize(("path", "functions"), WAYS)
def test_each_path_finds_what_a_plain_walk_finds(
    spark: SparkSession, brokers: str, topics: Topics, topic: str, path: Path, functions: str
) -> None:
    from tallymark.spark.reader import SparkReader

    ddl, schema = (WITH_MAP, SCHEMA_WITH_MAP) if functions == "picks" else (DDL, SCHEMA)
    tables = [(TableSpec(name), function) for name, function in FUNCTIONS[functions].items()]
    source = tm.Kafka(brokers, topic, value=tm.Json(ddl))
    spans = [Span(Partition(topic, number), 0, COUNT + 2) for number in range(2)]
    reading = SparkReader(spark, source, tables, "run", sys.maxsize, path=path, finds_drift=True).read(spans, "b")
    dead = {(letter.partition.number, letter.offset) for letter in reading.dead_letters}
    alive = {(number, offset) for number in range(2) for offset in range(COUNT + 2)} - dead
    assert len(dead) > 10
    assert reading.drift == expected(topics, topic, schema, alive)
    ignoring = SparkReader(spark, source, tables, "run", sys.maxsize, path=path).read(spans, "b")
    assert ignoring.drift == {}
    assert ignoring.seen == reading.seen


def pipeline(brokers: str, topic: str, group: str, store: str, **settings: Any) -> tm.Pipeline:
    source = tm.Kafka(brokers, topic, value=tm.Json("id BIGINT, n INT"), key=tm.Json("id BIGINT"))
    made = tm.Pipeline(group=group, source=source, store=store, membership=tm.Standalone(), **settings)
    made.table("orders")(lambda records: records.selectExpr("value.id", "value.n"))
    return made


def drift(store: str, group: str) -> Mapping[str, int]:
    return {name: seen.records for name, seen in standing(store, group)[0].drift.items()}


@pytest.mark.parametrize("path", ["direct", "tasks"])
def test_records_of_a_registry_count_by_their_schemas(
    spark: SparkSession, brokers: str, topics: Topics, path: Path
) -> None:
    from tallymark.spark.reader import SparkReader

    def schema(*names: str) -> str:
        fields = [{"name": name, "type": "int"} for name in names]
        return json.dumps({"type": "record", "name": "R", "fields": fields})

    message = 'syntax = "proto3"; message R {{ int32 id = 1; {} }}'
    old, later = message.format(""), message.format("int32 note = 2;")
    topic = topics.create(1)
    with SchemaRegistry() as registry:
        own, _ = registry.add(f"{topic}-value", schema("id"))
        key, _ = registry.add("more-values", schema("id", "note"))
        newer, _ = registry.add(f"{topic}-key", old, kind="PROTOBUF")
        newest, _ = registry.add("more-keys", later, kind="PROTOBUF")
        avro = [prefix(own) + b"\x02", prefix(key) + b"\x02\x04", prefix(key) + b"\x02"]
        protobuf = [prefix(newer) + b"\0\x08\x01", prefix(newest) + b"\0\x08\x01"]
        for number, value in enumerate([avro[0], avro[1], avro[2]] * 20):
            topics.send_to(topic, 0, [value], key=protobuf[number % 2])
        source = tm.Kafka(brokers, topic, value=tm.Avro(registry.url), key=tm.Protobuf(registry.url))
        made = SparkReader(spark, source, [(TableSpec("t"), by_id)], "run", sys.maxsize, path=path, finds_drift=True)
        reading = made.read([Span(Partition(topic, 0), 0, 60)], "b")
    assert reading.drift == {Partition(topic, 0): {"note": Found(20, 1), "key: note": Found(20, 1)}}


@pytest.mark.parametrize("path", ["direct", "tasks"])
def test_columns_of_change_events_that_are_not_declared(
    spark: SparkSession, brokers: str, topics: Topics, path: Path
) -> None:
    from tallymark.spark.reader import SparkReader

    topic = topics.create(1)
    source = {"db": "shop", "unheard_of": 1}
    row = {"id": 1, "place": {"zip": 1}, "discount": 5, "gone": None}
    events: list[Any] = [
        {"before": None, "after": row, "op": "c", "source": source, "transaction": {"id": "1"}},
        {"before": {"id": 1, "old": "x"}, "after": {"id": 1}, "op": "u", "source": source},
        {"before": {"id": 1, "old": "x"}, "after": {"id": "x"}, "op": "u", "source": source},
    ]
    topics.send(topic, [*events, *({"schema": {"fields": []}, "payload": event} for event in events), None])
    value = tm.Debezium(tm.Json("id INT, place STRUCT<city: STRING>"))
    tables: list[tuple[TableSpec, Function]] = [
        (TableSpec("t"), lambda records: records.selectExpr("value.op || 'x' AS op"))
    ]
    made = SparkReader(
        spark, tm.Kafka(brokers, topic, value=value), tables, "run", sys.maxsize, path=path, finds_drift=True
    )
    reading = made.read([Span(Partition(topic, 0), 0, 7)], "b")
    assert [letter.offset for letter in reading.dead_letters] == [2, 5]
    assert reading.drift == {Partition(topic, 0): {"after.discount": Found(2, 0), "before.old": Found(2, 1)}}


@pytest.fixture
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Force a path for all batches."""
    from tallymark.spark import reader

    monkeypatch.setattr(reader, "choose", lambda *_, **__: request.param)
    return str(request.param)


BOTH = pytest.mark.parametrize("forced", ["direct", "tasks"], indirect=True)


@BOTH
@pytest.mark.parametrize("merging", [False, pytest.param(True, marks=pytest.mark.faults)])
@pytest.mark.usefixtures("spark", "forced")
def test_records_that_a_table_refuses_do_not_count_until_they_are_replayed(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str], merging: bool
) -> None:
    topic, store = topics.create(1), database("sqlite")
    check = "CREATE TABLE orders (id BIGINT, n INT, CONSTRAINT small CHECK (n < 10))"
    sums = "CREATE TABLE sums (n INT, c BIGINT)"
    databases.execute(store, check, sums)
    values = [{"id": n, "n": 50 if n % 10 == 0 else n % 7, "note": "x"} for n in range(100)]
    topics.send(topic, [*values, b'{"id": "x", "note": 1}', {"id": 5, "other": None}])
    made = pipeline(brokers, topic, group, store)
    if merging:
        made.table("sums")(lambda records: records.groupBy("value.n").agg({"*": "count"}).toDF("n", "c"))
    assert made.run("caught-up") == Tally(applied=91, dead=11)
    assert drift(store, group) == {"note": 90}
    databases.execute(store, *(f"DROP TABLE {name}" for name in ("orders", "sums")))
    assert made.replay() == Tally(applied=10, dead=1)
    assert drift(store, group) == {"note": 100}


@BOTH
@pytest.mark.usefixtures("spark", "forced")
def test_with_fail_nothing_of_the_batch_is_committed(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    topic, store = topics.create(1), database("sqlite")
    topics.send(topic, [{"id": n} | ({"note": 1} if n in (5, 7) else {}) for n in range(10)])
    words = rf"group {group}: {topic}\[0\] offset 5 has the field note, .* on_drift='record'"
    with pytest.raises(Drifted, match=words):
        pipeline(brokers, topic, group, store, on_drift="fail").run("caught-up")
    (position,) = standing(store, group).values()
    assert (position.next_offset, position.drift) == (0, {})
    assert databases.query(store, "SELECT count(*) FROM orders") == [(0,)]
    pipeline(brokers, topic, group, store, on_drift="ignore").run("caught-up")
    assert drift(store, group) == {}
    topics.send(topic, [{"id": 10, "note": None}, {"id": 11, "note": 2}])
    pipeline(brokers, topic, group, store).run("caught-up")
    assert drift(store, group) == {"note": 1}
