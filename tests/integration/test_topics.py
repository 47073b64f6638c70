"""Many topics in one pipeline: tables by topic, formats by topic, and topics that appear later."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tallymark as tm
from tallymark.errors import BadInput, TallymarkError
from tests.support.avro import LATER_ORDER, ORDER, OTHER, framed, text
from tests.support.background import wait_for
from tests.support.command import in_process
from tests.support.databases import query, tables
from tests.support.kafka import Topics
from tests.support.pipelines import UNBALANCED, RunningPipeline
from tests.support.registry import SchemaRegistry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.usefixtures("spark")

Database = Callable[[str], str]
JSON = tm.Json("id BIGINT, name STRING")


def everything(records: DataFrame) -> DataFrame:
    return records.select("value.*")


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


@pytest.fixture
def prefix(topics: Topics) -> str:
    """A name that only the topics of this test begin with."""
    return f"shop{time.monotonic_ns()}"


def create(topics: Topics, name: str, values: list[Any], partitions: int = 2) -> str:
    topics.create(partitions, name=name)
    topics.send(name, values, partitions=partitions)
    return name


def orders(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"n{n}"} for n in range(first, first + count)]


def ids(url: str, table: str) -> list[int]:
    return sorted(int(str(found)) for (found,) in query(url, f'SELECT id FROM "{table}"'))


@pytest.mark.parametrize("small", [True, False], ids=["direct", "tasks"])
def test_each_topic_has_a_table(
    topics: Topics,
    brokers: str,
    group: str,
    prefix: str,
    database: Database,
    small: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tallymark.spark import reader

    if not small:
        monkeypatch.setattr(reader, "SMALL", 10)
    for number in range(3):
        create(topics, f"{prefix}.t{number}", [*orders(30 + number, 100 * number), b"dead"])
    url = database("postgresql")
    source = tm.Kafka(brokers, rf"^{prefix}\.", value=JSON)
    pipeline = tm.Pipeline(group=group, source=source, store=url, membership=tm.Standalone())
    pipeline.table("{topic}", key="id", write="upsert")(everything)
    pipeline.table("raw_{1}", topics=rf"^{prefix}\.(.*)$", provenance=True)(
        lambda records: records.selectExpr("value.id", "upper(value.name) AS name")
    )
    pipeline.table("only_second", topics=f"{prefix}.t1")(everything)
    assert pipeline.run("caught-up") == tm.Tally(applied=93, dead=3)
    for number in range(3):
        expected = list(range(100 * number, 100 * number + 30 + number))
        assert ids(url, f"{prefix}.t{number}") == ids(url, f"raw_t{number}") == expected
    assert ids(url, "only_second") == ids(url, "raw_t1")
    assert not query(url, UNBALANCED)
    assert pipeline.run("caught-up") == tm.Tally()


def test_a_topic_that_appears_later_gets_its_table(
    topics: Topics, brokers: str, group: str, prefix: str, database: Database
) -> None:
    create(topics, f"{prefix}.a", orders(10))
    url = database("postgresql")
    settings = {"topic.metadata.refresh.interval.ms": 500}
    source = tm.Kafka(brokers, rf"^{prefix}\.", value=JSON, settings=settings)
    pipeline = tm.Pipeline(group=group, source=source, store=url)
    pipeline.table("{topic}")(everything)
    running = RunningPipeline(pipeline)
    try:
        wait_for(lambda: f"{prefix}.a" in tables(url) and len(ids(url, f"{prefix}.a")) == 10)
        create(topics, f"{prefix}.b", orders(20))
        wait_for(lambda: f"{prefix}.b" in tables(url) and len(ids(url, f"{prefix}.b")) == 20)
    finally:
        running.close()
    assert not query(url, UNBALANCED)


def test_each_topic_has_the_columns_of_its_subject(
    topics: Topics, brokers: str, group: str, prefix: str, registry: SchemaRegistry, database: Database
) -> None:
    for name, schema, value in (
        ("orders", ORDER, {"id": 1, "name": "a"}),
        ("more", LATER_ORDER, {"id": 2, "name": None, "amount": 2.5}),
        ("others", OTHER, {"id": "x"}),
    ):
        id, _ = registry.add(f"{prefix}.{name}-value", text(schema))
        create(topics, f"{prefix}.{name}", [framed(id, schema, value)], 1)
    url = database("sqlite")
    source = tm.Kafka(brokers, rf"^{prefix}\.", value=tm.Avro(registry.url))
    pipeline = tm.Pipeline(group=group, source=source, store=url, membership=tm.Standalone())
    pipeline.table("{name}", topics=rf"^{prefix}\.(?P<name>.*)$")(everything)
    assert pipeline.run("caught-up") == tm.Tally(applied=3)
    assert query(url, "SELECT * FROM orders") == [(1, "a")]
    assert query(url, "SELECT * FROM more") == [(2, None, 2.5)]
    assert query(url, "SELECT * FROM others") == [("x",)]


def test_each_topic_has_its_format(
    topics: Topics, brokers: str, group: str, prefix: str, registry: SchemaRegistry, database: Database
) -> None:
    id, _ = registry.add("orders-value", text(ORDER))
    create(topics, f"{prefix}-orders", [framed(id, ORDER, {"id": n, "name": "a"}) for n in range(5)])
    for name in ("x", "y"):
        create(topics, f"{prefix}-audit-{name}", [{"who": name}] * 3 + [b"dead"])
    avro = tm.Avro(registry.url, subject="orders-value")
    formats: dict[str, Any] = {f"{prefix}-orders": avro, f"^{prefix}-audit-": tm.Json("who STRING")}
    url = database("sqlite")
    source = tm.Kafka(brokers, formats)
    pipeline = tm.Pipeline(group=group, source=source, store=url, membership=tm.Standalone())
    pipeline.table("orders", topics=f"{prefix}-orders")(everything)
    pipeline.table("audit", topics=f"^{prefix}-audit-")(everything)
    assert pipeline.run("caught-up") == tm.Tally(applied=11, dead=2)
    assert ids(url, "orders") == list(range(5))
    assert query(url, "SELECT who, count(*) FROM audit GROUP BY who ORDER BY who") == [("x", 3), ("y", 3)]
    consumer = tm.Consumer(group=f"{group}-consumer", source=source, store=url, membership=tm.Standalone())
    with pytest.raises(BadInput, match="have different formats, and a handler takes one"):
        list(consumer.batches(until="caught-up"))


FILE = """
group = "{group}"
store = "{store}"
standalone = true
[source]
brokers = "{brokers}"
[source.topics]
"{prefix}-a" = {{ json = "id BIGINT, name STRING" }}
"^{prefix}-b" = "bytes"
[tables."{{topic}}"]
topics = "{prefix}-a"
key = "id"
write = "upsert"
sql = "SELECT value.* FROM records"
[tables.rest]
topics = "^{prefix}-b"
sql = "SELECT value, timestamp FROM records"
"""


def test_a_file_has_tables_by_topic(
    topics: Topics, brokers: str, group: str, prefix: str, database: Database, tmp_path: Path
) -> None:
    create(topics, f"{prefix}-a", orders(3))
    create(topics, f"{prefix}-b1", [b"1", b"2"])
    url, file = database("sqlite"), tmp_path / "shop.toml"
    file.write_text(FILE.format(group=group, store=url, brokers=brokers, prefix=prefix))
    checked = in_process("check", file)
    assert f"table {prefix}-a: would be created with id BIGINT" in checked.stdout, checked
    assert "table rest: would be created" in checked.stdout, checked
    ran = in_process("run", file, "--until", "caught-up")
    assert ran.returncode == 0, ran
    assert ids(url, f"{prefix}-a") == [0, 1, 2]
    assert len(query(url, "SELECT * FROM rest")) == 2


@pytest.mark.parametrize(
    ("kind", "table", "options", "words"),
    [
        ("sqlite", "t", {"topics": "^other"}, "has no table; add one with topics=, or leave the topic out"),
        ("postgresql", "{topic}" + "x" * 60, {}, "are longer than 63 bytes, which the database can't hold: "),
        ("mariadb", "{topic}" + "é" * 60, {}, "are longer than 64 characters, which the database can't hold: "),
        ("sqlite", "{1}", {"topics": r"^{prefix}-(.).*$"}, "which the database may ignore: A, a; give them"),
        ("sqlite", "{1}", {"topics": r"^{prefix}-(?:(z))?.*$"}, "has nothing for {1}; correct topics="),
    ],
)
def test_what_can_not_be_right_is_refused_at_the_start(
    topics: Topics,
    brokers: str,
    group: str,
    prefix: str,
    database: Database,
    kind: str,
    table: str,
    options: Any,
    words: str,
) -> None:
    for name in ("a", "B", "A"):
        topics.create(1, name=f"{prefix}-{name}")
    options = {name: value.replace("{prefix}", prefix) for name, value in options.items()}
    source = tm.Kafka(brokers, f"^{prefix}-", value=JSON)
    pipeline = tm.Pipeline(group=group, source=source, store=database(kind), membership=tm.Standalone())
    pipeline.table(table, **options)(everything)
    with pytest.raises(TallymarkError) as refused:
        pipeline.run("caught-up")
    assert words in str(refused.value)


def test_one_table_has_the_same_columns_for_all_its_topics(
    topics: Topics, brokers: str, group: str, prefix: str, registry: SchemaRegistry, database: Database
) -> None:
    for name, schema in (("a", ORDER), ("b", OTHER)):
        registry.add(f"{prefix}-{name}-value", text(schema))
        topics.create(1, name=f"{prefix}-{name}")
    source = tm.Kafka(brokers, f"^{prefix}-", value=tm.Avro(registry.url))
    pipeline = tm.Pipeline(group=group, source=source, store=database("sqlite"), membership=tm.Standalone())
    pipeline.table("all")(everything)
    with pytest.raises(BadInput, match="table all would get other columns from some topics than from others"):
        pipeline.run("caught-up")


def test_a_topic_that_appears_later_has_the_same_columns_too(
    topics: Topics, brokers: str, group: str, prefix: str, registry: SchemaRegistry, database: Database
) -> None:
    """SQLite would take text in a column of numbers, and PostgreSQL digits."""
    for name, schema in (("a", ORDER), ("b", OTHER)):
        registry.add(f"{prefix}.{name}-value", text(schema))
    create(topics, f"{prefix}.a", [framed(1, ORDER, {"id": 1, "name": "a"})], 1)
    url, settings = database("sqlite"), {"topic.metadata.refresh.interval.ms": 500}
    source = tm.Kafka(brokers, rf"^{prefix}\.", value=tm.Avro(registry.url), settings=settings)
    pipeline = tm.Pipeline(group=group, source=source, store=url)
    pipeline.table("everything")(everything)
    words = r"table everything would get other columns .*: id STRING instead of id BIGINT, name STRING; give it topics="
    with RunningPipeline(pipeline) as running:
        wait_for(lambda: "everything" in tables(url) and ids(url, "everything") == [1])
        create(topics, f"{prefix}.b", [framed(2, OTHER, {"id": "2"})], 1)
        with pytest.raises(BadInput, match=words):
            running.result()
    assert ids(url, "everything") == [1]


def test_a_run_until_caught_up_ends_if_a_pattern_matches_no_topic(
    brokers: str, group: str, prefix: str, database: Database
) -> None:
    """A member of a Kafka group gets no assignment then."""
    pipeline = tm.Pipeline(group=group, source=tm.Kafka(brokers, rf"^{prefix}\.", value=JSON), store=database("sqlite"))
    pipeline.table("everything")(everything)
    with RunningPipeline(pipeline, "caught-up") as running:
        assert running.result() == tm.Tally()


def test_each_topic_has_a_replica(
    topics: Topics, brokers: str, group: str, prefix: str, registry: SchemaRegistry, database: Database
) -> None:
    """Of tables with other columns and other keys."""
    tables_of = {
        "orders": ({"id": "long", "name": "string"}, ["id"]),
        "parts": ({"a": "int", "b": "string"}, ["a", "b"]),
    }
    for name, (columns, key) in tables_of.items():
        topic = f"{prefix}.{name}"
        row = {"type": "record", "name": "Value", "fields": [{"name": c, "type": k} for c, k in columns.items()]}
        keys = {"type": "record", "name": "Key", "fields": [{"name": c, "type": columns[c]} for c in key]}
        source = {"type": "record", "name": "Source", "fields": [{"name": "lsn", "type": ["null", "long"]}]}
        envelope = {
            "type": "record",
            "name": "Envelope",
            "fields": [
                {"name": "before", "type": ["null", row], "default": None},
                {"name": "after", "type": ["null", "Value"], "default": None},
                {"name": "source", "type": source},
                {"name": "op", "type": "string"},
                {"name": "ts_ms", "type": ["null", "long"], "default": None},
            ],
        }
        value_id, _ = registry.add(f"{topic}-value", text(envelope))
        key_id, _ = registry.add(f"{topic}-key", text(keys))
        topics.create(1, name=topic)
        given = [{c: n if k in ("int", "long") else f"v{n}" for c, k in columns.items()} for n in range(3)]
        events = [("c", None, given[0]), ("c", None, given[1]), ("d", given[0], None), ("u", given[1], given[1])]
        for lsn, (op, before, after) in enumerate(events, 1):
            event = {"before": before, "after": after, "op": op, "source": {"lsn": lsn}, "ts_ms": None}
            of_row = {c: (after or before or {})[c] for c in key}
            topics.send(topic, [framed(value_id, envelope, event)], partitions=1, key=framed(key_id, keys, of_row))
    url, avro = database("postgresql"), tm.Avro(registry.url)
    kafka = tm.Kafka(brokers, rf"^{prefix}\.", value=tm.Debezium(avro), key=avro)
    pipeline = tm.Pipeline(group=group, source=kafka, store=url, membership=tm.Standalone())
    pipeline.table("{1}", write="replica", topics=rf"^{prefix}\.(.*)$")
    assert pipeline.run("caught-up") == tm.Tally(applied=8)
    assert query(url, "SELECT id, name FROM orders") == [(1, "v1")]
    assert query(url, "SELECT a, b FROM parts") == [(1, "v1")]


@pytest.mark.parametrize(
    ("table", "topics_of"), [("{prefix}-a", "{prefix}-a"), ("{topic}", "^{prefix}-(?P<x>a)")], ids=["name", "pattern"]
)
def test_two_functions_do_not_fill_one_table(
    topics: Topics, brokers: str, group: str, prefix: str, database: Database, table: str, topics_of: str
) -> None:
    create(topics, f"{prefix}-a", orders(3))
    # PostgreSQL tells apart names that differ in case, so that only this is wrong.
    url, source = database("postgresql"), tm.Kafka(brokers, f"^{prefix}-", value=JSON)
    pipeline = tm.Pipeline(group=group, source=source, store=url, membership=tm.Standalone())
    pipeline.table("{topic}", topics=f"^{prefix}-")(everything)
    # Another table for Python, and the same one for the database.
    pipeline.table(
        table.replace("{prefix}", prefix).replace("{topic}", f"{prefix}-{{x}}"),
        topics=topics_of.replace("{prefix}", prefix),
    )(everything)
    with pytest.raises(BadInput, match=f"more than one function fills table {prefix}-a"):
        pipeline.run("caught-up")
