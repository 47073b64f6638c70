"""Protobuf and framed JSON on their way from a producer or the command line to Kafka and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tallymark as tm
from tests.support.command import in_process
from tests.support.databases import query
from tests.support.kafka import Topics
from tests.support.registry import SchemaRegistry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOP = """syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/struct.proto"; import "google/protobuf/wrappers.proto";
enum Kind { NONE = 0; RETAIL = 1; }
message Order {
  int64 id = 1; google.protobuf.Timestamp at = 2; Kind kind = 3; uint64 cents = 4; map<int32, string> notes = 5;
  oneof paid { string card = 6; Cash cash = 7; } google.protobuf.Struct more = 8; repeated bytes parts = 9;
  google.protobuf.StringValue coupon = 10; message Cash { int32 coins = 1; } }
message Payment { int64 id = 1; }
"""
KEY = 'syntax = "proto3"; message Key { string name = 1; }'
AT = datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)
ORDER: dict[str, Any] = {
    "id": 42,
    "at": AT,
    "kind": "RETAIL",
    "cents": Decimal(2**64 - 1),
    "notes": [("-1", "a"), ("2", "")],
    "card": None,
    "cash": {"coins": 5},
    "more": '{"a":[1,null]}',
    "parts": [b"", b"\xff"],
    "coupon": None,
}
JSON_SCHEMA = '{"type": "object"}'


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


def protobuf(topics: Topics, registry: SchemaRegistry) -> str:
    """A topic with a Protobuf schema for its keys and its values."""
    name = topics.create(1)
    registry.add(f"{name}-value", SHOP, "PROTOBUF")
    registry.add(f"{name}-key", KEY, "PROTOBUF")
    return name


def consumed(brokers: str, topic: str, url: str) -> list[dict[str, Any]]:
    done = in_process("consume", topic, "--limit", "0", "--json", "--brokers", brokers, "--registry", url)
    assert done.returncode == 0, done
    own = ("topic", "partition", "timestamp")
    return [
        {name: item for name, item in json.loads(line).items() if name not in own} for line in done.stdout.splitlines()
    ]


@pytest.mark.faults_where(ids="headers")
@pytest.mark.parametrize("ids", ["values", "headers"])
def test_a_listener_sends_what_it_received(
    brokers: str, topics: Topics, group: str, registry: SchemaRegistry, database: Callable[[str], str], ids: Any
) -> None:
    first, second = protobuf(topics, registry), protobuf(topics, registry)
    value, key = tm.Protobuf(registry.url, message="shop.Order", ids=ids), tm.Protobuf(registry.url, ids=ids)
    with tm.Producer(brokers, value=value, key=key) as producer:
        producer.send(first, ORDER, key={"name": "k"})
        producer.send(first, {"id": 1, "cents": 5, "notes": {7: "x"}, "card": "4711"}, key={"name": "k"})
        producer.send(first, None, key={"name": "k"})
        with pytest.raises(tm.BadInput, match=r"Order: cash\.coins: 'x' does not fit int32"):
            producer.send(first, {"cash": {"coins": "x"}})
    app = tm.App(brokers=brokers, store=database("sqlite"))
    copies = app.template(second, value=value, key=key)
    seen: list[Any] = []

    @app.listen(first, group=group, value=value, key=key)
    def handle(record: Any, db: Any) -> None:
        seen.append((record.key, record.value))
        copies.send(record.value, key=record.key)

    assert app.run("caught-up") == tm.Tally(applied=3)
    empty: dict[str, Any] = {"at": None, "kind": "NONE", "more": None, "parts": [], "coupon": None}
    assert seen == [
        ({"name": "k"}, ORDER),
        ({"name": "k"}, {"id": 1, **empty, "cents": 5, "notes": [("7", "x")], "card": "4711", "cash": None}),
        ({"name": "k"}, None),
    ]
    found = consumed(brokers, second, registry.url)
    assert found == consumed(brokers, first, registry.url)
    assert [one.get("value_message") for one in found] == ["shop.Order", "shop.Order", None]


def test_what_consume_prints_can_be_produced_again(
    brokers: str, topics: Topics, registry: SchemaRegistry, tmp_path: Path
) -> None:
    asked = ["--brokers", brokers, "--registry", registry.url]
    framed = [topics.create(1), topics.create(1)]
    for name in framed:
        registry.add(f"{name}-value", JSON_SCHEMA, "JSON")
    orders = [protobuf(topics, registry), protobuf(topics, registry)]
    order = {"id": 1, "at": "2026-01-31T12:00:00+02:00", "kind": "RETAIL", "cash": {"coins": 5}, "more": {"a": [1]}}
    lines = [{"value": order}, {"value": {"id": 2}, "value_message": "shop.Payment"}, {"key": {"name": "k"}}]
    given = {orders[0]: lines, framed[0]: [{"value": {"id": 1, "price": 1.5}}, {"key": "k", "value": None}]}
    for first, second in (orders, framed):
        text = "".join(json.dumps(line) + "\n" for line in given[first])
        assert in_process("produce", first, "--format", "json", *asked, given=text).returncode == 0
        shown = in_process("consume", first, "--limit", "0", "--json", *asked)
        again = in_process("produce", second, "--format", "json", *asked, given=shown.stdout)
        assert again.returncode == 0, again
        assert consumed(brokers, second, registry.url) == consumed(brokers, first, registry.url)
    found = consumed(brokers, orders[1], registry.url)
    assert [one["value"] and one["value"]["id"] for one in found] == [1, 2, None]
    assert found[0]["value"]["at"] == "2026-01-31T10:00:00+00:00"
    assert found[0]["value"]["more"] == '{"a":[1]}'
    assert found[1]["value_message"] == "shop.Payment"
    assert found[2]["key"] == {"name": "k"}
    assert [one["value"] for one in consumed(brokers, framed[1], registry.url)] == [{"id": 1, "price": 1.5}, None]
    chosen = in_process("produce", orders[0], "--message", "Payment", *asked, given='{"id": 3}\n{"kind": 1}\n')
    assert "line 2: shop.Payment has no field kind; 1 records before it were acknowledged" in chosen.stderr


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["protobuf", "json"])
def test_init_writes_a_pipeline_that_runs(
    spark: SparkSession,
    brokers: str,
    topics: Topics,
    registry: SchemaRegistry,
    tmp_path: Path,
    database: Callable[[str], str],
    kind: str,
) -> None:
    url = database("sqlite")
    file = tmp_path / "new.toml"
    if kind == "protobuf":
        topic = protobuf(topics, registry)
        value: Any = tm.Protobuf(registry.url)
    else:
        topic = topics.create(1)
        registry.add(f"{topic}-value", JSON_SCHEMA, "JSON")
        value = tm.Json("id BIGINT", framed=True, registry=registry.url)
    with tm.Producer(brokers, value=value) as producer:
        for id in range(3):
            producer.send(topic, {"id": id})
    with tm.Producer(brokers) as producer:
        producer.send(topic, b"\0\0\0\0\1" + (b"\0\x08" if kind == "protobuf" else b"["))
    options = ["--brokers", brokers, "--topic", topic, "--store", url, "--registry", registry.url]
    assert in_process("init", file, *options).returncode == 0
    assert ("framed = true" in file.read_text()) == (kind == "json")
    checked = in_process("check", file)
    assert "id BIGINT" in checked.stdout, checked
    ran = in_process("run", file, "--until", "caught-up")
    assert ran.returncode == 0, ran
    table = topic.lower().replace("-", "_").replace(".", "_")
    assert sorted(int(str(id)) for (id,) in query(url, f"SELECT id FROM {table}")) == [0, 1, 2]
    ((letter, error),) = query(url, "SELECT id, error FROM tallymark_dead_letters")
    assert str(error).startswith("id: the bytes end" if kind == "protobuf" else "not JSON")
    shown = in_process("dead-letters", "show", str(letter), "--file", file)
    assert shown.returncode == 0, shown
    consume = in_process("consume", topic, "--file", file, "--brokers", brokers)
    assert '{"id": 2' in consume.stdout, consume
