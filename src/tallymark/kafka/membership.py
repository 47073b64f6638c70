"""Assignment of partitions: by membership in a Kafka group, or standalone.

A membership only reports the assignment. The working thread polls ``assignment`` between two batches, and releases the
partitions that are leaving.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from tallymark.core.durations import Duration, parse_positive
from tallymark.core.spans import Partition
from tallymark.errors import BadInput, Unreachable
from tallymark.kafka.brokers import Brokers

log = logging.getLogger(__name__)

Strategy = Literal["cooperative-sticky", "range", "roundrobin"]
GroupProtocol = Literal["classic", "consumer"]
DISCOVERY_SECONDS = 1.0
"""How often a standalone reader checks for new partitions."""


@dataclass(frozen=True)
class Group:
    """Share the partitions with all other members of the Kafka group.

    ``strategy`` is the assignment strategy; with ``protocol="consumer"`` (KIP-848) the brokers assign. ``instance`` is
    the id of a static member: after a restart, even after a crash, it gets its partitions back at once, without a
    rebalance. ``drain`` is the maximum duration for which a batch in flight may delay a rebalance.
    """

    strategy: Strategy = "cooperative-sticky"
    protocol: GroupProtocol = "classic"
    instance: str | None = None
    drain: Duration = 30.0

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise BadInput(f"Group(strategy={self.strategy!r}) is not known; write {', '.join(get_args(Strategy))}")
        if self.protocol not in get_args(GroupProtocol):
            raise BadInput(
                f"Group(protocol={self.protocol!r}) is not known; write {' or '.join(get_args(GroupProtocol))}"
            )
        if self.protocol == "consumer" and self.strategy == "roundrobin":
            raise BadInput(
                "Group(protocol='consumer') does not support roundrobin; write strategy='range', or leave it out"
            )
        object.__setattr__(self, "drain", parse_positive(self.drain, "Group: drain").total_seconds())

    def settings(self) -> dict[str, Any]:
        static = {"group.instance.id": self.instance} if self.instance else {}
        if self.protocol == "consumer":
            assignor = "range" if self.strategy == "range" else "uniform"
            return {"group.protocol": "consumer", "group.remote.assignor": assignor, **static}
        return {"partition.assignment.strategy": self.strategy, **static}


@dataclass(frozen=True)
class Standalone:
    """Read all partitions, or these, without joining a Kafka group. The run that starts last takes them over."""

    partitions: Mapping[str, Sequence[int]] | None = None

    def chosen(self) -> frozenset[Partition] | None:
        if self.partitions is None:
            return None
        return frozenset(Partition(topic, number) for topic, numbers in self.partitions.items() for number in numbers)


@dataclass(frozen=True)
class Assignment:
    """The current assignment.

    ``ours`` maps each assigned partition to a number that changes when it is revoked and assigned again. ``leaving``
    are the partitions that must be released.
    """

    ours: Mapping[Partition, int] = field(default_factory=dict)
    leaving: frozenset[Partition] = frozenset()
    announced_at: float = 0.0
    """Monotonic time of the last change; 0 before the first assignment."""


class Membership(Protocol):
    """Provides the assigned partitions. Called from the working thread."""

    chosen: frozenset[Partition] | None
    """The partitions to read; None for all."""
    grace: float | None
    """Seconds for which a partition may remain assigned after another owner has claimed it; None for no delay."""

    def join(self) -> None: ...

    def assignment(self) -> Assignment:
        """Return the current assignment; raises if the membership has failed."""

    def acknowledge(self, partitions: Iterable[Partition]) -> None:
        """Release these partitions: no batch uses them any more, and a waiting rebalance may continue."""

    def mirror(self, positions: Mapping[Partition, int]) -> None:
        """Commit these positions to the Kafka group, if enabled. Asynchronous; tallymark never reads them back."""

    def leave(self) -> None:
        """Leave the group at once, so that other members need not wait for the session timeout."""


class Alone:
    """Standalone membership: all partitions of the topics, or chosen ones; checks for new partitions regularly."""

    grace: float | None = None

    def __init__(self, brokers: Brokers, topics: Sequence[str], chosen: frozenset[Partition] | None = None) -> None:
        self._brokers = brokers
        self._topics = topics
        self.chosen = chosen
        self._found: Assignment | None = None
        self._looked = -DISCOVERY_SECONDS

    def join(self) -> None:
        if self.chosen is not None:
            existing = self._partitions()
            for partition in sorted(self.chosen - existing):
                raise BadInput(f"Standalone(): partition {partition} does not exist; correct partitions=")

    def assignment(self) -> Assignment:
        if time.monotonic() - self._looked >= DISCOVERY_SECONDS:
            self._look()
        assert self._found is not None
        return self._found

    def _look(self) -> None:
        try:
            found = self._partitions()
        except Unreachable as error:
            if self._found is None:
                raise
            # Calls that need the brokers now have their own retries; discovery can wait for the next check.
            log.warning("discovery of new partitions failed error=%s", error)
        else:
            ours = found if self.chosen is None else found & self.chosen
            self._found = Assignment(dict.fromkeys(ours, 0), announced_at=time.monotonic())
        self._looked = time.monotonic()

    def _partitions(self) -> frozenset[Partition]:
        topics = self._brokers.topics(self._brokers.resolve(self._topics))
        return frozenset(partition for topic in topics.values() for partition in topic.partitions)

    def acknowledge(self, partitions: Iterable[Partition]) -> None:
        pass

    def mirror(self, positions: Mapping[Partition, int]) -> None:
        pass

    def leave(self) -> None:
        pass
