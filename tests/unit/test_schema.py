"""A schema string is parsed into Arrow types, or refused with the place of the error."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tallymark.errors import BadInput
from tallymark.formats.schema import parse


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("BIGINT", pa.int64()),
        ("long", pa.int64()),
        ("Int", pa.int32()),
        ("INTEGER", pa.int32()),
        ("SMALLINT", pa.int16()),
        ("SHORT", pa.int16()),
        ("TINYINT", pa.int8()),
        ("BYTE", pa.int8()),
        ("DOUBLE", pa.float64()),
        ("FLOAT", pa.float32()),
        ("REAL", pa.float32()),
        ("STRING", pa.string()),
        ("BOOLEAN", pa.bool_()),
        ("BINARY", pa.binary()),
        ("DATE", pa.date32()),
        ("TIMESTAMP", pa.timestamp("us", tz="UTC")),
        ("TIMESTAMP_NTZ", pa.timestamp("us")),
        ("DECIMAL", pa.decimal128(10, 0)),
        ("DEC(7)", pa.decimal128(7, 0)),
        ("NUMERIC ( 38 , 10 )", pa.decimal128(38, 10)),
        ("ARRAY<STRING>", pa.list_(pa.field("element", pa.string()))),
        ("MAP<STRING, DATE>", pa.map_(pa.string(), pa.date32())),
        ("STRUCT<x: INT, y STRING>", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        (
            "ARRAY<STRUCT<m: MAP<STRING, ARRAY<INT>>>>",
            pa.list_(
                pa.field("element", pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.field("element", pa.int32()))))]))
            ),
        ),
    ],
)
def test_every_type(written: str, kind: pa.DataType) -> None:
    assert parse(f"a {written}") == pa.schema([("a", kind)])
    assert parse(f"STRUCT<a: {written}>") == pa.schema([("a", kind)])


@pytest.mark.parametrize(
    ("ddl", "names"),
    [
        ("id BIGINT, name STRING", ["id", "name"]),
        ("id: BIGINT,name:STRING", ["id", "name"]),
        ("\n  id BIGINT NOT NULL COMMENT 'the one, the only',\n  name STRING comment \"it's\"\n", ["id", "name"]),
        ("id INT COMMENT 'it\\'s, INT', `a b` INT, `c``d` INT, `é` INT", ["id", "a b", "c`d", "é"]),
        (
            "date DATE, array ARRAY<INT>, struct INT, not INT, 1st INT, _ INT",
            ["date", "array", "struct", "not", "1st", "_"],
        ),
    ],
)
def test_every_way_to_name_a_field(ddl: str, names: list[str]) -> None:
    schema = parse(ddl)
    assert schema.names == names
    assert all(field.nullable for field in schema)


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("id", "found the end, expected a type such as BIGINT, STRING or ARRAY<STRING>"),
        ("BIGINT", "found the end, expected a type"),
        ("id NUMBER", "found 'NUMBER' at position 3, expected a type"),
        ("id BIGINT,, name STRING", "found ',' at position 10, expected a field name"),
        ("id BIGINT,", "found the end, expected a field name"),
        ("id BIGINT)", "found ')' at position 9, expected a comma or the end"),
        ("id BIGINT name STRING", "found 'name' at position 10, expected a comma or the end"),
        ("12 INT", "found '12' at position 0, expected a field name"),
        ("é INT", "found 'é' at position 0, expected a field name, in `backticks` if it is not a plain word"),
        ("a-b INT", "found '-' at position 1, expected a type"),
        ("`` INT", "found '``' at position 0, expected a field name"),
        ("a ARRAY<INT", "found the end, expected >"),
        ("a ARRAY INT", "found 'INT' at position 8, expected <"),
        ("a MAP<INT, INT>", "found 'INT' at position 6, expected STRING, the only type of keys in JSON"),
        ("a STRUCT<>", "found '>' at position 9, expected a field name"),
        ("a INT NOT", "found the end, expected NULL"),
        ("a INT COMMENT x", "found 'x' at position 14, expected a comment in quotes"),
        ("a DECIMAL(39, 2)", "DECIMAL(39, 2) must have 1 to 38 digits"),
        ("a DECIMAL(5, 6)", "DECIMAL(5, 6) must have"),
        ("a DECIMAL(0)", "DECIMAL(0, 0) must have"),
        ("a DECIMAL(x)", "found 'x' at position 10, expected a number of digits"),
        ("a DECIMAL(5, 2, 1)", "found ',' at position 14, expected )"),
        ("a INT, b INT, A INT", "field a is declared more than once"),
        ("a STRUCT<b INT, b INT>", "field b is declared more than once"),
        ("a VARIANT", "found 'VARIANT' at position 2, expected a type"),
    ],
)
def test_what_can_not_be_read_is_named_with_its_place(ddl: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(ddl)
    assert str(caught.value).startswith(f"Json schema {ddl!r} is not valid: {words}")
