"""Whether a run has claimed its assignment: a run until caught-up must not end before, and must not wait in vain."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tallymark.core.spans import Log, Owner, Partition
from tallymark.core.start import Start
from tallymark.errors import UnknownTopic
from tallymark.kafka.brokers import Topic
from tallymark.kafka.membership import Assignment
from tallymark.run.ownership import Ownership
from tallymark.run.setup import Job
from tallymark.stores.opening import open_store

ZERO = Partition("orders", 0)


class Cluster:
    """A cluster with one topic, which its metadata may lack."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.is_known = True

    def topics(self, names: Collection[str], *, existing_only: bool = False) -> dict[str, Topic]:
        if not self.is_known and not existing_only:
            raise UnknownTopic("topic orders does not exist")
        return {name: Topic(name, "id", (ZERO,)) for name in names}

    def logs(self, topics: Mapping[str, Topic]) -> dict[Partition, Log]:
        return {one: Log(one, "id", "cluster", 0, 5, 5) for topic in topics.values() for one in topic.partitions}

    def cluster_id(self) -> str:
        return "cluster"


class Alone:
    chosen: frozenset[Partition] | None = None
    grace: float | None = None

    def __init__(self) -> None:
        self.now = Assignment()

    def assignment(self) -> Assignment:
        return self.now

    def join(self) -> None: ...
    def leave(self) -> None: ...
    def acknowledge(self, partitions: Iterable[Partition]) -> None: ...
    def mirror(self, positions: Mapping[Partition, int]) -> None: ...


@pytest.fixture
def run(tmp_path: Path) -> Any:
    store = open_store(f"sqlite:///{tmp_path / 'shop.db'}")
    store.create_ledger()
    cluster, member = Cluster(), Alone()

    def made(topics: Sequence[str]) -> tuple[Ownership, Cluster, Alone]:
        owner = Owner("run-1", "host", datetime.now(UTC))
        cluster_: Any = cluster
        job = Job("group", list(topics), [], owner, Start.parse("earliest"))
        return Ownership(job, member, cluster_, store), cluster, member

    yield made
    store.close()


def test_an_assignment_counts_when_it_is_claimed(run: Any) -> None:
    ownership, _, member = run(["orders"])
    ownership.join(["orders"])
    ownership.reconcile()
    assert not ownership.assigned, "nothing is assigned"
    member.now = Assignment({ZERO: 1}, announced_at=1.0)
    assert ownership.reconcile().gained == {ZERO}
    assert ownership.assigned
    ownership.leave()


def test_an_empty_assignment_counts(run: Any) -> None:
    ownership, _, member = run(["orders"])
    ownership.join(["orders"])
    member.now = Assignment(announced_at=1.0)
    ownership.reconcile()
    assert ownership.assigned
    ownership.leave()


def test_topics_that_could_not_be_claimed_are_not_verified(run: Any) -> None:
    """Of topics that a pattern selects, one may just have been deleted: then none of them is claimed."""
    ownership, cluster, member = run(["^orders$"])
    ownership.join(["orders"])
    member.now, cluster.is_known = Assignment({ZERO: 1}, announced_at=1.0), False
    assert not ownership.reconcile().gained
    assert not ownership.assigned
    cluster.is_known = True
    assert ownership.reconcile().gained == {ZERO}
    assert ownership.assigned
    ownership.leave()


def test_a_pattern_without_topics_has_nothing_to_claim(run: Any) -> None:
    """A member of a Kafka group gets no assignment then."""
    ownership, _, _ = run(["^orders$"])
    ownership.join([])
    ownership.reconcile()
    assert ownership.assigned
    ownership.leave()
