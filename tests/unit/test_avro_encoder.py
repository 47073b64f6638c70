"""Values are written as Avro if they fit the schema; what does not fit is refused by the name of its field."""

from __future__ import annotations

import io
import json
import struct
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import pytest
from fastavro import parse_schema, schemaless_reader
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.errors import BadInput
from tallymark.formats.avro.decoder import decode
from tallymark.formats.avro.encoder import AvroEncoder
from tallymark.formats.avro.from_json import JsonEncoder
from tallymark.formats.avro.projection import projection
from tallymark.formats.avro.schema import parse
from tests.support.avro_schemas import Schemas, encoded, kind_of, logical_of, text_of, value_of, varint

MONEY = '{"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}'
TAX = '{"type": "record", "name": "Tax", "namespace": "shop", "fields": [{"name": "rate", "type": "Money"}]}'
ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [{"name": "price", "type": {"type": "bytes", "logicalType": "decimal"}}],
}
ITEM["fields"][0]["type"] |= {"precision": 10, "scale": 2}  # type: ignore[index]
SALE = '{"type": "record", "name": "shop.Sale", "fields": [{"name": "tax", "type": "Tax"}]}'
NOON = datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)


def logical(kind: str, what: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": what, **more}


def written(schema: Any, value: Any) -> Any:
    """Write a value, and read it with fastavro."""
    content = io.BytesIO(AvroEncoder(json.dumps(schema))(value))
    back = schemaless_reader(content, parse_schema(schema), None)
    assert not content.read(), "nothing follows the value"
    return back


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("null", None),
        ("boolean", True),
        ("int", -(2**31)),
        ("int", 2**31 - 1),
        ("long", -(2**63)),
        ("float", 1.5),
        ("float", float("inf")),
        ("double", 1e300),
        ("string", "ü\0"),
        ("string", "x" * 63),
        ("string", "x" * 64),
        ("bytes", b"\0\xff"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        ({"type": "array", "items": "long"}, [1, 2]),
        ({"type": "map", "values": ["null", "long"]}, {"a": 1, "b": None}),
        (["null", "string"], None),
        (["long", "string", "double"], 1.5),
        (["int", "long"], 2**40),
        (logical("bytes", "decimal", precision=10, scale=2), Decimal("-12345678.90")),
        (logical("fixed", "decimal", precision=4, scale=1, name="D", size=2), Decimal("-999.9")),
        (logical("bytes", "decimal", precision=3, scale=0), Decimal("1E+2")),
        (logical("int", "date"), date(1, 1, 1)),
        (logical("int", "time-millis"), time(23, 59, 59, 123000)),
        (logical("long", "time-micros"), time(23, 59, 59, 123456)),
        (logical("long", "timestamp-micros"), NOON),
        (logical("long", "timestamp-micros"), datetime(1, 1, 1, tzinfo=UTC)),
        (logical("long", "timestamp-millis"), NOON.replace(microsecond=123000)),
        (logical("long", "timestamp-micros"), NOON.astimezone(timezone(timedelta(hours=2)))),
        (logical("long", "local-timestamp-micros"), NOON.replace(tzinfo=None)),
        (logical("string", "uuid"), UUID(int=5)),
        (logical("string", "something-else"), "x"),
        (logical("long", "date"), 5),
    ],
)
def test_a_value_is_read_as_it_was_written(schema: Any, value: Any) -> None:
    assert written(schema, value) == value


def test_numbers_and_text_stand_for_what_they_mean() -> None:
    assert written("double", 2) == 2.0
    assert written(logical("int", "date"), 1) == date(1970, 1, 2)
    assert written(logical("long", "timestamp-micros"), 1_000_000) == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert written(logical("long", "timestamp-millis"), 10**12).year == 2001
    assert written(logical("string", "uuid"), str(UUID(int=5))) == UUID(int=5)
    assert written("bytes", bytearray(b"x")) == b"x"
    assert written({"type": "array", "items": "int"}, (1, 2)) == [1, 2]


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ("null", 0, "0 does not fit null"),
        ("boolean", 1, "1 does not fit boolean"),
        ("int", 2**31, "2147483648 does not fit int"),
        ("int", -(2**31) - 1, "does not fit int"),
        ("int", 1.0, "1.0 does not fit int"),
        ("int", True, "True does not fit int"),
        ("int", "1", "'1' does not fit int"),
        ("long", 2**63, "does not fit long"),
        ("long", Decimal(1), r"Decimal\('1'\) does not fit long"),
        ("float", 1e39, "1e\\+39 does not fit float"),
        ("float", True, "does not fit float"),
        ("double", 10**400, "10000.*\\.\\.\\. does not fit double"),
        ("double", "1.5", "does not fit double"),
        ("string", b"x", "b'x' does not fit string"),
        ("string", "\ud83d", r"'\\ud83d' does not fit string: it has half of a surrogate pair"),
        ("bytes", "x", "'x' does not fit bytes; encode text"),
        ({"type": "fixed", "name": "F", "size": 2}, b"abc", "b'abc' does not fit fixed F, which has 2 bytes"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "C", "'C' does not fit enum E: A, B"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, ["A"], "does not fit enum E"),
        ({"type": "array", "items": "long"}, "ab", "'ab' does not fit array; write a list"),
        ({"type": "array", "items": "long"}, [1, "x"], r"\[1\]: 'x' does not fit long"),
        ({"type": "map", "values": "long"}, [1], "does not fit map; write a dict"),
        ({"type": "map", "values": "long"}, {"a": "x"}, r"\['a'\]: 'x' does not fit long"),
        ({"type": "map", "values": "long"}, {1: 1}, "1 does not fit the key of a map, which is text"),
        (["null", "string"], 5, "5 does not fit string"),
        (["null", "string", "long"], 1.5, "1.5 does not fit null or string or long"),
        (logical("bytes", "decimal", precision=4, scale=1), Decimal("1.25"), r"does not fit decimal\(4,1\)"),
        (logical("bytes", "decimal", precision=4, scale=1), Decimal(1000), r"does not fit decimal\(4,1\)"),
        (logical("bytes", "decimal", precision=4, scale=1), Decimal("1E+3"), r"does not fit decimal\(4,1\)"),
        (logical("bytes", "decimal", precision=4, scale=1), Decimal("1E+999999999"), r"does not fit decimal\(4,1\)"),
        (logical("bytes", "decimal", precision=4, scale=1), Decimal("NaN"), r"does not fit decimal\(4,1\)"),
        (logical("bytes", "decimal", precision=4, scale=1), 1.5, r"does not fit decimal\(4,1\); write a Decimal"),
        (logical("int", "date"), NOON, r"does not fit date, which has no time of day; write value.date\(\)"),
        (logical("int", "date"), "2026-01-31", "'2026-01-31' does not fit date"),
        (logical("long", "time-micros"), NOON, "does not fit time-micros"),
        (logical("long", "timestamp-micros"), NOON.replace(tzinfo=None), "timestamp-micros; add its time zone"),
        (logical("long", "timestamp-millis"), date(2026, 1, 31), "does not fit timestamp-millis"),
        (logical("long", "local-timestamp-micros"), NOON, "local-timestamp-micros, which has no time zone"),
        (logical("string", "uuid"), "x", "'x' does not fit uuid"),
        (logical("string", "uuid"), 5, "5 does not fit uuid"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(schema: Any, value: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        AvroEncoder(json.dumps(schema))(value)


ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "items", "type": {"type": "array", "items": ITEM}, "default": []},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "mark", "type": "bytes", "default": "\u00ff"},
        {"name": "sign", "type": {"type": "fixed", "name": "Sign", "size": 1}, "default": "a"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW"]}, "default": "NEW"},
        {"name": "before", "type": ["null", "Order"], "default": None},
    ],
}


def test_fields_that_are_missing_have_their_defaults() -> None:
    assert written(ORDER, {"id": 1}) == {
        "id": 1,
        "items": [],
        "note": None,
        "mark": b"\xff",
        "sign": b"a",
        "state": "NEW",
        "before": None,
    }


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, "shop.Order: field id of shop.Order is missing, and has no default"),
        ({"id": 1, "notes": "", "x": 1}, "shop.Order: shop.Order has no field notes, x"),
        ({"id": None}, "shop.Order: id: None does not fit long"),
        (
            {"id": 1, "items": [{"price": Decimal(1)}, {"price": 1.5}]},
            r"items\[1\].price: 1.5 does not fit decimal\(10,2",
        ),
        ({"id": 1, "items": [{}]}, r"items\[0\]: field price of shop.Item is missing"),
        ({"id": 1, "before": {"id": 2, "before": {"id": "x"}}}, "before.before.id: 'x' does not fit long"),
        ([1], r"\[1\] does not fit record shop.Order; write a dict"),
        (None, "None does not fit record shop.Order"),
    ],
)
def test_the_field_that_does_not_fit_is_named(value: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        AvroEncoder(json.dumps(ORDER))(value)


def test_a_default_counts_only_if_its_field_is_missing() -> None:
    encode = AvroEncoder(text_of({**ORDER, "fields": [{"name": "id", "type": "long", "default": "x"}]}))
    assert encode({"id": 1}) == b"\2"
    for _ in range(2):
        with pytest.raises(BadInput, match=r"id .* is missing, and its default is not valid: 'x' does not fit long"):
            encode({})


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    value: dict[str, Any] = {"id": 0}
    for _ in range(5_000):
        value = {"id": 1, "before": value}
    with pytest.raises(BadInput, match="nested too deeply"):
        AvroEncoder(json.dumps(ORDER))(value)


@pytest.mark.parametrize(
    ("schema", "value", "content"),
    [
        (SALE, {"tax": {"rate": {"cents": 5}}}, b"\n"),
        ('["null", "shop.Money", "shop.Tax"]', {"rate": {"cents": 5}}, b"\4\n"),
        ('"shop.Money"', {"cents": 5}, b"\n"),
        ('{"type": "array", "items": "shop.Money"}', [{"cents": 5}], b"\2\n\0"),
    ],
)
def test_types_of_references_are_used_by_name(schema: str, value: Any, content: bytes) -> None:
    write = AvroEncoder(schema, [MONEY, TAX])
    assert write(value) == content
    assert write(value) == content


@pytest.mark.parametrize("schema", ['["null", "shop.Money", "shop.Tax"]', '["shop.Tax", "shop.Money", "null"]'])
def test_a_union_of_records_says_what_is_wrong_with_the_one_that_is_meant(schema: str) -> None:
    with pytest.raises(BadInput, match=r"shop\.Money or .*: rate\.cents: 'x' does not fit long"):
        AvroEncoder(schema, [MONEY, TAX])({"rate": {"cents": "x"}})


@pytest.mark.parametrize(
    "schema",
    [
        '{"type": "record"}',
        '{"type": "nothing"}',
        '{"type": "record", "name": "a", "fields": 5}',
        '{"type": "record", "name": "a", "fields": [{"name": "b", "type": "shop.Money"}]}',
        '{"type": "fixed", "name": "D"}',
    ],
)
def test_what_is_no_schema_is_refused(schema: str) -> None:
    with pytest.raises(BadInput, match=r"the schema is not valid Avro: .*; correct it"):
        AvroEncoder(schema)


DURATION = logical("fixed", "duration", name="U", size=12)
NANOS = logical("long", "timestamp-nanos")
WITH_RECORD = ["null", "string", {"type": "record", "name": "shop.Box", "fields": [{"name": "n", "type": "long"}]}]
WITH_MAP = ["string", {"type": "map", "values": ["null", "string"]}]
TWO_BOXES = [
    {"type": "record", "name": "A", "fields": [{"name": "n", "type": "double"}, {"name": "m", "type": "int"}]},
    {"type": "record", "name": "B", "fields": [{"name": "n", "type": "long"}]},
    {"type": "record", "name": "C", "fields": [{"name": "n", "type": "double"}]},
]
TWO_BOXES[0]["fields"][1]["default"] = 0  # type: ignore[index]


@pytest.mark.parametrize(
    ("schema", "value", "content"),
    [
        (logical("int", "time-millis"), "00:00:01.002", varint(1002)),
        (logical("int", "time-millis"), "00:00:01.0029", varint(1002)),
        (logical("long", "time-micros"), "00:00:01", varint(1_000_000)),
        (logical("long", "timestamp-millis"), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), b"\1"),
        (NANOS, datetime(1970, 1, 1, 0, 0, 0, 1, UTC), varint(1000)),
        (NANOS, datetime(1677, 9, 21, 0, 12, 43, 145224, UTC), varint(-(1 << 63))),
        (logical("fixed", "uuid", name="U", size=16), str(UUID(int=5)), UUID(int=5).bytes),
        (logical("fixed", "uuid", name="U", size=16), UUID(int=5), UUID(int=5).bytes),
        (logical("fixed", "uuid", name="U", size=16), b"5" * 16, b"5" * 16),
        (DURATION, {"months": 1, "days": 2, "millis": 3}, b"\1\0\0\0\2\0\0\0\3\0\0\0"),
        (DURATION, b"1" * 12, b"1" * 12),
        (logical("bytes", "decimal", precision=4, scale=1), Decimal("1.500"), b"\2\x0f"),
        (logical("bytes", "decimal", precision=4, scale=1), Decimal("-12.8"), b"\2\x80"),
        (logical("bytes", "decimal", precision=80, scale=2), Decimal(10**77), None),
        ({"type": "map", "values": "long"}, [("a", 1), ("b", 2)], b"\4\2a\2\2b\4\0"),
    ],
)
def test_values_of_logical_types_and_maps_are_also_what_decoders_return(
    schema: Any, value: Any, content: bytes | None
) -> None:
    found = AvroEncoder(text_of(schema))(value)
    assert found == content or content is None
    if logical_of(schema) == "decimal":
        assert written(schema, value) == value


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        (logical("int", "time-millis"), "24:00:00", "'24:00:00' does not fit time-millis"),
        (logical("long", "time-micros"), time(1, tzinfo=UTC), "does not fit time-micros, which has no time zone"),
        (NANOS, datetime(9999, 1, 1, tzinfo=UTC), "does not fit timestamp-nanos"),
        (DURATION, {"months": 1}, "does not fit duration, a dict of months, days and millis"),
        (DURATION, {"months": 1, "days": 2, "millis": 1 << 32}, "does not fit duration"),
        (logical("string", "uuid"), UUID(int=5).hex, "does not fit uuid"),
        (["string", "long"], {"string": None, "long": "x"}, "string or long: long: 'x' does not fit long"),
        (["string", "long"], {"string": "x", "long": 1}, "does not fit string or long"),
        (["string", "long"], {"text": "x"}, "{'text': 'x'} does not fit string or long"),
    ],
)
def test_what_decoders_do_not_return_is_refused(schema: Any, value: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        AvroEncoder(text_of(schema))(value)


@pytest.mark.parametrize(
    ("schema", "value", "content"),
    [
        (["double", "long"], 5, b"\2\x0a"),
        (["double", "string"], 5, b"\0" + struct.pack("<d", 5)),
        (["float", "double"], 1.1, b"\2" + struct.pack("<d", 1.1)),
        (["float", "double"], 1.5, b"\0" + struct.pack("<f", 1.5)),
        ([logical("int", "date"), "long"], 5, b"\2\x0a"),
        ([logical("int", "date"), "long"], date(1970, 1, 2), b"\0\2"),
        (TWO_BOXES, {"n": 5}, b"\2\x0a"),
        (TWO_BOXES, {"n": 1.5}, b"\4" + struct.pack("<d", 1.5)),
        (TWO_BOXES, {"n": 5, "m": 1}, b"\0" + struct.pack("<d", 5) + b"\2"),
        (WITH_RECORD, {"n": 5}, b"\4\x0a"),
        (WITH_RECORD, {"Box": {"n": 5}}, b"\4\x0a"),
        (WITH_RECORD, {"string": None, "Box": {"n": 5}}, b"\4\x0a"),
        (WITH_RECORD, {"string": "x", "Box": None}, b"\2\2x"),
        (WITH_RECORD, "x", b"\2\2x"),
        (WITH_RECORD, None, b"\0"),
        (WITH_MAP, {"string": "x", "map": None}, b"\0\2x"),
        (WITH_MAP, {"string": "x"}, b"\2\2\x0cstring\2\2x\0"),
        (["null"], None, b"\0"),
    ],
)
def test_the_branch_of_a_union_that_is_named_or_fits_exactly_is_written(
    schema: Any, value: Any, content: bytes
) -> None:
    assert AvroEncoder(text_of(schema))(value) == content


@pytest.mark.parametrize("encoder", [AvroEncoder, JsonEncoder])
def test_unions_within_unions_are_compiled_once(encoder: Any) -> None:
    """If each level were compiled twice, this would not end."""
    schema: Any = ["null", "long", "string"]
    for _ in range(45):
        schema = ["null", "long", {"type": "array", "items": schema}]
    assert encoder(text_of(schema))(None) == b"\0"


NODES = {
    "type": "record",
    "name": "A",
    "fields": [
        {"name": "next", "type": ["null", "A", {"type": "record", "name": "B", "fields": []}]},
        {"name": "n", "type": "long"},
    ],
}
NODES["fields"][0]["type"][2]["fields"] = [  # type: ignore[index]
    {"name": "next", "type": ["null", "A", "B"]},
    {"name": "n", "type": "string"},
]


@pytest.mark.parametrize("innermost", [{"next": None, "n": "x"}, {"next": None, "n": 1.5}])
def test_branches_that_look_alike_take_no_more_time_at_each_level(innermost: Any) -> None:
    """If each level took twice the time of the level in it, this would not end."""
    value = innermost
    for _ in range(100):
        value = {"next": value, "n": "x"}
    encode, outer = AvroEncoder(text_of(NODES)), {"next": value, "n": 1}
    if innermost["n"] == "x":
        assert encode(outer) == b"\4" * 101 + b"\0" + b"\2x" * 101 + b"\2"
    else:
        with pytest.raises(BadInput, match="does not fit"):
            encode(outer)


@given(st.randoms(use_true_random=True))
@settings(max_examples=150)
def test_what_was_decoded_is_encoded_again(random: Random) -> None:
    schema = Schemas(random).record()
    steps = projection(parse(text_of(schema)), parse(text_of(schema)))
    encode = AvroEncoder(text_of(schema))
    bodies = [encoded(random, schema, value_of(random, schema)) for _ in range(8)]
    for value in decode(steps, bodies).values.to_pylist():
        if value is not None:
            for given_value in (value, alone(schema, value)):
                (again,) = decode(steps, [encode(given_value)]).values.to_pylist()
                assert repr(alone(schema, again)) == repr(alone(schema, value))
            assert repr(decode(steps, [encode(value)]).values.to_pylist()) == repr([value])


@given(st.randoms(use_true_random=True))
@settings(max_examples=100)
def test_fastavro_reads_what_was_encoded(random: Random) -> None:
    schema = Schemas(random, logical=False).record()
    body = encoded(random, schema, value_of(random, schema))
    steps = projection(parse(text_of(schema)), parse(text_of(schema)))
    (value,) = decode(steps, [body]).values.to_pylist()
    ours = io.BytesIO(AvroEncoder(text_of(schema))(value))
    parsed = parse_schema(schema)
    assert repr(schemaless_reader(ours, parsed, None)) == repr(schemaless_reader(io.BytesIO(body), parsed, None))
    assert not ours.read()


def alone(schema: Any, value: Any) -> Any:
    """A value with the branches of unions by themselves, without the structs around them."""
    kind = kind_of(schema)
    if value is None:
        return None
    if kind == "record":
        return {part["name"]: alone(part["type"], value[part["name"]]) for part in schema["fields"]}
    if kind == "array":
        return [alone(schema["items"], item) for item in value]
    if kind == "map":
        entries = value.items() if isinstance(value, dict) else value
        return {key: alone(schema["values"], item) for key, item in entries}
    if kind != "union":
        return value
    others = [branch for branch in schema if branch != "null"]
    if len(others) == 1:
        return alone(others[0], value)
    if not isinstance(value, dict):
        return value
    return next(alone(branch, item) for branch, item in zip(others, value.values(), strict=True) if item is not None)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.decimals()
    | st.datetimes()
    | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "items", "note", "price", "x"]), inner)
    ),
    max_leaves=6,
)
SCHEMAS = ["int", "long", "float", "double", "string", "bytes", "boolean", ["null", "long", "string"], ORDER, ITEM]


@settings(max_examples=50)
@given(st.sampled_from(SCHEMAS), values)
def test_any_value_is_written_or_refused_in_one_sentence(schema: Any, value: Any) -> None:
    try:
        content = AvroEncoder(json.dumps(schema))(value)
    except BadInput:
        return
    back: Any = schemaless_reader(io.BytesIO(content), parse_schema(schema), None)
    if isinstance(value, dict):
        back = {name: back[name] for name in value}
    if schema != "float" and value == value:
        assert back == value
