"""A reader's schema gets the fields of a later one, and what it has stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tallymark import Avro, Kafka, Protobuf
from tallymark.errors import BadInput, Unreachable
from tallymark.formats.avro.columns import arrow_type
from tallymark.formats.avro.extension import extended
from tallymark.formats.avro.projection import projection
from tallymark.formats.avro.schema import parse
from tallymark.formats.decoders import Decoders
from tests.support.avro import ORDER, framed, prefix, text
from tests.support.protobuf_schemas import tagged
from tests.support.registry import Reply, SchemaRegistry


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def array(item: Any) -> dict[str, Any]:
    return {"type": "array", "items": item}


INNER, LATER_INNER = record(("a", "int"), name="I"), record(("a", "int"), ("b", "string"), name="I")
OURS = record(("id", "long"), ("x", "int"))
CASES: dict[str, tuple[Any, Any, Any]] = {
    "a new field": (OURS, record(("new", "int"), ("id", "long"), ("x", "int")), [("new", "int")]),
    "a removed field stays": (OURS, record(("id", "long"), ("new", "int")), [("new", "int")]),
    "a changed type stays": (OURS, record(("id", "long"), ("x", "string"), ("new", "int")), [("new", "int")]),
    "a nested field": (record(("i", INNER)), record(("i", LATER_INNER)), None),
    "a nested field that may be null": (record(("i", ["null", INNER])), record(("i", ["null", LATER_INNER])), None),
    "a field of one of two records with the same short name": (
        record(("i", [record(("a", "int"), name="x.I"), record(("a", "int"), name="y.I")])),
        record(("i", [LATER_INNER | {"name": "x.I"}, record(("a", "int"), name="y.I")])),
        None,
    ),
    "a field in an array": (record(("i", array(INNER))), record(("i", array(LATER_INNER))), None),
    "a field in a map": (
        record(("i", {"type": "map", "values": INNER})),
        record(("i", {"type": "map", "values": LATER_INNER})),
        None,
    ),
}
SAME: dict[str, tuple[Any, Any]] = {
    "the same": (OURS, OURS),
    "another order": (OURS, record(("x", "int"), ("id", "long"))),
    "fewer fields": (OURS, record(("x", "int"))),
    "other types": (OURS, record(("id", "string"), ("x", "double"))),
    "another record": (record(("i", INNER)), record(("i", record(("b", "int"), name="J")))),
    "another branch": (record(("i", ["null", INNER])), record(("i", ["null", INNER, "string"]))),
    "no record any more": (OURS, "string"),
}


@pytest.mark.parametrize("case", list(CASES))
def test_new_fields_are_added_after_those_that_are_there(case: str) -> None:
    reader, later, new = CASES[case]
    found = extended(parse(text(reader)), parse(text(later)))
    before, after = arrow_type(parse(text(reader))), arrow_type(found)
    if new is None:
        assert arrow_type(parse(text(later))) == after
    else:
        assert after == arrow_type(parse(text(record(*[(f["name"], f["type"]) for f in reader["fields"]], *new))))
    assert [field.name for field in after][: len(before)] == [field.name for field in before]
    # What was written before can be read.
    projection(parse(text(reader)), found)


@pytest.mark.parametrize("case", list(SAME))
def test_a_schema_without_new_fields_is_the_readers_own(case: str) -> None:
    reader = parse(text(SAME[case][0]))
    assert extended(reader, parse(text(SAME[case][1]))) is reader


def test_what_may_be_null_later_may_be_null() -> None:
    reader = parse(text(record(("x", "int"), ("y", ["int", "string"]))))
    found = extended(reader, parse(text(record(("x", ["null", "int"]), ("y", ["null", "int", "string"])))))
    assert arrow_type(found) == arrow_type(reader)
    assert [[branch.type for branch in field.schema.branches] for field in found.fields] == [
        ["int", "null"],
        ["int", "string", "null"],
    ]


LATER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
FIRST = b"\0"


def of_orders(registry: SchemaRegistry) -> Decoders:
    registry.add("orders-value", text(ORDER))
    return Kafka("localhost:9092", "orders", value=Avro(registry.url)).decoders()


def decode(decoders: Decoders, *contents: bytes) -> tuple[list[Any], dict[int, str]]:
    found = decoders.value(list(contents))
    return found.values.to_pylist(), dict(found.errors)


def test_a_decoder_grows_by_the_latest_schema(registry: SchemaRegistry) -> None:
    decoders = of_orders(registry)
    later, _ = registry.add("orders-value", text(LATER))
    contents = [framed(later, LATER, {"id": 1, "name": "a", "note": "n"}), framed(1, ORDER, {"id": 2, "name": "b"})]
    assert not decoders.is_outgrown
    assert decode(decoders, *contents) == ([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], {})
    assert decoders.is_outgrown
    grown = decoders.grown()
    assert grown is not None
    assert decode(grown, *contents)[0] == [{"id": 1, "name": "a", "note": "n"}, {"id": 2, "name": "b", "note": None}]
    assert grown.version == decoders.version, "tasks know the schemas of earlier records"
    assert not grown.is_outgrown
    assert (decoders.origin, grown.origin) == ("orders-value version 1", "orders-value version 2")


def test_nothing_grows_by_the_schemas_of_other_subjects(registry: SchemaRegistry) -> None:
    decoders = of_orders(registry)
    other, _ = registry.add("others", text(LATER))
    content = framed(other, LATER, {"id": 1, "name": "a", "note": "n"})
    assert decode(decoders, content) == ([{"id": 1, "name": "a"}], {})
    assert decoders.is_outgrown
    assert decoders.grown() is None
    assert not decoders.is_outgrown, "the registry is asked once"


def test_a_subject_that_was_deleted_changes_nothing(registry: SchemaRegistry) -> None:
    decoders = of_orders(registry)
    later, _ = registry.add("orders-value", text(LATER))
    registry.delete("orders-value")
    assert decode(decoders, framed(later, LATER, {"id": 1, "name": "a", "note": "n"}))[0] == [{"id": 1, "name": "a"}]
    assert decoders.grown() is None


def test_a_registry_that_does_not_know_the_latest_version_yet_is_asked_again(registry: SchemaRegistry) -> None:
    """Otherwise the values of the new field would be lost."""
    decoders = of_orders(registry)
    old = registry.answer("GET", "/subjects/orders-value/versions/latest", {})
    later, _ = registry.add("orders-value", text(LATER))
    decode(decoders, framed(later, LATER, {"id": 1, "name": "a", "note": "n"}))
    registry.behaviour.replies = [old]
    with pytest.raises(Unreachable, match="version 1 of subject orders-value as the latest, and has version 2"):
        decoders.grown()
    assert decoders.is_outgrown
    assert decoders.grown() is not None


def test_a_registry_that_fails_is_asked_again(registry: SchemaRegistry) -> None:
    decoders = of_orders(registry)
    later, _ = registry.add("orders-value", text(LATER))
    decode(decoders, framed(later, LATER, {"id": 1, "name": "a", "note": "n"}))
    registry.behaviour.always = Reply.error(404, 404, "not found")
    with pytest.raises(BadInput):
        decoders.grown()
    registry.behaviour.always = None
    assert decoders.grown() is not None


def test_a_version_that_is_read_in_part_is_named_with_the_one_before(registry: SchemaRegistry) -> None:
    changed = {**LATER, "fields": [LATER["fields"][0], {"name": "name", "type": "double"}, LATER["fields"][2]]}
    decoders = of_orders(registry)
    later, _ = registry.add("orders-value", text(LATER))
    last, _ = registry.add("orders-value", text(changed))
    decode(decoders, framed(later, LATER, {"id": 1, "name": "a", "note": "n"}))
    grown = decoders.grown()
    assert grown is not None
    (error,) = decode(grown, framed(last, changed, {"id": 1, "name": 1.5, "note": "n"}))[1].values()
    assert error.startswith(f"schema {last} (orders-value version 3) can't be read by versions 1 and 3: field name: ")


def test_new_fields_that_differ_only_in_case_are_refused(registry: SchemaRegistry) -> None:
    decoders = of_orders(registry)
    upper = {**ORDER, "fields": [ORDER["fields"][0], {"name": "NAME", "type": "string"}]}
    later, _ = registry.add("orders-value", text(upper))
    decode(decoders, framed(later, upper, {"id": 1, "NAME": "a"}))
    with pytest.raises(
        BadInput, match="the new fields of orders-value version 2 can't be added to those of version 1: "
    ):
        decoders.grown()


ITEM = "message Item {{ string sku = 1; {} }} "
PROTO = 'syntax = "proto3"; message Order {{ int64 id = 1; Item item = 2; {more} }} {item}'


def proto(more: str = "", item: str = "") -> str:
    return PROTO.format(more=more, item=ITEM.format(item))


@pytest.mark.parametrize(
    ("later", "body", "expected"),
    [
        (proto("string note = 3;"), tagged(3, b"n"), {"item": None, "note": "n"}),
        (proto("", "int32 n = 2;"), tagged(2, tagged(2, 7)), {"item": {"sku": "", "n": 7}}),
        (proto("reserved 9; repeated int32 many = 3;"), tagged(3, 7), {"item": None, "many": [7]}),
        (
            'syntax = "proto3"; message Order { int64 id = 1; string note = 3; }',
            tagged(3, b"n"),
            {"item": None, "note": "n"},
        ),
    ],
)
def test_a_protobuf_decoder_grows(registry: SchemaRegistry, later: str, body: bytes, expected: dict[str, Any]) -> None:
    first, _ = registry.add("orders-value", proto(), "PROTOBUF")
    decoders = Kafka("localhost:9092", "orders", value=Protobuf(registry.url)).decoders()
    last, _ = registry.add("orders-value", later, "PROTOBUF")
    contents = [prefix(last) + FIRST + tagged(1, 5) + body, prefix(first) + FIRST + tagged(1, 6)]
    assert not decode(decoders, *contents)[1]
    grown = decoders.grown()
    assert grown is not None
    alive, errors = decode(grown, *contents)
    assert not errors
    assert alive[0] == {"id": 5, **expected}
    assert alive[1]["id"] == 6
    assert grown.version == decoders.version
    assert not grown.is_outgrown


def test_a_number_of_protobuf_that_changes_is_refused(registry: SchemaRegistry) -> None:
    registry.add("orders-value", 'syntax = "proto3"; message Order { int64 id = 1; string note = 2; }', "PROTOBUF")
    decoders = Kafka("localhost:9092", "orders", value=Protobuf(registry.url)).decoders()
    last, _ = registry.add(
        "orders-value", 'syntax = "proto3"; message Order { int64 id = 1; string note = 3; }', "PROTOBUF"
    )
    decode(decoders, prefix(last) + FIRST + tagged(3, b"n"))
    with pytest.raises(BadInput, match=r"the new fields of orders-value version 2 can't be added .* two fields note"):
        decoders.grown()
