"""Avro schemas are parsed as the specification says, and each has the column that docs/reference/avro.md gives it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.formats.avro.columns import arrow_type
from tallymark.formats.avro.schema import DEEPEST, SchemaInvalid, parse
from tallymark.formats.schema import parse as parse_ddl
from tests.support.avro_schemas import Schemas


def column(schema: Any) -> pa.DataType:
    return arrow_type(parse(json.dumps(schema)))


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    named = [{"name": field, "type": kind} for field, kind in fields]
    return {"type": "record", "name": name, "fields": named, **more}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def decimal(precision: Any, scale: Any = 0) -> dict[str, Any]:
    return logical("bytes", "decimal", precision=precision, scale=scale)


FIXED_16 = {"type": "fixed", "name": "F", "size": 16}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("schema", "ddl"),
    [
        ("boolean", "BOOLEAN"),
        ("int", "INT"),
        ("long", "BIGINT"),
        ("float", "FLOAT"),
        ("double", "DOUBLE"),
        ("string", "STRING"),
        ("bytes", "BINARY"),
        ("null", "STRING"),
        (ENUM, "STRING"),
        (FIXED_16, "BINARY"),
        ({"type": "array", "items": "int"}, "ARRAY<INT>"),
        ({"type": "map", "values": ["null", "long"]}, "MAP<STRING, BIGINT>"),
        (record(("a", "int"), ("b", record(("c", "string"), name="S"))), "STRUCT<a INT, b STRUCT<c STRING>>"),
        (decimal(10, 2), "DECIMAL(10, 2)"),
        (decimal(38, 38), "DECIMAL(38, 38)"),
        (decimal(50, 7), "DECIMAL(38, 7)"),
        ({**FIXED_16, "logicalType": "decimal", "precision": 38}, "DECIMAL(38, 0)"),
        (logical("string", "uuid"), "STRING"),
        ({**FIXED_16, "logicalType": "uuid"}, "STRING"),
        (logical("int", "date"), "DATE"),
        (logical("int", "time-millis"), "STRING"),
        (logical("long", "time-micros"), "STRING"),
        *((logical("long", f"timestamp-{unit}"), "TIMESTAMP") for unit in ("millis", "micros", "nanos")),
        *((logical("long", f"local-timestamp-{unit}"), "TIMESTAMP_NTZ") for unit in ("millis", "micros", "nanos")),
        (
            {"type": "fixed", "name": "F", "size": 12, "logicalType": "duration"},
            "STRUCT<months BIGINT, days BIGINT, millis BIGINT>",
        ),
        (["null", "int"], "INT"),
        (["string"], "STRING"),
        (["null"], "STRING"),
        (["int", "null", "string"], "STRUCT<int INT, string STRING>"),
        (["int", ENUM, record(("x", "int"), name="a.b.C")], "STRUCT<int INT, E STRING, C STRUCT<x INT>>"),
        (
            [record(("x", "int"), name="a.C"), record(("y", "int"), name="b.C")],
            "STRUCT<a_C STRUCT<x INT>, b_C STRUCT<y INT>>",
        ),
    ],
)
def test_types_are_those_of_the_other_formats(schema: Any, ddl: str) -> None:
    assert column(schema) == parse_ddl(f"f {ddl}").field("f").type


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        (logical("string", "date"), pa.string()),
        (logical("int", "timestamp-millis"), pa.int32()),
        (logical("long", "of-my-own"), pa.int64()),
        ({"type": "long", "logicalType": 7}, pa.int64()),
        ({**FIXED_16, "logicalType": "duration"}, pa.binary()),
        ({**FIXED_16, "logicalType": "decimal", "precision": 39}, pa.binary()),
        ({**FIXED_16, "size": 0, "logicalType": "decimal", "precision": 1}, pa.binary()),
        *(
            (decimal(*digits), pa.binary())
            for digits in ((0, 0), (5, 6), (50, 39), (5, -1), (None, 0), (True, 0), ("5", 0))
        ),
    ],
)
def test_logical_types_that_are_unknown_or_invalid_are_ignored(schema: Any, plain: pa.DataType) -> None:
    assert column(schema) == plain


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ("nothing", "type nothing is not defined"),
        (7, "7 is not a type"),
        ({}, "{} has no type"),
        ([], "a union has no branches"),
        (["int", ["null", "long"]], "a union contains a union"),
        (["int", logical("int", "date")], "a union contains int twice"),
        ([ENUM, "E"], "a union contains E twice"),
        ({"type": "array"}, "an array has no items"),
        ({"type": "map"}, "a map has no values"),
        ({"type": "record", "name": "R"}, "record R has no fields"),
        ({"type": "record", "fields": []}, "a record has no name"),
        (record(("a", "int"), ("a", "int")), "record R has two fields a"),
        (record(("a-b", "int")), "a-b, a field of R, is not a valid name"),
        (record(name="1R"), "1R is not a valid name"),
        (record(name="int"), "a record has the name of the type int"),
        (record(("a", ENUM), ("b", ENUM)), "E is defined twice"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, "field a of R has no type"),
        ({"type": "record", "name": "R", "fields": ["a"]}, "a field of R has no name"),
        ({**ENUM, "symbols": ["A", "A"]}, "enum E has the symbol A twice"),
        ({**ENUM, "symbols": "AB"}, "the symbols of E are not a list of strings"),
        ({**ENUM, "default": "C"}, "the default of enum E is none of its symbols"),
        ({**FIXED_16, "size": -1}, "fixed F has no valid size"),
        ({**FIXED_16, "size": True}, "fixed F has no valid size"),
    ],
)
def test_what_is_no_schema_is_refused(schema: Any, error: str) -> None:
    with pytest.raises(SchemaInvalid) as caught:
        parse(json.dumps(schema))
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        (record(("a", "int"), ("A", "int")), "record R has two fields a; Spark and databases"),
        (record(("next", ["null", "R"])), "record R contains itself, so it has no column type"),
        (record(), "record R has no fields, so it has no column type"),
        (record(("a", record(name="S"))), "record S has no fields, so it has no column type"),
        (["long", record(("x", "int"), name="Long")], "a union has two fields long"),
    ],
)
def test_some_schemas_have_no_column(schema: Any, error: str) -> None:
    with pytest.raises(SchemaInvalid, match=f"^{error}"):
        column(schema)


def test_invalid_json_is_refused() -> None:
    with pytest.raises(SchemaInvalid, match=r"^it is not JSON: "):
        parse("{")


def test_names_are_found_in_the_namespace_of_the_type_that_uses_them() -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["X"]}
    schema = record(("a", inner), ("b", "E"), ("c", "shop.E"), namespace="shop")
    parsed = parse(json.dumps(schema))
    assert {field.schema.name for field in parsed.fields} == {"shop.E"}
    assert parsed.name == "shop.R"


def test_references_define_types_in_their_order() -> None:
    money = json.dumps(record(("amount", "double"), name="shop.Money"))
    item = json.dumps(record(("price", "shop.Money"), name="shop.Item"))
    order = json.dumps(record(("items", {"type": "array", "items": "shop.Item"})))
    expected = parse_ddl("f STRUCT<items ARRAY<STRUCT<price STRUCT<amount DOUBLE>>>>").field("f").type
    assert arrow_type(parse(order, [money, item])) == expected
    with pytest.raises(SchemaInvalid, match=r"^type shop\.Money is not defined$"):
        parse(order, [item, money])


def nested(levels: int) -> str:
    return '{"type": "array", "items": ' * levels + '"int"' + "}" * levels


def test_nesting_is_limited() -> None:
    assert pa.types.is_list(arrow_type(parse(nested(DEEPEST))))
    for levels in (DEEPEST + 1, 201, 100_000):
        with pytest.raises(SchemaInvalid, match="nested more than 100 levels deep"):
            parse(nested(levels))


def chain(length: int, uses: int) -> dict[str, Any]:
    """Records that each contain the previous one a few times."""
    fields: list[Any] = [("r0", record(("x", "int"), name="R0"))]
    for n in range(1, length):
        parts = [(f"f{use}", f"R{n - 1}") for use in range(uses)]
        fields.append((f"r{n}", record(*parts, name=f"R{n}")))
    return record(*fields)


@pytest.mark.parametrize(("length", "uses"), [(40, 2), (500, 1)])
def test_small_schemas_with_huge_columns_are_refused(length: int, uses: int) -> None:
    parsed = parse(json.dumps(chain(length, uses)))
    with pytest.raises(SchemaInvalid, match="more than"):
        arrow_type(parsed)


def test_a_large_schema_is_parsed_in_seconds() -> None:
    symbols = [f"SYMBOL_{n}" for n in range(20_000)]
    fields = [(f"field_{n}", ["null", {"type": "array", "items": "string"}]) for n in range(10_000)]
    text = json.dumps(record(("e", {**ENUM, "symbols": symbols}), *fields))
    assert len(text) > 1_000_000
    start = time.process_time()
    assert len(arrow_type(parse(text))) == 10_001
    assert time.process_time() - start < 3


@given(st.randoms(use_true_random=True))
def test_a_schema_with_an_error_is_refused_or_is_another_schema(random: Random) -> None:
    schema = Schemas(random).record()
    for _ in range(20):
        changed = json.loads(json.dumps(schema))
        part = random.choice(list(parts(changed)))
        key = random.choice(list(part) if isinstance(part, dict) else range(len(part)))
        part[key] = random.choice((None, True, -1, "", "int", "x.y", [], {}, ["null"], {"type": "map"}, schema))
        with suppress(SchemaInvalid):
            arrow_type(parse(json.dumps(changed)))


def parts(value: Any) -> Iterator[Any]:
    """The objects and arrays in a JSON value that are not empty."""
    if value and isinstance(value, (dict, list)):
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from parts(part)
