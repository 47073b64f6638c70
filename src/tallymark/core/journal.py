"""What operators see of a group and change by hand: its runs, its history, its journal, its dead letters.

A store keeps the books; ``store.books()`` opens them. Reading needs no claim. Whatever moves a position by hand raises
its epoch in the same transaction, so that a run which had it is fenced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tallymark.fence import Note, Wish
from tallymark.read import DeadLetter
from tallymark.spans import GroupState, Partition, Position, Span, Tally

BEAT_SECONDS = 5.0
"""How often a run says that it is alive."""
ALIVE = timedelta(seconds=30)
"""A run that was not seen for so long is taken for dead."""

KEEP_HISTORY = timedelta(days=7)
"""How long commits stay in the history; the last one of a group always does."""

DEAD, REPLAYED, DISCARDED, SENT, VOID = LETTER_STATES = ("dead", "replayed", "discarded", "sent", "void")
"""Of a dead letter: open; applied after all; given up; written to another topic; to be read again after a reset."""
UNAPPLIED = (DEAD, DISCARDED, SENT)
"""States in which the record is still counted as dead."""


@dataclass(frozen=True)
class Run:
    """One run of a group: when it began, when it was last seen, how it ended."""

    name: str
    host: str
    started: datetime
    seen: datetime
    ended: datetime | None = None
    error: str | None = None

    def alive(self, now: datetime) -> bool:
        return self.ended is None and now - self.seen < ALIVE


@dataclass(frozen=True)
class BatchLine:
    """One commit of a group, as the history has it."""

    name: str
    started: datetime
    committed: datetime
    tally: Tally
    rows: Mapping[str, int]
    spans: Sequence[Span]


@dataclass(frozen=True)
class NoteLine:
    """A note of the journal, and when it was written."""

    note: Note
    batch: str | None
    recorded_at: datetime


@dataclass(frozen=True)
class Letter:
    """A dead letter as the ledger keeps it."""

    id: str
    group: str
    record: DeadLetter
    state: str
    batch: str
    recorded_at: datetime
    changed_at: datetime | None = None
    changed_by: str | None = None


@dataclass(frozen=True)
class LetterQuery:
    """Which dead letters: all that is None does not matter. ``error`` is a part of the words."""

    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    states: Collection[str] | None = (DEAD,)
    error: str | None = None
    table: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    ids: Collection[str] | None = None
    most: int | None = None


Decision = Callable[[Mapping[Partition, Position], Sequence[Run]], Wish]
"""What is to be moved, by whoever has seen the locked positions and the runs; raises to leave all as it is."""
Consent = Callable[[Mapping[Partition, Position], Sequence[Run]], None]
"""Raises to leave all as it is."""


class Books(ABC):
    """The operator's side of a ledger."""

    @abstractmethod
    def groups(self) -> dict[str, GroupState]:
        """Every group that the ledger knows, in order."""

    @abstractmethod
    def runs(self, group: str) -> list[Run]:
        """The last runs, the newest first."""

    @abstractmethod
    def history(self, group: str, since: datetime | None = None, most: int = 1000) -> list[BatchLine]:
        """The last commits, the newest first."""

    @abstractmethod
    def notes(self, group: str, kinds: Collection[str]) -> list[NoteLine]:
        """What the journal says of these kinds, in the order of time; of skips the open ones."""

    @abstractmethod
    def letters(self, query: LetterQuery) -> list[Letter]:
        """Dead letters, the oldest first."""

    @abstractmethod
    def letter_counts(self, group: str) -> dict[str, int]:
        """How many dead letters there are in each state."""

    @abstractmethod
    def settle(self, letters: Sequence[Letter], state: str, by: str, now: datetime) -> None:
        """Change the state of these, all of them open; raises ``PositionMoved`` if one is not, and changes none."""

    @abstractmethod
    def move(self, group: str, partitions: Collection[Partition], decide: Decision, by: str, now: datetime) -> None:
        """Do what ``decide`` wishes for these partitions: make positions, or send them elsewhere and fence the owner.

        What is passed over becomes an open skip, what is gone back over a reset, in one transaction.
        """

    @abstractmethod
    def delete(self, group: str, consent: Consent) -> None:
        """Remove all that the ledger knows of a group. The rows of its tables stay."""


def owners_alive(positions: Collection[Position], runs: Sequence[Run], now: datetime) -> list[Position]:
    """Those whose owner may still be at work: its run was seen lately, or has left no trace to judge by."""
    known = {run.name: run for run in runs}
    return [one for one in positions if one.owner and (one.owner.run not in known or known[one.owner.run].alive(now))]
