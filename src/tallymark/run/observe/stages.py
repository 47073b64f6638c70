"""How long the stages of a batch take, by its named steps."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tallymark.steps import Progress, Step

STAGES = {
    Step.PLANNED: "plan",
    Step.READ: "read",
    Step.STAGED: "stage",
    Step.WRITTEN: "write",
    Step.COMMITTED: "commit",
}
"""The stage that is over when a batch passes the step."""
TOTAL = "total"


@dataclass(frozen=True)
class Lap:
    """A stage that is over, by the monotonic clock."""

    stage: str
    start: float
    stop: float


class Stopwatch:
    """Times the batches of a run, of which one may be read while another one commits.

    While a batch that was read waits for the one before it, no stage goes on.
    """

    def __init__(self) -> None:
        self._under_way: dict[str, tuple[float, float]] = {}

    def laps(self, step: Step, progress: Progress) -> list[Lap]:
        """What has ended with this step; behind the commit also the batch as a whole."""
        now, name = time.monotonic(), progress.batch
        began, last = self._under_way.get(name, (progress.since, progress.since))
        if step in (Step.DONE, Step.DROPPED):
            self._under_way.pop(name, None)
            return []
        if step not in STAGES:
            return []
        self._under_way[name] = began, now
        lap = Lap(STAGES[step], max(last, progress.since), now)
        return [lap, Lap(TOTAL, began, now)] if step is Step.COMMITTED else [lap]
