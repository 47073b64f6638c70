"""Records that give no row to any table are found, whatever the rows, the dead records and the refusals are."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core import raw
from tallymark.core.records import PartitionCounts, Reading
from tallymark.core.spans import Partition
from tallymark.core.tables import OFFSET, PARTITION, TOPIC, Refusal
from tallymark.core.unmatched import count_unmatched, unmatched

Place = tuple[str, int, int]
PLACES = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2), st.integers(0, 20))
SETS = st.sets(PLACES, max_size=25)


def records_of(places: Collection[Place]) -> pa.Table:
    listed = [dict(zip(("topic", "partition", "offset"), place, strict=True)) for place in sorted(places)]
    return pa.Table.from_pylist(listed, raw.SCHEMA)


def rows_of(places: Collection[Place], times: int) -> pa.Table:
    """Rows of a table: as an exploding function gives them, several of each record."""
    columns = zip(*sorted(places), strict=True) if places else ((), (), ())
    topics, numbers, offsets = (list(column) * times for column in columns)
    # Spark's topics may have long offsets, and a table of its own columns.
    found = {"id": pa.nulls(len(topics)), TOPIC: pa.array(topics, pa.large_string())}
    return pa.table({**found, PARTITION: pa.array(numbers, pa.int32()), OFFSET: pa.array(offsets, pa.int64())})


@given(SETS, SETS, SETS, SETS, st.integers(1, 3))
def test_they_are_what_no_table_has_and_no_one_refused(
    records: set[Place], first: set[Place], second: set[Place], refused: set[Place], times: int
) -> None:
    first, second, refused = first & records, second & records, (refused & records) - first - second
    expected = sorted(records - first - second - refused)
    rows = {"first": rows_of(first, times), "second": rows_of(second, 1)}
    refusals = [Refusal(Partition(topic, number), offset, "t", "no") for topic, number, offset in refused]
    found = unmatched(records_of(records), rows.values(), refusals)
    assert [sorted(records)[at] for at in found] == expected
    seen = {Partition("a", 0): PartitionCounts(len(records) + 2, 2)}
    assert count_unmatched(Reading(seen, rows, [], refusals)) == len(expected)


def test_rows_of_several_records_do_not_tell() -> None:
    assert count_unmatched(Reading({}, {"merged": pa.table({"n": [1]})}, [])) is None
