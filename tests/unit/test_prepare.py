"""The next read is the announced one, unless the log or the cursor has changed; tasks are divided without a gap."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.claims import Skip
from tallymark.core.journal import Letter
from tallymark.core.plan import Limits, Move, Plan, plan
from tallymark.core.progress import ignore
from tallymark.core.records import DeadLetter, Reading
from tallymark.core.spans import Log, Mark, Owner, Partition, Span
from tallymark.core.start import Start
from tallymark.errors import BatchTooLarge
from tallymark.run.claimed import ClaimedPartitions, Cursor
from tallymark.run.commit import Destination
from tallymark.run.prepare import CAREFUL, Preparation
from tallymark.run.setup import Job
from tallymark.run.work import Task
from tests.unit.strategies import NOON

ONE, OTHER = Partition("orders", 0), Partition("orders", 1)
EXPECTED = Plan((Move(ONE, 400, 0, 100),))


def log(partition: Partition, start: int, stop: int) -> Log:
    return Log(partition, "id", "cluster", start, stop, stop)


class Prepares:
    """A preparation of claimed partitions with logs that can be changed; a reader that keeps what it was asked for."""

    def __init__(self, cursor: Mapping[Partition, int], *logs: Log, most: int = 100) -> None:
        self.logs, self.most = logs, most
        self.asked: list[tuple[int, Sequence[Span] | None]] = []
        owner = Owner("run", "host", datetime.now(UTC))
        job = Job("group", ["orders"], [], owner, Start.parse("earliest"), Limits(records=100), on_loss="record")
        brokers: Any = SimpleNamespace(
            logs=lambda _: {one.partition: one for one in self.logs}, ask_ids=lambda _: dict, stop=threading.Event()
        )
        reader: Any = SimpleNamespace(tables=[], read=self.read, drift=lambda _: {})
        nowhere: Any = None
        self.work = ClaimedPartitions(job, brokers, Destination(nowhere, nowhere), reader)
        self.preparation = Preparation(job, self.work, reader, None, brokers.stop, ignore)
        self.go_to(cursor)

    def go_to(self, cursor: Mapping[Partition, int]) -> None:
        self.work.cursor.marks = {partition: Mark(offset) for partition, offset in cursor.items()}

    def next(self) -> Plan:
        prepared = self.preparation.next()
        assert prepared is not None
        self.preparation.learn(prepared, seconds=0.001)
        return prepared.batch.plan

    def read(self, spans: Sequence[Span], _batch: str, _without: Any, then: Sequence[Span] | None) -> Reading:
        self.asked.append((sum(len(span) for span in spans), then))
        if self.asked[-1][0] > self.most:
            raise BatchTooLarge("too large")
        return Reading({}, {}, [])


def chosen(cursor: Mapping[Partition, int], *logs: Log) -> Plan:
    """The read that follows the announcement of a batch from 400 to 500."""
    prepares = Prepares({ONE: 300}, log(ONE, 0, 900))
    prepares.next()
    assert prepares.asked == [(100, EXPECTED.spans)]
    prepares.logs = logs
    prepares.go_to(cursor)
    return prepares.next()


def test_the_expected_batch_is_read_also_if_others_lag_by_now() -> None:
    assert chosen({ONE: 400}, log(ONE, 0, 900)) == EXPECTED
    cursor, logs = {ONE: 400, OTHER: 0}, (log(ONE, 0, 900), log(OTHER, 0, 900))
    assert chosen(cursor, *logs) == EXPECTED != plan(cursor, dict(zip(cursor, logs, strict=True)), 100, "record")


@pytest.mark.parametrize(
    ("cursor", "there"),
    [
        ({ONE: 300}, log(ONE, 0, 900)),  # the position went back
        ({ONE: 400}, log(ONE, 0, 450)),  # the topic was recreated or truncated
        ({ONE: 400}, log(ONE, 420, 900)),  # records are lost
    ],
)
def test_it_is_not_read_where_it_does_not_fit(cursor: dict[Partition, int], there: Log) -> None:
    assert chosen(cursor, there) == plan(cursor, {ONE: there}, 100, "record") != EXPECTED


@pytest.mark.parametrize(("stop", "then"), [(150, ()), (151, (Span(ONE, 100, 151),))])
def test_a_batch_is_expected_only_if_there_is_half_of_one(stop: int, then: tuple[Span, ...]) -> None:
    prepares = Prepares({ONE: 0}, log(ONE, 0, stop))
    assert prepares.next() == Plan((Move(ONE, 0, 0, 100),))
    ((_, announced),) = prepares.asked
    assert tuple(announced or ()) == then


def test_after_one_that_was_too_large_some_batches_stay_small() -> None:
    prepares = Prepares({ONE: 0}, log(ONE, 0, 900), most=60)
    for _ in range(CAREFUL + 2):
        prepares.next()
    assert [offsets for offsets, _ in prepares.asked] == [100, *[50] * CAREFUL, 100, 50, 50]


def test_what_was_claimed_again_stays_where_its_position_says() -> None:
    """A batch was prepared and not used; then one of its partitions was moved and claimed again."""
    cursor, moves = Cursor(), [Move(ONE, 10, 0, 5), Move(OTHER, 20, 0, 5)]
    cursor.add({ONE: Mark(10), OTHER: Mark(20)})
    cursor.pass_by(moves)
    turn = cursor.turn
    cursor.remove([ONE])
    cursor.turn += 1
    cursor.add({ONE: Mark(3)})
    cursor.go_back({ONE: Mark(3), OTHER: Mark(20), Partition("gone", 0): Mark(7)})
    assert cursor.offsets == {ONE: 3, OTHER: 20}
    assert cursor.turn > turn + 1


# Tasks in parts


def parts(task: Task) -> list[Task]:
    """The task, half after half."""
    found = []
    while task:
        found.append(task.part())
        assert 0 < found[-1].size <= task.size
        assert found[-1].behind + found[-1].size == task.behind + task.size
        task = task.after(found[-1])
    return found


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 9))
def test_the_parts_of_moves_follow_each_other(one: int, other: int, lost: int) -> None:
    found = parts(Task(Plan((Move(ONE, 5, lost, one), Move(OTHER, 7, 0, other))), behind=3))
    for partition, start, stop in ((ONE, 5, 5 + lost + one), (OTHER, 7, 7 + other)):
        moves = [move for part in found for move in part.plan.moves if move.partition == partition]
        assert [move.start for move in moves] == [start, *(move.stop for move in moves[:-1])]
        assert moves[-1].stop == stop
        assert sum(move.lost for move in moves) == (lost if partition == ONE else 0)


@given(st.integers(1, 50), st.integers(0, 20))
def test_every_part_of_a_fill_begins_where_its_skip_begins_then(read: int, rest: int) -> None:
    skip = Skip(Span(ONE, 10, 10 + read + rest), "far behind", NOON)
    for part in parts(Task(Plan((Move(ONE, 10, 0, read),)), skip=skip)):
        (move,) = part.plan.moves
        assert part.skip == replace(skip, span=replace(skip.span, start=move.start))


def letters(offsets: Collection[int]) -> list[DeadLetter]:
    return [DeadLetter(ONE, offset, NOON, None, b"", (), None, "no") for offset in offsets]


@given(st.sets(st.integers(0, 100), min_size=1), st.data())
def test_every_letter_is_in_one_part_with_its_record(offsets: set[int], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.sampled_from(sorted(offsets))))
    tried = {(ONE, at): Letter(str(at), "group", letters([at])[0], "dead", "run", NOON) for at in sorted(offsets)}
    task = Task(tried=tried, records=letters(offsets - gone), gone=letters(gone))
    found = parts(task)
    assert [place for part in found for place in part.tried] == list(tried)
    for part in found:
        assert {(one.partition, one.offset) for one in [*part.records, *part.gone]} == part.tried.keys()
        assert {one.offset for one in part.gone} <= gone
