"""The next read is the announced one, unless the log or the cursor has changed."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tallymark.core.plan import Limits, Move, Plan, plan
from tallymark.core.progress import ignore
from tallymark.core.records import Reading
from tallymark.core.spans import Log, Mark, Owner, Partition, Span
from tallymark.core.start import Start
from tallymark.errors import BatchTooLarge
from tallymark.run.prepare import CAREFUL, Cursor, Preparation
from tallymark.run.setup import Job

ONE, OTHER = Partition("orders", 0), Partition("orders", 1)
EXPECTED = Plan((Move(ONE, 400, 0, 100),))


def log(partition: Partition, start: int, stop: int) -> Log:
    return Log(partition, "id", "cluster", start, stop, stop)


class Prepares:
    """A preparation over logs that can be changed; a reader that keeps what it was asked for."""

    def __init__(self, cursor: Mapping[Partition, int], *logs: Log, most: int = 100) -> None:
        self.cursor, self.logs, self.most = Cursor(), logs, most
        self.asked: list[tuple[int, Sequence[Span] | None]] = []
        self.go_to(cursor)
        owner = Owner("run", "host", datetime.now(UTC))
        job = Job("group", ["orders"], [], owner, Start.parse("earliest"), Limits(records=100), on_loss="record")
        brokers: Any = SimpleNamespace(logs=lambda _: {one.partition: one for one in self.logs})
        ownership: Any = SimpleNamespace(
            held_topics=dict,
            tolerant=False,
            check_identity=lambda: None,
            validation=SimpleNamespace(elected=lambda *_: ()),
        )
        reader: Any = SimpleNamespace(read=self.read)
        self.preparation = Preparation(job, brokers, reader, ownership, self.cursor, None, threading.Event(), ignore)

    def go_to(self, cursor: Mapping[Partition, int]) -> None:
        self.cursor.marks = {partition: Mark(offset) for partition, offset in cursor.items()}

    def next(self) -> Plan:
        prepared = self.preparation.prepare()
        assert prepared is not None
        self.preparation.learn(prepared.batch, seconds=0.001)
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
