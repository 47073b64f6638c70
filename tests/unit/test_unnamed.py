"""Fields that the schema does not name are found on every path, and bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tallymark as tm
from tallymark.core.drift import MOST, OTHERS
from tallymark.formats import json as bulk
from tallymark.formats import json_lines
from tallymark.formats.decoders import Decoders
from tallymark.formats.framing import prefix
from tallymark.formats.json import JsonDecoder
from tallymark.formats.protobuf.compiler import compiled
from tallymark.formats.protobuf.projection import projection
from tallymark.formats.protobuf.schema import parse
from tallymark.formats.unnamed import written
from tests.support.drift import DDL, SCHEMA, SCHEMA_WITH_MAP, WITH_MAP, unnamed, value
from tests.support.registry import SchemaRegistry


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


def found(decoder: JsonDecoder, values: Sequence[bytes | None]) -> dict[str, list[int]]:
    return {name: rows.tolist() for name, rows in decoder(values).unnamed.items()}


def expected(decoder: JsonDecoder, values: Sequence[bytes | None], schema: dict[str, object]) -> dict[str, list[int]]:
    dead, rows = decoder(values).errors, dict[str, list[int]]()
    for row, content in enumerate(values):
        for name in unnamed(content, schema) if content is not None and row not in dead else ():
            rows.setdefault(name, []).append(row)
    return rows


@settings(max_examples=30, deadline=None)
@given(st.integers(), st.booleans(), st.sampled_from([10, 300]))
def test_the_same_fields_are_found_on_every_path_and_by_a_plain_walk(seed: int, any_types: bool, count: int) -> None:
    random = Random(seed)
    values = [None if random.random() < 0.05 else value(random, any_types=any_types, dead=0.01) for _ in range(count)]
    for ddl, schema in ((DDL, SCHEMA), (WITH_MAP, SCHEMA_WITH_MAP)):
        decoder, plain = JsonDecoder(tm.Json(ddl), finds=True), JsonDecoder(tm.Json(ddl))
        decoded = decoder(values)
        assert (decoded.values.to_pylist(), decoded.errors) == (plain(values).values.to_pylist(), plain(values).errors)
        assert found(decoder, values) == expected(plain, values, schema)
        assert plain(values).unnamed == {}


def test_fields_in_maps_are_found_in_their_values() -> None:
    decoder = JsonDecoder(tm.Json(WITH_MAP), finds=True)
    values: list[bytes | None] = [b'{"tags": {"k": {"a": 1, "b": 2}, "l": {"b": null}}}', b'{"tags": {"b": {"a": 1}}}']
    assert found(decoder, values) == {"tags.b": [0]}


@pytest.mark.parametrize(
    "more", [{}, {"note": "x", "address": {"zip": "1", "city": "c"}, "items": [{"color": 1}, {"color": 2}]}]
)
def test_many_values_are_searched_without_python_if_their_types_are_stable(
    more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[object] = []

    def search(_: object, text: object) -> dict[str, object]:
        searched.append(text)
        return {}

    monkeypatch.setattr(json_lines.LineParser, "_found", search)
    values = [json.dumps({"id": n, "price": n / 7, **more}).encode() for n in range(2 * bulk.FEW)]
    names = ["note", "address.city", "items.color"] if more else []
    assert found(JsonDecoder(tm.Json(DDL), finds=True), values) == {name: [*range(len(values))] for name in names}
    assert not searched


def test_only_a_limited_number_of_names_is_kept() -> None:
    """Objects whose names are ids of users would otherwise fill the memory and the ledger."""
    values = [json.dumps({f"user{n:04}": 1}).encode() for n in range(5 * MOST)]
    rows = found(JsonDecoder(tm.Json(DDL), finds=True), values)
    assert len(rows) == MOST + 1
    assert sum(map(len, rows.values())) == len(values)
    assert len(rows[OTHERS]) == len(values) - MOST
    inside = [json.dumps({"by": {f"user{n}": 1}}).encode() for n in range(5 * MOST)]
    assert found(JsonDecoder(tm.Json(DDL), finds=True), inside) == {"by": list(range(5 * MOST))}


def test_fields_of_keys_have_a_prefix_and_those_of_dead_records_do_not_count() -> None:
    decoders = Decoders.of(tm.Json("id INT"), tm.Json("k INT"), finds=True)
    keys = pa.array([b'{"k": 1, "j": 2}', b'{"k": 1, "j": 2}'])
    table = pa.table({"key": keys, "value": pa.array([b'{"id": 1, "n": 1}', b"{"])})
    _, errors, rows = decoders.table(table)
    assert errors.keys() == {1}
    assert {name: at.tolist() for name, at in rows.items()} == {"n": [0], "key: j": [0, 1]}


@pytest.mark.parametrize("payload", [False, True])
def test_columns_of_change_events_that_the_schema_does_not_name(payload: bool) -> None:
    event = {
        "before": None,
        "after": {"id": 1, "discount": 5, "gone": None},
        "op": "c",
        "ts_ms": 1,
        "transaction": {"id": "1"},
        "source": {"db": "shop", "unheard_of": 1},
    }
    content = json.dumps({"payload": event} if payload else event).encode()
    decoders = Decoders.of(tm.Debezium(tm.Json("id INT")), finds=True)
    assert {name: rows.tolist() for name, rows in decoders.value([content, None]).unnamed.items()} == {
        "after.discount": [0]
    }


def test_fields_that_a_writer_of_avro_has_and_the_reader_has_not(registry: SchemaRegistry) -> None:
    def record(name: str, *fields: tuple[str, object]) -> dict[str, object]:
        return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}

    geo, near = record("Geo", ("lat", "int"), ("lon", "int")), record("Geo", ("lat", "int"))
    writer = record("Order", ("id", "int"), ("note", "int"), ("places", {"type": "array", "items": ["null", geo]}))
    reader = record("Order", ("id", "int"), ("places", {"type": "array", "items": ["null", near]}))
    own, _ = registry.add("orders-value", json.dumps(reader))
    later, _ = registry.add("others-value", json.dumps(writer))
    body, short_body = b"\x02\x04\x00", b"\x02\x00"
    contents = [prefix(later) + body, prefix(own) + short_body, None, prefix(later) + body, prefix(later) + b"\x02"]
    for times in (1, 20):
        source = tm.Kafka("localhost:9092", "orders", value=tm.Avro(registry.url))
        decoded = source.decoders(finds=True).value(contents * times)
        assert len(decoded.errors) == times, "the last one is dead"
        rows = [5 * n + at for n in range(times) for at in (0, 3, 4)]
        assert {name: at.tolist() for name, at in decoded.unnamed.items()} == {"note": rows, "places.lon": rows}
        assert source.decoders().value(contents * times).unnamed == {}


def test_fields_that_a_writer_of_protobuf_has_and_the_reader_has_not() -> None:
    item = "message Item { string sku = 1; %s } "
    text = 'syntax = "proto3"; %s message M { int64 id = 1; %s repeated Item items = 3; map<string, Item> by = 4; }'
    writer, reader = (
        parse(compiled(text % (item % inner, outer))).message("M")
        for inner, outer in (("int32 n = 2;", "string note = 2;"), ("", ""))
    )
    assert list(written(projection(writer, reader).root)) == ["note", "items.n", "by.n"]
    assert list(written(projection(writer, writer).root)) == []
