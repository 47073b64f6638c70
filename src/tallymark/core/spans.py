"""The vocabulary that everything shares: partitions, spans of offsets, positions and tallies.

Offsets are next-offset semantics throughout: a position of 7 means that 0..6 are done and 7 is to be read.
Nothing here knows Kafka, Spark or a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import NamedTuple

STREAMING = "structured-streaming"
"""What stands for the cluster where a position is that of a streaming query, and no broker knows it."""


@dataclass(frozen=True, order=True)
class Partition:
    """One partition of one topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


@dataclass(frozen=True, order=True)
class Span:
    """A half-open range of offsets of one partition."""

    partition: Partition
    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"not a span: {self.partition} {self.start}..{self.stop}")

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.partition} {self.start}..{self.stop}"


def split(spans: Sequence[Span], parts: int) -> list[list[Span]]:
    """The spans in so many parts, each with its share of every one, in the order of their offsets."""
    found = []
    for part in range(parts):
        shares = (
            Span(one.partition, one.start + len(one) * part // parts, one.start + len(one) * (part + 1) // parts)
            for one in spans
        )
        found.append([share for share in shares if len(share)])
    return [part for part in found if part]


@dataclass(frozen=True)
class Tally:
    """What became of the offsets between two positions. Every offset is in exactly one of the five."""

    applied: int = 0
    dead: int = 0
    skipped: int = 0
    lost: int = 0
    absent: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(other, name) for name in OUTCOMES))

    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in OUTCOMES)

    @classmethod
    def sum(cls, tallies: Iterable[Tally]) -> Tally:
        return sum(tallies, cls())


OUTCOMES = tuple(field.name for field in fields(Tally))


@dataclass(frozen=True)
class Owner:
    """Who holds a claim: shown to whoever is fenced by it."""

    run: str
    host: str
    since: datetime

    def __str__(self) -> str:
        return f"run {self.run} on {self.host} since {self.since:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True)
class GroupState:
    """What a group is meant to do: running or paused, why, and who said so."""

    desired: str
    reason: str | None
    by: str | None
    since: datetime

    @property
    def paused(self) -> bool:
        return self.desired == "paused"


class Mark(NamedTuple):
    """An offset, and an epoch of the leader in which the log held all that is before it; None if not known."""

    offset: int
    leader_epoch: int | None = None


@dataclass(frozen=True)
class Position:
    """How far a group has come in a partition, as the ledger holds it."""

    partition: Partition
    next_offset: int
    first_offset: int
    topic_id: str
    cluster_id: str
    epoch: int
    owner: Owner | None
    tally: Tally
    record_time: datetime | None
    updated_at: datetime
    leader_epoch: int | None = None
    """An epoch of the partition's leader in which the log held all that is before the position; None if not known."""

    @property
    def mark(self) -> Mark:
        return Mark(self.next_offset, self.leader_epoch)

    @property
    def balanced(self) -> bool:
        """Every offset between the first and the next is accounted for."""
        return self.tally.total == self.next_offset - self.first_offset

    def counts(self, offset: int) -> bool:
        """Whether the tally accounts for this offset."""
        return self.first_offset <= offset < self.next_offset


@dataclass(frozen=True)
class Log:
    """What the brokers hold of a partition: offsets from ``start`` up to ``stop``.

    ``stop`` is the last stable offset, the end of what a read_committed reader can see;
    ``end`` is the high watermark and includes transactions that are still open.
    ``leader_epoch`` is that of the leader which answered; every election has a higher one.
    """

    partition: Partition
    topic_id: str
    cluster_id: str
    start: int
    stop: int
    end: int
    leader_epoch: int | None = None

    def reaching(self, offset: int) -> Log:
        """The same log, which is known to hold what is before this offset."""
        return replace(self, stop=max(self.stop, offset), end=max(self.end, offset))
