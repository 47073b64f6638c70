"""The next read is the announced one, unless the log or the cursor has changed."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tallymark.core.plan import Limits, Move, Plan, plan
from tallymark.core.progress import ignore
from tallymark.core.spans import Log, Mark, Owner, Partition
from tallymark.core.start import Start
from tallymark.errors import BatchTooLarge
from tallymark.run.prepare import CAREFUL, Cursor, Preparation
from tallymark.run.setup import Job

ONE, OTHER = Partition("orders", 0), Partition("orders", 1)
NOBODY: Any = None
EXPECTED = Plan((Move(ONE, 400, 0, 100),))


def log(partition: Partition, start: int, stop: int) -> Log:
    return Log(partition, "id", "cluster", start, stop, stop)


@pytest.fixture
def made() -> Preparation:
    owner = Owner("run", "host", datetime.now(UTC))
    job = Job("group", ["orders"], [], owner, Start.parse("earliest"), Limits(records=100))
    return Preparation(job, NOBODY, NOBODY, NOBODY, Cursor(), None, threading.Event(), ignore)


def chosen(made: Preparation, cursor: dict[Partition, int], *logs: Log) -> Plan:
    """The read that follows the announcement of a batch from 400 to 500."""
    made._expected, there = EXPECTED, {one.partition: one for one in logs}
    return made._expected_or(plan(cursor, there, 100, "record"), cursor, there)


def test_the_expected_batch_is_read_also_if_others_lag_by_now(made: Preparation) -> None:
    assert chosen(made, {ONE: 400}, log(ONE, 0, 900)) is EXPECTED
    assert chosen(made, {ONE: 400, OTHER: 0}, log(ONE, 0, 900), log(OTHER, 0, 900)) is EXPECTED


@pytest.mark.parametrize(
    ("cursor", "there"),
    [
        ({ONE: 300}, log(ONE, 0, 900)),  # the position went back
        ({ONE: 400}, log(ONE, 0, 450)),  # the topic was recreated or truncated
        ({ONE: 400}, log(ONE, 420, 900)),  # records are lost
    ],
)
def test_it_is_not_read_where_it_does_not_fit(made: Preparation, cursor: dict[Partition, int], there: Log) -> None:
    assert chosen(made, cursor, there) == plan(cursor, {ONE: there}, 100, "record") != EXPECTED


def test_a_batch_is_expected_only_if_there_is_half_of_one(made: Preparation) -> None:
    cursor, first = {ONE: 0}, Plan((Move(ONE, 0, 0, 100),))
    assert made._following(first, cursor, {ONE: log(ONE, 0, 150)}) == Plan()
    assert made._following(first, cursor, {ONE: log(ONE, 0, 151)}) == Plan((Move(ONE, 100, 0, 51),))


def test_after_one_that_was_too_large_some_batches_stay_small(
    made: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(name: str, planned: Plan, *_: Any) -> Any:
        if planned.offsets > 60:
            raise BatchTooLarge("too large")
        return SimpleNamespace(plan=planned, reading=SimpleNamespace(staged={}, size=0))

    monkeypatch.setattr(made, "_read", read)
    limits = []
    for _ in range(CAREFUL + 2):
        found = made._shaped(Plan((Move(ONE, 0, 0, made._limit),)), 0, 0.0)
        made.learn(found, seconds=0.001)
        limits.append(made._limit)
    assert limits == [*[50] * (CAREFUL - 1), 100, *[50] * 2]


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
