"""First-poll strategies: the offsets at which a group starts to read its partitions. Pure.

A strategy is ``earliest``, ``latest``, a timestamp or explicit offsets. With the prefix ``uncommitted-`` it applies
only to partitions without a saved position; without the prefix it overrides saved positions at the start of every run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import index
from typing import Literal

from tallymark.core.claims import FirstClaim, PositionChanges, Restart
from tallymark.core.spans import Log, Partition, Position
from tallymark.errors import BadInput

UNCOMMITTED = "uncommitted-"
FORMS = (
    "earliest, latest, timestamp=2026-01-31T00:00:00Z or offsets={...}, each with or without 'uncommitted-' before it"
)


@dataclass(frozen=True)
class Start:
    """A first-poll strategy.

    >>> Start.parse("uncommitted-earliest")            # the default: go on where the group was, else from the start
    >>> Start.at(datetime(2026, 1, 31, tzinfo=timezone.utc)).uncommitted()
    >>> Start.explicit({"orders": {0: 17, 1: 40}})     # overrides what is saved
    """

    kind: Literal["earliest", "latest", "timestamp", "offsets"]
    prefer_saved: bool = False
    timestamp: datetime | None = None
    offsets: Mapping[Partition, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Start:
        name, _, argument = text.removeprefix(UNCOMMITTED).partition("=")
        try:
            start = cls._parse(name, argument)
        except (ValueError, AttributeError, TypeError):
            raise BadInput(f"start={text!r} is not a first-poll strategy; write {FORMS}") from None
        return start.uncommitted() if text.startswith(UNCOMMITTED) else start

    @classmethod
    def _parse(cls, name: str, argument: str) -> Start:
        match name:
            case "earliest" | "latest" if not argument:
                return cls("earliest" if name == "earliest" else "latest")
            case "timestamp":
                return cls.at(datetime.fromisoformat(argument.replace("Z", "+00:00")))
            case "offsets":
                topics = json.loads(argument)
                return cls.explicit({topic: {int(p): o for p, o in parts.items()} for topic, parts in topics.items()})
        raise ValueError(name)

    @classmethod
    def at(cls, time: datetime) -> Start:
        """Start at the first record with this timestamp or a later one. A time without a zone is UTC."""
        return cls("timestamp", timestamp=time if time.tzinfo else time.replace(tzinfo=UTC))

    @classmethod
    def explicit(cls, offsets: Mapping[str, Mapping[int, int]]) -> Start:
        """Start at these offsets, by topic and partition."""
        flat = {Partition(topic, number): index(o) for topic, parts in offsets.items() for number, o in parts.items()}
        if any(offset < 0 for offset in flat.values()):
            raise BadInput(
                "start: explicit offsets can't be negative; write 'earliest' or 'latest' for the ends of the log"
            )
        return cls("offsets", offsets=flat)

    @property
    def goes_back(self) -> bool:
        """Whether a run may start before its saved position, and apply records again."""
        return not self.prefer_saved and self.kind != "latest"

    def uncommitted(self) -> Start:
        """Return the same strategy, limited to partitions without a saved position."""
        return replace(self, prefer_saved=True)


def starting_offset(start: Start, log: Log, at_timestamp: int | None, *, topic_is_known: bool) -> int:
    """Return the first offset of a partition without a position.

    ``at_timestamp`` is the offset that the broker returns for ``start.timestamp`` (None: no such record yet). A
    partition of a topic that the group already reads was added later. It starts at the earliest offset: otherwise its
    first records would be lost.
    """
    if topic_is_known or start.kind == "earliest":
        return log.start
    if start.kind == "latest":
        return log.stop
    if start.kind == "timestamp":
        return log.stop if at_timestamp is None else at_timestamp
    return _explicit_offset(start, log)


def _explicit_offset(start: Start, log: Log) -> int:
    offset = start.offsets.get(log.partition)
    if offset is None:
        raise BadInput(
            f"start: no offset is given for {log.partition}; give one for every partition of {log.partition.topic}"
        )
    if not log.start <= offset <= log.end:
        raise BadInput(f"start: offset {offset} is outside of {log.partition}, which holds {log.start}..{log.end}")
    return offset


def overridden_offset(start: Start, log: Log, at_timestamp: int | None) -> int | None:
    """Return the offset that overrides a saved position at the start of a run; None keeps the position."""
    if start.prefer_saved or (start.kind == "offsets" and log.partition not in start.offsets):
        return None
    return starting_offset(start, log, at_timestamp, topic_is_known=False)


@dataclass(frozen=True)
class StartRules:
    """How a run begins: its strategy, and the topics that existed when it started.

    If partitions were ``chosen`` individually, the strategy applies to each of them. If topics are subscribed to by
    pattern and the group has positions, a topic without a position counts as added later and starts at the earliest
    offset, even if it appeared while no run was active.
    """

    start: Start
    topics: frozenset[str]
    chosen: frozenset[Partition] | None
    by_pattern: bool

    def fresh(self, saved: Sequence[Position]) -> frozenset[str]:
        """Return the topics that start by the strategy. All others appeared during the subscription."""
        if self.chosen is not None:
            return frozenset(partition.topic for partition in self.chosen)
        if self.by_pattern and saved:
            return frozenset()
        return self.topics - {position.partition.topic for position in saved}

    def decide(
        self,
        saved: Sequence[Position],
        wanted: frozenset[Partition],
        logs: Mapping[Partition, Log],
        at: Mapping[Partition, int | None],
        may_override: Callable[[Position], bool],
    ) -> PositionChanges:
        """Return first positions for partitions without a position, and restarts for those that the strategy overrides.

        The first claim of a topic creates positions for all of its partitions. A partition that has no position after
        that was added later, and starts at the earliest offset. ``at`` holds the offsets that the brokers return for
        the timestamp of the strategy.
        """
        fresh, positions = self.fresh(saved), {position.partition: position for position in saved}
        concerned = {
            partition: log for partition, log in logs.items() if partition in wanted or partition.topic in fresh
        }
        first = {
            partition: FirstClaim(
                starting_offset(self.start, log, at.get(partition), topic_is_known=partition.topic not in fresh),
                log.topic_id,
                log.cluster_id,
                leader_epoch=log.leader_epoch,
            )
            for partition, log in concerned.items()
            if partition not in positions
        }
        targets = {
            partition: overridden_offset(self.start, log, at.get(partition))
            for partition, log in concerned.items()
            if partition in positions and may_override(positions[partition])
        }
        reason = f"start={self.start.kind} overrides the saved position"
        restarts = {
            partition: Restart(
                to,
                reason,
                only_ahead=to == logs[partition].stop and self.start.kind in ("latest", "timestamp"),
                leader_epoch=logs[partition].leader_epoch,
            )
            for partition, to in targets.items()
            if to is not None
        }
        return PositionChanges(first, restarts)
