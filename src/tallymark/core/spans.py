"""The basic types of all modules: partitions, spans of offsets, positions and tallies.

A position is always the next offset: a position of 7 means that 0..6 are done and 7 is the next to read.
This module does not depend on Kafka, Spark or a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import NamedTuple

from tallymark.core.drift import Drift

STREAMING = "structured-streaming"
"""The cluster id of positions that belong to a streaming query and are unknown to brokers."""


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
    """Split the spans into up to ``parts`` parts in offset order. Each part has a share of every span."""
    split_spans = []
    for part in range(parts):
        shares = (
            Span(span.partition, span.start + len(span) * part // parts, span.start + len(span) * (part + 1) // parts)
            for span in spans
        )
        split_spans.append([share for share in shares if len(share)])
    return [part for part in split_spans if part]


@dataclass(frozen=True)
class Tally:
    """The outcomes of the offsets between two positions. Every offset counts in exactly one of the five fields."""

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


OUTCOMES = tuple(outcome.name for outcome in fields(Tally))


@dataclass(frozen=True)
class Owner:
    """The owner of a claim, as shown in the error of a fenced owner."""

    run: str
    host: str
    since: datetime

    def __str__(self) -> str:
        return f"run {self.run} on {self.host} since {self.since:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True)
class GroupState:
    """The desired state of a group, running or paused, with the reason and the operator or run that set it."""

    desired: str
    reason: str | None
    by: str | None
    since: datetime

    @property
    def paused(self) -> bool:
        return self.desired == "paused"


class Mark(NamedTuple):
    """An offset, and a leader epoch in which the log held all offsets before it; None if unknown."""

    offset: int
    leader_epoch: int | None = None


@dataclass(frozen=True)
class Truncation:
    """A log that was truncated ``at`` an offset before the position; ``leader_epoch`` is the current one."""

    partition: Partition
    position: int
    at: int
    leader_epoch: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.partition}: the log was truncated at {self.at} by an unclean leader election or by a broker that "
            f"lost records; applied records of {self.at}..{self.position} are no longer in it"
        )


@dataclass(frozen=True)
class Position:
    """The position of a group in a partition, as stored in the ledger."""

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
    """A leader epoch in which the log held all offsets before the position; None if unknown."""
    drift: Drift = field(default_factory=dict)
    """Fields of applied records that the schema does not name, since the tally began."""

    @property
    def mark(self) -> Mark:
        return Mark(self.next_offset, self.leader_epoch)

    @property
    def balanced(self) -> bool:
        """Whether every offset between the first and the next is accounted for."""
        return self.tally.total == self.next_offset - self.first_offset

    def counts(self, offset: int) -> bool:
        """Whether the tally accounts for this offset."""
        return self.first_offset <= offset < self.next_offset


@dataclass(frozen=True)
class Log:
    """The log of a partition at the brokers: offsets from ``start`` up to ``stop``.

    ``stop`` is the last stable offset, the end of what a read_committed consumer can see;
    ``end`` is the high watermark and includes open transactions.
    ``leader_epoch`` is the epoch of the leader that answered; every election increases it.
    """

    partition: Partition
    topic_id: str
    cluster_id: str
    start: int
    stop: int
    end: int
    leader_epoch: int | None = None

    def reaching(self, offset: int) -> Log:
        """Return the log, extended so that it holds all offsets before this one."""
        return replace(self, stop=max(self.stop, offset), end=max(self.end, offset))
