"""The open skips of a group, for whoever fills them: which there are, and what Kafka still holds of them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from tallymark.brokers import Brokers
from tallymark.commit import Destination
from tallymark.errors import BadInput
from tallymark.fence import Skip, explain_loss
from tallymark.plan import check_identity
from tallymark.spans import Log, Partition, Position, Span

log = logging.getLogger(__name__)


class OpenSkips:
    """The open skips of a group, or of one topic or partition of it."""

    def __init__(
        self,
        group: str,
        destination: Destination,
        brokers: Brokers,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        if destination.delivery != "exactly-once":
            raise BadInput(f"backfill is exactly-once only; leave out delivery={destination.delivery!r}")
        self._group = group
        self._ledger = destination.ledger
        self._brokers = brokers
        self._topic = topic
        self._partition = partition
        self._left: set[Span] = set()

    def listed(self) -> list[Skip]:
        """Those that can be filled, in order."""
        return [
            skip
            for skip in self._ledger.skips(self._group)
            if self._topic in (None, skip.span.partition.topic)
            and self._partition in (None, skip.span.partition.number)
            and skip.span not in self._left
        ]

    def leave(self, skip: Skip) -> None:
        """Nothing of it can be read now: leave it open, and go on with the others."""
        log.warning("left open, its end can't be read yet group=%s span=%s", self._group, skip.span)
        self._left.add(skip.span)

    def log(self, partition: Partition) -> Log:
        """What the brokers hold of the partition, if it is still the one that the ledger means."""
        topic = self._brokers.topics([partition.topic])[partition.topic]
        found = self._brokers.logs({topic.name: topic.only([partition])})[partition]
        for position in self._ledger.positions(self._group).get(self._group, []):
            if position.partition == partition:
                check_identity(position, found.topic_id, found.cluster_id)
                return found
        raise explain_loss(partition, 0, None)


def held(span: Span, log: Log | None) -> str:
    """How much of a span is still in Kafka: all, part, or gone. Without a log its topic is gone, or another one."""
    left = max(0, span.stop - max(span.start, log.start)) if log else 0
    return "all" if left == len(span) else "part" if left else "gone"


def held_logs(
    positions: Sequence[Position], partitions: Collection[Partition], brokers: Brokers
) -> dict[Partition, Log]:
    """What the brokers hold of these partitions, of those whose topics are still the ones that the positions mean."""
    topics = brokers.topics(sorted({one.topic for one in partitions}), existing_only=True)
    logs = brokers.logs({name: topic.only(partitions) for name, topic in topics.items()})
    meant = {one.partition: (one.topic_id, one.cluster_id) for one in positions}
    return {one: log for one, log in logs.items() if meant.get(one) == (log.topic_id, log.cluster_id)}
