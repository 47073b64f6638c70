"""The budget: limits on the number of dead records. Pure.

A batch with too many dead records is not committed: the release or the schema is probably wrong. Too many dead records
within a time window pause the group. The batch that exceeds the limit is committed together with the pause and its
reason.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime, timedelta

from tallymark.core.durations import Duration, parse_duration, parse_positive
from tallymark.core.spans import GroupState, Tally
from tallymark.errors import BadInput, TooManyDead

RATIO_NEEDS = 1_000
"""Minimum number of records in a window for a ratio to be meaningful."""


@dataclass(frozen=True)
class Budget:
    """The number of dead records that a group may have. None means no limit.

    ``max_dead_per_batch`` fails the batch; no position moves. ``max_dead_ratio_per_batch`` also fails the batch, if
    more than this share is dead both of the batch and of the last ``window`` including the batch, which must hold at
    least 1,000 records; 1 turns it off. ``max_dead_total`` and ``max_dead_ratio`` (of at least 1,000 records) count
    over the last ``window`` and pause the group. A window continues across restarts: otherwise, with a wrong schema,
    each restart would turn more records into dead letters. ``tallymark resume`` starts a new window, even if the group
    is not paused.
    """

    max_dead_per_batch: int | None = 10_000
    max_dead_total: int | None = None
    max_dead_ratio: float | None = None
    window: Duration = timedelta(hours=1)
    max_dead_ratio_per_batch: float | None = 0.5

    def __post_init__(self) -> None:
        counts = [count for count in (self.max_dead_per_batch, self.max_dead_total) if count is not None]
        ratios = [ratio for ratio in (self.max_dead_ratio, self.max_dead_ratio_per_batch) if ratio is not None]
        if min(counts, default=0) < 0 or not all(0 <= ratio <= 1 for ratio in ratios):
            raise BadInput(f"Budget: counts must be 0 or more, ratios between 0 and 1, not {self}")
        object.__setattr__(self, "window", parse_positive(self.window, "Budget: window"))

    @property
    def has_window(self) -> bool:
        return self.max_dead_total is not None or self.max_dead_ratio is not None

    def window_start(self, now: datetime, state: GroupState | None) -> datetime:
        """Return the start of the window. Resuming a group starts a new window."""
        start = now - parse_duration(self.window, "Budget: window")
        return max(start, state.since) if state else start

    def check_batch(self, group: str, dead: int, example: str) -> None:
        if self.max_dead_per_batch is not None and dead > self.max_dead_per_batch:
            raise TooManyDead(
                f"group {group}: the batch has more dead records than max_dead_per_batch={self.max_dead_per_batch}, "
                f"for example: {example}; this batch moved no position: correct the pipeline, or raise the budget"
            )

    def is_suspicious(self, batch: Tally) -> bool:
        """Whether the dead share of a batch is so high that ``check_ratio`` must check the whole window."""
        ratio = self.max_dead_ratio_per_batch
        return ratio is not None and batch.dead > ratio * (batch.dead + batch.applied)

    def check_ratio(self, group: str, recent: Tally, reason: str) -> None:
        """Raise if too many records of the window are dead.

        ``recent`` counts a suspicious batch and the window before it; ``reason`` is the most frequent error.
        """
        total = recent.dead + recent.applied
        ratio = self.max_dead_ratio_per_batch
        if ratio is not None and total >= RATIO_NEEDS and recent.dead > ratio * total:
            raise TooManyDead(
                f"group {group}: {recent.dead:,} of the last {total:,} records are dead, more than "
                f"max_dead_ratio_per_batch={ratio} allows; most frequent error of this batch: {reason}; this batch "
                "moved no position: correct the schema or the function, or accept dead records with "
                "max_dead_ratio_per_batch=1; "
                f"if earlier dead records are corrected, start a new window: tallymark resume {shlex.quote(group)}"
            )

    def overdrawn(self, recent: Tally) -> str | None:
        """Return the reason to pause the group, or None."""
        total = recent.dead + recent.applied
        if self.max_dead_total is not None and recent.dead > self.max_dead_total:
            return f"{recent.dead} dead records within {self.window} are more than max_dead_total={self.max_dead_total}"
        if self.max_dead_ratio is not None and total >= RATIO_NEEDS and recent.dead > self.max_dead_ratio * total:
            return (
                f"{recent.dead} dead records of {total} within {self.window} "
                f"are more than max_dead_ratio={self.max_dead_ratio}"
            )
        return None
