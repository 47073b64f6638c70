"""Fields that are registered while a pipeline runs become columns, and no value of them is lost."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import tallymark as tm
from tallymark.core.progress import Progress, Step
from tallymark.errors import BadInput, TableMismatch
from tallymark.run.loop import Loop
from tests.support import databases, followed
from tests.support.avro import ORDER, framed, prefix, text
from tests.support.background import wait_for
from tests.support.databases import execute, query
from tests.support.debezium import Source, as_avro, envelope
from tests.support.followed import ROUND, expected, following, order, run_until_killed, send, value, written
from tests.support.kafka import Topics
from tests.support.pipelines import UNBALANCED, RunningPipeline
from tests.support.protobuf_schemas import tagged
from tests.support.registry import SchemaRegistry
from tests.support.replicas import ordered, plain, replicated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.usefixtures("spark")

Database = Callable[[str], str]


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


@pytest.fixture
def topic(topics: Topics, brokers: str, registry: SchemaRegistry) -> str:
    """A topic with records of the first version."""
    name = topics.create(followed.PARTITIONS)
    send(brokers, name, registry.url, 1)
    return name


def everything(records: DataFrame) -> DataFrame:
    return records.select("value.*")


def count(url: str, table: str = "orders") -> int:
    return int(str(query(url, f'SELECT count(*) FROM "{table}"'.replace('"', "" if "mysql" in url else '"'))[0][0]))


def has(url: str, rows: int, table: str = "orders") -> bool:
    return table in databases.tables(url) and count(url, table) == rows


def check(url: str, versions: int) -> None:
    assert written(url, versions) == expected(versions)
    assert not query(url, UNBALANCED)
    assert not query(url, "SELECT * FROM tallymark_dead_letters")
    assert query(url, "SELECT sum(applied) FROM tallymark_positions") == [(versions * ROUND,)]


@pytest.mark.faults_where(kind="postgresql")
@pytest.mark.faults_where(path=["tasks", "computes"])
@pytest.mark.parametrize("path", ["direct", "tasks", "computes"])
@pytest.mark.parametrize("kind", databases.KINDS)
def test_every_row_has_the_values_of_new_fields(
    brokers: str,
    topic: str,
    group: str,
    registry: SchemaRegistry,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    path: str,
) -> None:
    from tallymark.spark import reader

    if path == "tasks":
        monkeypatch.setattr(reader, "SMALL", 5)
    url = database(kind)
    pipeline = following(brokers, topic, group, url, registry.url, computes=path == "computes")
    with RunningPipeline(pipeline):
        for version in (1, 2, 3):
            if version > 1:
                send(brokers, topic, registry.url, version)
            wait_for(lambda: has(url, version * ROUND))  # noqa: B023 - called at once
    check(url, 3)
    send(brokers, topic, registry.url, 4)
    following(brokers, topic, group, url, registry.url).run("caught-up")
    check(url, 4)


STEPS = [Step.STAGED, Step.WRITTEN, Step.MOVED, Step.COMMITTED]
ONCE = pytest.param(STEPS[1:2], 5, id="once")
AT_EACH = [
    pytest.param(STEPS, small, id=path, marks=[pytest.mark.faults, pytest.mark.timeout(900)])
    for path, small in (("direct", 10_000), ("tasks", 5))
]


@pytest.mark.faults_where(kind=["sqlite", "mariadb"])
@pytest.mark.parametrize(("steps", "small"), [ONCE, *AT_EACH])
@pytest.mark.parametrize("kind", databases.KINDS)
def test_no_value_is_lost_whenever_the_driver_dies(
    brokers: str,
    topic: str,
    group: str,
    registry: SchemaRegistry,
    database: Database,
    kind: str,
    steps: list[Step],
    small: int,
) -> None:
    url = database(kind)
    following(brokers, topic, group, url, registry.url).run("caught-up")
    for version, step in enumerate(steps, start=2):
        assert run_until_killed(brokers, topic, group, url, registry.url, version, step, small) == -9
        assert not query(url, UNBALANCED)
    following(brokers, topic, group, url, registry.url).run("caught-up")
    check(url, 1 + len(steps))


@pytest.mark.faults_where(kind=["sqlite", "mariadb"])
@pytest.mark.parametrize("kind", databases.KINDS)
def test_two_drivers_of_a_group_follow_at_the_same_time(
    brokers: str, topic: str, group: str, registry: SchemaRegistry, database: Database, kind: str
) -> None:
    url = database(kind)
    following(brokers, topic, group, url, registry.url).run("caught-up")
    each = [tm.Standalone({topic: [number]}) for number in range(followed.PARTITIONS)]
    one, other = (following(brokers, topic, group, url, registry.url, membership=own) for own in each)
    with RunningPipeline(one), RunningPipeline(other):
        for version in (2, 3, 4):
            send(brokers, topic, registry.url, version)
            wait_for(lambda: has(url, version * ROUND))  # noqa: B023 - called at once
    check(url, 4)


PROTO = 'syntax = "proto3"; message Order {{ int64 id = 1; string name = 2; {} }}'


@pytest.mark.faults_where(small=False)
@pytest.mark.parametrize("small", [True, False], ids=["direct", "tasks"])
def test_fields_of_protobuf_and_of_keys_are_followed(
    topics: Topics,
    brokers: str,
    group: str,
    registry: SchemaRegistry,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    small: bool,
) -> None:
    from tallymark.spark import reader

    if not small:
        monkeypatch.setattr(reader, "SMALL", 5)
    url, topic = database("sqlite"), topics.create(1)

    def send_ten(first: int, more: str, rest: bytes, key: dict[str, Any], values: dict[str, Any]) -> None:
        id, _ = registry.add(f"{topic}-value", PROTO.format(more), "PROTOBUF")
        key_id, _ = registry.add(f"{topic}-key", text(key))
        records = [prefix(id) + b"\0" + tagged(1, n) + tagged(2, b"n") + rest for n in range(first, first + 10)]
        topics.send(topic, records, key=framed(key_id, key, values))

    region = {"type": "record", "name": "Key", "fields": [{"name": "region", "type": "string"}]}
    shop = {**region, "fields": [*region["fields"], {"name": "shop", "type": ["null", "int"], "default": None}]}
    send_ten(1, "", b"", region, {"region": "r"})
    source = tm.Kafka(brokers, topic, value=tm.Protobuf(registry.url), key=tm.Avro(registry.url))
    pipeline = tm.Pipeline(group=group, source=source, store=url, membership=tm.Standalone())
    pipeline.table("orders", evolve="follow")(lambda records: records.select("key.*", "value.*"))
    with RunningPipeline(pipeline):
        wait_for(lambda: has(url, 10))
        send_ten(11, "optional int32 f = 3;", tagged(3, 7), region, {"region": "s"})
        wait_for(lambda: has(url, 20))
        send_ten(21, "optional int32 f = 3;", tagged(3, 8), shop, {"region": "t", "shop": 5})
        wait_for(lambda: has(url, 30))
    assert query(url, "SELECT region, name, f, shop, count(*) FROM orders GROUP BY 1, 2, 3, 4 ORDER BY 1") == [
        ("r", "n", None, None, 10),
        ("s", "n", 7, None, 10),
        ("t", "n", 8, 5, 10),
    ]
    assert not query(url, UNBALANCED)


@pytest.mark.faults
def test_executors_stage_new_columns(
    brokers: str,
    topic: str,
    group: str,
    registry: SchemaRegistry,
    database: Database,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = database("postgresql")
    caplog.set_level("INFO", "tallymark")
    with RunningPipeline(following(brokers, topic, group, url, registry.url, road="executors")):
        wait_for(lambda: has(url, ROUND))
        send(brokers, topic, registry.url, 2)
        wait_for(lambda: has(url, 2 * ROUND))
    check(url, 2)
    assert "path=executors" in caplog.text
    assert not [name for name in databases.tables(url) if name.startswith("tallymark_stage")]


def test_each_topic_follows_its_own_subject(
    topics: Topics, brokers: str, group: str, registry: SchemaRegistry, database: Database
) -> None:
    """A table of all topics has the columns of all, and one by topic those of its topic."""
    url, shop = database("sqlite"), f"shop{time.monotonic_ns()}"
    first, second = (topics.create(followed.PARTITIONS, name=f"{shop}.{name}") for name in "ab")
    for name in (first, second):
        send(brokers, name, registry.url, 1)

    def pipeline(url: str) -> tm.Pipeline:
        source = tm.Kafka(brokers, rf"^{shop}\.", value=tm.Avro(registry.url))
        made = tm.Pipeline(group=group, source=source, store=url, membership=tm.Standalone())
        made.table("{1}", topics=rf"^{shop}\.(.*)$", evolve="follow")(everything)
        made.table("orders", evolve="follow")(lambda records: records.select("topic", "value.*"))
        return made

    with RunningPipeline(pipeline(url)):
        wait_for(lambda: has(url, 2 * ROUND))
        send(brokers, first, registry.url, 2)
        wait_for(lambda: has(url, 3 * ROUND))
        send(brokers, second, registry.url, 2)
        send(brokers, second, registry.url, 3)
        wait_for(lambda: has(url, 5 * ROUND))
    assert "f3" not in {str(row[1]) for row in query(url, "PRAGMA table_info(a)")}
    # From scratch, the topics have different columns in the same batch.
    again = database("postgresql")
    pipeline(again).run("caught-up")
    for found in (url, again):
        assert written(found, 2, "a") == expected(2)
        assert written(found, 3, "b") == expected(3)
        for name, versions in ((first, 2), (second, 3)):
            rows = query(found, f"SELECT id, name, f2, f3 FROM orders WHERE topic = '{name}' ORDER BY id")
            assert [row[: versions + 1] for row in rows] == expected(versions)
        assert not query(found, UNBALANCED)


def test_a_table_without_follow_keeps_its_columns(
    brokers: str, topic: str, group: str, registry: SchemaRegistry, database: Database
) -> None:
    url = database("sqlite")
    pipeline = following(brokers, topic, group, url, registry.url)
    pipeline.table("kept", provenance=True)(everything)
    pipeline.table("evolved", evolve=True)(everything)
    with RunningPipeline(pipeline):
        wait_for(lambda: has(url, ROUND))
        send(brokers, topic, registry.url, 2)
        wait_for(lambda: has(url, 2 * ROUND))
    check(url, 2)
    for table in ("kept", "evolved"):
        assert count(url, table) == 2 * ROUND
        assert "f2" not in {str(row[1]) for row in query(url, f"PRAGMA table_info({table})")}


def distinct(records: DataFrame) -> DataFrame:
    """Rows that do not come from a single record each."""
    rows = records.select("value.*")
    return rows.groupBy(*rows.columns).count().drop("count")


def test_a_batch_that_is_read_again_may_have_columns_of_the_batch_after_it(
    topics: Topics,
    brokers: str,
    topic: str,
    group: str,
    registry: SchemaRegistry,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record is refused when it is committed, after the next batch has found the new fields."""
    url, is_read, commit = database("postgresql"), threading.Event(), Loop._commit

    def commit_later(loop: Loop, prepared: Any) -> None:
        assert is_read.wait(60)
        commit(loop, prepared)

    def watch(step: Step, progress: Progress) -> None:
        if step is Step.PLANNED:
            registry.add(f"{topic}-value", text(order(2)))
        if step is Step.STAGED and progress.batch.endswith("-2"):
            is_read.set()

    monkeypatch.setattr(Loop, "_commit", commit_later)
    topics.send(topic, [framed(2, order(2), value(2, n)) for n in range(ROUND, 2 * ROUND)], partitions=2)
    execute(url, "CREATE TABLE orders (id BIGINT PRIMARY KEY CHECK (id <> 13), name TEXT)")
    pipeline = following(brokers, topic, group, url, registry.url, limits=tm.Limits(records=ROUND))
    pipeline.table("merged", evolve="follow")(distinct)
    with RunningPipeline(pipeline, "caught-up", watch) as running:
        assert running.result() == tm.Tally(applied=2 * ROUND - 1, dead=1)
    for table in ("orders", "merged"):
        assert written(url, 2, table) == [row for row in expected(2) if row[0] != 13]


CHANGED = {**ORDER, "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "double"}]}
LATER = {**order(2), "fields": [order(2)["fields"][0], order(2)["fields"][2]]}
"""Without the name."""


def test_columns_that_are_there_do_not_change(
    topics: Topics, brokers: str, topic: str, group: str, registry: SchemaRegistry, database: Database
) -> None:
    """A field that is removed stays a column, and what changes the type of one is dead, with a sentence."""
    url = database("postgresql")
    with RunningPipeline(following(brokers, topic, group, url, registry.url)):
        wait_for(lambda: has(url, ROUND))
        removed, _ = registry.add(f"{topic}-value", text(LATER))
        topics.send_to(topic, 0, [framed(removed, LATER, {"id": 1000, "f2": 7})])
        topics.send_to(topic, 0, [framed(1, ORDER, {"id": 1001, "name": "still"})])
        wait_for(lambda: has(url, ROUND + 2))
        changed, _ = registry.add(f"{topic}-value", text({**CHANGED, "doc": "3"}))
        topics.send_to(topic, 0, [framed(changed, CHANGED, {"id": 1002, "name": 1.5})])
        topics.send_to(topic, 0, [framed(1, ORDER, {"id": 1003, "name": "good"})])
        wait_for(lambda: has(url, ROUND + 3))
    found = query(url, "SELECT id, name, f2 FROM orders WHERE id >= 1000 ORDER BY id")
    assert found == [(1000, None, 7), (1001, "still", None), (1003, "good", None)]
    assert query(url, "SELECT error FROM tallymark_dead_letters") == [
        (
            f"schema {changed} ({topic}-value version 3) can't be read by version 2: field name: double can't be read "
            "as string",
        )
    ]
    assert not query(url, UNBALANCED)


def test_a_start_names_the_column_and_the_version_that_does_not_fit(
    brokers: str, topic: str, group: str, registry: SchemaRegistry, database: Database
) -> None:
    url = database("postgresql")
    following(brokers, topic, group, url, registry.url).run("caught-up")
    registry.add(f"{topic}-value", text(CHANGED))
    with pytest.raises(TableMismatch) as refused:
        following(brokers, topic, group, url, registry.url).run("caught-up")
    assert f"table orders: column name is TEXT and can't hold the rows' double ({topic}-value version 2); " in str(
        refused.value
    )


def test_a_new_column_that_does_not_fit_ends_the_run_and_loses_nothing(
    brokers: str, topic: str, group: str, registry: SchemaRegistry, database: Database
) -> None:
    url = database("postgresql")
    with RunningPipeline(following(brokers, topic, group, url, registry.url)) as running:
        wait_for(lambda: has(url, ROUND))
        execute(url, "ALTER TABLE orders ADD COLUMN f2 BOOLEAN")
        send(brokers, topic, registry.url, 2)
        wait_for(lambda: not running.alive)
        with pytest.raises(TableMismatch, match=rf"column f2 is BOOLEAN .* int64 \({topic}-value version 2\)"):
            running.result()
    assert count(url) == ROUND
    execute(url, "ALTER TABLE orders DROP COLUMN f2")
    following(brokers, topic, group, url, registry.url).run("caught-up")
    check(url, 2)


def with_note(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of events when the source's table has another column."""
    later = copy.deepcopy(schema)
    row = later["fields"][0]["type"][1]
    row["fields"].append({"name": "note", "type": ["null", "string"], "default": None})
    return later


@pytest.mark.faults_where(small=False)
@pytest.mark.parametrize("small", [True, False], ids=["direct", "tasks"])
def test_a_replica_gets_the_new_columns_of_its_source(
    topics: Topics,
    brokers: str,
    group: str,
    registry: SchemaRegistry,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    small: bool,
) -> None:
    from tallymark.spark import reader

    if not small:
        monkeypatch.setattr(reader, "SMALL", 5)
    url, topic, source = database("postgresql"), topics.create(1), Source("postgresql", Random(1))
    first, later = envelope("postgresql"), with_note(envelope("postgresql"))

    def send_events(schema: dict[str, Any]) -> None:
        id, _ = registry.add(f"{topic}-value", text(schema))
        for event in source.events:
            key, body = json.dumps({"id": event.id}), None
            if event.value is not None:
                body = prefix(id) + as_avro(event.value, schema, lambda row: {**row, "note": f"of {row['id']}"})
            topics.send(topic, [body], key=key)
        source.events.clear()

    source.fill(40)
    source.snapshot()
    send_events(first)
    avro = tm.Debezium(tm.Avro(registry.url))
    kafka = tm.Kafka(brokers, topic, value=avro, key=tm.Json("id BIGINT"))
    pipeline = tm.Pipeline(group=group, source=kafka, store=url, membership=tm.Standalone())
    pipeline.table("orders", write="replica", evolve="follow")
    with RunningPipeline(pipeline):
        wait_for(lambda: has(url, 40))
        before = set(source.rows)
        changed = dict(source.rows)
        source.change(30)
        send_events(later)
        made = max(source.rows)
        wait_for(lambda: query(url, f"SELECT 1 FROM orders WHERE id = {made}") or None)
        wait_for(lambda: replicated(url) == ordered(map(plain, source.rows.values())))
    written_later = {id for id, row in source.rows.items() if id not in before or row is not changed[id]}
    notes = {int(str(id)): note for id, note in query(url, "SELECT id, note FROM orders")}
    assert notes == {id: f"of {id}" if id in written_later else None for id in source.rows}
    assert written_later
    assert before & source.rows.keys() - written_later
    assert not query(url, "SELECT * FROM tallymark_dead_letters")


def test_a_replay_of_a_letter_follows(
    topics: Topics,
    brokers: str,
    topic: str,
    group: str,
    registry: SchemaRegistry,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A registry may know a schema only later, and a replay of the letter that is left adds the column."""
    from tallymark.formats import registry as module

    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    url = database("sqlite")
    pipeline = following(brokers, topic, group, url, registry.url)
    topics.send_to(topic, 0, [framed(2, order(2), value(2, 1000))])
    assert pipeline.run("caught-up") == tm.Tally(applied=ROUND, dead=1)

    def watch(step: Step, _: Any) -> None:
        if step is Step.PLANNED:
            registry.add(f"{topic}-value", text(order(2)))

    assert pipeline.replay(overwrite=True, on_step=watch).applied == 1
    assert query(url, "SELECT name, f2 FROM orders WHERE id = 1000") == [("n1000", 10002)]


def test_what_has_no_registry_is_refused(brokers: str) -> None:
    for format in (tm.Json("id BIGINT"), tm.Avro("http://localhost:1", schema=text(ORDER)), tm.Bytes()):
        pipeline = tm.Pipeline(group="g", source=tm.Kafka(brokers, "orders", value=format), store="sqlite://")
        with pytest.raises(BadInput, match="table orders: evolve='follow' needs records whose schemas are in a reg"):
            pipeline.table("orders", evolve="follow")


def test_a_topic_without_a_registry_is_refused_at_the_start(
    brokers: str, topic: str, group: str, topics: Topics, registry: SchemaRegistry, database: Database
) -> None:
    formats: Any = {topic: tm.Avro(registry.url), topics.create(1): tm.Json("id BIGINT")}
    pipeline = tm.Pipeline(group=group, source=tm.Kafka(brokers, formats), store=database("sqlite"))
    pipeline.table("{topic}", evolve="follow")(everything)
    with pytest.raises(BadInput, match="evolve='follow' needs records whose schemas are in a registry"):
        pipeline.run("caught-up")


def test_a_streaming_query_follows_nothing(database: Database) -> None:
    sink: Any = tm.Sink("totals", store=database("sqlite"))
    with pytest.raises(
        BadInput, match="table totals: evolve='follow' is not known here; set evolve=True to add columns"
    ):
        sink.table("totals", evolve="follow")
