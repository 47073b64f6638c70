"""A run that is killed at any step loses nothing and repeats nothing, in every write mode."""

from __future__ import annotations

import pytest

from tallymark.core.progress import Step
from tests.support.crash import Plug, Run, run_in_child
from tests.support.kafka import Topics
from tests.support.truth import Committed, batches, check_complete, check_consistent, expected_by_id, split

PARTITIONS = 3
DELETED = {3, 6}
"""Deletions among the first records of each partition: the row of the first returns, that of the other does not."""
IDS = 5
"""The number of ids of a partition. Each id is repeated, and never used in another partition."""
VISIBLE = {
    # The previous batch may still be in progress while this one is prepared.
    Step.PLANNED: {0, 1},
    Step.READ: {0, 1},
    Step.STAGED: {0, 1},
    Step.WRITTEN: {1},
    Step.MOVED: {1},
    Step.COMMITTED: {2},
    Step.DONE: {2},
}
"""The number of committed batches after the second one was killed at a step. A transaction is never half done."""


def fill(topics: Topics, topic: str) -> None:
    """Records of every kind: good ones, garbage, tombstones, committed and aborted transactions.

    Versions go up and down or are missing, and some ids are deleted, some of which return.
    """
    for partition in range(PARTITIONS):
        good: list[dict[str, object]] = [{"id": partition * IDS + number % IDS} for number in range(12)]
        for number, value in enumerate(good):
            value |= {"version": number * 7 % 5} if number % 4 else {}
            value |= {"op": "d"} if number in DELETED else {}
        aborted = [{"id": partition * IDS, "aborted": True, "version": 99}] * 4
        topics.send_to(topic, partition, [*good, b"\xff garbage", None, '{"name": "no id"}'])
        topics.send_in_transaction(topic, {partition: aborted}, commit=False)
        topics.send_in_transaction(topic, {partition: good[:5]})
        topics.send_to(topic, partition, good[: partition + 1])
        topics.send_in_transaction(topic, {partition: aborted[:1]}, commit=False)


def test_the_records_are_such_that_every_way_of_writing_ends_differently(
    committed: Committed,
) -> None:
    good, dead = split(committed)
    ends = {table: sorted(row[:2] for row in rows) for table, rows in expected_by_id(good).items()}
    assert dead
    assert len({str(rows) for rows in ends.values()}) == len(ends)
    assert 0 < len(ends["alive"]) < len(ends["latest"])


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    name = topics.create(PARTITIONS)
    fill(topics, name)
    return name


@pytest.mark.faults_where(step=[Step.PLANNED, Step.READ, Step.STAGED, Step.DONE])
@pytest.mark.faults_where(url="mariadb")
@pytest.mark.faults_where(url="redis", step=[Step.WRITTEN, Step.MOVED])
@pytest.mark.parametrize("step", list(VISIBLE), ids=lambda step: step.value)
def test_a_run_killed_at_any_step_loses_and_repeats_nothing(
    step: Step, url: str, brokers: str, group: str, topic: str, committed: Committed
) -> None:
    run = Run(brokers, url, group, topic)
    assert run_in_child(run, Plug(step, 2)) == -9
    assert batches(url) in VISIBLE[step]
    check_consistent(url, committed)

    assert run_in_child(run, Plug(step, 1)) == -9
    check_consistent(url, committed)

    assert run_in_child(run) == 0
    assert batches(url) >= 4
    check_complete(url, committed)


@pytest.mark.faults_where(url=["mariadb", "redis", "sqlite"])
def test_a_run_that_dies_at_every_batch_still_gets_to_the_end(
    url: str, brokers: str, group: str, topic: str, committed: Committed
) -> None:
    run = Run(brokers, url, group, topic, records=24)
    deaths = 0
    while run_in_child(run, Plug(Step.COMMITTED, 1)) == -9:
        deaths += 1
        check_consistent(url, committed)
    assert deaths == batches(url) >= 3
    check_complete(url, committed)


def test_a_second_run_finds_nothing_to_do(url: str, brokers: str, group: str, topic: str, committed: Committed) -> None:
    run = Run(brokers, url, group, topic)
    assert run_in_child(run) == 0
    before = batches(url)
    assert run_in_child(run) == 0
    assert batches(url) == before
    check_complete(url, committed)
