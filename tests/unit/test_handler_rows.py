"""Rows given by handlers become Arrow without any change of a value."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from tallymark.core.tables import TableSpec, visible
from tallymark.errors import BadInput, DataRefused
from tallymark.stores.arrow import is_json
from tallymark.stores.handler_rows import Given, changes

NAIVE, AWARE = datetime(2026, 1, 31), datetime(2026, 1, 31, tzinfo=UTC)


def given(*rows: Any) -> pa.Table:
    return Given.of("t", list(rows)).rows


def test_columns_come_in_the_order_of_their_first_appearance() -> None:
    table = given({"b": 1}, {"a": "x", "b": 2}, {"c": None})
    assert table.to_pydict() == {"b": [1, 2, None], "a": [None, "x", None], "c": [None] * 3}
    assert [str(kind) for kind in table.schema.types] == ["int64", "string", "null"]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "bool"),
        (1, "int64"),
        (1.5, "double"),
        (b"\xff", "binary"),
        (Decimal("1.50"), "decimal128(3, 2)"),
        (date(2026, 1, 31), "date32[day]"),
        (NAIVE, "timestamp[us]"),
        (AWARE, "timestamp[us, tz=UTC]"),
    ],
)
def test_values_keep_their_type(value: Any, kind: str) -> None:
    table = given({"x": value}, {"x": None})
    assert (str(table.schema.field("x").type), table["x"].to_pylist()) == (kind, [value, None])


def test_nested_values_are_json_as_they_are() -> None:
    table = given({"x": {"a": Decimal("1.5"), "at": AWARE}}, {"x": {"b": [1, None]}}, {"x": None}, {"x": "text"})
    assert is_json(table.schema.field("x"))
    found = [None if text is None else json.loads(text) for text in table["x"].to_pylist()]
    assert found == [{"a": "1.5", "at": AWARE.isoformat()}, {"b": [1, None]}, None, "text"]


def test_arrow_types_that_spark_does_not_have_become_those_it_has() -> None:
    table = pa.table(
        {
            "u": pa.array([2**32 - 1], pa.uint32()),
            "d": pa.array(["x"]).dictionary_encode(),
            "ns": pa.array([NAIVE], pa.timestamp("ns")),
            "list": pa.array([[1, 2]]),
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "fixed": pa.array([b"ab"], pa.binary(2)),
        }
    )
    found = Given.of("t", table).rows
    kinds = ["int64", "string", "timestamp[us]", "string", "string", "binary"]
    assert [str(kind) for kind in found.schema.types] == kinds
    assert found.to_pylist() == [
        {"u": 2**32 - 1, "d": "x", "ns": NAIVE, "list": "[1, 2]", "map": '{"k": 1}', "fixed": b"ab"}
    ]


@pytest.mark.parametrize(
    "values",
    [
        (NAIVE, AWARE),
        (date(2026, 1, 31), NAIVE),
        (b"a", "b"),
        (1, "a"),
        (True, 1),
        (2**63,),
        ("\ud800",),
        ({"x": float("nan")},),
        ({"x": object()},),
    ],
)
def test_values_that_would_be_changed_are_refused(values: tuple[Any, ...]) -> None:
    with pytest.raises(DataRefused, match="table t: column x"):
        given(*({"x": value} for value in values))


def test_nanoseconds_are_not_cut_off() -> None:
    with pytest.raises(DataRefused, match="column x"):
        Given.of("t", pa.table({"x": pa.array([1], pa.timestamp("ns"))}))


@pytest.mark.parametrize("rows", [["text"], [(1, 2)], [{1: 2}], "text", pa.table([[1], [2]], names=["a", "a"])])
def test_what_is_no_row_is_refused(rows: Any) -> None:
    with pytest.raises(BadInput, match="table t"):
        Given.of("t", rows)


def test_uuids_are_their_text() -> None:
    assert given({"x": UUID(int=1)})["x"].to_pylist() == [str(UUID(int=1))]


def test_of_several_rows_for_a_key_the_last_one_counts() -> None:
    rows = given({"id": 2, "x": "a"}, {"id": 1, "x": "b"}, {"id": 2, "x": "c"})
    for write, expected in (("upsert", "c"), ("ignore", "a")):
        spec = TableSpec("t", ("id",), write)  # type: ignore[arg-type]
        assert visible(changes(spec, rows).puts).to_pylist() == [{"id": 1, "x": "b"}, {"id": 2, "x": expected}]
    assert visible(changes(TableSpec("t"), rows).puts).to_pylist() == rows.to_pylist()
