"""Undecoded records in Arrow: counted, split, and kept unchanged as letters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from tallymark.core import raw
from tallymark.core.records import DeadLetter, PartitionCounts
from tallymark.core.spans import Partition, Span

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ONE, TWO = Partition("a", 0), Partition("a", 1)


def letter(partition: Partition, offset: int, value: bytes | None = b"v") -> DeadLetter:
    time = NOON + timedelta(seconds=offset)
    return DeadLetter(partition, offset, time, b"k", value, [("h", b"1"), ("h", None)], None, "why")


def records(*places: tuple[Partition, int]) -> pa.Table:
    return raw.of_letters([letter(*place) for place in places])


def offsets(found: pa.Table) -> list[int]:
    listed: list[int] = found["offset"].to_pylist()
    return listed


def test_letters_come_back_as_they_were() -> None:
    kept = [letter(ONE, 3), letter(TWO, 9, None)]
    again = raw.letters(raw.of_letters(kept), {0: "why", 1: "why"})
    assert again == kept
    assert raw.letters(raw.of_letters(kept), {1: "why"}) == kept[1:]


def test_every_partition_is_counted_with_its_dead_and_the_time_of_its_last_record() -> None:
    found = records((ONE, 3), (ONE, 5), (TWO, 9), (ONE, 8))
    assert raw.seen(found, [1, 2]) == {
        ONE: PartitionCounts(3, 1, NOON + timedelta(seconds=8)),
        TWO: PartitionCounts(1, 1, NOON + timedelta(seconds=9)),
    }
    assert raw.seen(found.slice(0, 0), []) == {}


def test_the_last_record_has_no_time_if_it_has_none() -> None:
    untimed = pa.Table.from_pylist([{"topic": "a", "partition": 0, "offset": 6}], raw.SCHEMA)
    assert raw.seen(pa.concat_tables([records((ONE, 5)), untimed]), [])[ONE].last_timestamp is None


def test_records_are_left_out_by_their_place_or_their_row() -> None:
    found = records((ONE, 3), (ONE, 5), (TWO, 3), (TWO, 5))
    assert offsets(raw.without(found, [(ONE, 3), (TWO, 5), (TWO, 77)])) == [5, 3]
    assert raw.without(found, []) is found
    assert offsets(raw.leave_out(found, {0: "", 3: ""})) == [5, 3]


def test_the_size_is_that_of_keys_and_values() -> None:
    assert raw.size(raw.of_letters([letter(ONE, 1, b"12345"), letter(ONE, 2, None)])) == 1 + 5 + 1
    assert raw.size(raw.SCHEMA.empty_table()) == 0


def test_a_hull_has_all_records_of_a_partition_in_it() -> None:
    places: Sequence[tuple[Partition, int]] = [(TWO, 4), (ONE, 9), (ONE, 2)]
    assert raw.hulls(places) == [Span(ONE, 2, 10), Span(TWO, 4, 5)]
