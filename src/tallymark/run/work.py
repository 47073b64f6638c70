"""Where the batches of a loop come from: claimed partitions, open skips or open dead letters.

A loop asks its work for one task after the other, reads and commits each, and reports the outcome. What differs between
a run, a backfill and a replay is in the three classes that implement ``Work``; the loops of both engines know none of
it. For a pipeline the work yields tasks, for a service the batches that a handler gets.

Which thread calls what:

- Only the caller's thread uses the ledger. It calls every method of ``Work`` except those named below.
- ``next``, ``check`` and ``letters`` may be called by the reading thread, if ``reads_ahead`` allows it. They must not
  use the ledger then. Otherwise all of them are called by the caller's thread, and no task is read ahead.
- ``refresh`` is called between two commits, never during one. A task that was planned before may be void afterwards:
  ``is_valid`` is asked before every commit.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from tallymark.core.batch import Tried
from tallymark.core.claims import Claim, Entry, Skip
from tallymark.core.plan import Plan
from tallymark.core.records import DeadLetter
from tallymark.core.spans import Partition, Span
from tallymark.core.tables import Refusal
from tallymark.run.until import Until

T = TypeVar("T")


@dataclass(frozen=True)
class Task:
    """What one batch reads and settles: the moves of a plan, or dead letters (``tried``).

    ``behind`` counts the offsets or letters that are left after this task. The only move of a task with a ``skip`` is
    the first part of that skip. ``records`` are the records of the dead letters; those that Kafka has deleted are
    ``gone``. ``then`` are the spans that are likely to be read next. ``turn`` tells the work whether the task is void.
    """

    plan: Plan = field(default_factory=Plan)
    behind: int = 0
    skip: Skip | None = None
    tried: Tried = field(default_factory=dict)
    records: Sequence[DeadLetter] = ()
    gone: Sequence[DeadLetter] = ()
    then: Sequence[Span] | None = None
    turn: int = 0

    def __bool__(self) -> bool:
        return bool(self.plan or self.tried)

    @property
    def size(self) -> int:
        """Number of offsets to read, or of dead letters."""
        return len(self.tried) if self.tried else self.plan.offsets

    def part(self, share: float = 0.5) -> Task:
        """Return the first part, at least one offset of each partition or one letter."""
        if self.tried:
            part = self._only(list(self.tried)[: max(1, math.ceil(self.size * min(share, 0.5)))])
        else:
            part = replace(self, plan=self.plan.part(share), then=None)
        return replace(part, behind=self.behind + self.size - part.size)

    def after(self, part: Task) -> Task:
        """Return the rest after ``part``, which is a first part of this task."""
        if self.tried:
            return self._only([place for place in self.tried if place not in part.tried])
        skip = self.skip
        if skip is not None:
            skip = replace(skip, span=replace(skip.span, start=part.plan.moves[0].stop))
        return replace(self, plan=self.plan.after(part.plan), skip=skip, then=None)

    def _only(self, places: Iterable[tuple[Partition, int]]) -> Task:
        tried = {place: self.tried[place] for place in places}
        records, gone = (
            [letter for letter in letters if (letter.partition, letter.offset) in tried]
            for letters in (self.records, self.gone)
        )
        return replace(self, tried=tried, records=records, gone=gone)


class Work(ABC, Generic[T]):
    """A source of batches. The defaults are those of work that claims no partition."""

    verb = "committed"
    """The log calls a batch of this work committed, filled or replayed."""
    left = "behind"
    """The log's name for what is left after a batch."""
    prefix = ""
    """Part of the names of its batches."""
    reads_ahead = False
    """Whether the next task may be read while the current one commits."""
    most = sys.maxsize
    """The maximum size of a task."""

    @property
    def claims(self) -> dict[Partition, Claim]:
        """The claims that a commit needs. A commit renews them in place if its connection breaks."""
        return {}

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether nothing is left to do."""

    @property
    def has_end(self) -> bool:
        """Whether the work ends by itself. Then it is not continued after a pause."""
        return True

    def begin(self, until: Until) -> None:
        """Prepare the work. Called once, before anything else; nothing is claimed yet."""

    def refresh(self) -> None:
        """Follow changes that others have made. The first call joins the group, if the work belongs to a member."""

    @abstractmethod
    def next(self, most: int) -> T | None:
        """Return the next task, of at most this size; None if there is none now."""

    def taken(self, task: T) -> None:
        """The task was read, and will be committed next: the following task begins after it."""

    def is_valid(self, task: T) -> bool:  # noqa: ARG002
        """Whether the task can still be committed."""
        return True

    def abandon(self, task: T) -> None:
        """The task will not be committed: its offsets are read again, as far as they still belong to this work."""

    def check(self) -> None:
        """Raise if the topics of the last task were recreated. Called after its records were read."""

    @abstractmethod
    def letters(self, refusals: Sequence[Refusal]) -> list[DeadLetter]:
        """Return the dead letters of records that were decoded and refused."""

    @abstractmethod
    def done(self, entry: Entry) -> None:
        """A task was committed."""

    @abstractmethod
    def refused(self, error: BaseException) -> bool:
        """Whether the work continues although a task could not be read or committed; if not, the error is raised."""

    def leave(self) -> None:
        """End the work, also after an error."""
