"""Values are written as Protobuf if they fit the message; what does not fit is refused by the name of its field."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.errors import BadInput
from tallymark.formats.fields import parse
from tallymark.formats.protobuf.columns import arrow_type
from tallymark.formats.protobuf.decoder import decode
from tallymark.formats.protobuf.encoder import ProtobufEncoder
from tallymark.formats.protobuf.from_json import JsonEncoder
from tallymark.formats.protobuf.projection import projection
from tallymark.operate.shown import plain
from tests.support.protobuf_schemas import Json, Schema, Schemas, fill, has_column, in_column, schema_of

NOON = datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)


def decoded(schema: Schema, *bodies: bytes) -> list[Any]:
    message = schema.message()
    found = decode(projection(message, message), list(bodies))
    assert not found.errors
    values: list[Any] = found.values.to_pylist()
    return values


def has_columns(schema: Schema) -> bool:
    return any(map(has_column, schema.official().DESCRIPTOR.fields))


def canonical(value: Any) -> str:
    """A column's value as text, in which the order of JSON's names does not matter."""
    if isinstance(value, dict):
        return str({name: canonical(item) for name, item in value.items()})
    if isinstance(value, (list, tuple)):
        return str(list(map(canonical, value)))
    # JSON has no negative zero.
    return canonical(without_order(value.value)) if isinstance(value, Json) else repr(value)


def without_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_order(value[name]) for name in sorted(value)}
    return list(map(without_order, value)) if isinstance(value, list) else value or repr(value).lstrip("-")


@given(st.integers(0, 2**32))
@settings(deadline=None)
def test_what_was_decoded_is_written_as_the_same_message(seed: int) -> None:
    chance = Random(seed)
    schema = schema_of(Schemas(chance).file())
    if not has_columns(schema):
        return
    official = schema.official()
    encode, encode_json = ProtobufEncoder(schema.message()), JsonEncoder(schema.message())
    kind = arrow_type(schema.message())
    for _ in range(5):
        message = official()
        fill(chance, message)
        (value,) = decoded(schema, message.SerializeToString())
        body = encode(value)
        assert repr(decoded(schema, body)) == repr([value])
        again = official.FromString(body)
        assert canonical(in_column(again)) == canonical(in_column(message))
        line = json.dumps(plain(value, kind), ensure_ascii=False).encode()
        assert encode_json(parse(line)) == body, "JSON as it is shown"


def as_python(message: Any) -> dict[str, Any]:
    """An official message as a dict of what was set, for messages of plain types."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        of = field.message_type
        if of is not None and of.GetOptions().map_entry:
            inner = of.fields_by_name["value"].message_type
            found[field.name] = {key: as_python(value[key]) if inner else value[key] for key in value}
        elif of is not None:
            found[field.name] = [as_python(one) for one in value] if field.is_repeated else as_python(value)
        else:
            found[field.name] = list(value) if field.is_repeated else value
    return found


@given(st.integers(0, 2**32))
@settings(deadline=None)
def test_the_official_runtime_reads_what_was_written(seed: int) -> None:
    chance = Random(seed)
    file = Schemas(chance).file()
    for message in file.message_type:
        # Their values are not dicts of their fields.
        for field in [*message.field, *(part for entry in message.nested_type for part in entry.field)]:
            if field.type_name.startswith(".google."):
                field.type_name = ".google.protobuf.Any"
    schema = schema_of(file)
    encode = ProtobufEncoder(schema.message())
    for _ in range(5):
        message = schema.official()()
        fill(chance, message)
        body = encode(as_python(message))
        read = schema.official().FromString(body)
        assert read.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True)
        if ".google." not in str(file) and "Entry" not in str(file):
            assert body == message.SerializeToString(deterministic=True)


WELL_KNOWN = Schema.of("""message M {
  google.protobuf.Timestamp at = 1; google.protobuf.Struct meta = 2; google.protobuf.Value any = 3;
  google.protobuf.ListValue list = 4; google.protobuf.FieldMask mask = 5; google.protobuf.Int64Value whole = 6;
  google.protobuf.StringValue text = 7; google.protobuf.Duration took = 8; google.protobuf.Empty empty = 9; }""")


@pytest.mark.parametrize(
    ("value", "official"),
    [
        ({"at": NOON}, {"at": "2026-01-31T12:00:00.123456Z"}),
        ({"at": NOON.astimezone(timezone(timedelta(hours=-5)))}, {"at": "2026-01-31T12:00:00.123456Z"}),
        ({"at": datetime(1, 1, 1, tzinfo=UTC)}, {"at": "0001-01-01T00:00:00Z"}),
        ({"at": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)}, {"at": "1969-12-31T23:59:59.999999Z"}),
        ({"meta": '{"a":[1,null,{"b":"x"}],"c":true}'}, {"meta": {"a": [1.0, None, {"b": "x"}], "c": True}}),
        ({"meta": {"a": 1}}, {"meta": {"a": 1.0}}),
        ({"meta": {}}, {"meta": {}}),
        ({"any": "null"}, {"any": None}),
        ({"any": '"x"'}, {"any": "x"}),
        ({"any": [1.5]}, {"any": [1.5]}),
        ({"any": 2**60}, {"any": float(2**60)}),
        ({"any": "1152921504606847000"}, {"any": float(2**60)}),
        ({"list": "[]"}, {"list": []}),
        ({"mask": "a,b"}, {"mask": "a,b"}),
        ({"whole": 0}, {"whole": "0"}),
        ({"text": ""}, {"text": ""}),
        ({"took": {"seconds": 3, "nanos": 5}}, {"took": "3.000000005s"}),
        ({"empty": {}}, {"empty": {}}),
        ({"at": None, "meta": None, "any": None, "whole": None}, {}),
    ],
)
def test_well_known_types(value: Any, official: Any) -> None:
    body = ProtobufEncoder(WELL_KNOWN.message())(value)
    assert json_format.MessageToDict(WELL_KNOWN.official().FromString(body)) == official


PLAIN = Schema.of("""enum E { option allow_alias = true; NONE = 0; ONE = 1; UNO = 1; }
message M {
  int32 n = 1; optional int32 maybe = 2; uint64 big = 3; float real = 4; bool flag = 5; string text = 6; bytes raw = 7;
  E kind = 8; repeated int32 many = 9; map<int64, M> by_id = 10; oneof one { string card = 11; M inner = 12; }
  map<bool, string> by_flag = 13; repeated M items = 14; sint32 signed = 15; repeated string names = 16; }""")


@pytest.mark.parametrize(
    ("value", "official"),
    [
        ({}, {}),
        ({"n": 0, "maybe": 0}, {"maybe": 0}),
        ({"n": -1, "signed": -(2**31)}, {"n": -1, "signed": -(2**31)}),
        ({"big": Decimal(2**64 - 1)}, {"big": 2**64 - 1}),
        ({"big": Decimal("1E+3")}, {"big": 1000}),
        ({"real": 1}, {"real": 1.0}),
        ({"raw": bytearray(b"\0")}, {"raw": b"\0"}),
        ({"kind": "UNO"}, {"kind": 1}),
        ({"kind": "7"}, {"kind": 7}),
        ({"kind": 1}, {"kind": 1}),
        ({"many": (1, 0), "names": ["", "a"]}, {"many": [1, 0], "names": ["", "a"]}),
        ({"many": []}, {}),
        ({"by_id": {5: {"n": 1}}}, {"by_id": {5: {"n": 1}}}),
        ({"by_id": [("5", {"n": 1})], "by_flag": [("true", "x")]}, {"by_id": {5: {"n": 1}}, "by_flag": {True: "x"}}),
        ({"card": None, "inner": {"inner": {}}}, {"inner": {"inner": {}}}),
        ({"items": [{}, {"n": 1}]}, {"items": [{}, {"n": 1}]}),
    ],
)
def test_plain_types(value: Any, official: Any) -> None:
    body = ProtobufEncoder(PLAIN.message())(value)
    assert as_python(PLAIN.official().FromString(body)) == official


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (5, "5 does not fit message M; write a dict"),
        ({"x": 1, "n": 2}, "M has no field x"),
        ({"n": None}, "n: None does not fit int32"),
        ({"n": True}, "n: True does not fit int32"),
        ({"n": 2**31}, "n: 2147483648 does not fit int32"),
        ({"n": 1.0}, "n: 1.0 does not fit int32"),
        ({"big": -1}, "big: -1 does not fit uint64"),
        ({"big": Decimal("0.5")}, "big: Decimal('0.5') does not fit uint64"),
        ({"big": Decimal("1E+999999999")}, "big: Decimal('1E+999999999') does not fit uint64"),
        ({"big": Decimal("nan")}, "big: Decimal('NaN') does not fit uint64"),
        ({"real": 1e39}, "real: 1e+39 does not fit float"),
        ({"real": 10**400}, f"real: 1{59 * '0'}... does not fit float"),
        ({"flag": 1}, "flag: 1 does not fit bool"),
        ({"text": b"x"}, "text: b'x' does not fit string"),
        ({"text": "\ud83d"}, "text: '\\ud83d' does not fit string: it has half of a surrogate pair"),
        ({"raw": "x"}, "raw: 'x' does not fit bytes; encode text"),
        ({"kind": "TWO"}, "kind: 'TWO' does not fit an enum of NONE, ONE, UNO"),
        ({"kind": 2**31}, "kind: 2147483648 does not fit an enum of NONE, ONE, UNO"),
        ({"many": 5}, "many: 5 does not fit a repeated field; write a list"),
        ({"many": [1, None]}, "many[1]: None does not fit int32"),
        ({"items": [{}, {"text": 5}]}, "items[1].text: 5 does not fit string"),
        ({"by_id": {"x": {}}}, "by_id['x']: 'x' does not fit int64"),
        ({"by_id": {1: {"n": "x"}}}, "by_id[1].n: 'x' does not fit int32"),
        ({"by_id": {1: {}, "1": {}}}, "by_id['1']: this key is there twice"),
        ({"by_id": [1]}, "by_id: [1] does not fit a map; write a dict"),
        ({"by_flag": {"yes": ""}}, "by_flag['yes']: 'yes' does not fit bool"),
        ({"card": "x", "inner": {}}, "card and inner are set, but of oneof one only one can be"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_path(value: Any, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        ProtobufEncoder(PLAIN.message())(value)
    assert str(refused.value) == f"the value does not fit the Protobuf message M: {said}"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"at": NOON.replace(tzinfo=None)}, "Timestamp; add its time zone, such as tzinfo=timezone.utc"),
        ({"at": "2026-01-31"}, "at: '2026-01-31' does not fit google.protobuf.Timestamp; write a datetime"),
        ({"at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))}, "which ends with the years 1 and 9999 in UTC"),
        ({"meta": "[]"}, "meta: an array does not fit google.protobuf.Struct, which is a JSON object"),
        ({"meta": "{"}, "meta: '{' does not fit JSON: Expecting property name"),
        ({"meta": {"a": float("nan")}}, "meta: {'a': nan} does not fit JSON: Out of range float values"),
        ({"meta": {"a": NOON}}, "is not JSON serializable"),
        ({"meta": {"a": [1, 2**53 + 1]}}, "meta.a[1]: 9007199254740993 does not fit a number of google.protobuf.Value"),
        ({"meta": '{"a": 1e999}'}, "meta.a: 1e999 does not fit a number of google.protobuf.Value, which is a double"),
        ({"meta": '{"a": ' + "9" * 5000 + "}"}, "which is a double"),
        ({"any": '"\\ud83d"'}, "string: it has half of a surrogate pair"),
        ({"list": "{}"}, "list: an object does not fit google.protobuf.ListValue, which is a JSON array"),
        ({"mask": ["a"]}, "mask: ['a'] does not fit google.protobuf.FieldMask; write its paths with commas"),
        ({"whole": "5"}, "whole: '5' does not fit int64"),
        ({"list": "[" * 51 + "]" * 51}, "messages are nested more than 100 levels deep"),
        ({"list": "[" * 100_000 + "]" * 100_000}, "JSON: it is nested too deeply"),
    ],
)
def test_well_known_types_that_do_not_fit(value: Any, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        ProtobufEncoder(WELL_KNOWN.message())(value)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 300


def test_messages_may_contain_themselves_as_deep_as_the_official_runtime_reads_them() -> None:
    encode = ProtobufEncoder(PLAIN.message())
    value: dict[str, Any] = {"n": 1}
    for _ in range(100):
        value = {"inner": value}
    assert PLAIN.official().FromString(encode(value))
    with pytest.raises(BadInput, match="messages are nested more than 100 levels deep"):
        encode({"inner": value})
    value["inner"] = value
    with pytest.raises(BadInput, match="messages are nested more than 100 levels deep"):
        encode(value)
    lists = "[" * 50 + "]" * 50
    assert WELL_KNOWN.official().FromString(ProtobufEncoder(WELL_KNOWN.message())({"list": lists}))


def test_proto2_has_required_fields_defaults_and_groups() -> None:
    schema = Schema.of(
        "message M { required int32 n = 1; optional int32 seven = 2 [default = 7]; optional group G = 3 "
        "{ optional int32 a = 1; } repeated int32 many = 4; }",
        "proto2",
    )
    encode = ProtobufEncoder(schema.message())
    value = {"n": 0, "seven": 0, "g": {"a": 5}, "many": [1, 2]}
    assert as_python(schema.official().FromString(encode(value))) == value
    assert b"\x20\x01\x20\x02" in encode(value), "proto2 does not pack"
    for missing in ({}, {"n": None}):
        with pytest.raises(BadInput, match="required field n of M is missing"):
            encode(missing)
    assert decoded(schema, encode({"n": 1}))[0]["seven"] == 7


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"n": "5"}', "n: '5' does not fit int32"),
        ('{"n": 1.5}', "n: 1.5 does not fit int32"),
        ('{"n": null}', "n: null does not fit int32"),
        ('{"big": 1.5}', "big: 1.5 does not fit uint64"),
        ('{"big": "18446744073709551616"}', "big: '18446744073709551616' does not fit uint64"),
        ('{"real": "NaN"}', "real: 'NaN' does not fit float"),
        ('{"raw": "x"}', "raw: 'x' does not fit bytes"),
        ('{"kind": "TWO"}', "kind: 'TWO' does not fit an enum of NONE, ONE, UNO"),
        ('{"kind": 1.0}', "kind: 1.0 does not fit enum"),
        ('{"text": 5}', "text: 5 does not fit string"),
        ('{"items": [{}, 5]}', "items[1]: 5 does not fit message M; write an object"),
        ('{"items": {}}', "items: an object does not fit a repeated field; write an array"),
        ('{"by_id": {"x": {}}}', "by_id['x']: 'x' does not fit int64"),
        ("[]", "an array does not fit message M; write an object"),
    ],
)
def test_json_that_does_not_fit(line: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        JsonEncoder(PLAIN.message())(parse(line.encode()))
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('{"at": "2026-01-31T14:00:00.123456+02:00"}', {"at": NOON}),
        ('{"meta": {"a": [1, "x"]}}', {"meta": {"a": [1, "x"]}}),
        ('{"meta": "{\\"a\\":1}", "any": 5}', {"meta": {"a": 1}, "any": 5}),
        ('{"any": "\\"x\\""}', {"any": '"x"'}),
        ('{"mask": "a,b", "text": "x", "whole": 5}', {"mask": "a,b", "text": "x", "whole": 5}),
    ],
)
def test_json_of_well_known_types(line: str, value: Any) -> None:
    message = WELL_KNOWN.message()
    assert JsonEncoder(message)(parse(line.encode())) == ProtobufEncoder(message)(value)


@pytest.mark.parametrize("line", ['{"mask": 5}', '{"at": 5}', '{"meta": 5}', '{"text": 5}', '{"any": "x"}'])
def test_json_of_well_known_types_that_does_not_fit(line: str) -> None:
    with pytest.raises(BadInput, match="does not fit"):
        JsonEncoder(WELL_KNOWN.message())(parse(line.encode()))


def test_defaults_are_not_written_without_presence() -> None:
    encode = ProtobufEncoder(PLAIN.message())
    nothing = {
        "n": 0,
        "big": Decimal(0),
        "real": 0.0,
        "flag": False,
        "text": "",
        "raw": b"",
        "kind": "NONE",
        "many": [],
    }
    assert encode(nothing) == b""
    assert encode({"maybe": 0}) == b"\x10\0"
    assert encode({"real": -0.0}) == b"\x25\0\0\0\x80"
    assert encode({"text": "\0"}) == b"\x32\1\0"
