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
        ("id", "it ends where a type such as BIGINT, STRING or ARRAY<STRING> should follow"),
        ("BIGINT", "it ends where a type"),
        ("id NUMBER", "at position 3 stands 'NUMBER' instead of a type"),
        ("id BIGINT,, name STRING", "at position 10 stands ',' instead of the name of a field"),
        ("id BIGINT,", "it ends where the name of a field"),
        ("id BIGINT)", "at position 9 stands ')' instead of a comma or the end"),
        ("id BIGINT name STRING", "at position 10 stands 'name' instead of a comma or the end"),
        ("12 INT", "at position 0 stands '12' instead of the name of a field"),
        ("é INT", "at position 0 stands 'é' instead of the name of a field, in `backticks` if it is no plain word"),
        ("a-b INT", "at position 1 stands '-' instead of a type"),
        ("`` INT", "at position 0 stands '``' instead of the name"),
        ("a ARRAY<INT", "it ends where > should follow"),
        ("a ARRAY INT", "at position 8 stands 'INT' instead of <"),
        ("a MAP<INT, INT>", "at position 6 stands 'INT' instead of STRING, the only keys that JSON has"),
        ("a STRUCT<>", "at position 9 stands '>' instead of the name of a field"),
        ("a INT NOT", "it ends where NULL should follow"),
        ("a INT COMMENT x", "at position 14 stands 'x' instead of a comment in quotes"),
        ("a DECIMAL(39, 2)", "DECIMAL(39, 2) should have 1 to 38 digits"),
        ("a DECIMAL(5, 6)", "DECIMAL(5, 6) should have"),
        ("a DECIMAL(0)", "DECIMAL(0, 0) should have"),
        ("a DECIMAL(x)", "at position 10 stands 'x' instead of a number of digits"),
        ("a DECIMAL(5, 2, 1)", "at position 14 stands ',' instead of )"),
        ("a INT, b INT, A INT", "it names the field a more than once"),
        ("a STRUCT<b INT, b INT>", "it names the field b more than once"),
        ("a VARIANT", "at position 2 stands 'VARIANT' instead of a type"),
    ],
)
def test_what_can_not_be_read_is_named_with_its_place(ddl: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(ddl)
    assert str(caught.value).startswith(f"Json schema {ddl!r} can't be read: {words}")
