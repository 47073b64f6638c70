"""The operator's interface to the ledger: runs, history, journal and dead letters of a group.

``store.journal()`` returns the implementation of a store. Reading needs no claim. A manual change of a position raises
its epoch in the same transaction, which fences the run that owns it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tallymark.core.claims import Note, PositionChanges
from tallymark.core.records import DeadLetter
from tallymark.core.spans import GroupState, Partition, Position, Span, Tally
from tallymark.core.tables import WrittenTable
from tallymark.errors import PositionMoved

BEAT_SECONDS = 5.0
"""Interval of the heartbeats of a run."""
ALIVE = timedelta(seconds=30)
"""A run without a heartbeat for this long counts as dead."""

DEAD, REPLAYED, DISCARDED, SENT, VOID = LETTER_STATES = ("dead", "replayed", "discarded", "sent", "void")
"""States of a dead letter: open; applied by a replay; given up; sent to another topic; read again after a reset."""
UNAPPLIED = (DEAD, DISCARDED, SENT)
"""States in which the tally still counts the record as dead."""
SETTLED = (REPLAYED, VOID)
"""States of letters that the tally does not count as dead."""


@dataclass(frozen=True)
class Run:
    """One run of a group: its start, its last heartbeat, its end."""

    name: str
    host: str
    started: datetime
    seen: datetime
    ended: datetime | None = None
    error: str | None = None

    def alive(self, now: datetime) -> bool:
        return self.ended is None and now - self.seen < ALIVE


@dataclass(frozen=True)
class Rebalance:
    """A rebalance of a group as seen by one member: partitions were assigned, revoked or lost."""

    at: datetime
    run: str
    host: str
    seconds: float
    gained: tuple[Partition, ...]
    lost: tuple[Partition, ...]
    kind: str


@dataclass(frozen=True)
class BatchLine:
    """One commit of a group in the history."""

    name: str
    started: datetime
    committed: datetime
    tally: Tally
    rows: Mapping[str, int]
    spans: Sequence[Span]


@dataclass(frozen=True)
class NoteLine:
    """A note in the journal, with its batch and time."""

    note: Note
    batch: str | None
    recorded_at: datetime


@dataclass(frozen=True)
class Letter:
    """A dead letter as stored in the ledger."""

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
    """A filter for dead letters; None matches all. ``error`` matches a substring of the error."""

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


Decision = Callable[[Mapping[Partition, Position], Sequence[Run]], PositionChanges]
"""Decides from the locked positions and the runs which positions to move; raises to change nothing."""
Consent = Callable[[Mapping[Partition, Position], Sequence[Run]], None]
"""Raises to change nothing."""


class Journal(ABC):
    """The operator's interface to a ledger."""

    @abstractmethod
    def groups(self) -> dict[str, GroupState]:
        """Return every group in the ledger, sorted by name."""

    @abstractmethod
    def runs(self, group: str) -> list[Run]:
        """Return the last runs, newest first."""

    @abstractmethod
    def history(self, group: str, since: datetime | None = None, most: int = 1000) -> list[BatchLine]:
        """Return the last commits, newest first."""

    @abstractmethod
    def tables(self, group: str | None = None) -> dict[str, list[WrittenTable]]:
        """Return the tables that a group, or every group, has written to, in order."""

    @abstractmethod
    def row_counts(self, tables: Collection[str]) -> dict[str, int]:
        """Return the number of rows of each of these tables of the store that exists."""

    @abstractmethod
    def notes(self, group: str, kinds: Collection[str]) -> list[NoteLine]:
        """Return the notes of these kinds, oldest first; only open skips."""

    @abstractmethod
    def letters(self, query: LetterQuery) -> list[Letter]:
        """Return the matching dead letters, oldest first."""

    @abstractmethod
    def letter_counts(self, group: str) -> dict[str, int]:
        """Return the number of dead letters in each state."""

    @abstractmethod
    def settle(self, letters: Sequence[Letter], state: str, by: str, now: datetime) -> None:
        """Change the state of these letters. Raises ``PositionMoved`` and changes none if any of them is not open."""

    @abstractmethod
    def move(self, group: str, partitions: Collection[Partition], decide: Decision, by: str, now: datetime) -> None:
        """Apply the result of ``decide`` to these partitions: create positions, or move them and fence the owner.

        A move ahead records an open skip, a move back records a reset, in the same transaction. Tables are emptied in
        that transaction, too, and only if the group has no other positions than those of these partitions.
        """

    @abstractmethod
    def delete(self, group: str, consent: Consent) -> None:
        """Remove a group from the ledger. The rows of its tables are kept."""


def owners_alive(positions: Collection[Position], runs: Sequence[Run], now: datetime) -> list[Position]:
    """Return the positions whose owner may be active: its run is alive, or is not recorded."""
    known = {run.name: run for run in runs}
    return [
        position
        for position in positions
        if position.owner and (position.owner.run not in known or known[position.owner.run].alive(now))
    ]


def unexpected(partition: Partition) -> PositionMoved:
    """Return the error for a position that exists although the tables of its group are to be emptied without it."""
    return PositionMoved(
        f"{partition}: a run has created the position meanwhile; nothing was changed: preview the reset again"
    )
