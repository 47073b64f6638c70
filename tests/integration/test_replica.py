"""A replica equals its source, row for row: after kills, restarts of the connector, deletions and changes of keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import tallymark as tm
from tallymark.core.progress import Step
from tallymark.core.replica import UNAVAILABLE
from tallymark.operate.audit.deep import compare
from tests.support import databases
from tests.support.avro import text
from tests.support.command import in_process
from tests.support.databases import query
from tests.support.debezium import DDL, Kind, Source, as_json, envelope
from tests.support.kafka import Topics
from tests.support.pipelines import UNBALANCED
from tests.support.registry import SchemaRegistry
from tests.support.replicas import Form, ordered, plain, replica, replicated, run_until_killed, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 3
SOURCES: dict[str, tuple[Kind, Form]] = {
    "postgresql": ("postgresql", "avro"),
    "mariadb": ("mysql", "json with a schema"),
    "sqlite": ("postgresql", "json"),
}
KILLS = {2_000: [Step.MOVED], 100_000: [Step.WRITTEN, Step.MOVED, Step.COMMITTED]}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


def table(kind: Kind, size: int) -> Source:
    """A source of which about so many events are read."""
    source = Source(kind, Random(size))
    source.fill(size // 4)
    source.snapshot()
    source.change(size // 4)
    return source


@pytest.mark.faults_where(size=[100_000])
@pytest.mark.faults_where(kind=["mariadb", "sqlite"])
@pytest.mark.parametrize("size", list(KILLS))
@pytest.mark.parametrize("kind", databases.KINDS)
def test_a_replica_equals_its_source_whenever_the_driver_dies(
    spark: SparkSession,
    brokers: str,
    topics: Topics,
    group: str,
    registry: SchemaRegistry,
    database: Callable[[str], str],
    kind: str,
    size: int,
) -> None:
    url, topic = database(kind), topics.create(PARTITIONS)
    connector, form = SOURCES[kind]
    source = table(connector, size)
    schema, _ = registry.add(f"{topic}-value", text(envelope(connector)))
    count = send(brokers, topic, PARTITIONS, source.records(20 / size), form, schema)
    batch = count // 8

    for number, step in enumerate(KILLS[size], start=2):
        code = run_until_killed(brokers, topic, group, url, form, registry.url, batch, step, number)
        assert code == -9
        assert query(url, UNBALANCED) == []
    replica(brokers, topic, group, url, form, registry.url, batch).run("caught-up")

    assert replicated(url) == ordered(map(plain, source.rows.values()))
    assert query(url, "SELECT error FROM tallymark_dead_letters") == []
    assert query(url, "SELECT sum(applied) FROM tallymark_positions") == [(count,)]


def test_a_listener_writes_a_replica(brokers: str, topics: Topics, group: str, database: Callable[[str], str]) -> None:
    url, topic, source = database("postgresql"), topics.create(PARTITIONS), table("postgresql", 400)
    send(brokers, topic, PARTITIONS, source.records(), "json with a schema")
    app = tm.App(brokers=brokers, store=url)

    @app.listen(topic, group=group, value=tm.Debezium(tm.Json(DDL)), batch=True)
    def handle(records: Any, db: Any) -> None:
        db.write("orders", records.changes(), key="id", write="replica")

    app.run("caught-up")
    assert replicated(url) == ordered(map(plain, source.rows.values()))


def test_replayed_events_do_not_bring_back_a_value_that_was_replaced_between_them(
    spark: SparkSession, brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    url, topic = database("sqlite"), topics.create(1)
    rows = [("bad", "first"), ("good", "second"), ("bad", UNAVAILABLE), ("bad", UNAVAILABLE)]
    topics.send(
        topic,
        [
            {"op": "u", "after": {"id": 1, "name": name, "body": body}, "source": {"lsn": at}}
            for at, (name, body) in enumerate(rows)
        ],
    )

    def made(fails: str) -> tm.Pipeline:
        kafka = tm.Kafka(brokers, topic, value=tm.Debezium(tm.Json("id BIGINT, name STRING, body STRING")))
        pipeline = tm.Pipeline(group=group, source=kafka, store=url, membership=tm.Standalone())
        name = f"IF(name = '{fails}', raise_error(name), name) AS name"
        pipeline.table("orders", key="id", write="replica")(
            lambda changes: changes.selectExpr("id", name, "body", "source_version")
        )
        return pipeline

    assert made("bad").run("caught-up") == tm.Tally(applied=1, dead=3)
    assert made("").replay().applied == 3
    assert query(url, "SELECT name, body FROM orders") == [("bad", "second")]


def test_the_audit_knows_the_key_of_a_replica(
    spark: SparkSession, brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    """Which is that of the records. Without it, each event would need a row of its own."""
    url, topic, source = database("sqlite"), topics.create(PARTITIONS), table("mysql", 200)
    send(brokers, topic, PARTITIONS, source.records(), "json")
    kafka = tm.Kafka(brokers, topic, value=tm.Debezium(tm.Json(DDL)), key=tm.Json("id BIGINT"))
    pipeline = tm.Pipeline(group=group, source=kafka, store=url, membership=tm.Standalone())
    pipeline.table("orders", write="replica", provenance=True)
    pipeline.run("caught-up")
    assert not compare(pipeline).wrong
    databases.execute(url, "DELETE FROM orders WHERE id = (SELECT min(id) FROM orders)")
    assert compare(pipeline).wrong


FILE = """
group = "{group}"
store = "{store}"
standalone = true
[source]
brokers = "{brokers}"
topics = ["{topic}"]
format = {{ debezium = {{ json = "{ddl}" }} }}
key = {{ json = "id BIGINT" }}
[tables.orders]
write = "replica"
[tables.names]
key = "id"
write = "replica"
sql = "SELECT id, name AS label, source_version FROM records"
"""


def test_a_file_needs_no_query(
    spark: SparkSession,
    brokers: str,
    topics: Topics,
    group: str,
    tmp_path: Path,
    database: Callable[[str], str],
) -> None:
    url, topic, source = database("sqlite"), topics.create(PARTITIONS), table("mysql", 400)
    send(brokers, topic, PARTITIONS, source.records(), "json")
    file = tmp_path / "shop.toml"
    file.write_text(FILE.format(group=group, store=url, brokers=brokers, topic=topic, ddl=DDL))
    checked = in_process("check", file)
    assert "source_version TEXT" in checked.stdout, checked
    ran = in_process("run", file, "--until", "caught-up")
    assert ran.returncode == 0, ran
    assert replicated(url) == ordered(map(plain, source.rows.values()))
    labels = [(row["id"], row["name"]) for row in source.rows.values()]
    assert sorted(query(url, "SELECT id, label FROM names")) == sorted(labels)


def test_functions_rename_and_filter_and_a_truncate_becomes_a_dead_letter(
    spark: SparkSession,
    brokers: str,
    topics: Topics,
    group: str,
    database: Callable[[str], str],
) -> None:
    url, topic = database("sqlite"), topics.create(1)
    base: dict[str, Any] = {"before": None, "after": None, "ts_ms": 1}

    def event(op: str, at: int, **sides: Any) -> bytes:
        return json.dumps({**base, "op": op, **sides, "source": {"lsn": at, "snapshot": "false"}}).encode()

    values = [
        event("c", 10, after={"id": 1, "name": "a", "body": "long", "sizes": [1, 2]}),
        event("u", 20, after={"id": 1, "name": "b", "body": UNAVAILABLE, "sizes": list(UNAVAILABLE.encode())}),
        event("c", 30, after={"id": -1, "name": "left out", "body": ""}),
        event("m", 35),
        None,
        event("t", 40),
    ]
    ddl = "id BIGINT, name STRING, body STRING, sizes ARRAY<INT>"
    source = tm.Kafka(brokers, topic, value=tm.Debezium(tm.Json(ddl)))
    pipeline = tm.Pipeline(group=group, source=source, store=url, membership=tm.Standalone(), limits=tm.Limits(1))

    @pipeline.table("orders", key="number", write="replica")
    def orders(changes: DataFrame) -> DataFrame:
        return changes.where("id IS NULL OR id > 0").withColumnRenamed("id", "number")

    topics.send(topic, values)
    assert pipeline.run("caught-up") == tm.Tally(applied=5, dead=1)
    assert query(url, "SELECT number, name, body, sizes FROM orders") == [(1, "b", "long", "[1,2]")]
    ((error,),) = query(url, "SELECT error FROM tallymark_dead_letters")
    assert "TRUNCATE" in str(error)


def test_the_driver_and_tasks_make_the_same_rows(
    spark: SparkSession, brokers: str, topics: Topics, registry: SchemaRegistry
) -> None:
    """And both make those that services make."""
    from tallymark.core.tables import HIDDEN, TableSpec
    from tallymark.formats.debezium.changes import changes
    from tallymark.formats.decoders import Decoders
    from tallymark.spark.reader import SparkReader
    from tallymark.spark.replica import of_changes
    from tests.support.paths import comparable, rows_of, whole

    for connector, form in SOURCES.values():
        topic, source = topics.create(1), table(connector, 1_000)
        schema, _ = registry.add(f"{topic}-value", text(envelope(connector)))
        count = send(brokers, topic, 1, source.events, form, schema)
        value = tm.Debezium(tm.Avro(registry.url) if form == "avro" else tm.Json(DDL))
        kafka = tm.Kafka(brokers, topic, value=value)

        def reading(path: Any, kafka: tm.Kafka = kafka, topic: str = topic, count: int = count) -> Any:
            tables = [(TableSpec("orders"), of_changes(["id"]))]
            reader = SparkReader(spark, kafka, tables, f"run-{topic}-{path}", path=path)
            return reader.read(whole(topic, count), "b")

        direct, tasks = reading("direct"), reading("tasks")
        assert comparable(direct) == comparable(tasks)
        events = [as_json(event.value, schema=True) for event in source.events]
        ours = changes(Decoders.of(tm.Debezium(tm.Json(DDL))).value(events).values)
        hidden = [name for name in HIDDEN if name in direct.rows["orders"].column_names]
        assert rows_of(ours.drop_columns(["_tallymark_deleted"])) == rows_of(direct.rows["orders"].drop_columns(hidden))
