"""JSON is written as Avro by a schema, and what is shown of a decoded record is written as the same record."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.errors import BadInput
from tallymark.formats.avro.decoder import decode
from tallymark.formats.avro.from_json import JsonEncoder
from tallymark.formats.avro.projection import projection
from tallymark.formats.avro.schema import parse as parse_schema
from tallymark.formats.fields import parse
from tallymark.operate.shown import plain
from tests.support.avro_schemas import Schemas, encoded, text_of, value_of


def logical(kind: str, what: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": what, **more}


def read(schema: Any, value: bytes) -> Any:
    """Write JSON, and return what a decoder returns."""
    parsed = parse_schema(text_of(schema))
    decoded = decode(projection(parsed, parsed), [JsonEncoder(text_of(schema))(parse(value))])
    assert not decoded.errors
    return decoded.values.to_pylist()[0]


@pytest.mark.parametrize(
    ("schema", "value", "shown"),
    [
        ("long", "-9223372036854775808", "-9223372036854775808"),
        ("double", "1", "1.0"),
        ("double", '"nan"', '"nan"'),
        ("float", '"-inf"', '"-inf"'),
        ("float", "16777217.0000001", "16777218.0"),
        ("string", '"\\u00fc"', '"ü"'),
        ("bytes", '"/wA="', '"/wA="'),
        ({"type": "map", "values": "int"}, '{"a": 1, "b": 2, "a": 3}', '{"a": 3, "b": 2}'),
        ({"type": "array", "items": "int"}, "[]", "[]"),
        (["null", "int"], "null", "null"),
        (["string"], '"x"', '"x"'),
        (["null", "int", "string"], '{"string": "x"}', '{"int": null, "string": "x"}'),
        (["null", "int", "string"], "null", "null"),
        (logical("bytes", "decimal", precision=10, scale=2), "1.50", '"1.50"'),
        (logical("bytes", "decimal", precision=10, scale=2), '"-1.5"', '"-1.50"'),
        (logical("int", "date"), '"2026-01-31"', '"2026-01-31"'),
        (logical("int", "time-millis"), '"12:30:00.5"', '"12:30:00.500"'),
        (logical("long", "timestamp-micros"), '"2026-01-31T12:30:00.1+02:00"', '"2026-01-31T10:30:00.100000+00:00"'),
        (logical("long", "timestamp-millis"), '"2026-01-31"', '"2026-01-31T00:00:00+00:00"'),
        (logical("long", "local-timestamp-micros"), '"2026-01-31T12:30"', '"2026-01-31T12:30:00"'),
        (logical("fixed", "duration", name="D", size=12), '{"millis": 3, "months": 1, "days": 2}', None),
    ],
)
def test_json_is_written_as_it_is_shown(schema: Any, value: str, shown: str | None) -> None:
    found = read(schema, value.encode())
    kind = projection(parse_schema(text_of(schema)), parse_schema(text_of(schema))).type
    assert json.dumps(plain(pa.scalar(found, kind).as_py(), kind), ensure_ascii=False) == (
        shown or '{"months": 1, "days": 2, "millis": 3}'
    )


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ("long", "1.0", "1.0 does not fit long"),
        ("long", "9223372036854775808", "9223372036854775808 does not fit long"),
        ("int", '"1"', "'1' does not fit int"),
        ("int", "null", "null does not fit int"),
        ("string", "5", "5 does not fit string"),
        ("string", "true", "true does not fit string"),
        ("string", '"\\ud83d"', "'\\ud83d' does not fit string: it has half of a surrogate pair"),
        ("boolean", "1", "1 does not fit boolean"),
        ("double", "1e999", "1e999 does not fit double"),
        ("double", '"NaN"', "'NaN' does not fit double"),
        ("bytes", '"x"', "'x' does not fit bytes"),
        ({"type": "fixed", "name": "F", "size": 2}, '"/w=="', "'/w==' does not fit fixed F, which has 2 bytes"),
        ({"type": "array", "items": "int"}, "{}", "an object does not fit array; write an array"),
        ({"type": "array", "items": "int"}, "[1, []]", "[1]: an array does not fit int"),
        ({"type": "map", "values": "int"}, "[]", "an array does not fit map; write an object"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, '"B"', "'B' does not fit enum E: A"),
        (logical("bytes", "decimal", precision=10, scale=2), "1.005", "1.005 does not fit decimal(10,2)"),
        (logical("bytes", "decimal", precision=10, scale=2), '"x"', "'x' does not fit decimal(10,2)"),
        (logical("bytes", "decimal", precision=4, scale=2), "1e999", "1e999 does not fit decimal(4,2)"),
        (logical("int", "date"), '"2026-02-31"', "'2026-02-31' does not fit date"),
        (logical("int", "time-millis"), '"noon"', "'noon' does not fit time-millis"),
        (
            ["null", "int", "string"],
            "5",
            '5 does not fit null or int or string; write an object with the name of one, such as {"int": ...}',
        ),
        (["int", "string"], '{"int": "x"}', "int: 'x' does not fit int"),
        (logical("fixed", "duration", name="D", size=12), '{"days": 2}', "an object does not fit duration, a dict of"),
    ],
)
def test_json_that_does_not_fit_is_refused(schema: Any, value: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        JsonEncoder(text_of(schema))(parse(value.encode()))
    assert str(refused.value).startswith(said)


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "items", "type": {"type": "array", "items": ["null", "Order"]}, "default": []},
    ],
}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{}", "field id of Order is missing, and has no default"),
        ('{"id": 1, "note": 2}', "Order has no field note"),
        ('{"id": 1, "items": [null, {"id": "x"}]}', "items[1].id: 'x' does not fit long"),
        ("[]", "an array does not fit record Order; write an object"),
    ],
)
def test_the_field_is_named(value: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        JsonEncoder(text_of(ORDER))(parse(value.encode()))
    assert str(refused.value) == said


def test_a_type_may_contain_itself() -> None:
    encode = JsonEncoder(text_of(ORDER))
    assert encode(parse(b'{"id": 1, "items": [null, {"id": 2}]}')) == b"\2\4\0\2\4\0\0"


@given(st.randoms(use_true_random=True))
@settings(max_examples=150)
def test_what_is_shown_is_written_again(random: Random) -> None:
    schema = Schemas(random).record()
    parsed = parse_schema(text_of(schema))
    steps = projection(parsed, parsed)
    encode = JsonEncoder(text_of(schema))
    for value in decode(steps, [encoded(random, schema, value_of(random, schema)) for _ in range(5)]).values:
        if value.is_valid:
            line = json.dumps(plain(value.as_py(), steps.type), ensure_ascii=False).encode()
            (again,) = decode(steps, [encode(parse(line))]).values
            assert repr(again.as_py()) == repr(value.as_py())
