"""How many dead records are too many. Pure.

Two outcomes. A batch with too many is not committed at all: something is wrong with the release or the schema. Too many
over a while pause the group, together with the batch that was one too many, and the reason is in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tallymark.errors import BadInput, TooManyDead
from tallymark.spans import GroupState, Tally

RATIO_NEEDS = 1_000
"""Records that a window must hold before a ratio says anything."""


@dataclass(frozen=True)
class Budget:
    """What a group may lose to dead letters. None means no limit.

    ``max_dead_per_batch`` fails the batch, and nothing moves. So does ``max_dead_ratio_per_batch``: when more than this
    share of a batch is dead, and of at least 1,000 records of the last ``window`` with it; 1 turns it off.
    ``max_dead_total`` and ``max_dead_ratio`` (of at least 1,000 records) count over the last ``window``, or since the
    group was resumed, and pause the group.
    """

    max_dead_per_batch: int | None = 10_000
    max_dead_total: int | None = None
    max_dead_ratio: float | None = None
    window: timedelta = timedelta(hours=1)
    max_dead_ratio_per_batch: float | None = 0.5

    def __post_init__(self) -> None:
        counts = [count for count in (self.max_dead_per_batch, self.max_dead_total) if count is not None]
        ratios = [ratio for ratio in (self.max_dead_ratio, self.max_dead_ratio_per_batch) if ratio is not None]
        if min(counts, default=0) < 0 or not all(0 <= ratio <= 1 for ratio in ratios) or self.window <= timedelta():
            raise BadInput(f"a budget counts from 0, its ratio is between 0 and 1, its window is positive, not {self}")

    @property
    def has_window(self) -> bool:
        return self.max_dead_total is not None or self.max_dead_ratio is not None

    def window_start(self, now: datetime, state: GroupState | None) -> datetime:
        """Since when to count: who resumes a group starts a new window."""
        return max(now - self.window, state.since) if state else now - self.window

    def check_batch(self, group: str, dead: int, example: str) -> None:
        if self.max_dead_per_batch is not None and dead > self.max_dead_per_batch:
            raise TooManyDead(
                f"group {group}: a batch has more dead records than max_dead_per_batch={self.max_dead_per_batch}, "
                f"one of them: {example}; nothing moved: correct the pipeline, or raise the budget"
            )

    def is_suspicious(self, batch: Tally) -> bool:
        """Whether so much of a batch is dead that it depends on the others of the window."""
        ratio = self.max_dead_ratio_per_batch
        return ratio is not None and batch.dead > ratio * (batch.dead + batch.applied)

    def check_ratio(self, group: str, recent: Tally, reason: str) -> None:
        """``recent`` is a suspicious batch and what the window holds before it; ``reason`` the most frequent one."""
        total = recent.dead + recent.applied
        ratio = self.max_dead_ratio_per_batch
        if ratio is not None and total >= RATIO_NEEDS and recent.dead > ratio * total:
            raise TooManyDead(
                f"group {group}: {recent.dead:,} of the last {total:,} records are dead, more than "
                f"max_dead_ratio_per_batch={ratio} allows, most of this batch like this: {reason}; nothing moved: "
                "correct the schema or the function, or let them die with max_dead_ratio_per_batch=1 in the budget"
            )

    def overdrawn(self, recent: Tally) -> str | None:
        """Why the group has to pause, if it has to."""
        total = recent.dead + recent.applied
        if self.max_dead_total is not None and recent.dead > self.max_dead_total:
            return f"{recent.dead} dead records within {self.window} are more than max_dead_total={self.max_dead_total}"
        if self.max_dead_ratio is not None and total >= RATIO_NEEDS and recent.dead > self.max_dead_ratio * total:
            return (
                f"{recent.dead} dead records of {total} within {self.window} "
                f"are more than max_dead_ratio={self.max_dead_ratio}"
            )
        return None
