"""Of several rows for a key, the one is kept that a simple model of the rule keeps, for any division into batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise, permutations
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.newest import finish
from tallymark.core.spans import Partition
from tallymark.core.tables import (
    DELETED,
    HIDDEN,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TOMBSTONE,
    TOPIC,
    Changes,
    Refusal,
    TableSpec,
    origin,
    table_schema,
    unusable_rows,
    visible,
    without,
)
from tallymark.errors import BadInput
from tests.support.newest import Made, Oracle
from tests.unit.strategies import NOON

UPSERT = TableSpec("orders", ("id",), "upsert")
BY_TWO = TableSpec("orders", ("id", "shop"), "upsert")
IGNORE = TableSpec("orders", ("id",), "ignore")
VERSIONED = TableSpec("orders", ("id",), "upsert", version="version")
DELETING = TableSpec("orders", ("id",), "upsert", delete="tombstone")
BOTH = TableSpec("orders", ("id",), "upsert", version="version", delete="tombstone")
MERGED = TableSpec("orders", ("id",), "upsert", per_batch=True)
BATCH = "run-1"
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("shop", pa.string()),
        ("version", pa.int64()),
        ("name", pa.string()),
        (TOPIC, pa.string()),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (TIMESTAMP, pa.timestamp("us", "UTC")),
        (DELETED, pa.bool_()),
    ]
)
Row = dict[str, Any]
Key = tuple[Any, ...]


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Records of a few partitions in any order, with arbitrary timestamps and versions."""
    places = draw(
        st.lists(
            st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2), st.integers(0, 30)), unique=True, max_size=25
        )
    )
    return [
        {
            "id": draw(st.integers(0, 3)),
            "shop": draw(st.sampled_from(["x", "y", ""])),
            "version": draw(st.none() | st.integers(0, 3)),
            "name": f"{topic}{partition}-{offset}",
            TOPIC: topic,
            PARTITION: partition,
            OFFSET: offset,
            TIMESTAMP: draw(st.none() | st.integers(0, 4).map(lambda millis: NOON + timedelta(milliseconds=millis))),
            DELETED: draw(st.sampled_from([False, False, True, None])),
        }
        for topic, partition, offset in places
    ]


@st.composite
def ordered_rows(draw: st.DrawFn) -> list[Row]:
    """The same, with every key in its own partition, in the order in which they are read."""
    found = sorted(draw(rows()), key=lambda row: (row[OFFSET], row[TOPIC], row[PARTITION]))
    return [{**row, "id": f"{row[TOPIC]}{row[PARTITION]}-{row['id']}"} for row in found]


def table(rows: Sequence[Row], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema)


def record(*, offset: int = 0, partition: int = 0, time: datetime = NOON, **columns: object) -> Row:
    return {"shop": "x", TOPIC: "a", PARTITION: partition, OFFSET: offset, TIMESTAMP: time, **columns}


def names(spec: TableSpec, rows: Sequence[Row]) -> list[str]:
    found: list[str] = finish(spec, table(rows), BATCH).puts["name"].to_pylist()
    return found


# Which row is kept


def made(spec: TableSpec, row: Row) -> Made:
    key = tuple(row[name] for name in spec.key)
    place = row[TOPIC], row[PARTITION], row[OFFSET], row[TIMESTAMP]
    return Made(key, *place, row["version"], bool(row[DELETED]), (row["shop"], row["version"], row["name"]))


@given(rows(), st.sampled_from([UPSERT, BY_TWO, IGNORE, VERSIONED]), st.integers(1, 5), st.randoms())
def test_the_row_kept_of_each_key_is_the_one_the_rule_names(
    rows: list[Row], spec: TableSpec, chunk: int, random: Random
) -> None:
    rows = [row | {DELETED: False} for row in rows] if spec.write == "ignore" else rows
    # Several rows of one record, in any order.
    rows += [row | {"name": f"{row['name']}{random.choice('ab')}"} for row in rows if random.random() < 0.2]
    random.shuffle(rows)
    chunks = pa.Table.from_batches(table(rows).to_batches(chunk), SCHEMA)
    changes = finish(spec, chunks, BATCH)
    oracle = Oracle(versions=spec.version is not None, first_stays=spec.write == "ignore")
    oracle.apply(made(spec, row) for row in rows)
    for part in (changes.puts, changes.deletes):
        keys = [tuple(row[name] for name in spec.key) for row in part.to_pylist()]
        assert keys == sorted(keys), "sorted by key"
    found = [made(spec, row) for row in changes.puts.to_pylist()]
    assert {row.key: row for row in found} == oracle.rows
    assert len(found) == len(oracle.rows), "one row for each key"
    kept = [*changes.puts.to_pylist(), *changes.deletes.to_pylist()]
    assert all(row in rows for row in kept), "rows are kept whole"
    deleted = {made(spec, row).key for row in rows if row[DELETED]}
    gone = {made(spec, row).key for row in changes.deletes.to_pylist()}
    assert deleted - oracle.rows.keys() <= gone <= deleted


@given(rows())
def test_deletes_are_set_apart_and_nothing_else_is(rows: list[Row]) -> None:
    for spec in (UPSERT, TableSpec("orders")):
        changes = finish(spec, table(rows), BATCH)
        assert all(row[DELETED] for row in changes.deletes.to_pylist())
        assert not any(row[DELETED] for row in changes.puts.to_pylist())
    assert len(finish(TableSpec("orders"), table(rows), BATCH)) == len(rows)


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
def test_keys_and_versions_may_have_any_type_that_has_an_order(kind: pa.DataType, low: object, high: object) -> None:
    schema = SCHEMA.set(0, pa.field("id", kind)).set(2, pa.field("version", kind))
    values = [(high, "a"), (low, "b"), (high, "c")]
    by_key = [record(id=value, version=low, name=name, offset=n) for n, (value, name) in enumerate(values)]
    kept = finish(VERSIONED, table(by_key, schema), BATCH).puts.to_pylist()
    assert [(row["id"], row["name"]) for row in kept] == [(low, "b"), (high, "c")]
    by_version = [
        record(id=low, version=value, name=name, offset=n) for n, (value, name) in enumerate([(high, "new"), *values])
    ]
    assert finish(VERSIONED, table(by_version[:3], schema), BATCH).puts["name"].to_pylist() == ["a"]


def test_within_a_partition_the_offset_decides_whatever_the_clock_says() -> None:
    earlier = NOON - timedelta(hours=1)
    rows = [record(id=1, name="old", offset=5), record(id=1, name="new", offset=6, time=earlier)]
    assert names(UPSERT, rows) == ["new"]
    assert names(IGNORE, rows) == ["old"]


def test_between_partitions_the_timestamp_decides_whatever_the_offset_says() -> None:
    later = NOON + timedelta(milliseconds=1)
    rows = [record(id=1, name="new", offset=0, time=later), record(id=1, name="old", offset=99, partition=1)]
    assert names(UPSERT, rows) == ["new"]
    assert names(IGNORE, rows) == ["old"]


def test_the_version_decides_whatever_record_is_newer() -> None:
    rows = [record(id=1, name=name, version=v, offset=n) for n, (name, v) in enumerate([("a", 2), ("b", 2), ("c", 1)])]
    assert names(VERSIONED, rows) == ["b"], "among equals the newer record"
    assert names(VERSIONED, [*rows, record(id=1, name="d", version=None, offset=9)]) == ["b"], "NULL is older than all"
    unversioned = [record(id=1, name=name, version=None, offset=n) for n, name in enumerate("ab")]
    assert names(VERSIONED, unversioned) == ["b"]


def test_a_delete_that_is_newer_hides_the_row_and_a_newer_row_hides_the_delete() -> None:
    put, gone = record(id=1, name="put", offset=1), record(id=1, offset=2) | {DELETED: True}
    changes = finish(DELETING, table([put, gone]), BATCH)
    assert (changes.puts.num_rows, changes.deletes["id"].to_pylist()) == (0, [1])
    changes = finish(DELETING, table([put | {OFFSET: 3}, gone]), BATCH)
    assert (changes.puts["name"].to_pylist(), changes.deletes["id"].to_pylist()) == (["put"], [1]), "and written anew"


def test_a_tombstone_deletes_whatever_version_is_there_and_what_comes_after_it_starts_anew() -> None:
    first, gone = record(id=1, name="ten", version=10, offset=1), record(id=1, offset=2) | {DELETED: True}
    last = record(id=1, name="five", version=5, offset=3)
    changes = finish(BOTH, table([last, gone, first]), BATCH)
    assert (changes.puts["name"].to_pylist(), changes.deletes[OFFSET].to_pylist()) == (["five"], [2])
    changes = finish(BOTH, table([gone, first]), BATCH)
    assert (changes.puts.num_rows, changes.deletes[OFFSET].to_pylist()) == (0, [2])


def test_a_tombstone_with_a_version_gives_way_to_a_higher_one() -> None:
    rows = [record(id=1, name="ten", version=10, offset=1), record(id=1, version=9, offset=2) | {DELETED: True}]
    changes = finish(BOTH, table(rows), BATCH)
    assert (changes.puts["name"].to_pylist(), changes.deletes.num_rows) == (["ten"], 0)


def test_a_timestamp_that_goes_back_in_its_partition_counts_as_the_latest_before_it() -> None:
    first = record(id=1, name="first", offset=5, time=NOON + timedelta(minutes=2))
    then = record(id=1, name="then", offset=6, time=NOON)
    other = record(id=1, name="other", partition=1, time=NOON + timedelta(minutes=1))
    for rows in permutations([first, then, other]):
        assert names(UPSERT, rows) == ["then"]
        assert names(IGNORE, rows) == ["other"]


def test_a_record_without_a_timestamp_is_older_than_those_of_other_partitions() -> None:
    without_time = record(id=1, name="none", offset=9) | {TIMESTAMP: None}
    for rows in permutations([without_time, record(id=1, name="timed", partition=1)]):
        assert names(UPSERT, rows) == ["timed"]
        assert names(IGNORE, rows) == ["none"]


def test_equal_timestamps_are_told_apart_by_topic_and_partition_and_not_by_offset() -> None:
    rows = [record(id=1, name="zero", offset=9), record(id=1, name="one", partition=1)]
    assert names(UPSERT, rows) == names(UPSERT, rows[::-1]) == ["one"]
    assert names(UPSERT, [*rows, rows[0] | {TOPIC: "b", "name": "b"}]) == ["b"]
    assert names(IGNORE, rows) == ["zero"]


def test_of_several_rows_that_one_record_makes_of_a_key_the_greatest_wins() -> None:
    rows = [record(id=1, name=name) for name in ("b", "c", "a")]
    assert names(UPSERT, rows) == ["c"]
    assert names(IGNORE, rows) == ["a"]


# For any division into batches


def apply(spec: TableSpec, state: dict[Key, Row], remembered: dict[Key, Any], changes: Changes) -> None:
    """A model of a store: deletions first; only a deletion without a version replaces a higher version."""

    def is_older(version: Any, than: Any) -> bool:
        return than is not None and (version is None or version < than)

    for row in changes.deletes.to_pylist():
        key, version = tuple(row[name] for name in spec.key), row[spec.version] if spec.version else None
        if version is None:
            remembered.pop(key, None)
        elif not is_older(version, remembered.get(key)):
            remembered[key] = version
        if version is None or key not in state or not is_older(version, state[key][str(spec.version)]):
            state.pop(key, None)
    for row in changes.puts.to_pylist():
        key, version = tuple(row[name] for name in spec.key), row[spec.version] if spec.version else None
        there = state[key][spec.version] if spec.version and key in state else None
        if spec.write == "ignore":
            state.setdefault(key, row)
        elif not is_older(version, there) and not is_older(version, remembered.get(key)):
            state[key] = row


def after(spec: TableSpec, rows: Sequence[Row], cuts: Sequence[int]) -> dict[Key, Row]:
    schema = SCHEMA.set(0, pa.field("id", pa.string()))
    state: dict[Key, Row] = {}
    remembered: dict[Key, Any] = {}
    for start, stop in pairwise([0, *sorted(cuts), len(rows)]):
        apply(spec, state, remembered, finish(spec, table(rows[start:stop], schema), BATCH))
    return state


@given(
    ordered_rows(),
    st.sampled_from([UPSERT, BY_TWO, IGNORE, VERSIONED, DELETING, BOTH]),
    st.lists(st.integers(0, 25), max_size=5),
)
def test_it_makes_no_difference_how_records_are_cut_into_batches(
    rows: list[Row], spec: TableSpec, cuts: list[int]
) -> None:
    """For keys that stay in their partition."""
    if spec.delete is None:
        rows = [row | {DELETED: False} for row in rows]
    cuts = [min(cut, len(rows)) for cut in cuts]
    assert after(spec, rows, cuts) == after(spec, rows, []) == after(spec, rows, list(range(len(rows))))


@given(ordered_rows(), st.sampled_from([UPSERT, IGNORE, BOTH]), st.lists(st.integers(0, 25), max_size=5))
def test_batch_by_batch_the_table_is_what_the_rule_says(rows: list[Row], spec: TableSpec, cuts: list[int]) -> None:
    if spec.delete is None:
        rows = [row | {DELETED: False} for row in rows]
    oracle = Oracle(versions=spec.version is not None, first_stays=spec.write == "ignore")
    cuts = sorted(min(cut, len(rows)) for cut in cuts)
    for start, stop in pairwise([0, *cuts, len(rows)]):
        oracle.apply(made(spec, row) for row in rows[start:stop])
    assert {key: made(spec, row) for key, row in after(spec, rows, cuts).items()} == oracle.rows


@given(rows(), st.lists(st.integers(0, 25), max_size=5))
def test_with_distinct_versions_even_keys_that_move_between_partitions_end_the_same(
    rows: list[Row], cuts: list[int]
) -> None:
    rows = [row | {"id": str(row["id"]), "version": n, DELETED: False} for n, row in enumerate(rows)]
    rows.sort(key=lambda row: row[TIMESTAMP] or NOON)
    assert after(VERSIONED, rows, [min(cut, len(rows)) for cut in cuts]) == after(VERSIONED, rows, [])


# Dead records


@given(rows(), st.data())
def test_without_takes_all_rows_of_those_records_and_no_others(rows: list[Row], data: st.DataObject) -> None:
    places = [(Partition(row[TOPIC], row[PARTITION]), row[OFFSET]) for row in rows]
    strangers = [(Partition("a", 0), 31), (Partition("c", 0), 0)]
    dead = data.draw(st.sets(st.sampled_from([*places, *strangers])))
    twice = [*rows, *rows]
    kept = without(table(twice), dead).to_pylist()
    assert kept == [row for row, place in zip(twice, [*places, *places], strict=True) if place not in dead]


def test_rows_that_do_not_say_where_they_came_from_stay() -> None:
    merged = pa.table({"id": [1, 2]})
    assert without(merged, {(Partition("a", 0), 0)}) is merged


@given(rows())
def test_records_without_a_key_are_refused_and_named(rows: list[Row]) -> None:
    rows = [row | {"id": row["id"] or None, "shop": row["shop"] or None} for row in rows]
    found = unusable_rows(BY_TWO, table(rows))
    for name in BY_TWO.key:
        error = f"key column {name} is NULL; filter such records out, or set delete='tombstone' if they are tombstones"
        assert [refusal for refusal in found if refusal.error == error] == [
            Refusal(Partition(row[TOPIC], row[PARTITION]), row[OFFSET], "orders", error)
            for row in rows
            if row[name] is None
        ]
    assert len(found) == sum((row["id"] is None) + (row["shop"] is None) for row in rows)
    assert unusable_rows(TableSpec("orders"), table(rows)) == []


def test_a_key_that_is_no_number_is_none() -> None:
    """In PostgreSQL NaN equals itself, in Arrow it does not."""
    rows = table([record(id=number, offset=number) for number in range(2)])
    rows = rows.set_column(rows.column_names.index("id"), "id", pa.array([float("nan"), 1.0]))
    (refusal,) = unusable_rows(UPSERT, rows)
    assert refusal.offset == 0
    assert refusal.error.startswith("key column id is NULL or NaN; filter")


def test_merged_rows_without_a_key_can_not_be_set_aside() -> None:
    with pytest.raises(BadInput, match="table orders: 1 rows have no value in key column id; filter them out"):
        unusable_rows(UPSERT, pa.table({"id": pa.array([None, 1], pa.int64())}))


# Columns


def test_hidden_columns_stay_until_the_rows_are_written() -> None:
    rows = table([record(id=1, name=name, offset=n) for n, name in enumerate("abc")])
    puts = finish(TableSpec("orders"), rows, BATCH).puts
    assert [origin(puts, at) for at in range(3)] == [(Partition("a", 0), offset) for offset in range(3)]
    assert visible(puts).column_names == ["id", "shop", "version", "name"]
    assert not set(HIDDEN) & set(visible(puts).column_names)
    assert len(finish(UPSERT, SCHEMA.empty_table(), BATCH)) == 0


@given(rows(), st.sampled_from(["append", "upsert", "ignore"]))
def test_provenance_says_which_record_of_which_batch_wrote_a_row(rows: list[Row], write: Any) -> None:
    spec = TableSpec("orders", () if write == "append" else ("id",), write, provenance=True)
    changes = finish(spec, table(rows), BATCH)
    for row in [*changes.puts.to_pylist(), *changes.deletes.to_pylist()]:
        assert (row["tallymark_topic"], row["tallymark_partition"]) == (row[TOPIC], row[PARTITION])
        assert (row["tallymark_offset"], row["tallymark_batch"]) == (row[OFFSET], BATCH)
    plain = pa.schema([field for field in SCHEMA if field.name not in HIDDEN])
    assert visible(changes.puts).schema == table_schema(spec, plain), "the table has the columns that the rows have"


def test_provenance_needs_rows_of_single_records_and_names_of_its_own() -> None:
    spec = TableSpec("orders", provenance=True)
    with pytest.raises(
        BadInput, match=r"table orders: provenance=True requires .* but the function merges records; remove"
    ):
        finish(spec, pa.table({"id": [1]}), BATCH)
    with pytest.raises(BadInput, match="its function returns tallymark_offset, which provenance=True adds; rename it"):
        table_schema(spec, pa.schema([("tallymark_offset", pa.int64())]))
    assert table_schema(UPSERT, SCHEMA) is SCHEMA


@given(st.lists(st.integers(0, 20), max_size=12))
def test_rows_of_merged_records_need_distinct_keys(ids: list[int]) -> None:
    rows = pa.table({"id": pa.array(ids, pa.int64())})
    if len(set(ids)) == len(ids):
        assert finish(MERGED, rows, BATCH).puts["id"].to_pylist() == sorted(ids)
    else:
        with pytest.raises(BadInput, match=r"several rows have the same id, .* aggregate to one row per key"):
            finish(MERGED, rows, BATCH)


@pytest.mark.parametrize("write", ["upsert", "ignore"])
def test_rows_of_merged_records_have_a_key_only_where_the_table_says_so(write: Any) -> None:
    rows = pa.table({"id": [1]})
    with pytest.raises(BadInput, match=r"merges records, .* write='merge' .* view, .* tm\.Sink, or set per_batch=True"):
        finish(TableSpec("orders", ("id",), write), rows, BATCH)
    assert len(finish(TableSpec("orders", ("id",), write, per_batch=True), rows, BATCH)) == 1
    assert len(finish(TableSpec("orders", ("id",), write), rows.slice(0, 0), BATCH)) == 0
    assert len(finish(TableSpec("orders"), rows, BATCH)) == 1


# Tables that can't work


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"write": "replace"}, r"table t: write='replace' is not known; write append, upsert, ignore"),
        ({"write": "upsert"}, r"table t: upsert needs key=, the column or columns that identify a row"),
        ({"write": "ignore"}, r"table t: ignore needs key="),
        ({"key": ("id",)}, r"table t: append takes no key=; use write='upsert'"),
        ({"version": "v"}, r"table t: version= needs write='upsert'"),
        ({"key": ("id",), "write": "ignore", "version": "v"}, r"table t: version= needs write='upsert'"),
        ({"key": ("id", "v"), "write": "upsert", "version": "v"}, r"table t: version= can't be part of the key"),
        ({"delete": "tombstone"}, r"table t: delete= needs write='upsert': rows are deleted by their key"),
        ({"key": ("id",), "write": "ignore", "delete": "tombstone"}, r"table t: delete= needs write='upsert'"),
        ({"key": ("id",), "write": "upsert", "delete": ""}, r"table t: delete= needs 'tombstone' or a condition"),
        ({"per_batch": True}, r"table t: per_batch= needs write='upsert' or 'ignore'"),
        ({"evolve": "later"}, r"table t: evolve='later' is not known; write True, False or 'follow'"),
        (
            {"key": ("id",), "write": "merge", "merge": (("n", "sum"),), "evolve": "follow"},
            r"table t: evolve='follow' adds columns, and merge= names all of them",
        ),
        ({"name": "tallymark_positions"}, r"are reserved; choose another"),
        ({"name": "Tallymark_x"}, r"are reserved"),
        ({"name": ""}, r"a table needs a name"),
    ],
)
def test_a_table_that_can_not_work_is_refused_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        TableSpec(**{"name": "t", **settings})


def test_a_tombstone_is_a_condition_like_any_other() -> None:
    assert DELETING.deletes == TOMBSTONE
    assert TableSpec("t", ("id",), "upsert", delete="value.op = 'd'").deletes == "value.op = 'd'"
    assert UPSERT.deletes is None
