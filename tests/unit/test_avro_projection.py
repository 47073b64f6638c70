"""A schema reads what another wrote as the Avro specification says, and fields that were not written are NULL."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tallymark.formats.avro import projection as module
from tallymark.formats.avro.decoder import decode
from tallymark.formats.avro.projection import Incompatible, projection
from tallymark.formats.avro.schema import parse
from tests.support.avro_schemas import varint


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """Fields are pairs of name and type, or triples with a default, or objects."""
    named = [field if isinstance(field, dict) else dict(zip(KEYS, field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": named, **more}


KEYS = ("name", "type", "default")


def enum(symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def read(writer: Any, reader: Any, body: bytes) -> Any:
    """The value that both decoders find; the error if it is dead."""
    steps = projection(parse(json.dumps(writer)), parse(json.dumps(reader)))
    few, many = decode(steps, [body]), decode(steps, [body] * 60)
    assert repr(many.values.to_pylist()) == repr(few.values.to_pylist() * 60)
    assert few.values.type == steps.type
    return few.errors.get(0) or few.values[0].as_py()


def field(writer: Any, reader: Any, body: bytes) -> Any:
    return read(record(("f", writer)), record(("f", reader)), body)["f"]


def why_not(writer: Any, reader: Any) -> str:
    with pytest.raises(Incompatible) as caught:
        projection(parse(json.dumps(writer)), parse(json.dumps(reader)))
    return str(caught.value)


@pytest.mark.parametrize(
    ("writer", "reader", "body", "value"),
    [
        ("int", "long", b"\x03", -2),
        ("int", "float", b"\x03", -2.0),
        ("int", "double", varint((1 << 31) - 1), 2147483647.0),
        ("long", "double", varint((1 << 53) + 1), 2.0**53),
        # Through a DOUBLE, this would become 2 ** 60.
        ("long", "float", varint((1 << 60) + (1 << 36) + 1), 2.0**60 + 2.0**37),
        ("float", "double", b"\xcd\xcc\xcc\x3d", 0.10000000149011612),
        ("string", "bytes", b"\x04\xc3\xa9", b"\xc3\xa9"),
        ("bytes", "string", b"\x04\xc3\xa9", "é"),
    ],
)
def test_types_are_promoted(writer: Any, reader: Any, body: bytes, value: Any) -> None:
    assert repr(field(writer, reader, body)) == repr(value)


@pytest.mark.parametrize(
    ("writer", "reader", "error"),
    [
        ("string", "double", "field f: string can't be read as double"),
        ("long", "int", "field f: long can't be read as int"),
        ("double", "float", "field f: double can't be read as float"),
        ("null", "int", "field f: null can't be read as int"),
        ("int", "null", "field f: int can't be read as null"),
        ("string", enum("A"), "field f: string can't be read as E"),
        (enum("A"), "string", "field f: E can't be read as string"),
        (enum("A"), enum("A", "F"), "field f: E can't be read as F"),
        (
            {"type": "array", "items": "string"},
            {"type": "array", "items": "int"},
            "field f: string can't be read as int",
        ),
        (record(("g", "long"), name="S"), record(("g", "int"), name="S"), "field f.g: long can't be read as int"),
        (
            {"type": "fixed", "name": "F", "size": 3},
            {"type": "fixed", "name": "F", "size": 4},
            "field f: 3 bytes of F can't be read as 4 bytes",
        ),
        (["null", "string"], "int", "field f: string can't be read as int"),
        ("string", ["null", "int"], "field f: string can't be read as int"),
        ("string", ["int", "long"], "field f: string can't be read as any branch of the union"),
        (logical("int", "date"), logical("int", "time-millis"), "field f: date can't be read as time-millis"),
        (
            logical("bytes", "decimal", precision=9, scale=2),
            logical("bytes", "decimal", precision=9, scale=3),
            "field f: decimal(9, 2) can't be read as decimal(9, 3)",
        ),
    ],
)
def test_what_can_not_be_read_names_the_field_and_the_types(writer: Any, reader: Any, error: str) -> None:
    assert why_not(record(("f", writer)), record(("f", reader))) == error


def test_fields_are_matched_by_name_and_others_are_skipped() -> None:
    skipped: list[Any] = [
        ("s1", "string"),
        ("s2", {"type": "array", "items": ["null", "bytes"]}),
        ("s3", {"type": "map", "values": record(("x", "double"), name="X")}),
        ("s4", {"type": "fixed", "name": "F", "size": 2}),
        ("s5", enum("AB")),
        ("s6", "boolean"),
        ("s7", "float"),
        ("s8", "null"),
    ]
    parts = [
        b"\x04ab",
        b"\x04\0\x02\x02z\0",
        b"\x01\x14\x02k" + b"\0" * 8 + b"\0",
        b"zz",
        b"\x02",
        b"\1",
        b"\0" * 4,
        b"",
    ]
    writer = record(("a", "int"), *skipped, ("b", "string"))
    reader = record(("b", "string"), ("a", "int"))
    assert read(writer, reader, b"\x02" + b"".join(parts) + b"\x02x") == {"b": "x", "a": 1}


def test_a_field_that_was_not_written_has_its_default_or_is_null() -> None:
    reader = record(
        ("a", "int"),
        ("none", "string"),
        ("text", "string", "é"),
        ("raw", "bytes", "\xff"),
        ("maybe", ["null", "long"], None),
        ("other", ["null", "long"], 7),
        ("wide", ["long", "string"], "x"),
        ("list", {"type": "array", "items": "int"}, [1, 2]),
        ("map", {"type": "map", "values": "double"}, {"k": 0.5}),
        ("inner", record(("x", "int"), ("y", "string", "why"), name="I"), {"x": 1, "unknown": 2}),
        ("letter", enum("AB"), "B"),
        ("amount", logical("bytes", "decimal", precision=4, scale=2), "\x04\xd2"),
        ("at", logical("long", "timestamp-millis"), 0),
        ("number", "double", "NaN"),
    )
    found = read(record(("a", "int")), reader, b"\x02")
    at, amount = found.pop("at"), found.pop("amount")
    assert (at.isoformat(), str(amount)) == ("1970-01-01T00:00:00+00:00", "12.34")
    assert repr(found.pop("number")) == "nan"
    assert found == {
        "a": 1,
        "none": None,
        "text": "é",
        "raw": b"\xff",
        "maybe": None,
        "other": 7,
        "wide": {"long": None, "string": "x"},
        "list": [1, 2],
        "map": [("k", 0.5)],
        "inner": {"x": 1, "y": "why"},
        "letter": "B",
    }


@pytest.mark.parametrize(
    ("kind", "default", "error"),
    [
        ("int", "x", "'x' does not fit int"),
        ("int", 1 << 31, "2147483648 does not fit int"),
        ("long", True, "True does not fit long"),
        ("bytes", "€", "'€' does not fit bytes"),
        (["null", "int"], "x", "'x' does not fit int"),
        (["null", "int", "long"], "x", "'x' does not fit null or int or long"),
        (record(("x", "int"), name="I"), {}, "field x of I is missing, and has no default"),
        (logical("string", "uuid"), "x", "'x' is no UUID"),
    ],
)
def test_a_default_that_is_needed_must_fit(kind: Any, default: Any, error: str) -> None:
    reader = record(("f", kind, default))
    assert why_not(record(), reader) == f"field f: its default is not valid: {error}"
    projection(parse(json.dumps(reader)), parse(json.dumps(reader)))


def test_fields_and_types_have_aliases() -> None:
    writer = record(("old", record(("x", "int"), name="was.Inner")), name="Was")
    reader = record(
        {"name": "new", "type": record(("x", "int"), name="Now", aliases=["Inner"]), "aliases": ["old"]},
        aliases=["Was"],
    )
    assert read(writer, reader, b"\x02") == {"new": {"x": 1}}
    assert why_not(writer, {**reader, "aliases": []}) == "Was can't be read as R"


def test_the_name_of_a_field_comes_before_its_aliases() -> None:
    reader = record({"name": "a", "type": "int", "aliases": ["b"]})
    assert read(record(("b", "int"), ("a", "int")), reader, b"\x02\x04") == {"a": 2}
    assert read(record(("a", "int"), ("b", "int")), reader, b"\x02\x04") == {"a": 1}


def test_namespaces_may_differ() -> None:
    writer, reader = (record(("a", "int"), namespace=space) for space in ("x", "y"))
    assert read(writer, reader, b"\x02") == {"a": 1}


def test_unknown_symbols_become_the_default() -> None:
    reader = enum("AZ", default="Z")
    assert [field(enum("AB"), reader, body) for body in (b"\0", b"\x02")] == ["A", "Z"]


@pytest.mark.parametrize(
    ("writer", "reader", "body", "value"),
    [
        ("int", ["null", "int"], b"\x02", 1),
        ("null", ["null", "int"], b"", None),
        ("null", "null", b"", None),
        (["null", "int"], "int", b"\x02\x02", 1),
        (["int", "string"], ["string", "int"], b"\0\x02", {"string": None, "int": 1}),
        (["int", "string"], ["string", "int"], b"\x02\x02x", {"string": "x", "int": None}),
        # Exact before promoted, wherever it is.
        ("int", ["double", "long", "int"], b"\x02", {"double": None, "long": None, "int": 1}),
        ("int", ["string", "long", "double"], b"\x02", {"string": None, "long": 1, "double": None}),
        (["null", "int"], ["null", "string", "long"], b"\0", None),
        (["null", "int"], ["null", "string", "long"], b"\x02\x02", {"string": None, "long": 1}),
    ],
)
def test_unions_are_resolved_by_branch(writer: Any, reader: Any, body: bytes, value: Any) -> None:
    assert field(writer, reader, body) == value


def test_a_union_prefers_the_record_with_the_full_name() -> None:
    one, two = (record(("x", "int"), name=f"{space}.S") for space in ("a", "b"))
    assert field(two, [one, two], b"\x02") == {"a_S": None, "b_S": {"x": 1}}
    assert field(record(("x", "int"), name="c.S"), [one, two], b"\x02") == {"a_S": {"x": 1}, "b_S": None}


def test_null_is_dead_where_the_reader_has_no_null() -> None:
    writer, reader = (record(("f", kind)) for kind in (["null", "int"], "int"))
    assert read(writer, reader, b"\0") == "f: null can't be read as int"


@pytest.mark.parametrize(
    ("writer", "reader", "number", "value"),
    [
        ("timestamp-millis", "timestamp-micros", -1, "1969-12-31 23:59:59.999000+00:00"),
        ("timestamp-micros", "timestamp-millis", -1, "1969-12-31 23:59:59.999000+00:00"),
        ("timestamp-nanos", "timestamp-nanos", -1, "1969-12-31 23:59:59.999999+00:00"),
        ("timestamp-nanos", "timestamp-millis", 1_999_999, "1970-01-01 00:00:00.001000+00:00"),
        ("timestamp-micros", "timestamp-nanos", 1, "1970-01-01 00:00:00.000001+00:00"),
        ("timestamp-millis", "local-timestamp-millis", 1, "1970-01-01 00:00:00.001000"),
        (None, "timestamp-millis", 1, "1970-01-01 00:00:00.001000+00:00"),
        ("timestamp-millis", None, 1, "1"),
        ("timestamp-millis", "timestamp-millis", 253402300799999, "9999-12-31 23:59:59.999000+00:00"),
        ("timestamp-millis", "timestamp-millis", -62135596800000, "0001-01-01 00:00:00+00:00"),
        (None, "time-micros", 86_399_000_001, "23:59:59.000001"),
    ],
)
def test_times_are_converted(writer: str | None, reader: str | None, number: int, value: str) -> None:
    written, wanted = ("long" if kind is None else logical("long", kind) for kind in (writer, reader))
    assert str(field(written, wanted, varint(number))) == value


@pytest.mark.parametrize("number", [253402300800000, -62135596800001])
def test_times_outside_of_the_years_1_to_9999_are_dead(number: int) -> None:
    schema = record(("f", logical("long", "timestamp-millis")))
    assert read(schema, schema, varint(number)) == f"f: {number} is no TIMESTAMP"


def test_milliseconds_of_a_day_are_read_as_microseconds() -> None:
    millis, micros = logical("int", "time-millis"), logical("long", "time-micros")
    assert field(millis, millis, varint(3_723_004)) == "01:02:03.004"
    assert field(millis, micros, varint(3_723_004)) == "01:02:03.004000"


def test_decimals_are_read_with_another_precision() -> None:
    writer, wide, narrow = (logical("bytes", "decimal", precision=digits, scale=2) for digits in (6, 38, 4))
    assert str(field(writer, wide, b"\x06\x01\x86\x9f")) == "999.99"
    found = read(record(("f", writer)), record(("f", narrow)), b"\x06\x01\x86\x9f")
    assert found == "f: a number does not fit DECIMAL(4,2)"
    assert field("bytes", narrow, b"\x02\x64").as_tuple().digits == (1, 0, 0)


@pytest.mark.parametrize(
    ("number", "fits"),
    [
        (10**38 - 1, True),
        (-(10**38) + 1, True),
        (10**38, False),
        (-(10**38), False),
        (1 << 64, True),
        (-(1 << 64), True),
        (-((10**38 >> 64) + 1 << 64), False),
    ],
)
def test_decimals_have_up_to_38_digits(number: int, fits: bool) -> None:
    kind = logical("bytes", "decimal", precision=60, scale=0)
    content = number.to_bytes(16, "big", signed=True)
    # A sign that is longer than necessary does not change the number.
    for padding in (b"", (b"\xff" if number < 0 else b"\0") * 5):
        body = varint(len(padding + content)) + padding + content
        found = read(record(("f", kind)), record(("f", kind)), body)
        assert found == ({"f": number} if fits else "f: a number does not fit DECIMAL(38,0)")


def test_a_uuid_is_canonical() -> None:
    text = "F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6"
    kind = logical("string", "uuid")
    assert field("string", kind, b"\x48" + text.encode()) == text.lower()
    fixed = {"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}
    assert field(fixed, fixed, bytes.fromhex(text.replace("-", ""))) == text.lower()


def test_a_duration_has_three_numbers() -> None:
    kind = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    assert field(kind, kind, b"\1\0\0\0\2\0\0\0\xff\xff\xff\xff") == {"months": 1, "days": 2, "millis": 4294967295}


def test_schemas_that_combine_a_few_types_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level has two branches, and both have the next level: 2 ** 21 ways, in a small schema."""
    monkeypatch.setattr(module, "MOST_STEPS", 10_000)
    writer: Any = [record(("x", "int"), name=f"{space}.R") for space in "ab"]
    reader: Any = record(("x", "int"))
    for level in range(20):
        again = ["a.R", "b.R"] if level == 0 else [f"a.R{level}", f"b.R{level}"]
        writer = [record(("f", kind), name=f"{space}.R{level + 1}") for space, kind in (("a", writer), ("b", again))]
        reader = record(("f", reader), name=f"R{level + 1}")
    writer, reader = (record(("f", kind), name="Top") for kind in (writer, reader))
    assert why_not(writer, reader) == "reading it takes more than 10000 steps"
