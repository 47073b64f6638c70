"""Several types in one topic: a value is a struct with a field for each type, and an unknown type is dead."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tallymark as tm
from tallymark.errors import BadInput
from tallymark.formats.decoders import Decoders
from tallymark.formats.framing import prefix
from tallymark.formats.value import check_follows
from tallymark.produce.formats import FormattedRecords
from tests.support.avro import framed
from tests.support.protobuf_schemas import tagged
from tests.support.registry import SchemaRegistry

MANY = 60
"""More contents than are decoded one by one."""
FIRST, SECOND, THIRD = b"\0", b"\x02\x02", b"\x02\x04"
PROTO = """
syntax = "proto3"; package shop;
message Placed { int64 id = 1; } message Cancelled { string why = 1; } message Refunded { int64 id = 1; }
"""


def record(name: str, *fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields], **more}


PLACED = record("shop.Placed", ("id", "long"))
CANCELLED = record("shop.Cancelled", ("why", "string"))
SUBJECTS = ["events-shop.Placed", "events-shop.Cancelled"]


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


@pytest.fixture
def ids(registry: SchemaRegistry) -> list[int]:
    """The schemas of Placed and Cancelled."""
    both = zip(SUBJECTS, (PLACED, CANCELLED), strict=True)
    return [registry.add(subject, json.dumps(schema))[0] for subject, schema in both]


def decoded(source: tm.Avro | tm.Protobuf, contents: Sequence[bytes | None]) -> tuple[list[Any], list[str | None]]:
    """The values and the errors, which are the same of few and of many contents."""
    decoder = Decoders.of(source, None, ["events"]).value
    few, many = decoder(contents), decoder([*contents] * MANY)
    values, errors = few.values.to_pylist(), [few.errors.get(at) for at in range(len(contents))]
    assert many.values.to_pylist() == values * MANY
    assert [many.errors.get(at) for at in range(len(contents) * MANY)] == errors * MANY
    assert few.values.type == decoder.type
    return values, errors


def refused(source: tm.Avro | tm.Protobuf) -> str:
    with pytest.raises(BadInput) as error:
        Decoders.of(source, None, ["events"])
    return str(error.value)


def test_each_subject_is_a_field(registry: SchemaRegistry, ids: list[int]) -> None:
    placed, cancelled = ids
    values, errors = decoded(
        tm.Avro(registry.url, subject=SUBJECTS),
        [framed(placed, PLACED, {"id": 1}), framed(cancelled, CANCELLED, {"why": "late"}), None],
    )
    assert values == [{"Placed": {"id": 1}, "Cancelled": None}, {"Placed": None, "Cancelled": {"why": "late"}}, None]
    assert errors == [None] * 3


def test_a_type_that_is_not_listed_is_dead_also_if_it_has_the_same_fields(
    registry: SchemaRegistry, ids: list[int]
) -> None:
    others = [record("shop.Refunded", ("id", "long")), record("audit.Placed", ("id", "long"))]
    added = [registry.add(other["name"], json.dumps(other))[0] for other in others]
    contents = [framed(id, other, {"id": 1}) for id, other in zip(added, others, strict=True)]
    values, errors = decoded(tm.Avro(registry.url, subject=SUBJECTS), contents)
    assert values == [None, None]
    assert errors == [
        f"schema {id} ({other['name']} version 1) can't be read by the reader's schema: {other['name']} is none of "
        "shop.Placed, shop.Cancelled"
        for id, other in zip(added, others, strict=True)
    ]


WRONG = "schema {} (elsewhere version 2) can't be read by the reader's schema: field id: string can't be read as long"


def test_a_type_may_evolve(registry: SchemaRegistry, ids: list[int]) -> None:
    later = record("shop.Placed", ("note", "string"), ("id", "int"))
    renamed = record("shop.Aborted", ("why", "string"), aliases=["shop.Cancelled"])
    bad = record("shop.Placed", ("id", "string"))
    of_later, of_bad = (registry.add("elsewhere", json.dumps(schema))[0] for schema in (later, bad))
    registry.add(SUBJECTS[1], json.dumps(renamed))
    contents = [
        framed(of_later, later, {"note": "x", "id": 7}),
        framed(ids[1], CANCELLED, {"why": "late"}),
        framed(of_bad, bad, {"id": "x"}),
    ]
    values, errors = decoded(tm.Avro(registry.url, subject=SUBJECTS), contents)
    assert values == [{"Placed": {"id": 7}, "Aborted": None}, {"Placed": None, "Aborted": {"why": "late"}}, None]
    assert errors == [None, None, WRONG.format(of_bad)]


def test_types_with_equal_names_have_their_full_names(registry: SchemaRegistry, ids: list[int]) -> None:
    other = record("audit.Placed", ("id", "long"))
    id, _ = registry.add("events-audit.Placed", json.dumps(other))
    source = tm.Avro(registry.url, subject=[SUBJECTS[0], "events-audit.Placed"])
    values, _ = decoded(source, [framed(id, other, {"id": 1}), framed(ids[0], PLACED, {"id": 2})])
    assert values == [
        {"shop_Placed": None, "audit_Placed": {"id": 1}},
        {"shop_Placed": {"id": 2}, "audit_Placed": None},
    ]


@pytest.mark.parametrize("declared", [True, False], ids=["schema", "subject"])
def test_a_union_is_read_by_full_names_too(registry: SchemaRegistry, ids: list[int], declared: bool) -> None:
    """With one subject for the topic, its schema is a union, and later versions have more types."""
    union = [PLACED, CANCELLED]
    audit = record("audit.Placed", ("id", "long"))
    later = [audit, *union]
    registry.add("other", json.dumps(later))
    registry.add("events-value", json.dumps(union))
    source = tm.Avro(registry.url, schema=json.dumps(union)) if declared else tm.Avro(registry.url)
    id = registry.add("other", json.dumps(later))[0]
    contents = [prefix(id) + branch + b"\x02" for branch in (b"\0", b"\x02")]
    contents += [framed(ids[0], PLACED, {"id": 3})]
    values, errors = decoded(source, contents)
    assert values == [None, {"Placed": {"id": 1}, "Cancelled": None}, {"Placed": {"id": 3}, "Cancelled": None}]
    assert errors == ["audit.Placed is none of shop.Placed, shop.Cancelled", None, None]


def test_plain_avro_of_a_union_has_a_field_for_each_type() -> None:
    source = tm.Avro(schema=json.dumps([PLACED, CANCELLED]))
    values, _ = decoded(source, [b"\0\x02", b"\x02\x02x"])
    assert values == [{"Placed": {"id": 1}, "Cancelled": None}, {"Placed": None, "Cancelled": {"why": "x"}}]


def test_a_long_list_of_types_is_cut(registry: SchemaRegistry) -> None:
    schemas = [record(f"T{n}", ("id", "long")) for n in range(13)]
    for schema in schemas:
        registry.add(schema["name"], json.dumps(schema))
    id, _ = registry.add("other", json.dumps(PLACED))
    source = tm.Avro(registry.url, subject=[schema["name"] for schema in schemas])
    _, (error,) = decoded(source, [framed(id, PLACED, {"id": 1})])
    assert str(error).endswith("shop.Placed is none of T0, T1, T2, T3, T4, T5, T6, T7, T8, T9 and 3 others")


def test_subjects_that_are_no_types_are_refused(registry: SchemaRegistry, ids: list[int]) -> None:
    registry.add("text", '"string"')
    registry.add("again", json.dumps(record("shop.Placed", ("id", "int"))))
    registry.add("proto", PROTO, "PROTOBUF")
    first = SUBJECTS[0]
    assert "subject text is not a record but string" in refused(tm.Avro(registry.url, subject=[first, "text"]))
    said = refused(tm.Avro(registry.url, subject=[first, "again"]))
    assert said == f"subjects {first} and again are both shop.Placed; list one of them"
    assert "has no schema for subject gone" in refused(tm.Avro(registry.url, subject=[first, "gone"]))
    assert "subject proto is not Avro but PROTOBUF" in refused(tm.Avro(registry.url, subject=[first, "proto"]))
    registry.add("a", json.dumps(record("a.b.T", ("id", "int"))))
    registry.add("b", json.dumps(record("a_b.T", ("id", "int"))))
    assert "subjects a, b can't be read together: a union" in refused(tm.Avro(registry.url, subject=["a", "b"]))
    events = tm.Debezium(tm.Avro(registry.url, subject=SUBJECTS))
    with pytest.raises(BadInput, match="so its values are not change events"):
        Decoders.of(events, None, ["events"])


@pytest.mark.parametrize("subjects", [None, ["one", "two"]], ids=["one subject", "a subject for each"])
def test_each_message_is_a_field(registry: SchemaRegistry, subjects: list[str] | None) -> None:
    for subject in subjects or ["events-value"]:
        id, _ = registry.add(subject, PROTO, "PROTOBUF")
    source = tm.Protobuf(registry.url, message=["shop.Cancelled", "Placed"], subject=subjects)
    later = PROTO.replace("int64 id = 1;", "int64 id = 1; string note = 2;")
    elsewhere, _ = registry.add("elsewhere", later, "PROTOBUF")
    audit, _ = registry.add("audit", PROTO.replace("shop", "audit"), "PROTOBUF")
    values, errors = decoded(
        source,
        [
            prefix(id) + FIRST + tagged(1, 5),
            prefix(id) + SECOND + tagged(1, b"late"),
            prefix(elsewhere) + FIRST + tagged(1, 6) + tagged(2, b"x"),
            None,
            prefix(id) + FIRST,
            prefix(id) + THIRD + tagged(1, 7),
            prefix(audit) + FIRST + tagged(1, 8),
            prefix(id) + FIRST + b"\x08",
        ],
    )
    nothing = {"Cancelled": None, "Placed": None}
    assert values == [
        {**nothing, "Placed": {"id": 5}},
        {**nothing, "Cancelled": {"why": "late"}},
        {**nothing, "Placed": {"id": 6}},
        None,
        {**nothing, "Placed": {"id": 0}},
        None,
        None,
        None,
    ]
    assert errors == [None] * 5 + [
        f"the value is a shop.Refunded of schema {id}, none of shop.Cancelled, shop.Placed",
        f"the value is a audit.Placed of schema {audit}, none of shop.Cancelled, shop.Placed",
        "id: the bytes end within a number",
    ]


def test_messages_of_a_file_are_decoded_by_the_registry(registry: SchemaRegistry, tmp_path: Path) -> None:
    id, _ = registry.add("any", PROTO, "PROTOBUF")
    path = tmp_path / "events.proto"
    path.write_text(PROTO)
    source = tm.Protobuf(registry.url, schema=str(path), message=["Placed", "Refunded"])
    values, _ = decoded(source, [prefix(id) + THIRD + tagged(1, 5)])
    assert values == [{"Placed": None, "Refunded": {"id": 5}}]
    assert Decoders.of(source, None, ["events"]).in_bulk


def test_messages_that_are_no_fields_are_refused(registry: SchemaRegistry) -> None:
    registry.add("events-value", PROTO, "PROTOBUF")
    said = refused(tm.Protobuf(registry.url, message=["Placed", "shop.Placed"]))
    assert said == "Protobuf(message=[...]) names shop.Placed twice; leave it out once"
    assert "has no messages Nothing, but" in refused(tm.Protobuf(registry.url, message=["Placed", "Nothing"]))
    registry.add("a", 'syntax = "proto3"; package a.b; message T { int64 id = 1; }', "PROTOBUF")
    registry.add("b", 'syntax = "proto3"; package a_b; message T { int64 id = 1; }', "PROTOBUF")
    said = refused(tm.Protobuf(registry.url, message=["a.b.T", "a_b.T"], subject=["a", "b"]))
    assert said.startswith("Protobuf(message=[...]) can't be used: a value of several messages has two fields a_b_t")


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (tm.Avro, {"subject": ["a"]}, "Avro(subject=...) must be a name, or a list of at least two names"),
        (tm.Avro, {"subject": ["a", ""]}, "Avro(subject=...) must be a name, or a list of at least two names"),
        (tm.Avro, {"subject": 5}, "Avro(subject=...) must be a name, or a list of at least two names"),
        (tm.Avro, {"subject": ["a", "a"]}, "Avro(subject=...) lists a name twice"),
        (tm.Avro, {"subject": ["a", "b"], "schema": '"int"'}, "schema= and a list of subjects are both given"),
        (tm.Protobuf, {"message": ["a"]}, "Protobuf(message=...) must be a name, or a list of at least two names"),
        (tm.Protobuf, {"message": ["a", "a"]}, "Protobuf(message=...) lists a name twice"),
        (tm.Protobuf, {"subject": ["a", "b"]}, "a list of subjects needs a list of messages"),
        (tm.Protobuf, {"subject": ["a", "b"], "message": "a"}, "a list of subjects needs a list of messages"),
        (tm.Protobuf, {"message": ["a", "b"], "registry": None, "schema": __file__}, "several messages need registry="),
        (tm.Protobuf, {"subject": ["a", "b"], "message": ["a", "b"], "schema": __file__}, "and no schema="),
    ],
)
def test_lists_that_can_not_be_right_are_refused(kind: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as error:
        kind(**{"registry": "http://r", **options})
    assert said in str(error.value)


@pytest.mark.parametrize(
    "several", [tm.Avro("http://r", subject=["a", "b"]), tm.Protobuf("http://r", message=["a", "b"])]
)
def test_a_producer_writes_one_type(several: tm.Avro | tm.Protobuf) -> None:
    with pytest.raises(BadInput, match=r"Producer\(value=(Avro|Protobuf)\(...\)\) has a list of types"):
        FormattedRecords.of(None, several, patience=0)


@pytest.mark.parametrize(
    "several", [tm.Avro("http://r", subject=["a", "b"]), tm.Protobuf("http://r", message=["a", "b"])]
)
def test_the_schemas_of_several_types_are_not_followed(several: tm.Avro | tm.Protobuf) -> None:
    with pytest.raises(BadInput, match="table t: evolve='follow' follows the schema of one type"):
        check_follows("t", several)


def test_lists_are_compared_by_their_names() -> None:
    """Formats are keys of dictionaries."""
    assert hash(tm.Avro("http://r", subject=["a", "b"])) == hash(tm.Avro("http://r", subject=("a", "b")))
    assert pa.types.is_struct(Decoders.of(tm.Avro(schema=json.dumps([PLACED, CANCELLED]))).value.type)


def test_fields_that_a_type_does_not_name_have_the_name_of_its_column(registry: SchemaRegistry, ids: list[int]) -> None:
    """Types may have fields of the same name, and those of other types do not count."""
    placed = record("shop.Placed", ("id", "long"), ("note", "int"))
    cancelled = record("shop.Cancelled", ("why", "string"), ("note", "int"))
    added = [registry.add(f"later-{one['name']}", json.dumps(one))[0] for one in (placed, cancelled)]
    contents = [
        framed(added[0], placed, {"id": 1, "note": 1}),
        framed(added[1], cancelled, {"why": "late", "note": 1}),
        framed(ids[0], PLACED, {"id": 1}),
    ]
    decoder = Decoders.of(tm.Avro(registry.url, subject=SUBJECTS), None, ["events"], finds=True).value
    found = {name: rows.tolist() for name, rows in decoder(contents).unnamed.items()}
    assert found == {"Placed.note": [0], "Cancelled.note": [1]}


def test_fields_of_protobuf_that_a_type_does_not_name_have_the_name_of_its_column(registry: SchemaRegistry) -> None:
    subject = "events-value"
    registry.add(subject, PROTO, "PROTOBUF")
    source = tm.Protobuf(registry.url, subject=subject, message=["Placed", "Refunded"])
    decoder = Decoders.of(source, None, ["events"], finds=True).value
    text = PROTO.replace("Refunded {", "Refunded { int32 n = 2;")
    later, _ = registry.add("later", text, "PROTOBUF")
    decoded = decoder([prefix(later) + THIRD + b"\x08\x01", prefix(later) + FIRST + b"\x08\x01"])
    assert {name: rows.tolist() for name, rows in decoded.unnamed.items()} == {"Refunded.n": [0]}
