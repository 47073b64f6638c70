"""The steps of a batch and its state at each step, for progress displays, logs and fault-injection tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tallymark.core.spans import Partition, Tally


class Step(StrEnum):
    """The steps of a batch, in order."""

    PLANNED = "planned"
    READ = "read"
    STAGED = "staged"
    WRITTEN = "written"  # in the transaction, before the positions move
    MOVED = "moved"  # in the transaction, after the positions moved
    HALFWAY = "halfway"  # between the transactions of rows and of positions, which are separate if not exactly once
    COMMITTED = "committed"  # committed in the database, not reported anywhere else yet
    DONE = "done"  # between this batch and the next
    UNKNOWN = "unknown"  # instead: the connection broke during the commit, and the database is queried
    DROPPED = "dropped"  # instead: it failed, or its partitions were revoked; another batch or attempt follows


@dataclass(frozen=True)
class Progress:
    """A batch at one of its steps. ``behind`` counts the readable offsets that are not in this batch.

    ``since`` is the monotonic time at which work on the batch started or resumed. From the commit on, the outcomes are
    known: ``tally``, the ``tallies`` of its partitions, and the number of ``rows`` for each table.
    ``error`` is the reason for which the batch was dropped; None if its partitions were revoked.
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
    """Do nothing: the default ``OnStep`` callback."""
