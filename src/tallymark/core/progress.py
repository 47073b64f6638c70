"""The named steps of a batch, and what is known at each: for progress displays, logs and tests that pull the plug."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tallymark.spans import Partition, Tally


class Step(str, Enum):
    """In the order in which a batch passes them."""

    PLANNED = "planned"
    READ = "read"
    STAGED = "staged"
    WRITTEN = "written"  # in the transaction, before the positions move
    MOVED = "moved"  # in the transaction, after the positions moved
    HALFWAY = "halfway"  # between rows and positions, where delivery is not exactly once and they are two transactions
    COMMITTED = "committed"  # the database has it, nobody else knows yet
    DONE = "done"  # between this batch and the next
    UNKNOWN = "unknown"  # instead: the connection broke while it was committed, and the database is asked
    DROPPED = "dropped"  # instead: it failed, or its partitions are gone; what comes next is another batch or attempt


@dataclass(frozen=True)
class Progress:
    """A batch at one of its steps. ``behind`` counts offsets that were there to be read and are not in this batch.

    ``since`` is when the work on it began, or was taken up again, by the monotonic clock. What became of its offsets is
    known from the commit on: ``tally``, the ``tallies`` of its partitions, and the number of ``rows`` for each table.
    ``error`` is why it was dropped, if it was not because its partitions are gone.
    """

    batch: str
    offsets: int
    behind: int
    tally: Tally = field(default_factory=Tally)
    since: float = field(default_factory=time.monotonic)
    tallies: Mapping[Partition, Tally] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    error: BaseException | None = None


OnStep = Callable[[Step, Progress], None]


def ignore(_step: Step, _progress: Progress) -> None:
    """Nobody is watching."""
