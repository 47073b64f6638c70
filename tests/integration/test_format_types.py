"""Every type of Avro and of Protobuf in every store, read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

import tallymark as tm
from tests.support import databases
from tests.support.avro import framed, text
from tests.support.kafka import Topics
from tests.support.protobuf_schemas import Schema
from tests.support.redis import dump
from tests.support.registry import SchemaRegistry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.usefixtures("spark")

AT = datetime(2026, 1, 31, 12, 30, 15, 123456, tzinfo=UTC)
UNIQUE = UUID("00112233-4455-6677-8899-aabbccddeeff")
ITEM = {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}]}
AVRO: Mapping[str, tuple[Any, Any, Any]] = {
    # The type, the value that is written, and what is in the table.
    "yes": ("boolean", True, True),
    "least_int": ("int", -(2**31), -(2**31)),
    "most_long": ("long", 2**63 - 1, 2**63 - 1),
    "a_float": ("float", 1.5, 1.5),
    "a_double": ("double", -1e300, -1e300),
    "some_bytes": ("bytes", b"\0\xff", b"\0\xff"),
    "a_text": ("string", "größe 🐘", "größe 🐘"),
    "an_enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    "a_fixed": ({"type": "fixed", "name": "F", "size": 3}, b"abc", b"abc"),
    "money": (
        {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2},
        Decimal("-1234567890123456.78"),
        Decimal("-1234567890123456.78"),
    ),
    "wide": (
        {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 10},
        Decimal("12345678901234567890.0123456789"),
        Decimal("12345678901234567890.0123456789"),
    ),
    "a_day": ({"type": "int", "logicalType": "date"}, date(2026, 1, 31), date(2026, 1, 31)),
    "a_clock": ({"type": "long", "logicalType": "time-micros"}, 45_015_123_456, "12:30:15.123456"),
    "in_millis": ({"type": "long", "logicalType": "timestamp-millis"}, AT, AT.replace(microsecond=123000)),
    "in_micros": ({"type": "long", "logicalType": "timestamp-micros"}, AT, AT),
    "a_local": (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        AT.replace(tzinfo=None),
        AT.replace(tzinfo=None),
    ),
    "an_id": ({"type": "string", "logicalType": "uuid"}, str(UNIQUE).upper(), str(UNIQUE)),
    "missing": (["null", "long"], None, None),
    "present": (["null", "string"], "x", "x"),
    "numbers": ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
    "items": ({"type": "array", "items": ITEM}, [{"sku": "a", "n": 1}], [{"sku": "a", "n": 1}]),
    "counts": ({"type": "map", "values": "long"}, {"a": 1}, {"a": 1}),
    "either": (["null", "int", "string"], "y", {"string": "y"}),
}
PROTO = """
message Every {
  bool yes = 1; sint32 least_int = 2; uint64 most = 3; float a_float = 4; double a_double = 5; bytes some_bytes = 6;
  string a_text = 7; Kind kind = 8; google.protobuf.Timestamp at = 9; google.protobuf.Int64Value boxed = 10;
  google.protobuf.Int64Value missing = 11; repeated int32 numbers = 12; Item item = 13; map<string, int64> counts = 14;
  oneof either { string one = 15; int32 other = 16; }
  enum Kind { NONE = 0; SOME = 1; }
  message Item { string sku = 1; int32 n = 2; }
}
"""
PROTOBUF: Mapping[str, Any] = {
    "yes": True,
    "least_int": -(2**31),
    "most": Decimal(2**64 - 1),
    "a_float": 1.5,
    "a_double": -1e300,
    "some_bytes": b"\0\xff",
    "a_text": "größe 🐘",
    "kind": "SOME",
    "at": AT,
    "boxed": 7,
    "missing": None,
    "numbers": [1, 2],
    "item": {"sku": "a", "n": 1},
    "counts": {"a": 1},
    "one": "x",
    "other": None,
}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


def same(expected: Any, found: Any) -> bool:
    """Whether a store has the value, in the form in which its driver or Redis returns it."""
    if expected is None or found is None:
        return expected is found
    if isinstance(expected, bool):
        return str(found).lower() in ("1", "true") if expected else str(found).lower() in ("0", "false")
    if isinstance(expected, bytes):
        return (found.encode() if isinstance(found, str) else bytes(found)) == expected
    if isinstance(expected, datetime):
        moment = found if isinstance(found, datetime) else datetime.fromisoformat(str(found).replace(" ", "T", 1))
        return moment.replace(tzinfo=None) == expected.replace(tzinfo=None)
    if isinstance(expected, list | dict):
        return bool(expected == (json.loads(found) if isinstance(found, str) else found))
    if isinstance(expected, int | float | Decimal):
        return type(expected)(str(found)) == expected
    return str(found) == str(expected)


@pytest.mark.faults_where(kind=["mariadb", "sqlite"])
@pytest.mark.parametrize("kind", databases.EVERY)
def test_every_type_of_avro_arrives(
    topics: Topics, brokers: str, group: str, registry: SchemaRegistry, database: Callable[[str], str], kind: str
) -> None:
    fields = [{"name": name, "type": given} for name, (given, _, _) in AVRO.items()]
    schema = {"type": "record", "name": "Every", "fields": fields}
    topic, url = topics.create(1), database(kind)
    id, _ = registry.add(f"{topic}-value", text(schema))
    topics.send(topic, [framed(id, schema, {name: value for name, (_, value, _) in AVRO.items()})])
    fill(brokers, topic, group, url, tm.Avro(registry.url))
    check(url, kind, {name: expected for name, (_, _, expected) in AVRO.items()})


@pytest.mark.faults_where(kind=["mariadb", "sqlite"])
@pytest.mark.parametrize("kind", databases.EVERY)
def test_every_type_of_protobuf_arrives(
    topics: Topics, brokers: str, group: str, database: Callable[[str], str], tmp_path: Path, kind: str
) -> None:
    topic, url = topics.create(1), database(kind)
    message = Schema.of(PROTO).official("Every")(
        yes=True, least_int=-(2**31), most=2**64 - 1, a_float=1.5, a_double=-1e300, some_bytes=b"\0\xff",
        a_text="größe 🐘", kind=1, at=AT, boxed={"value": 7}, numbers=[1, 2], item={"sku": "a", "n": 1},
        counts={"a": 1}, one="x",
    )  # fmt: skip
    topics.send(topic, [message.SerializeToString()])
    imports = "".join(f'import "google/protobuf/{name}.proto"; ' for name in ("timestamp", "wrappers"))
    file = tmp_path / "every.proto"
    file.write_text(f'syntax = "proto3"; {imports}{PROTO}')
    fill(brokers, topic, group, url, tm.Protobuf(schema=str(file), message="Every"))
    check(url, kind, PROTOBUF)


def fill(brokers: str, topic: str, group: str, url: str, value: tm.Avro | tm.Protobuf) -> None:
    source = tm.Kafka(brokers, topic, value=value)
    pipeline = tm.Pipeline(group=group, source=source, store=url, membership=tm.Standalone())

    @pipeline.table("every", key="id", write="upsert")
    def every(records: DataFrame) -> DataFrame:
        return records.selectExpr("1 AS id", "value.*")

    assert pipeline.run("caught-up") == tm.Tally(applied=1)


def as_text(content: bytes | None) -> str | bytes | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return content


def check(url: str, kind: str, expected: Mapping[str, Any]) -> None:
    names = list(expected)
    found: Mapping[str, Any]
    if kind == databases.REDIS:
        (content,) = dump(url, "every").values()
        found = {name: as_text(content.get(name.encode())) for name in names}
    else:
        (values,) = databases.query(url, f"SELECT {', '.join(names)} FROM every")
        found = dict(zip(names, values, strict=True))
    assert not {name: (value, found[name]) for name, value in expected.items() if not same(value, found[name])}
