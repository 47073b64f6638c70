"""Clocks of hosts differ; whether a run may move a position back does not depend on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from tallymark.core.claims import Advance
from tallymark.core.spans import Owner, Partition, Tally
from tallymark.core.start import Start
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.membership import Assignment
from tallymark.run.ownership import Ownership
from tallymark.run.setup import Job
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tests.support.commits import apply, moving
from tests.support.kafka import Topics

HOUR = timedelta(hours=1)


class Assigned:
    """A group member whose partitions the test assigns."""

    chosen: frozenset[Partition] | None = None
    grace: float | None = 0.1

    def __init__(self) -> None:
        self._now = Assignment()

    def give(self, *partitions: Partition) -> None:
        self._now = Assignment(dict.fromkeys(partitions, 1), frozenset(), 1.0)

    def assignment(self) -> Assignment:
        return self._now

    def join(self) -> None: ...
    def leave(self) -> None: ...
    def acknowledge(self, partitions: Iterable[Partition]) -> None: ...
    def mirror(self, positions: Mapping[Partition, int]) -> None: ...


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    name = topics.create(2)
    topics.send(name, ({"id": number} for number in range(20)), partitions=2)
    return name


@pytest.fixture
def store(url: str) -> Store:
    made = open_store(url)
    made.create_ledger()
    return made


class Member:
    def __init__(self, store: Store, brokers: str, group: str, topic: str, ahead: timedelta = timedelta()) -> None:
        self.group, self.store = group, store
        self.assigned = Assigned()
        owner = Owner(f"run-{id(self)}", "host", datetime.now(UTC) + ahead)
        start = Start.parse("earliest")
        self.ownership = Ownership(Job(group, [topic], [], owner, start), self.assigned, Brokers(brokers), store)
        self.ownership.join([topic])

    def take(self, *partitions: Partition) -> list[int]:
        self.assigned.give(*partitions)
        self.ownership.reconcile()
        return [self.ownership.claims[one].position.next_offset for one in partitions]

    def commit(self, partition: Partition, stop: int) -> None:
        held = self.ownership.claims[partition]
        step = Advance(partition, held.position.next_offset, stop, held.epoch, Tally(absent=stop), None)
        apply(self.store, moving(self.group, step), self.ownership.claims)

    def leave(self) -> None:
        self.ownership.leave()


@pytest.mark.parametrize("ahead", [-HOUR, HOUR], ids=["behind", "ahead"])
def test_what_another_member_has_committed_is_not_sent_back(
    ahead: timedelta, store: Store, brokers: str, group: str, topic: str
) -> None:
    """Both start at once and see no other run; then the group moves a partition from one to the other."""
    first, second = (Partition(topic, number) for number in range(2))
    one, other = Member(store, brokers, group, topic), Member(store, brokers, group, topic, ahead)
    assert one.take(first, second) == [0, 0]
    one.commit(second, 5)
    assert other.take(second) == [5]
    one.leave()
    other.leave()
    store.close()


@pytest.mark.parametrize("ahead", [-HOUR, HOUR], ids=["behind", "ahead"])
def test_a_run_that_comes_later_starts_where_it_was_told(
    ahead: timedelta, store: Store, brokers: str, group: str, topic: str
) -> None:
    partition = Partition(topic, 0)
    earlier = Member(store, brokers, group, topic)
    earlier.take(partition)
    earlier.commit(partition, 5)
    earlier.leave()
    later = Member(store, brokers, group, topic, ahead)
    assert later.take(partition) == [0]
    later.leave()
    store.close()
