"""Values fit the schema that was inferred from them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark import Json
from tallymark.cli.toml.infer import infer_schema
from tallymark.formats.schema import parse

names = st.text(min_size=1, max_size=5).filter(lambda name: name.isprintable())
plain = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=5) | st.sampled_from(["2026-01-31", "2026-01-31T10:00:00Z", "2026-01-31 10:00"])
nested = st.recursive(
    plain | texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)
)
records = st.lists(st.dictionaries(names, nested, min_size=1, max_size=4), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        ([{"id": 1, "name": "a"}, {"id": 2, "name": None}], "id BIGINT, name STRING"),
        ([{"a": 1}, {"a": 1.5}, {"b": True}], "a DOUBLE, b BOOLEAN"),
        ([{"at": "2026-01-31T10:00:00.5+02:00"}, {"at": "2026-01-31 10:00:00"}], "at TIMESTAMP"),
        ([{"at": "2026-01-31"}], "at DATE"),
        ([{"at": "2026-01-31"}, {"at": "2026-01-31T10:00:00Z"}], "at TIMESTAMP"),
        ([{"at": "2026-01-31"}, {"at": "soon"}], "at STRING"),
        ([{"a": 1}, {"a": "x"}], "a STRING"),
        ([{"a": 2**63}], "a STRING"),
        ([{"a": None}], "a STRING"),
        ([{"who": {"x": 1, "at": "2026-01-31"}}, {"who": {"y z": [1.5]}}],
         "who STRUCT<x: BIGINT, at: STRING, `y z`: ARRAY<DOUBLE>>"),
        ([{"a": []}, {"a": [{"b": 1}]}], "a ARRAY<STRUCT<b: BIGINT>>"),
        ([{"a": [1]}, {"a": {"b": 1}}, {"c": {}}], "a STRING, c STRING"),
        ([{"Id": 1, "id": 2}], "Id BIGINT"),
        ([{"tick`": 1}], "`tick``` BIGINT"),
    ],
)  # fmt: skip
def test_the_types_are_the_narrowest_that_hold_all_values(values: list[object], schema: str) -> None:
    assert infer_schema([json.dumps(value).encode() for value in values]) == schema


def test_values_that_are_mostly_no_objects_have_no_schema() -> None:
    assert infer_schema([b"x", b"[1]", b'{"a": 1}']) is None
    assert infer_schema([]) is None
    assert infer_schema([b"broken", b'{"a": 1}']) == "a BIGINT"
    assert infer_schema([b'{"z":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a": 1}']) == "a BIGINT"


@given(records)
def test_whatever_is_found_can_be_read_as_a_schema(values: list[dict[str, object]]) -> None:
    schema = infer_schema([json.dumps(value).encode() for value in values])
    assert schema is not None
    assert [field.name.lower() for field in parse(schema)] == list(
        dict.fromkeys(name.lower() for value in values for name in value)
    )
    assert Json(schema).schema == schema
