"""A batch given to a handler: the state after a failed attempt, and calls that are too late for the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tallymark.core.batch import BatchToCommit
from tallymark.core.journal import Letter
from tallymark.core.plan import Move
from tallymark.core.records import DeadLetter
from tallymark.core.spans import Partition
from tallymark.errors import Retry, Unreachable
from tallymark.service.batch import Batch
from tallymark.service.records import Message, Record, Records

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def message(partition: Partition, offset: int) -> Message:
    return Message(DeadLetter(partition, offset, NOON, None, b"x", [], None, "was wrong"))


def record(partition: Partition, offset: int) -> Record:
    return Record(partition.topic, partition.number, offset, NOON, None, b"x", ())


def letter(partition: Partition, offset: int) -> Letter:
    kept = message(partition, offset).letter
    return Letter(f"{partition.number}-{offset}", "group", kept, "dead", "run-0", NOON)


class Attempts:
    """A batch of ten records in each of two partitions, and the calls to its ledger, before the handler or after."""

    def __init__(self, *, ledger_first: bool = False, tries_letters: bool = False, failing: int = 0) -> None:
        messages: dict[Partition, list[Any]] = {one: [message(one, n) for n in range(10)] for one in (ZERO, ONE)}
        tried = {(one, n): letter(one, n) for one in (ZERO, ONE) for n in range(10)} if tries_letters else None
        moves = () if tries_letters else [Move(one, 0, lost=0, read=10) for one in (ZERO, ONE)]
        records = Records([one for some in messages.values() for one in some], pa.array([b"x"] * 20))
        self.batch = Batch("run-1", moves, messages, records, (), tried=tried)
        self.batch.commit = self._commit
        self.told: list[BatchToCommit] = []
        self._ledger_first = ledger_first
        self._failing = failing

    @contextmanager
    def _commit(self, batch: Batch) -> Iterator[Any]:
        batch.begin()
        if self._ledger_first:
            self.told.append(batch.accounts())
        yield None
        if not self._ledger_first:
            self.told.append(batch.accounts())
        failing = len(self.told) <= self._failing
        batch.end(committed=not failing)
        if failing:
            raise Unreachable("gone")

    def stops(self) -> dict[Partition, int]:
        return {move.partition: move.stop for move in self.told[-1].plan.moves}


def test_an_attempt_that_fails_leaves_the_batch_as_it_was() -> None:
    made = Attempts(failing=1)
    with suppress(Unreachable), made.batch.transaction():
        made.batch.dead(record(ZERO, 2), "no")
        made.batch.shorten({ZERO: 5}, Retry("later"))
    assert (made.stops(), made.batch.committed) == ({ZERO: 5, ONE: 10}, False)
    with made.batch.transaction():
        made.batch.dead(record(ZERO, 7), "never")
    assert made.stops() == {ZERO: 10, ONE: 10}
    assert {one: seen.records for one, seen in made.told[-1].reading.seen.items()} == {ZERO: 10, ONE: 10}
    assert [(one.partition, one.offset) for one in made.told[-1].letters] == [(ZERO, 7)]


def test_letters_that_are_tried_again_are_all_there_at_the_second_attempt() -> None:
    made = Attempts(tries_letters=True, failing=1)
    with suppress(Unreachable), made.batch.transaction():
        made.batch.shorten({ONE: 4}, Retry("later"))
    assert len(made.told[-1].replays()) == 14
    with made.batch.transaction():
        pass
    assert len(made.told[-1].replays()) == 20


def test_what_comes_after_the_ledger_was_written_is_lost_and_said_to_be(caplog: pytest.LogCaptureFixture) -> None:
    made = Attempts(ledger_first=True)
    made.batch.dead(record(ONE, 3), "before")
    with made.batch.transaction():
        made.batch.dead(record(ZERO, 2), ValueError("no"))
        made.batch.shorten({ZERO: 5}, Retry("later"))
    assert made.batch.stops == made.stops() == {ZERO: 10, ONE: 10}
    assert [one.offset for one in made.told[-1].letters] == [3]
    lost = "records lost, counted as applied delivery=at-most-once batch=run-1"
    assert caplog.messages == [
        f"{lost} span=orders[0] 2..3 error=ValueError: no",
        f"{lost} span=orders[0] 5..10 error=later",
    ]


def test_a_ledger_that_could_not_be_written_hears_of_the_dead_at_the_next_attempt() -> None:
    made = Attempts(ledger_first=True, failing=1)
    with suppress(Unreachable), made.batch.transaction():
        pass
    made.batch.dead(record(ONE, 3), "between")
    with made.batch.transaction():
        pass
    assert [one.offset for one in made.told[-1].letters] == [3]


def test_a_batch_whose_records_are_all_finished_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    made = Attempts(ledger_first=True)
    with made.batch.transaction():
        made.batch.shorten({}, None)
    assert caplog.messages == []
