"""The named steps of a batch, and what is known at each: for progress displays, logs and tests that pull the plug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from tallymark.spans import Tally


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


@dataclass(frozen=True)
class Progress:
    """A batch at one of its steps. ``behind`` counts offsets that were there to be read and are not in this batch."""

    batch: str
    offsets: int
    behind: int
    tally: Tally = field(default_factory=Tally)


OnStep = Callable[[Step, Progress], None]


def ignore(_step: Step, _progress: Progress) -> None:
    """Nobody is watching."""
