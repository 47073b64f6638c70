"""Who reads what: the members of a Kafka group, or somebody who reads alone.

What is decided about partitions is handed over, not acted upon: whoever works asks for the ``assignment`` between two
batches, and lets go of what is leaving.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from tallymark.brokers import Brokers
from tallymark.errors import BadInput, Unreachable
from tallymark.spans import Partition

log = logging.getLogger(__name__)

Strategy = Literal["cooperative-sticky", "range", "roundrobin"]
GroupProtocol = Literal["classic", "consumer"]
DISCOVERY_SECONDS = 1.0
"""How often somebody who reads alone looks for new partitions."""


@dataclass(frozen=True)
class Group:
    """Share the partitions with all other members of the Kafka group.

    ``strategy`` splits them; with ``protocol="consumer"`` (KIP-848) the brokers do. ``instance`` is a name that stays
    the same when this member is started again: it gets its partitions back at once, without a rebalance, and also after
    a crash. ``drain`` is for how many seconds a batch in flight may hold up a rebalance.
    """

    strategy: Strategy = "cooperative-sticky"
    protocol: GroupProtocol = "classic"
    instance: str | None = None
    drain: float = 30.0

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise BadInput(f"Group(strategy={self.strategy!r}) is not known; write {', '.join(get_args(Strategy))}")
        if self.protocol not in get_args(GroupProtocol):
            raise BadInput(
                f"Group(protocol={self.protocol!r}) is not known; write {' or '.join(get_args(GroupProtocol))}"
            )
        if self.protocol == "consumer" and self.strategy == "roundrobin":
            raise BadInput("Group(protocol='consumer') has no round robin; write strategy='range', or leave it out")
        if self.drain <= 0:
            raise BadInput(f"Group(drain={self.drain}) must be positive")

    def settings(self) -> dict[str, Any]:
        static = {"group.instance.id": self.instance} if self.instance else {}
        if self.protocol == "consumer":
            assignor = "range" if self.strategy == "range" else "uniform"
            return {"group.protocol": "consumer", "group.remote.assignor": assignor, **static}
        return {"partition.assignment.strategy": self.strategy, **static}


@dataclass(frozen=True)
class Standalone:
    """Read alone: all partitions, or these, without joining a Kafka group. Whoever starts last takes them over."""

    partitions: Mapping[str, Sequence[int]] | None = None

    def chosen(self) -> frozenset[Partition] | None:
        if self.partitions is None:
            return None
        return frozenset(Partition(topic, one) for topic, numbers in self.partitions.items() for one in numbers)


@dataclass(frozen=True)
class Assignment:
    """What is ours now, each with a number that changes when it is taken and given back; and what has to be let go."""

    ours: Mapping[Partition, int] = field(default_factory=dict)
    leaving: frozenset[Partition] = frozenset()
    told: float = 0.0
    """When it last changed, by the monotonic clock; 0 before the group has answered."""


class Membership(Protocol):
    """Says which partitions are ours. Called from the thread that works."""

    chosen: frozenset[Partition] | None
    """The partitions that it is about; None: all."""
    grace: float | None
    """For how many seconds a partition that another one claimed may still seem to be ours; None: it is not, at once."""

    def join(self) -> None: ...

    def assignment(self) -> Assignment:
        """What is ours now; raises if we can't be a member any more."""

    def let_go(self, partitions: Iterable[Partition]) -> None:
        """These are not worked on any more: whoever waits for that may go on."""

    def mirror(self, positions: Mapping[Partition, int]) -> None:
        """Show these positions in the Kafka group, if that is wanted. Nobody waits for it, and nothing reads them."""

    def leave(self) -> None:
        """Leave at once, so that others need not wait for us."""


class Alone:
    """All partitions of the topics, or chosen ones; new ones are found at the next look."""

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
                raise BadInput(f"Standalone(): there is no partition {partition} to read; correct partitions=")

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
            # Whoever needs the brokers now is patient itself: this can wait for the next look.
            log.warning("could not look for new partitions error=%s", error)
        else:
            ours = found if self.chosen is None else found & self.chosen
            self._found = Assignment(dict.fromkeys(ours, 0), told=time.monotonic())
        self._looked = time.monotonic()

    def _partitions(self) -> frozenset[Partition]:
        topics = self._brokers.topics(self._brokers.resolve(self._topics))
        return frozenset(partition for topic in topics.values() for partition in topic.partitions)

    def let_go(self, partitions: Iterable[Partition]) -> None:
        pass

    def mirror(self, positions: Mapping[Partition, int]) -> None:
        pass

    def leave(self) -> None:
        pass
