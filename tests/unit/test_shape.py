"""Of several rows for a key the newest is kept, as a plain model of the rule would keep it."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.errors import BadInput
from tallymark.shape import OFFSET, PARTITION, PROVENANCE, TIMESTAMP, TOPIC, TableSpec, finish, newest
from tests.unit.strategies import NOON

UPSERT = TableSpec("orders", ("id",), "upsert")
BY_TWO = TableSpec("orders", ("id", "shop"), "upsert")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("shop", pa.string()),
        ("name", pa.string()),
        (TOPIC, pa.string()),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (TIMESTAMP, pa.timestamp("us", "UTC")),
    ]
)
Row = dict[str, Any]


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Records of a few partitions in any order, with clocks that run as they like."""
    places = draw(
        st.lists(
            st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2), st.integers(0, 30)), unique=True, max_size=25
        )
    )
    return [
        {
            "id": draw(st.integers(0, 3)),
            "shop": draw(st.sampled_from(["x", "y", ""])),
            "name": f"{topic}{partition}-{offset}",
            TOPIC: topic,
            PARTITION: partition,
            OFFSET: offset,
            TIMESTAMP: NOON + timedelta(milliseconds=draw(st.integers(0, 4))),
        }
        for topic, partition, offset in places
    ]


def model(key: tuple[str, ...], rows: list[Row]) -> dict[tuple[Any, ...], set[str]]:
    """Per key the highest offset within each partition; between partitions the latest timestamp, then the offset.

    Two partitions may tie in both: then either will do.
    """
    last: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        place = (*(row[name] for name in key), row[TOPIC], row[PARTITION])
        if place not in last or last[place][OFFSET] < row[OFFSET]:
            last[place] = row
    best: dict[tuple[Any, ...], list[Row]] = {}
    for row in last.values():
        best.setdefault(tuple(row[name] for name in key), []).append(row)
    winners = {}
    for values, candidates in best.items():
        rank = max((row[TIMESTAMP], row[OFFSET]) for row in candidates)
        winners[values] = {row["name"] for row in candidates if (row[TIMESTAMP], row[OFFSET]) == rank}
    return winners


@given(rows(), st.sampled_from([UPSERT, BY_TWO]), st.integers(1, 5))
def test_the_newest_row_of_each_key_is_the_one_the_rule_names(rows: list[Row], spec: TableSpec, chunk: int) -> None:
    batches = pa.Table.from_pylist(rows, SCHEMA).to_batches(chunk)
    kept = newest(spec, pa.Table.from_batches(batches, SCHEMA)).to_pylist()
    keys = [tuple(row[name] for name in spec.key) for row in kept]
    expected = model(spec.key, rows)
    assert keys == sorted(expected), "one row for each key, sorted by key"
    assert all(row["name"] in expected[key] for key, row in zip(keys, kept, strict=True))
    assert all(row in rows for row in kept), "rows are kept whole"


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        (pa.bool_(), False, True),
        (pa.date32(), date(2026, 1, 1), date(2026, 1, 2)),
        (pa.decimal128(5, 2), Decimal("1.10"), Decimal("1.20")),
        (pa.binary(), b"\x00", b"\xff"),
        (pa.float64(), -1.5, 0.0),
        (pa.timestamp("us", "UTC"), NOON, NOON + timedelta(microseconds=1)),
        (pa.string(), "", "a"),
    ],
)
def test_keys_may_have_any_type_that_a_database_can_index(kind: pa.DataType, low: object, high: object) -> None:
    schema = SCHEMA.set(0, pa.field("id", kind))
    rows = [
        record(id=value, name=name, offset=n) for n, (value, name) in enumerate([(high, "a"), (low, "b"), (high, "c")])
    ]
    kept = newest(UPSERT, pa.Table.from_pylist(rows, schema)).to_pylist()
    assert [(row["id"], row["name"]) for row in kept] == [(low, "b"), (high, "c")]


def record(*, offset: int = 0, partition: int = 0, time: datetime = NOON, **columns: object) -> Row:
    return {"shop": "x", TOPIC: "a", PARTITION: partition, OFFSET: offset, TIMESTAMP: time, **columns}


def test_within_a_partition_the_offset_decides_whatever_the_clock_says() -> None:
    earlier = NOON - timedelta(hours=1)
    rows = [record(id=1, name="old", offset=5), record(id=1, name="new", offset=6, time=earlier)]
    assert newest(UPSERT, pa.Table.from_pylist(rows, SCHEMA))["name"].to_pylist() == ["new"]


def test_between_partitions_the_timestamp_decides_whatever_the_offset_says() -> None:
    later = NOON + timedelta(milliseconds=1)
    rows = [record(id=1, name="new", offset=0, time=later), record(id=1, name="old", offset=99, partition=1)]
    assert newest(UPSERT, pa.Table.from_pylist(rows, SCHEMA))["name"].to_pylist() == ["new"]


def test_a_row_without_a_key_is_refused() -> None:
    rows = pa.Table.from_pylist([record(id=None, name="a"), record(id=1, name="b")], SCHEMA)
    with pytest.raises(BadInput, match="table orders: 1 rows have no id, which is their key; filter them out"):
        newest(UPSERT, rows)


@given(st.lists(st.integers(0, 20), max_size=12))
def test_without_provenance_only_distinct_keys_are_accepted(ids: list[int]) -> None:
    rows = pa.table({"id": pa.array(ids, pa.int64())})
    if len(set(ids)) == len(ids):
        assert newest(UPSERT, rows)["id"].to_pylist() == sorted(ids)
    else:
        with pytest.raises(BadInput, match=r"several rows have the same id .* aggregate to one row per key"):
            newest(UPSERT, rows)


def test_finished_rows_have_no_hidden_columns_and_an_append_keeps_all_of_them() -> None:
    rows = pa.Table.from_pylist([record(id=1, name=name, offset=n) for n, name in enumerate("abc")], SCHEMA)
    assert finish(UPSERT, rows).to_pylist() == [{"id": 1, "shop": "x", "name": "c"}]
    assert finish(TableSpec("orders"), rows)["name"].to_pylist() == ["a", "b", "c"]
    assert not set(PROVENANCE) & set(finish(TableSpec("orders"), rows).column_names)
    assert finish(UPSERT, SCHEMA.empty_table()).num_rows == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("t", (), "replace"), r"table t: write='replace' is not known; write append or upsert"),
        (("t", (), "upsert"), r"table t: an upsert needs key="),
        (("t", ("id",), "append"), r"table t: append takes no key="),
        (("tallymark_positions", (), "append"), r"belong to the ledger; choose another"),
        (("Tallymark_x", (), "append"), r"belong to the ledger"),
        (("", (), "append"), r"a table needs a name"),
    ],
)
def test_a_table_that_can_not_work_is_refused_at_once(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        TableSpec(*arguments)
