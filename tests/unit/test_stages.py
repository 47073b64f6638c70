"""Stages are measured between named steps."""

from __future__ import annotations

import pytest

from tallymark.core.progress import Progress, Step
from tallymark.run.observe import stages
from tallymark.run.observe.stages import Stopwatch


class Clock:
    """A monotonic clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(stages, "time", made)
    return made


def lapped(watch: Stopwatch, clock: Clock, at: float, step: Step, since: float, batch: str = "1") -> dict[str, float]:
    clock.now = at
    return {lap.stage: lap.stop - lap.start for lap in watch.laps(step, Progress(batch, 1, 0, since=since))}


def test_a_stage_lasts_from_step_to_step_and_waiting_for_the_batch_before_is_none(clock: Clock) -> None:
    watch = Stopwatch()
    assert lapped(watch, clock, 2, Step.PLANNED, since=1) == {"plan": 1}
    assert lapped(watch, clock, 5, Step.READ, since=1) == {"read": 3}
    assert lapped(watch, clock, 6, Step.STAGED, since=1) == {"stage": 1}
    # Continued at 10, when the previous batch had ended.
    assert lapped(watch, clock, 14, Step.WRITTEN, since=10) == {"write": 4}
    assert lapped(watch, clock, 15, Step.MOVED, since=10) == {}
    assert lapped(watch, clock, 16, Step.COMMITTED, since=10) == {"commit": 2, "total": 15}


def test_batches_that_overlap_are_timed_by_themselves(clock: Clock) -> None:
    watch = Stopwatch()
    lapped(watch, clock, 2, Step.PLANNED, since=1)
    assert lapped(watch, clock, 4, Step.PLANNED, since=3, batch="2") == {"plan": 1}
    assert lapped(watch, clock, 7, Step.READ, since=1) == {"read": 5}


@pytest.mark.parametrize("end", [Step.DONE, Step.DROPPED])
def test_a_batch_that_is_over_is_forgotten(clock: Clock, end: Step) -> None:
    watch = Stopwatch()
    lapped(watch, clock, 2, Step.PLANNED, since=1)
    assert lapped(watch, clock, 3, end, since=1) == {}
    assert lapped(watch, clock, 9, Step.COMMITTED, since=8) == {"commit": 1, "total": 1}
