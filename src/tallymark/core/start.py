"""Where a group starts in a partition: the first-poll strategies. Pure.

``earliest``, ``latest``, a timestamp or explicit offsets. Prefixed with ``uncommitted-`` a strategy only counts for
partitions that have no saved position yet; without the prefix it overrides the saved ones at the start of every run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from operator import index
from typing import Literal

from tallymark.errors import BadInput
from tallymark.spans import Log, Partition

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
        """The first record with this timestamp or a later one. A time without a zone is UTC."""
        return cls("timestamp", timestamp=time if time.tzinfo else time.replace(tzinfo=timezone.utc))

    @classmethod
    def explicit(cls, offsets: Mapping[str, Mapping[int, int]]) -> Start:
        """These offsets, by topic and partition."""
        flat = {Partition(topic, number): index(o) for topic, parts in offsets.items() for number, o in parts.items()}
        if any(offset < 0 for offset in flat.values()):
            raise BadInput(
                "start: explicit offsets can't be negative; write 'earliest' or 'latest' for the ends of the log"
            )
        return cls("offsets", offsets=flat)

    def uncommitted(self) -> Start:
        """The same strategy, for partitions without a saved position only."""
        return replace(self, prefer_saved=True)


def starting_offset(start: Start, log: Log, at_timestamp: int | None, *, topic_is_known: bool) -> int:
    """Where a partition without a position starts.

    ``at_timestamp`` is the broker's answer for ``start.timestamp`` (None: no such record yet). A partition of a topic
    that the group reads already was added later: it starts at the earliest, or its first records would be lost.
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
    """Where a partition *with* a position is sent at the start of a run; None leaves it where it is."""
    if start.prefer_saved or (start.kind == "offsets" and log.partition not in start.offsets):
        return None
    return starting_offset(start, log, at_timestamp, topic_is_known=False)
