"""Two runs of the loop on one group: the later one continues, the earlier one is fenced and claims nothing back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.errors import Fenced, TallymarkError
from tests.support.background import TIMEOUT, wait_for
from tests.support.crash import Run
from tests.support.databases import query
from tests.support.kafka import Topics
from tests.support.running import Running
from tests.support.truth import check_complete

Start = Callable[..., Running]


@pytest.fixture
def start(database: Callable[[str], str]) -> Iterator[Start]:  # runs end before their database
    """``start(run)``: a loop that runs until the end of the test."""
    made: list[Running] = []

    def start_one(run: Run, on_step: OnStep = ignore) -> Running:
        made.append(Running(run, on_step))
        return made[-1]

    yield start_one
    for running in made:
        running.close()
        # Show why a run ended early, if a test waited for it.
        print(f"{running.loop.job.owner.run} ended with {running.error!r}")


def owners(url: str, partition: int) -> list[object]:
    try:
        found = query(url, f"SELECT owner FROM tallymark_positions WHERE partition_id = {partition}")
    except Exception:  # noqa: BLE001  # there is no ledger yet
        return []
    return [owner for (owner,) in found if owner]


def count(url: str) -> int:
    ((found,),) = query(url, "SELECT count(*) FROM events")
    return int(str(found))


@pytest.mark.faults_where(store_url="mariadb")
def test_the_later_run_goes_on_and_the_earlier_one_is_told(
    start: Start, topics: Topics, store_url: str, brokers: str, group: str
) -> None:
    topic = topics.create(2)
    run = Run(brokers, store_url, group, topic)
    earlier = start(run)
    topics.send(topic, ({"id": 2 * n + n % 2} for n in range(30)), partitions=2)
    wait_for(lambda: bool(owners(store_url, 0)) and count(store_url) == 30)
    later = start(run)
    wait_for(lambda: owners(store_url, 0) == [later.loop.job.owner.run])
    topics.send(topic, ({"id": 2 * n + n % 2} for n in range(30)), partitions=2)
    wait_for(lambda: count(store_url) == 60)
    earlier.wait()
    assert isinstance(earlier.error, Fenced)
    assert later.loop.job.owner.run in str(earlier.error)
    assert later.error is None
    check_complete(store_url, topics.committed(topic))


def test_a_run_that_was_fenced_without_knowing_takes_no_new_partition(
    start: Start, topics: Topics, database: Callable[[str], str], brokers: str, group: str
) -> None:
    """An idle run notices that it is fenced when it sees a new partition, before it claims that from the owner."""
    url = database("postgresql")
    topic = topics.create(1)
    run = Run(brokers, url, group, topic)
    earlier = start(run)
    wait_for(lambda: owners(url, 0) == [earlier.loop.job.owner.run])
    later = start(run)
    wait_for(lambda: owners(url, 0) == [later.loop.job.owner.run])
    topics.grow(topic, 2)
    earlier.wait()
    assert isinstance(earlier.error, Fenced)
    assert later.loop.job.owner.run in str(earlier.error)
    wait_for(lambda: owners(url, 1) == [later.loop.job.owner.run])
    topics.send_to(topic, 1, [{"id": 7}])
    wait_for(lambda: count(url) == 1)
    assert later.error is None


def test_partitions_that_are_added_are_read_from_their_start(
    start: Start, topics: Topics, database: Callable[[str], str], brokers: str, group: str
) -> None:
    url = database("mariadb")
    topic = topics.create(1)
    start(Run(brokers, url, group, topic))
    wait_for(lambda: bool(owners(url, 0)))
    topics.grow(topic, 3)
    topics.send(topic, ({"id": number} for number in range(30)), partitions=3)
    wait_for(lambda: count(url) == 30)
    check_complete(url, topics.committed(topic))


@pytest.mark.faults_where(store_url="mariadb")
def test_a_batch_that_was_read_ahead_is_dropped_when_the_commit_before_it_fails(
    start: Start, topics: Topics, store_url: str, brokers: str, group: str
) -> None:
    topic = topics.create(2)
    topics.send(topic, ({"id": 2 * n + n % 2} for n in range(60)), partitions=2)
    read_ahead = threading.Event()
    passed: list[Step] = []

    def fail(step: Step, progress: Progress) -> None:
        passed.append(step)
        if step is Step.STAGED and progress.batch.endswith("-2"):
            read_ahead.set()
        if step is Step.WRITTEN:
            assert read_ahead.wait(TIMEOUT)
            raise TallymarkError("the commit fails while the next batch waits")

    failing = start(Run(brokers, store_url, group, topic), fail)
    failing.wait()
    assert failing.error is not None
    assert count(store_url) == 0
    assert passed.count(Step.WRITTEN) == 1
    start(Run(brokers, store_url, group, topic))
    wait_for(lambda: count(store_url) == 60)
    check_complete(store_url, topics.committed(topic))
