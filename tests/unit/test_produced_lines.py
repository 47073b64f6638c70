"""Lines of ``tallymark produce`` are records: text, or JSON that is written by the schemas of a registry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tallymark.cli.lines import Line, from_json, from_lines
from tallymark.cli.values import member
from tallymark.errors import BadInput
from tallymark.formats.registry import Schemas
from tallymark.formats.registry_server import Registry
from tallymark.formats.value import Part
from tallymark.operate.json_records import JsonPart, json_part
from tallymark.operate.shown import shown
from tests.support.avro import LATER_ORDER, ORDER, encoded, framed, text
from tests.support.registry import SchemaRegistry

FIRST = {"id": 1, "name": "ü"}
LINE = b'{"id": 1, "name": "\\u00fc"}\n'
ID_HEADER = "__value_schema_id"


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as registry:
        registry.add("other", '"int"')
        registry.add("orders-value", text(ORDER))
        registry.add("orders-key", '"string"')
        yield registry


def part(
    server: SchemaRegistry, part: Part = "value", schema: str | None = None, message: str | None = None
) -> JsonPart:
    found = json_part(Schemas.of(Registry(server.url), patience=0), "orders", part, schema, message)
    assert found is not None
    return found


def both(server: SchemaRegistry, *lines: Any) -> list[Line]:
    return list(from_json([json.dumps(line).encode() for line in lines], part(server), part(server, "key")))


def test_lines_are_values_or_keys_and_values() -> None:
    assert list(from_lines([b"a:1\r\n", b"b"], None)) == [Line(b"a:1"), Line(b"b")]
    assert list(from_lines([b"a:1\n", b"b::"], ":")) == [Line(b"1", b"a"), Line(b":", b"b")]


def test_lines_of_json_are_written_as_avro(server: SchemaRegistry) -> None:
    assert list(from_lines([LINE], None, part(server))) == [Line(framed(2, ORDER, FIRST))]
    assert list(from_lines([b"k\t" + LINE], "\t", part(server))) == [Line(framed(2, ORDER, FIRST), b"k")]


def test_the_latest_schema_is_used_or_the_one_that_is_named(server: SchemaRegistry) -> None:
    server.add("orders-value", text(LATER_ORDER))
    latest, named = part(server), part(server, schema=text(ORDER))
    assert next(from_lines([LINE], None, latest)).value == framed(4, LATER_ORDER, FIRST)
    assert next(from_lines([LINE], None, named)).value == framed(2, ORDER, FIRST)
    with pytest.raises(BadInput, match="does not have the schema of --schema for subject orders-value: register it"):
        part(server, schema='"long"')


def test_keys_and_values_of_json_records_are_written_as_avro(server: SchemaRegistry) -> None:
    key, value = framed(3, "string", "k"), framed(2, ORDER, FIRST)
    assert both(server, {"key": "k", "value": FIRST}, {"value": FIRST, "value_schema": 1, "headers": []}) == [
        Line(value, key, []),
        Line(value, None, []),
    ]


def test_tombstones_and_bytes_stay_what_they_are(server: SchemaRegistry) -> None:
    assert both(server, {"key": None, "value": None}, {"key_base64": "/w==", "value_base64": "AAE="}) == [
        Line(None, None, []),
        Line(b"\0\1", b"\xff", []),
    ]


def test_a_null_with_a_schema_is_not_a_tombstone(server: SchemaRegistry) -> None:
    server.add("orders-value", '["null", "long"]')
    assert both(server, {"value": None, "value_schema": 4}, {"value": None}) == [
        Line(b"\0\0\0\0\4\0", None, []),
        Line(None, None, []),
    ]


def test_an_id_in_a_header_is_replaced(server: SchemaRegistry) -> None:
    body, guid = encoded(ORDER, FIRST), bytes.fromhex(server.guid(2).replace("-", ""))
    (found,) = both(server, {"value": FIRST, "headers": [{"name": ID_HEADER, "value": "old"}, {"name": "a"}]})
    assert found == Line(body, None, [("a", None), (ID_HEADER, b"\1" + guid)])


def test_what_is_shown_is_written_again(server: SchemaRegistry) -> None:
    schemas = Schemas.of(Registry(server.url), patience=0)
    key, value = framed(3, "string", "k"), framed(2, ORDER, FIRST)
    header = b"\1" + bytes.fromhex(server.guid(2).replace("-", ""))
    in_header: Sequence[tuple[str, bytes | None]] = [(ID_HEADER, header)]
    for content, headers in ((value, []), (value[5:], in_header), (None, [])):
        shown_key, shown_value = shown(schemas, key, content, headers)
        line = {**member("key", key, shown_key), **member("value", content, shown_value)}
        line["headers"] = [{"name": name, **member("value", given)} for name, given in headers]
        assert both(server, line) == [Line(content, key, headers)]


def test_without_a_subject_there_is_nothing_to_write_with(server: SchemaRegistry) -> None:
    schemas = Schemas.of(Registry(server.url), patience=0)
    assert json_part(schemas, "unknown", "value") is None
    assert json_part(schemas, "unknown", "value", text(ORDER)) is None


SHOP = """syntax = "proto3"; package shop;
message Order { int64 id = 1; string name = 2; Order parent = 3; }
message Payment { int64 id = 1; string name = 2; bytes raw = 3; }
"""
FRAME = b"\0\0\0\0\4"
ID_AND_NAME = b"\x08\x01\x12\x02" + "ü".encode()


@pytest.mark.parametrize(
    ("kind", "schema", "said"),
    [
        ("AVRO", "{}", "subject orders-value: the schema is not valid Avro"),
        ("PROTOBUF", "{}", "subject orders-value can't be used: schema.proto:1:1"),
    ],
)
def test_a_subject_that_can_not_be_written_is_refused(
    server: SchemaRegistry, kind: str, schema: str, said: str
) -> None:
    server.add("orders-value", schema, kind)
    with pytest.raises(BadInput, match=said):
        part(server)


def test_lines_of_json_are_written_as_protobuf(server: SchemaRegistry) -> None:
    server.add("orders-value", SHOP, "PROTOBUF")
    assert list(from_lines([LINE], None, part(server))) == [Line(FRAME + b"\0" + ID_AND_NAME)]
    assert list(from_lines([LINE], None, part(server, message="Payment"))) == [Line(FRAME + b"\2\2" + ID_AND_NAME)]
    guid = bytes.fromhex(server.guid(4).replace("-", ""))
    given = {"value": FIRST, "value_message": "shop.Payment"}
    in_header = {**given, "headers": [{"name": ID_HEADER, "value": "old"}]}
    assert both(server, given, in_header) == [
        Line(FRAME + b"\2\2" + ID_AND_NAME, None, []),
        Line(ID_AND_NAME, None, [(ID_HEADER, b"\1" + guid + b"\2\2")]),
    ]
    with pytest.raises(BadInput, match=r"line 1, value: parent.id: 'x' does not fit int64"):
        both(server, {"value": {"parent": {"id": "x"}}})
    with pytest.raises(BadInput, match=r"line 1, value: subject orders-value can't be used: it has no messages X, but"):
        both(server, {"value": FIRST, "value_message": "X"})
    with pytest.raises(BadInput, match="line 1 is not a record"):
        both(server, {"value": FIRST, "value_message": 5})


def test_only_protobuf_has_messages(server: SchemaRegistry) -> None:
    with pytest.raises(BadInput, match=r"--message is for Protobuf, but subject orders-value is AVRO; leave it out"):
        part(server, message="Order")


def test_a_proto_file_chooses_the_schema(server: SchemaRegistry, tmp_path: Path) -> None:
    server.add("orders-value", SHOP, "PROTOBUF")
    server.add("orders-value", 'syntax = "proto3"; message Later { int64 id = 1; }', "PROTOBUF")
    file = tmp_path / "shop.proto"
    file.write_text(SHOP)
    assert next(from_lines([LINE], None, part(server, schema=str(file)))).value == FRAME + b"\0" + ID_AND_NAME
    file.write_text(SHOP + " ")
    with pytest.raises(BadInput, match=r"does not have the schema of --schema for subject orders-value: register it"):
        part(server, schema=str(file))


def test_lines_of_json_are_written_as_they_are_behind_the_id_of_a_json_schema(server: SchemaRegistry) -> None:
    server.add("orders-value", '{"type": "object"}', "JSON")
    line = '{ "price": 1.10, "name": "ü", "big": 1e400, "id": 12345678901234567890.5 }'
    body = '{"price":1.10,"name":"ü","big":1e400,"id":12345678901234567890.5}'.encode()
    assert list(from_lines([line.encode()], None, part(server))) == [Line(FRAME + body)]
    assert both(server, {"value": "x", "value_schema": 1}, {"value": None}) == [
        Line(FRAME + b'"x"', None, []),
        Line(None, None, []),
    ]
    with pytest.raises(BadInput, match=r"line 1, value: text without value_schema; write the JSON itself, or the byte"):
        both(server, {"value": "{}"})
    with pytest.raises(BadInput, match=r"line 1, value: the value has text with half of a surrogate pair"):
        both(server, {"value": {"a": "\ud83d"}})
    with pytest.raises(BadInput, match=r"subject orders-value is JSON, which is written without its schema; leave out"):
        part(server, schema="x.json")


@pytest.mark.parametrize(
    ("kind", "text", "content"),
    [
        ("PROTOBUF", SHOP, b"\0" + ID_AND_NAME),
        ("PROTOBUF", SHOP.replace("Order parent = 3;", ""), b"\0" + ID_AND_NAME),
        ("PROTOBUF", SHOP.replace("Order parent = 3;", ""), b"\2\2" + ID_AND_NAME + b"\x1a\1\xff"),
        ("PROTOBUF", SHOP.replace("Order parent = 3;", ""), b"\0\x08"),
        ("JSON", "{}", '{"name":"ü","n":[1.5,null]}'.encode()),
        ("JSON", "{}", b'"x"'),
        ("JSON", "{}", b"null"),
        ("JSON", "{}", b'{"n":12345678901234567890.5}'),
        ("JSON", "{}", b'{"n":1e400}'),
        ("JSON", "{}", b'{"n":NaN}'),
        ("JSON", "{}", b'{"n":1e99999999999999999999}'),
        ("JSON", "{}", b"{"),
    ],
)
def test_what_is_shown_of_other_kinds_is_written_again(
    server: SchemaRegistry, kind: str, text: str, content: bytes
) -> None:
    server.add("orders-value", text, kind)
    value = FRAME + content
    _, found = shown(Schemas.of(Registry(server.url), patience=0), None, value, [])
    assert found is not None
    line = json.loads(json.dumps(member("value", value, found), allow_nan=False))
    assert both(server, line) == [Line(value, None, [])]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"id": 1.5, "name": "x"}', "line 2: id: 1.5 does not fit long"),
        (b'{"id": 1}', "line 2: field name of shop.Order is missing, and has no default"),
        (b'{"id": 1, "name": "x", "nmae": 2}', "line 2: shop.Order has no field nmae"),
        (b"null", "line 2: null does not fit record shop.Order; write an object"),
        (b"", "line 2 is not JSON: Expecting value at column 1"),
        (b'{"id": NaN}', "line 2 is not JSON: NaN is not a number"),
        (b"\xff", "line 2 is not JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b"[" * 100_000, "line 2 is nested too deeply"),
    ],
)
def test_the_line_and_the_field_at_fault_are_named(server: SchemaRegistry, line: bytes, said: str) -> None:
    lines = from_lines([LINE, line], None, part(server))
    next(lines)
    with pytest.raises(BadInput) as refused:
        next(lines)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"value": {"id": "x", "name": ""}}, "line 1, value: id: 'x' does not fit long"),
        ({"key": 7, "value": FIRST}, "line 1, key: 7 does not fit string"),
        ({"value": "{}"}, "line 1, value: '{}' does not fit record shop.Order; write an object"),
        ({"value_base64": "x"}, "line 1 is not a record as tallymark consume --json prints them"),
        ({"headers": [{"value": "x"}]}, "line 1 is not a record as tallymark consume --json prints them"),
        ({"headers": ["x"]}, "line 1 is not a record as tallymark consume --json prints them"),
        ({"timestamp": 7}, "line 1 is not a record as tallymark consume --json prints them"),
        ([], "line 1 is not a record as tallymark consume --json prints them"),
    ],
)
def test_the_part_of_a_record_at_fault_is_named(server: SchemaRegistry, line: Any, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        both(server, line)
    assert str(refused.value) == said


def test_what_was_decoded_is_not_written_as_text() -> None:
    with pytest.raises(
        BadInput, match=r"line 1: the key was decoded with schema 3; to write it .* --registry and regi"
    ):
        list(from_json([b'{"key": "k", "key_schema": 3, "value": "x"}']))
    with pytest.raises(BadInput, match="line 1 is not a record"):
        list(from_json([b'{"value": 7}']))
