"""Avro from a registry on every path: pipelines, listeners, replays, the audit and the command line."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tallymark as tm
from tallymark.core.tables import TableSpec
from tallymark.formats.framing import guid_header
from tallymark.operate.audit.deep import compare
from tests.support.avro import LATER_ORDER, ORDER, encoded, framed, prefix, text
from tests.support.command import in_process
from tests.support.databases import query
from tests.support.kafka import Topics
from tests.support.paths import comparable, whole
from tests.support.pipelines import UNBALANCED
from tests.support.registry import SchemaRegistry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallymark.spark.reader import Path as ReadPath

COUNT = 300
UNKNOWN = 99


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


@pytest.fixture
def topic(topics: Topics, registry: SchemaRegistry) -> str:
    """Orders of which the first half was written with the first schema, the others with a later one."""
    name = topics.create(2)
    first, _ = registry.add(f"{name}-value", text(ORDER))
    later, _ = registry.add(f"{name}-value", text(LATER_ORDER))
    key, _ = registry.add(f"{name}-key", '"string"')
    half = [framed(first, ORDER, {"id": n, "name": f"n{n}"}) for n in range(COUNT // 2)]
    rest = [framed(later, LATER_ORDER, {"id": n, "name": None, "amount": n / 4}) for n in range(COUNT // 2, COUNT)]
    odd = [None, b"{}", prefix(UNKNOWN) + b"x", half[0][:-1]]
    topics.send(name, [*half, *odd, *rest], partitions=2, key=framed(key, "string", "k"))
    return name


def source(brokers: str, topic: str, registry: SchemaRegistry, **options: Any) -> tm.Kafka:
    avro = tm.Avro(registry.url, **options)
    return tm.Kafka(brokers, topic, value=avro, key=tm.Avro(registry.url))


def ids(rows: Sequence[Any]) -> list[int]:
    return sorted(int(str(row[0])) for row in rows)


LETTERS = [
    "name: the bytes end within a STRING",
    f"schema {UNKNOWN} is unknown to the registry",
    "starts with 7b instead of the magic byte 0: the value is not in the registry's framing",
]


def letters(url: str) -> list[str]:
    return sorted(str(error) for (error,) in query(url, "SELECT error FROM tallymark_dead_letters"))


def test_the_driver_and_tasks_read_the_same(
    spark: SparkSession, brokers: str, topic: str, registry: SchemaRegistry
) -> None:
    from tallymark.spark.reader import SparkReader

    def reading(path: ReadPath, *formats: tm.Avro | tm.Bytes) -> dict[str, Any]:
        value, key = formats
        kafka = tm.Kafka(brokers, topic, value=value, key=key)
        tables = [(TableSpec("orders"), lambda records: records.select("value.*", "key", "offset"))]
        reader = SparkReader(spark, kafka, tables, f"run-{path}", sys.maxsize, path=path)
        return comparable(reader.read(whole(topic, 152, 152), "b"))

    avro = tm.Avro(registry.url)
    nullable = tm.Avro(registry.url, schema=text(["null", LATER_ORDER]))
    for value, key in ((avro, avro), (avro, tm.Bytes()), (nullable, tm.Bytes())):
        direct, tasks = (reading(path, value, key) for path in ("direct", "tasks"))
        assert direct == tasks
        assert sorted(letter.error for letter in direct["letters"]) == LETTERS
        assert len(direct["rows"]["orders"]) == COUNT + 1


def test_the_ids_of_keys_and_values_may_be_in_headers(
    spark: SparkSession,
    brokers: str,
    topics: Topics,
    group: str,
    registry: SchemaRegistry,
    database: Callable[[str], str],
) -> None:
    """As numbers and GUIDs; of several headers the last one counts."""
    from tallymark.spark.reader import SparkReader

    topic, url = topics.create(1), database("sqlite")
    first, _ = registry.add(f"{topic}-value", text(ORDER))
    later, _ = registry.add(f"{topic}-value", text(LATER_ORDER))
    named, _ = registry.add(f"{topic}-key", '"string"')
    old, new = encoded(ORDER, {"id": 1, "name": "a"}), encoded(LATER_ORDER, {"id": 2, "name": None, "amount": 2.5})
    of_key = ("__key_schema_id", prefix(named))
    headers: list[tuple[bytes | None, list[tuple[str, bytes | None]]]] = [
        (old, [of_key, ("__value_schema_id", prefix(first))]),
        (new, [("x", None), ("__value_schema_id", prefix(first)), ("__value_schema_id", prefix(later)), of_key]),
        (new, [("__value_schema_id", guid_header(registry.guid(later))), of_key]),
        (None, [of_key]),
        (old, [("__value_schema_id", prefix(first))]),
        (old, [of_key]),
        (old, [of_key, ("__value_schema_id", None)]),
        (prefix(first) + old, [of_key, ("__value_schema_id", prefix(first))]),
    ]
    for value, pairs in headers:
        topics.send(topic, [value], partitions=1, key=encoded("string", "k"), headers=pairs)
    avro = tm.Avro(registry.url, ids="headers")
    kafka = tm.Kafka(brokers, topic, value=avro, key=avro)

    def reading(path: ReadPath) -> dict[str, Any]:
        tables = [(TableSpec("orders"), lambda records: records.select("value.*", "key", "offset"))]
        reader = SparkReader(spark, kafka, tables, f"run-{path}", sys.maxsize, path=path)
        return comparable(reader.read(whole(topic, len(headers)), "b"))

    assert reading("direct") == reading("tasks")
    app = tm.App(brokers=brokers, store=url)

    @app.listen(topic, group=group, value=avro, key=avro, batch=True)
    def handle(records: Any, db: Any) -> None:
        db.write("orders", [{"at": record.offset, "k": record.key, **(record.value or {})} for record in records])

    assert app.run("caught-up") == tm.Tally(applied=4, dead=4)
    rows = query(url, "SELECT at, k, id, amount FROM orders ORDER BY at")
    assert rows == [(0, "k", 1, 1.5), (1, "k", 2, 2.5), (2, "k", 2, 2.5), (3, "k", None, None)]


@pytest.mark.parametrize("road", ["driver", "executors"])
def test_tasks_learn_the_schemas_of_later_records(
    spark: SparkSession,
    brokers: str,
    topic: str,
    group: str,
    registry: SchemaRegistry,
    database: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    road: Any,
) -> None:
    """The sample at the beginning has only the first schema; tasks meet the other one."""
    from tallymark.spark import reader

    monkeypatch.setattr(reader, "SMALL", 10)
    url = database("postgresql")
    pipeline = tm.Pipeline(
        group=group, source=source(brokers, topic, registry), store=url, membership=tm.Standalone(), road=road
    )
    pipeline.table("orders")(lambda records: records.where("value IS NOT NULL").selectExpr("value.*", "key AS k"))
    tally = pipeline.run("caught-up")
    assert (tally.applied, tally.dead) == (COUNT + 1, len(LETTERS))
    assert letters(url) == LETTERS
    rows = query(url, "SELECT id, name, amount, k FROM orders")
    assert ids(rows) == list(range(COUNT))
    assert {row[3] for row in rows} == {"k"}
    assert {row[2] for row in rows if int(str(row[0])) < COUNT // 2} == {1.5}
    assert {row[1] for row in rows if int(str(row[0])) >= COUNT // 2} == {None}
    assert not query(url, UNBALANCED)


def test_a_listener_gets_dicts_and_columns(
    brokers: str, topic: str, group: str, registry: SchemaRegistry, store_url: str
) -> None:
    app = tm.App(brokers=brokers, store=store_url)
    seen: list[Any] = []
    avro = tm.Avro(registry.url)

    @app.listen(topic, group=group, value=avro, key=avro, batch=True)
    def handle(records: Any, db: Any) -> None:
        seen.extend((record.key, record.value) for record in records if record.value)
        values = records.to_arrow()["value"].drop_null()
        db.write("orders", values.to_pylist(), key="id", write="upsert")

    tally = app.run("caught-up")
    assert (tally.applied, tally.dead) == (COUNT + 1, len(LETTERS))
    assert letters(store_url) == LETTERS
    assert ids(query(store_url, "SELECT id FROM orders")) == list(range(COUNT))
    assert ("k", {"id": 0, "name": "n0", "amount": 1.5}) in seen


def test_letters_of_an_unknown_schema_are_replayed_when_it_is_known(
    spark: SparkSession,
    brokers: str,
    topics: Topics,
    group: str,
    registry: SchemaRegistry,
    database: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tallymark.formats import registry as module

    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    topic, url = topics.create(1), database("sqlite")
    id, _ = registry.add(f"{topic}-value", text(ORDER))
    topics.send(topic, [framed(id, ORDER, {"id": 1, "name": "a"}), framed(id + 1, LATER_ORDER, {"id": 2, "name": "b"})])
    kafka = tm.Kafka(brokers, topic, value=tm.Avro(registry.url))
    pipeline = tm.Pipeline(group=group, source=kafka, store=url, membership=tm.Standalone())
    pipeline.table("orders", provenance=True)(lambda records: records.select("value.id", "value.name"))
    assert pipeline.run("caught-up") == tm.Tally(applied=1, dead=1)
    registry.add(f"{topic}-value", text(LATER_ORDER))
    assert pipeline.replay().applied == 1
    assert query(url, "SELECT id, name FROM orders ORDER BY id") == [(1, "a"), (2, "b")]
    assert not compare(pipeline).wrong


SERVICE = """
import tallymark as tm
app = tm.App(brokers="{brokers}", store="{store}")
@app.listen("{topic}", group="{group}", value=tm.Avro("{registry}"))
def handle(record, db): ...
"""


def test_a_check_of_a_listener_asks_the_registry_as_a_run_does(
    brokers: str, topics: Topics, group: str, registry: SchemaRegistry, database: Callable[[str], str], tmp_path: Path
) -> None:
    topic, file = topics.create(1), tmp_path / "app.py"
    names = {"brokers": brokers, "topic": topic, "group": group, "registry": registry.url, "store": database("sqlite")}
    file.write_text(SERVICE.format(**names))
    for refused in (in_process("check", file), in_process("run", file, "--until", "caught-up")):
        assert refused.returncode != 0
        assert f"has no schema for subject {topic}-value: register one" in refused.stderr
    registry.add(f"{topic}-value", text(ORDER))
    assert in_process("check", file).returncode == 0


def test_a_registry_that_is_down_is_waited_for(
    brokers: str, topic: str, group: str, registry: SchemaRegistry, database: Callable[[str], str]
) -> None:
    url = database("sqlite")
    app = tm.App(brokers=brokers, store=url)

    @app.listen(topic, group=group, value=tm.Avro(registry.url, subject=f"{topic}-value"), batch=True)
    def handle(records: Any, db: Any) -> None:
        db.write("orders", [value for value in records.values() if value], key="id", write="upsert")

    registry.stop()
    threading.Timer(1.0, registry.restart).start()
    tally = app.run("caught-up")
    assert (tally.applied, tally.dead) == (COUNT + 1, len(LETTERS))


def test_the_command_line_shows_decoded_records(brokers: str, topic: str, registry: SchemaRegistry) -> None:
    asked = ["consume", topic, "--brokers", brokers, "--partition", "0", "--registry", registry.url]
    shown = in_process(*asked, "--limit", "1")
    assert shown.stdout.endswith('key="k" {"id": 0, "name": "n0"}\n'), shown
    lines = [json.loads(line) for line in in_process(*asked, "--limit", "0", "--json").stdout.splitlines()]
    assert lines[0]["value"] == {"id": 0, "name": "n0"}
    assert (lines[0]["value_schema"], lines[0]["key_schema"], lines[0]["key"]) == (1, 3, "k")
    raw = [line for line in lines if "value_schema" not in line]
    assert len(raw) == len(LETTERS) // 2 + 1, "of partition 0"


def consumed(brokers: str, topic: str, registry: SchemaRegistry, *options: str) -> list[dict[str, Any]]:
    """The records as ``consume --json`` prints them, without what differs between topics."""
    done = in_process(
        "consume", topic, "--limit", "0", "--json", "--brokers", brokers, "--registry", registry.url, *options
    )
    assert done.returncode == 0, done
    found = [json.loads(line) for line in done.stdout.splitlines()]
    own = ("topic", "partition", "key_schema", "value_schema")
    return [{name: item for name, item in one.items() if name not in own} for one in found]


TYPED = {
    "type": "record",
    "name": "Typed",
    "fields": [
        {"name": "content", "type": "bytes"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "either", "type": ["null", "long", "string"]},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
    ],
}
LINE = {
    "content": "/wA=",
    "price": 1.5,
    "at": "2026-01-31T12:00:00.123Z",
    "day": "2026-01-31",
    "either": {"string": "x"},
    "counts": {"a": 1},
}


def test_what_consume_prints_of_avro_can_be_produced_again(
    brokers: str, topics: Topics, registry: SchemaRegistry, tmp_path: Path
) -> None:
    first, second = topics.create(1), topics.create(1)
    for name in (first, second):
        registry.add(f"{name}-value", text(TYPED))
        registry.add(f"{name}-key", '"string"')
    line, records = tmp_path / "line.jsonl", tmp_path / "records.jsonl"
    written = [{"key": "k", "value": LINE}, {"key": "k", "value": None}, {"value": LINE | {"either": None}}]
    line.write_text("".join(json.dumps(one) + "\n" for one in written))
    asked = ["--format", "json", "--brokers", brokers, "--registry", registry.url]
    done = in_process("produce", first, line, *asked, "--json")
    assert done.returncode == 0, done
    assert json.loads(done.stdout).items() >= {"records": 3, "value_schema": 1, "key_schema": 2}.items()
    found = consumed(brokers, first, registry)
    assert [one["value"] for one in found] == [
        LINE | {"price": "1.50", "at": "2026-01-31T12:00:00.123000+00:00", "either": {"long": None, "string": "x"}},
        None,
        LINE | {"price": "1.50", "at": "2026-01-31T12:00:00.123000+00:00", "either": None},
    ]
    shown = in_process("consume", first, "--limit", "0", "--json", "--brokers", brokers, "--registry", registry.url)
    records.write_text(shown.stdout)
    assert in_process("produce", second, records, *asked).returncode == 0
    assert consumed(brokers, second, registry) == found


def test_produce_names_the_line_and_the_field(brokers: str, topics: Topics, registry: SchemaRegistry) -> None:
    topic = topics.create(1)
    asked = ["produce", topic, "--brokers", brokers, "--registry", registry.url]
    as_text = in_process(*asked, given="a\n")
    assert as_text.returncode == 0, as_text
    assert f"has no schema for the values of topic {topic}: they are written as text" in as_text.stderr
    registry.add(f"{topic}-value", text(ORDER))
    refused = in_process(*asked, given='{"id": 1, "name": "a"}\n{"id": 2.5, "name": "b"}\n')
    assert refused.returncode == 2
    assert refused.stderr.strip().endswith(
        "line 2: id: 2.5 does not fit long; 1 records before it were acknowledged"
    ), refused
    unknown = in_process(*asked, "--schema", text(LATER_ORDER), given="")
    assert "does not have the schema of --schema" in unknown.stderr
    registry.add(f"{topic}-key", '"string"')
    delimited = in_process(*asked, "--key-delimiter", ":", given="")
    assert "have a schema; write them with --format json" in delimited.stderr
    values = [one["value"] for one in consumed(brokers, topic, registry)]
    assert values == ["a", {"id": 1, "name": "a"}]


FILE = """
group = "{group}"
store = "{store}"
standalone = true
[source]
brokers = "{brokers}"
topics = ["{topic}"]
format = {{ avro = "{url}" }}
[source.key.avro]
registry = {{ url = "{url}" }}
[tables.orders]
key = "id"
write = "upsert"
sql = "SELECT value.*, key AS k FROM records WHERE value IS NOT NULL"
"""


def test_a_file_needs_no_typed_schema(
    spark: SparkSession,
    brokers: str,
    topic: str,
    group: str,
    registry: SchemaRegistry,
    tmp_path: Path,
    database: Callable[[str], str],
) -> None:
    url = database("sqlite")
    file = tmp_path / "shop.toml"
    file.write_text(FILE.format(group=group, store=url, brokers=brokers, topic=topic, url=registry.url))
    checked = in_process("check", file)
    assert "would be created with id BIGINT, name TEXT, amount DOUBLE, k TEXT" in checked.stdout, checked
    ran = in_process("run", file, "--until", "caught-up")
    assert ran.returncode == 0, ran
    assert ids(query(url, "SELECT id FROM orders")) == list(range(COUNT))
    letter = str(query(url, "SELECT id FROM tallymark_dead_letters WHERE error LIKE 'name:%'")[0][0])
    shown = in_process("dead-letters", "show", letter, "--file", file)
    assert 'key       "k"' in shown.stdout, shown


def test_init_asks_the_registry(brokers: str, topic: str, registry: SchemaRegistry, tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    made = in_process("init", file, "--brokers", brokers, "--topic", topic, "--registry", registry.url)
    assert f"has schemas for the values and the keys of {topic}" in made.stdout, made
    written = file.read_text()
    assert f'format = {{ avro = "{registry.url}" }}\nkey = {{ avro = "{registry.url}" }}\n' in written
    assert "SELECT value.*" in written
    again = in_process("init", file, "--topic", "unknown", "--registry", registry.url, "--force")
    assert again.returncode == 0, again
    assert "avro" not in file.read_text()
