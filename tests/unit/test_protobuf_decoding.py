"""Messages are decoded equally at once, one by one, and by the official runtime; dead ones don't disturb others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tallymark.formats import bodies as pieces
from tallymark.formats.avro.cursor import BEFORE, padded
from tallymark.formats.protobuf import values
from tallymark.formats.protobuf.bulk import BulkDecoder
from tallymark.formats.protobuf.columns import arrow_type
from tallymark.formats.protobuf.decoder import decode
from tallymark.formats.protobuf.json_text import number_text
from tallymark.formats.protobuf.program import Program
from tallymark.formats.protobuf.projection import Incompatible, projection
from tallymark.formats.protobuf.schema import SchemaInvalid
from tests.support.protobuf_schemas import Json, Schema, Schemas, corrupted, fill, in_column, schema_of, tagged, varint


def program(writer: str, reader: str | None = None, syntax: str = "proto3") -> Program:
    """The program of the messages M in these files."""
    return projection(Schema.of(writer, syntax).message(), Schema.of(reader or writer, syntax).message())


def one_by_one(steps: Program, bodies: Sequence[bytes]) -> tuple[list[Any], dict[int, str]]:
    """The values, None for dead ones, and the errors."""
    read = values.decoder(steps.root)
    found: list[Any] = []
    errors = {}
    for at, body in enumerate(bodies):
        try:
            found.append(read(body))
        except values.Dead as error:
            found.append(None)
            errors[at] = str(error)
    return pa.array(found, steps.type).to_pylist(), errors


def at_once(steps: Program, bodies: Sequence[bytes]) -> tuple[list[Any], list[bool]]:
    ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
    starts = np.array([0, *ends[:-1]], np.int64)
    content = padded(np.frombuffer(b"".join(bodies), np.uint8))
    found, refused = BulkDecoder(steps)(content, starts + BEFORE, ends + BEFORE)
    found.validate(full=True)
    return found.to_pylist(), refused.tolist()


def check_equal(steps: Program, bodies: Sequence[bytes]) -> tuple[list[Any], dict[int, str], list[bool]]:
    """Check that both decoders agree; returns what they found, and what was refused."""
    found, errors = one_by_one(steps, bodies)
    together, refused = at_once(steps, bodies)
    for at, value in enumerate(together):
        if not refused[at]:
            assert at not in errors, (errors[at], bodies[at].hex())
            assert repr(value) == repr(found[at]), bodies[at].hex()
    return found, errors, refused


def only(steps: Program, body: bytes) -> Any:
    """The value of a message, which both decoders agree about."""
    found, errors, _ = check_equal(steps, [body] * 3)
    assert not errors, errors
    return found[0]


def why_dead(steps: Program, body: bytes) -> str:
    _, errors, refused = check_equal(steps, [body] * 3)
    assert refused == [True] * 3
    return errors[0]


def same(found: Any, official: Any) -> bool:
    if isinstance(official, Json):
        return bool(json.loads(found) == official.value)
    if isinstance(official, dict):
        return found is not None and all(same(found[name], official[name]) for name in official | found)
    if isinstance(official, list):
        if official and isinstance(official[0], tuple):
            found = sorted(found)
        return len(found) == len(official) and all(map(same, found, official))
    if isinstance(official, tuple):
        return bool(found[0] == official[0]) and same(found[1], official[1])
    return repr(found) == repr(official)


@pytest.mark.parametrize("seed", range(60))
def test_random_messages_are_decoded_as_the_official_runtime_does(seed: int) -> None:
    chance = Random(seed)
    schema = schema_of(Schemas(chance).file())
    kind = schema.official()
    steps = projection(schema.message(), schema.message())
    bodies = []
    for _ in range(10):
        message = kind()
        fill(chance, message)
        bodies.append(message.SerializeToString())
    # Two messages one after the other are one, in which they are merged.
    bodies += [first + second for first, second in pairwise(bodies)]
    found, errors, refused = check_equal(steps, bodies)
    assert not errors
    assert not any(refused[:10])
    for value, body in zip(found, bodies, strict=True):
        official = in_column(kind.FromString(body))
        assert same(value, official), f"{value}\n{official}"


@pytest.mark.parametrize("seed", range(60))
def test_other_schemas_and_corrupt_bytes_are_decoded_equally(seed: int) -> None:
    chance = Random(seed)
    schemas = Schemas(chance)
    file = schemas.file()
    writer, reader = schema_of(file), schema_of(schemas.evolved(file))
    try:
        steps = projection(writer.message(), reader.message())
    except Incompatible:
        steps = projection(writer.message(), writer.message())
    good = []
    for _ in range(6):
        message = writer.official()()
        fill(chance, message)
        good.append(message.SerializeToString())
    check_equal(steps, [*good, *(body for one in good for body in corrupted(chance, one))])


ALL_TYPES = """
enum E { NONE = 0; ONE = 1; }
message In { int32 x = 1; }
message M {
  int32 a = 1; sint32 b = 2; sfixed32 c = 3; uint32 d = 4; fixed32 e = 5; int64 f = 6; sint64 g = 7; sfixed64 h = 8;
  uint64 i = 9; fixed64 j = 10; float k = 11; double l = 12; bool m = 13; string n = 14; bytes o = 15; E p = 16;
  In q = 17; repeated int32 r = 18; map<int64, In> s = 19; map<bool, string> t = 20;
  google.protobuf.Timestamp u = 21; google.protobuf.Duration v = 22; google.protobuf.Int64Value w = 23;
  google.protobuf.UInt64Value x = 24; google.protobuf.Struct y = 25; google.protobuf.Any z = 26;
  google.protobuf.FieldMask ab = 27; google.protobuf.Empty ac = 28; repeated google.protobuf.Empty ad = 29;
}
"""


def test_the_columns_of_all_types() -> None:
    kind = arrow_type(Schema.of(ALL_TYPES).message())
    inner = pa.struct([("x", pa.int32())])
    by_type = {
        pa.int32(): "abc",
        pa.int64(): "defghw",
        pa.decimal128(20, 0): "ijx",
        pa.string(): ["n", "p", "y", "ab"],
        pa.list_(pa.field("element", pa.int32())): "r",
        pa.map_(pa.string(), inner): "s",
        pa.map_(pa.string(), pa.string()): "t",
        pa.timestamp("us", tz="UTC"): "u",
        pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())]): "v",
        pa.struct([("type_url", pa.string()), ("value", pa.binary())]): "z",
    }
    others = {"k": pa.float32(), "l": pa.float64(), "m": pa.bool_(), "o": pa.binary(), "q": inner}
    expected = {name: one for one, names in by_type.items() for name in names} | others
    assert {field.name: field.type for field in kind} == expected


def test_what_was_not_written_is_a_default_or_null() -> None:
    steps = program(
        "message M { int32 a = 1; optional int32 b = 2; oneof o { string c = 3; } string d = 4; M2 e = 5; "
        "repeated int32 f = 6; map<string, int32> g = 7; google.protobuf.StringValue h = 8; } "
        "message M2 { int32 x = 1; }"
    )
    nothing: dict[str, Any] = {"a": 0, "b": None, "c": None, "d": "", "e": None, "f": [], "g": [], "h": None}
    assert only(steps, b"") == nothing
    written = tagged(2, 0) + tagged(3, b"") + tagged(5, b"") + tagged(8, b"")
    assert only(steps, written) == {**nothing, "b": 0, "c": "", "e": {"x": 0}, "h": ""}


def test_the_defaults_of_proto2() -> None:
    steps = program(
        "enum E { A = 1; B = -2; } "
        "message M { optional int32 a = 1 [default = -7]; optional string b = 2 [default = 'x'];"
        "optional E c = 3 [default = B]; optional double d = 4 [default = inf]; optional int32 e = 5; required E f = 6;"
        "optional uint64 g = 7 [default = 18446744073709551615]; oneof o { int32 h = 8 [default = 5]; } }",
        syntax="proto2",
    )
    found = {"a": -7, "b": "x", "c": "B", "d": float("inf"), "e": None, "f": None, "g": Decimal(2**64 - 1), "h": None}
    assert only(steps, b"") == found
    assert only(steps, tagged(1, 0) + tagged(2, b"") + tagged(3, 1)) == {**found, "a": 0, "b": "", "c": "A"}


@pytest.mark.parametrize(
    ("writer", "body", "reader", "value"),
    [
        ("int32", tagged(1, 2**64 - 1), "int64", -1),
        ("int32", tagged(1, 2**32 - 1), "int32", -1),
        ("int64", tagged(1, 2**31 - 1), "int32", 2**31 - 1),
        ("uint64", tagged(1, 2**64 - 1), "uint64", Decimal(2**64 - 1)),
        ("fixed32", b"\x0d\xff\xff\xff\xff", "uint64", Decimal(2**32 - 1)),
        ("sint32", tagged(1, 3), "sfixed64", -2),
        ("bool", tagged(1, 300), "int32", 1),
        ("int64", tagged(1, 1 << 40), "bool", True),
        ("uint32", tagged(1, 1), "E", "ONE"),
        ("sint64", tagged(1, 9), "E", "-5"),
        ("E", tagged(1, 7), "E", "7"),
        ("E", tagged(1, 1), "int64", 1),
        ("float", b"\x0d\x00\x00\xc0\x3f", "double", 1.5),
        ("string", tagged(1, b"\xc3\xa9"), "bytes", b"\xc3\xa9"),
        ("bytes", tagged(1, b"\xc3\xa9"), "string", "é"),
        ("int32", tagged(1, 5) + tagged(1, 6), "repeated int32", [5, 6]),
        ("repeated int32", tagged(1, b"\x05\x06"), "int32", 6),
        ("repeated int32", tagged(1, b""), "int32", 0),
        ("map<int32, int64>", tagged(1, tagged(1, 3) + tagged(2, 4)), "map<string, int32>", None),
        ("map<int32, int64>", tagged(1, tagged(1, 3) + tagged(2, 4)), "map<int64, int32>", [("3", 4)]),
        ("map<bool, E>", tagged(1, b""), "map<bool, E>", [("false", "NONE")]),
    ],
)
def test_numbers_are_converted_by_their_value(writer: str, body: bytes, reader: str, value: Any) -> None:
    text = "enum E {{ NONE = 0; ONE = 1; }} message M {{ {} f = 1; }}"
    if value is None:
        with pytest.raises(Incompatible, match="field f: int32 can't be read as string"):
            program(text.format(writer), text.format(reader))
    else:
        assert only(program(text.format(writer), text.format(reader)), body) == {"f": value}


@pytest.mark.parametrize(
    ("writer", "body", "reader"),
    [
        ("int64", tagged(1, 1 << 31), "int32"),
        ("uint32", tagged(1, 1 << 31), "int32"),
        ("int32", tagged(1, 2**64 - 1), "uint32"),
        ("sint64", tagged(1, 1), "uint64"),
        ("uint64", tagged(1, 1 << 63), "int64"),
        ("int64", tagged(1, 1 << 33), "E"),
    ],
)
def test_a_number_that_does_not_fit_is_dead(writer: str, body: bytes, reader: str) -> None:
    text = "enum E {{ NONE = 0; ONE = 1; }} message M {{ {} f = 1; }}"
    assert "does not fit" in why_dead(program(text.format(writer), text.format(reader)), body)


@pytest.mark.parametrize(
    ("writer", "reader", "why"),
    [
        ("double", "float", "field f: double can't be read as float"),
        ("int32", "float", "field f: int32 can't be read as float"),
        ("string", "int32", "field f: string can't be read as int32"),
        ("In", "string", "field f: In can't be read as string"),
        ("google.protobuf.Timestamp", "In", "field f: google.protobuf.Timestamp can't be read as In"),
        ("map<int32, int32>", "repeated In", "field f: a map can't be read as In"),
    ],
)
def test_what_is_incompatible(writer: str, reader: str, why: str) -> None:
    text = "message In {{ int32 x = 1; }} message M {{ {} f = 1; }}"
    with pytest.raises(Incompatible) as refused:
        program(text.format(writer), text.format(reader))
    assert str(refused.value) == why


def test_of_a_oneof_the_last_member_counts() -> None:
    both = "message In {{ int32 x = 1; repeated int32 y = 2; }} message M {{ oneof o {{ int32 a = 1; In b = 2; {} }} }}"
    text, reader = both.format("string c = 3;"), both.format("")
    inner = tagged(2, tagged(1, 5) + tagged(2, 6))
    steps = program(text)
    assert only(steps, tagged(1, 1) + inner) == {"a": None, "b": {"x": 5, "y": [6]}, "c": None}
    assert only(steps, inner + tagged(2, tagged(2, 7))) == {"a": None, "b": {"x": 5, "y": [6, 7]}, "c": None}
    assert only(steps, inner + tagged(1, 1) + tagged(2, b"")) == {"a": None, "b": {"x": 0, "y": []}, "c": None}
    # The writer's member that the reader does not have replaces the others, too.
    assert only(program(text, reader), tagged(1, 1) + tagged(3, b"x")) == {"a": None, "b": None}


def test_unknown_fields_are_skipped_with_their_groups() -> None:
    steps = program("message M { int32 a = 1; string z = 500; }")
    group = b"\x13" + tagged(3, 1) + b"\x23" + tagged(9, b"xx") + b"\x24" + b"\x14"
    unknown = tagged(7, 300) + tagged(8, b"abc") + b"\x49" + b"x" * 8 + b"\x55" + b"y" * 4 + group
    assert only(steps, unknown + tagged(1, 5) + unknown + tagged(500, b"q") + unknown) == {"a": 5, "z": "q"}


def test_a_message_that_contains_itself_has_no_column_but_is_skipped() -> None:
    text = "message M {{ int32 a = 1; {} }} message Other {{ {} Empty e = 2; }} message Empty {{ }}"
    loop = text.format("M next = 2;", "M m = 1;")
    with pytest.raises(SchemaInvalid, match="message M contains itself"):
        program(loop)
    with pytest.raises(SchemaInvalid, match="message M contains itself"):
        program(text.format("Other next = 2;", "M m = 1;"))
    inner = b""
    for _ in range(200):
        inner = tagged(2, inner)
    assert only(program(loop, text.format("", "")), inner + tagged(1, 5)) == {"a": 5}


def test_messages_without_fields_have_no_column() -> None:
    steps = program(
        "message M { int32 a = 1; E b = 2; repeated E c = 3; map<string, E> d = 4; E2 e = 5; } message E { } "
        "message E2 { E e = 1; E2 again = 2; }"
    )
    assert only(steps, tagged(2, b"") + tagged(3, b"") + tagged(5, tagged(1, b"")) + tagged(1, 1)) == {"a": 1}
    with pytest.raises(SchemaInvalid, match="message M has no fields, so it has no column type"):
        program("message M { E e = 1; } message E { }")


def test_names_that_differ_only_in_case_are_refused() -> None:
    with pytest.raises(SchemaInvalid, match="message M has two fields id"):
        program("message M { int32 id = 1; int32 ID = 2; }")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (tagged(1, 5)[:-1], "a: the bytes end within a number"),
        (b"\x08" + b"\xff" * 10, "a: a number takes more than 64 bits"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "a: a number takes more than 64 bits"),
        (b"\x0d1234", "a: it has the wire type 5 instead of 0"),
        (tagged(2, b"\xff"), "b: not UTF-8: invalid start byte at byte 0"),
        (tagged(2, b"\xed\xa0\x80"), "b: not UTF-8: invalid continuation byte at byte 0"),
        (b"\x12\x05abc", "b: the bytes end within a string"),
        (b"\x00", "0 is no number of a field"),
        (b"\x80\x80\x80\x80\x10\x00", "536870912 is no number of a field"),
        (b"\x0e", "a: it has the wire type 6 instead of 0"),
        (b"\x4e", "there is no wire type 6"),
        (b"\x4c", "a group with the number 9 ends, but did not begin"),
        (b"\x4b\x44", "a group with the number 8 ends, but did not begin"),
        (b"\x4b" * 101, "groups are nested more than 100 levels deep"),
        (b"\x4b", "the bytes end within a tag"),
        (tagged(3, tagged(1, b"x")), "c.x: it has the wire type 2 instead of 0"),
        (tagged(4, tagged(1, 1)) + tagged(4, b"\x08"), "d[1].x: the bytes end within a number"),
        (tagged(5, tagged(1, b"k") + tagged(2, b"\x0d")), "e.k.x: it has the wire type 5 instead of 0"),
        (tagged(6, b"\x01\x80"), "f[1]: the bytes end within a number"),
        (tagged(7, tagged(2, 1_000_000_000)), "g: 0 seconds and 1000000000 nanoseconds are no TIMESTAMP"),
        (tagged(7, tagged(1, 253_402_300_800)), "g: 253402300800 seconds and 0 nanoseconds are no TIMESTAMP"),
        (tagged(8, b"\x11" + b"\0" * 6 + b"\xf8\x7f"), "h: nan is no number of JSON"),
    ],
)
def test_dead_messages_name_the_field_and_the_reason(body: bytes, why: str) -> None:
    steps = program(
        "message In { int32 x = 1; } message M { int32 a = 1; string b = 2; In c = 3; repeated In d = 4; "
        "map<string, In> e = 5; repeated int32 f = 6; google.protobuf.Timestamp g = 7; google.protobuf.Value h = 8; }"
    )
    assert why_dead(steps, body) == why


def test_arrays_are_read_packed_and_not() -> None:
    steps = program(
        "message M { repeated sint64 a = 1; repeated fixed32 b = 2 [packed = false]; repeated double c = 3; }"
    )
    packed = tagged(1, varint(3) + varint(2**64 - 1)) + tagged(2, b"\1\0\0\0\2\0\0\0") + tagged(3, b"")
    single = tagged(1, 600) + b"\x15\3\0\0\0" + b"\x19" + b"\0" * 8
    assert only(steps, packed) == {"a": [-2, -(2**63)], "b": [1, 2], "c": []}
    assert only(steps, packed + single + packed)["a"] == [-2, -(2**63), 300, -2, -(2**63)]
    assert only(steps, single) == {"a": [300], "b": [3], "c": [0.0]}


@pytest.mark.filterwarnings("error")
def test_all_nans_are_decoded_without_a_warning() -> None:
    steps = program("message M { float a = 1; float b = 2; }", "message M { double a = 1; float b = 2; }")
    signal = b"\x01\x00\xa0\x7f"
    assert repr(only(steps, b"\x0d" + signal + b"\x15" + signal)) == "{'a': nan, 'b': nan}"


def test_timestamps_are_floored_to_microseconds() -> None:
    steps = program("message M { google.protobuf.Timestamp at = 1; }")
    before = tagged(1, tagged(1, 2**64 - 1) + tagged(2, 999_999_999))
    assert only(steps, before) == {"at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)}


def test_json_is_written_with_the_shortest_numbers() -> None:
    steps = program(
        "message M { google.protobuf.Struct s = 1; google.protobuf.ListValue l = 2; google.protobuf.FieldMask m = 3; }"
    )

    def entry(key: bytes, value: bytes) -> bytes:
        return tagged(1, tagged(1, key) + tagged(2, value))

    found = only(
        steps,
        tagged(1, entry(b"a\n", tagged(3, b'\xc3\xa9"')) + entry(b"b", b"") + entry(b"c", tagged(4, 1)))
        + tagged(1, entry(b"b", tagged(6, tagged(1, b"") * 2)))
        + tagged(2, b"")
        + tagged(3, tagged(1, b"x.y") + tagged(1, b"z")),
    )
    assert found == {"s": '{"a\\n":"é\\"","b":[null,null],"c":true}', "l": "[]", "m": "x.y,z"}
    numbers = {-0.0: "0", 1.0: "1", -2.5: "-2.5", 1e20: "1" + "0" * 20, 1e21: "1e+21", 1e-6: "0.000001"}
    numbers |= {1e-7: "1e-7", 1.5e-9: "1.5e-9", 5e-324: "5e-324", 2.0**-44: "5.684341886080802e-14", 123.25: "123.25"}
    assert {number: number_text(number) for number in numbers} == numbers


@pytest.mark.parametrize("depth", [50, 51])
def test_json_may_be_nested_50_levels_deep(depth: int) -> None:
    steps = program("message M { google.protobuf.Value v = 1; }")
    value = b""
    for _ in range(depth):
        value = tagged(6, tagged(1, value))
    if depth == 50:
        assert only(steps, tagged(1, value)) == {"v": "[" * 50 + "null" + "]" * 50}
    else:
        assert why_dead(steps, tagged(1, value)) == "v: objects and arrays are nested more than 50 levels deep"


def test_editions_may_declare_presence_and_delimited_messages() -> None:
    text = """message In { int32 x = 1; } message M { int32 a = 1; int32 b = 2 [features.field_presence = IMPLICIT];
    In c = 3 [features.message_encoding = DELIMITED]; int32 d = 4; }"""
    steps = program(text, syntax="2023")
    assert only(steps, b"") == {"a": None, "b": 0, "d": None}
    assert only(steps, b"\x1b" + tagged(1, 5) + b"\x1c" + tagged(4, 6)) == {"a": None, "b": 0, "d": 6}


def test_messages_may_be_nested_64_levels_deep() -> None:
    def nested(depth: int) -> str:
        parts = [f"message M{at} {{ M{at + 1} m = 1; }}" for at in range(1, depth)]
        last = f"message M{depth} {{ repeated M0 x = 1; }} message M0 {{ int32 x = 1; }}"
        return f"message M {{ M1 m = 1; }} {' '.join(parts)} {last}"

    steps = program(nested(62))
    body = tagged(1, 5)
    for _ in range(63):
        body = tagged(1, body)
    assert str(only(steps, body)).count("{") == 64
    with pytest.raises(SchemaInvalid, match="its messages are nested more than 64 levels deep"):
        program(nested(66))


def test_the_result_is_the_same_for_few_and_many_messages() -> None:
    steps = program("message M { int32 a = 1; }")
    for count in (0, 1, pieces.FEW, pieces.FEW + 1, pieces.PIECE_ROWS + 1):
        messages = [tagged(1, at) for at in range(count)]
        if count:
            messages[-1] = b"\x08"
        decoded = decode(steps, messages)
        assert decoded.values.to_pylist()[:-1] == [{"a": at} for at in range(count - 1)]
        assert dict(decoded.errors) == ({count - 1: "a: the bytes end within a number"} if count else {})


def test_fields_in_another_order_are_found() -> None:
    chance = Random(1)
    steps = program("message M { " + "".join(f"repeated int32 f{at} = {at}; " for at in range(1, 30)) + "}")
    bodies = []
    for _ in range(60):
        parts = [tagged(chance.randrange(1, 40), chance.randrange(300)) for _ in range(40)]
        bodies.append(b"".join(parts))
    found, errors, refused = check_equal(steps, bodies)
    assert not errors
    assert sum(len(items) for value in found for items in value.values()) > 1000
    assert sum(refused) < len(bodies)
