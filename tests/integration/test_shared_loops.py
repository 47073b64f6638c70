"""Several loops share a group, like several Spark drivers of one pipeline: the counts are exact."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tallymark import SkipAhead
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tests.support import truth
from tests.support.background import wait_for
from tests.support.crash import Run
from tests.support.kafka import Topics
from tests.support.running import SharedLoop, start_loop

Join = Callable[..., SharedLoop]


@pytest.fixture
def join(database: Callable[[str], str]) -> Iterator[Join]:  # the loops end before their database
    """``join(run)``: a loop that runs until the end of the test."""
    made: list[SharedLoop] = []

    def one(run: Run, on_step: OnStep = ignore, **changes: Any) -> SharedLoop:
        made.append(SharedLoop(run, on_step, **changes))
        return made[-1]

    yield one
    for loop in made:
        loop.close()
        assert loop.error is None, loop.error


@pytest.fixture
def run(brokers: str, database: Callable[[str], str], group: str, topics: Topics) -> Run:
    return Run(brokers, database("postgresql"), group, topics.create(4))


def send(topics: Topics, run: Run, first: int, stop: int) -> None:
    topics.send(run.topic, ({"id": number} for number in range(first, stop)), partitions=4)


def shares(run: Run) -> list[int]:
    """The number of partitions of each owner."""
    try:
        found = truth.ledger(run.store, "positions", "owner")
    except Exception:  # noqa: BLE001 - there is no ledger yet
        return []
    return sorted(Counter(owner for (owner,) in found if owner).values())


def written(run: Run) -> int:
    try:
        return truth.events(run.store).total()
    except Exception:  # noqa: BLE001 - there is no table yet
        return 0


def test_loops_share_and_one_of_them_is_killed(join: Join, run: Run, topics: Topics) -> None:
    join(run)
    wait_for(lambda: shares(run) == [4])
    send(topics, run, 0, 80)
    join(run)
    wait_for(lambda: shares(run) == [2, 2])
    third = start_loop(run)
    try:
        wait_for(lambda: shares(run) == [1, 1, 2])
        send(topics, run, 80, 160)
        wait_for(lambda: written(run) > 100)
        third.kill()
        third.join()
        send(topics, run, 160, 240)
        wait_for(lambda: written(run) == 240)
    finally:
        third.kill()
    wait_for(lambda: shares(run) == [2, 2])
    truth.check_complete(run.store, topics.committed(run.topic))


def test_a_batch_that_was_read_ahead_is_abandoned_when_its_partitions_move(
    join: Join, run: Run, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    """While one batch commits, the next one is read; before it can commit, half of it belongs to another."""
    caplog.set_level("INFO", "tallymark.run.loop")
    read, go = threading.Event(), threading.Event()

    def hold(step: Step, progress: Progress) -> None:
        # The second batch is ready; the reading thread keeps it until its partitions are being revoked.
        if step is Step.STAGED and progress.batch.endswith("-2"):
            read.set()
            go.wait(20)

    join(run, hold)
    wait_for(lambda: shares(run) == [4])
    send(topics, run, 0, 100)
    assert read.wait(20)
    join(run)
    wait_for(lambda: shares(run) == [2, 2])
    go.set()
    wait_for(lambda: written(run) == 100)
    assert "batch abandoned" in caplog.text
    truth.check_complete(run.store, topics.committed(run.topic))


def test_a_member_that_is_far_behind_jumps_when_it_gets_its_partitions(join: Join, run: Run, topics: Topics) -> None:
    send(topics, run, 0, 400)
    join(run, catch_up=SkipAhead(when_behind=50, keep=5))
    wait_for(lambda: written(run) == 20)
    tallies = truth.ledger(run.store, "positions", "applied", "skipped")
    assert sorted(map(tuple, tallies)) == [(5, 95)] * 4
    kinds = truth.ledger(run.store, "exceptions", "kind", "start_offset", "stop_offset")
    assert sorted(map(tuple, kinds)) == [("skip", 0, 95)] * 4
