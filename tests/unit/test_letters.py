"""Refused records are removed from every row, also from rows merged from several records."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.batch import alike, check_letters, most_frequent, records_of, refused, without_refused
from tallymark.core.records import LONGEST, DeadLetter, PartitionCounts, Reading, storable
from tallymark.core.spans import Partition
from tallymark.core.tables import OFFSET, PARTITION, TOPIC, Refusal, TableSpec
from tallymark.errors import TallymarkError
from tests.unit.strategies import NOON

ZERO = Partition("orders", 0)
TABLES = [TableSpec("orders", ("id",), "ignore"), TableSpec("totals")]
OFFSETS = range(12)
some = st.sets(st.sampled_from(OFFSETS))


@dataclass
class Log:
    """Twelve records: some have no id, some are not JSON, and some are deleted by Kafka after the first read."""

    nameless: Collection[int] = ()
    garbage: Collection[int] = ()
    deleted: Collection[int] = ()
    reads: list[set[int]] = field(default_factory=list)

    def read(self, without: Collection[tuple[Partition, int]] = ()) -> Reading:
        gone = set(self.deleted) if self.reads else set()
        self.reads.append({offset for _, offset in without})
        there = [one for one in OFFSETS if one not in gone and (ZERO, one) not in without]
        good = [one for one in there if one not in self.garbage]
        letters = [DeadLetter(ZERO, one, None, None, b"x", [], None, "no JSON") for one in there if one in self.garbage]
        columns = {
            "id": pa.array([None if one in self.nameless else one for one in good], pa.int64()),
            TOPIC: pa.array(["orders"] * len(good), pa.string()),
            PARTITION: pa.array([0] * len(good), pa.int32()),
            OFFSET: pa.array(good, pa.int64()),
        }
        totals = pa.table({"records": pa.array([len(good)] if good else [], pa.int64())})
        seen = {ZERO: PartitionCounts(len(there), len(letters), NOON)} if there else {}
        return Reading(seen, {"orders": pa.table(columns), "totals": totals}, letters)


def refusals(offsets: Iterable[int]) -> list[Refusal]:
    return [Refusal(ZERO, one, "orders", "no") for one in sorted(offsets)]


@given(some, some, some, some)
def test_what_is_refused_is_in_no_sum_and_is_counted_once(
    nameless: set[int], garbage: set[int], late: set[int], deleted: set[int]
) -> None:
    """First records without a key, then those that a table refuses; Kafka may delete some before the second read."""
    log = Log(nameless, garbage, deleted)
    reading = log.read()
    reading, found = without_refused(reading, refused(reading, TABLES), TABLES, log.read)
    late &= set(reading.rows["orders"][OFFSET].to_pylist())
    reading, found = without_refused(reading, [*found, *refusals(late)], TABLES, log.read)

    dead = records_of(reading.dead_letters) | {refusal.record for refusal in found}
    assert dead == {(ZERO, one) for one in garbage | nameless | late}
    assert len(dead) == len(reading.dead_letters) + len(found)
    check_letters(reading)
    seen = reading.seen[ZERO]
    assert sum(reading.rows["totals"]["records"].to_pylist()) == seen.records - len(dead)
    assert seen.last_timestamp == NOON
    assert len(log.reads) == 1 + bool(nameless - garbage) + bool(late), "and read again only where it has to be"


def test_without_a_table_that_merges_records_nothing_is_read_again() -> None:
    log = Log(nameless=[3])
    reading = log.read()
    reading = Reading(reading.seen, {"orders": reading.rows["orders"]}, [])
    assert without_refused(reading, refusals([3]), TABLES[:1], None) == (reading, refusals([3]))


def test_a_batch_that_can_not_be_read_again_is_not_written() -> None:
    with pytest.raises(
        TallymarkError, match=r"totals: its function merges records, so orders\[0\] offset 3, which table orders refu"
    ):
        without_refused(Log().read(), refusals([3]), TABLES, None)


def test_words_are_kept_as_every_database_can_hold_them() -> None:
    assert storable("a\0b\ud800") == "a\\0b\\ud800"
    assert storable("x" * LONGEST) == "x" * LONGEST
    long = storable("begin" + "x" * 30_000_000 + "end")
    assert (long[:5], long[-3:]) == ("begin", "end")
    assert len(long) < LONGEST + 10


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("price: 'x' does not fit DOUBLE", "price: 'y: does not fit' does not fit DOUBLE"),
        ("items[2].price: 12 does not fit DECIMAL(10,2)", "items[17].price: 'x' does not fit DECIMAL(10,2)"),
        ("not JSON: Expecting value: line 1 column 1 (char 0)", "not JSON: Expecting value: line 2 column 7 (char 8)"),
    ],
)
def test_errors_that_differ_in_values_only_are_alike(one: str, other: str) -> None:
    assert alike(one) == alike(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("price: 'x' does not fit DOUBLE", "amount: 'x' does not fit DOUBLE"),
        ("KeyError: 'name'", "KeyError: 'price'"),
    ],
)
def test_errors_of_different_fields_are_not_alike(one: str, other: str) -> None:
    assert alike(one) != alike(other)


def test_the_most_frequent_error_is_told_in_the_words_of_its_first_letter() -> None:
    errors = ["no JSON", "price: 'x' does not fit DOUBLE", "price: 'y' does not fit DOUBLE"]
    letters = [DeadLetter(ZERO, at, None, None, b"x", [], None, error) for at, error in enumerate(errors)]
    assert most_frequent(letters) == "price: 'x' does not fit DOUBLE"
