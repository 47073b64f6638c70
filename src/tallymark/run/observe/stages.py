"""Measures the duration of a batch's stages from its named steps."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tallymark.core.progress import Progress, Step

STAGES = {
    Step.PLANNED: "plan",
    Step.READ: "read",
    Step.STAGED: "stage",
    Step.WRITTEN: "write",
    Step.COMMITTED: "commit",
}
"""The stage that ends with each step."""
TOTAL = "total"


@dataclass(frozen=True)
class StageTime:
    """A finished stage, in monotonic time."""

    stage: str
    start: float
    stop: float


class Stopwatch:
    """Times the batches of a run, which may overlap: a batch is read while another commits.

    The time that a batch waits for the commit of the previous batch belongs to no stage.
    """

    def __init__(self) -> None:
        self._under_way: dict[str, tuple[float, float]] = {}

    def laps(self, step: Step, progress: Progress) -> list[StageTime]:
        """The stages that end with this step; after the commit also the total."""
        now, name = time.monotonic(), progress.batch
        began, last = self._under_way.get(name, (progress.since, progress.since))
        if step in (Step.DONE, Step.DROPPED):
            self._under_way.pop(name, None)
            return []
        if step not in STAGES:
            return []
        self._under_way[name] = began, now
        lap = StageTime(STAGES[step], max(last, progress.since), now)
        return [lap, StageTime(TOTAL, began, now)] if step is Step.COMMITTED else [lap]
