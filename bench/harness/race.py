"""A race: contenders take turns on one course, round after round, and what counts are the ratios within a round."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from tallymark.errors import TallymarkError


@dataclass(frozen=True)
class Course:
    """Where a race runs: a topic that holds so many records, and a store."""

    brokers: str
    topic: str
    records: int
    url: str
    """The store, as tallymark takes it: ``postgresql://...``, ``mysql://...``, ``sqlite:///...``."""
    kind: str
    """postgresql, mariadb or sqlite."""
    table: str = "bench_orders"


@dataclass(frozen=True)
class Lap:
    """So many records were committed in so many seconds, ``first_records`` of them after ``first_seconds``."""

    records: int
    seconds: float
    first_records: int = 0
    first_seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.records / self.seconds

    @property
    def steady_rate(self) -> float:
        """From the first commit to the last: all that can be seen of who runs in a process of its own."""
        return (self.records - self.first_records) / (self.seconds - self.first_seconds)


class Contender(Protocol):
    """A way from a topic to a table, or a part of it.

    ``start`` is called once, before the first round, ``stop`` once after the last, whatever happened. ``lap`` empties
    the table itself, and raises if the rows are not all there in the end.
    """

    name: str

    def start(self, course: Course) -> None: ...
    def lap(self, course: Course) -> Lap: ...
    def stop(self) -> None: ...


@dataclass
class Result:
    """The laps of one contender, one for each round."""

    name: str
    laps: list[Lap] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [lap.rate for lap in self.laps]

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    @property
    def steady_rates(self) -> list[float]:
        return [lap.steady_rate for lap in self.laps]

    def ratios(self, other: Result, *, steady: bool = False) -> list[float]:
        """How many times as fast as the other one, round by round; ``steady``: from the first commit on."""
        mine, theirs = (one.steady_rates if steady else one.rates for one in (self, other))
        return [ours / others for ours, others in zip(mine, theirs, strict=True)]


OnLap = Callable[[str, int], None]
"""Told the contender whose turn it is, and the round; 0 warms up."""


def race(
    contenders: Sequence[Contender], course: Course, rounds: int, on_lap: OnLap | None = None, warm: int = 1
) -> dict[str, Result]:
    """All laps, by the contenders' names. The first ``warm`` rounds are not counted: Java compiles for a while.

    Every other round has an order of its own: what a contender leaves behind (a busy compiler, a large heap) is not
    always felt by the same one.
    """
    results = {contender.name: Result(contender.name) for contender in contenders}
    if len(results) < len(contenders):
        raise TallymarkError("two contenders of a race have the same name")
    dice = random.Random(rounds)
    with ExitStack() as stack:
        for contender in contenders:
            stack.callback(contender.stop)
            contender.start(course)
        for turn in [0] * warm + list(range(1, rounds + 1)):
            for contender in dice.sample(contenders, len(contenders)) if turn else contenders:
                if on_lap:
                    on_lap(contender.name, turn)
                lap = contender.lap(course)
                if turn:
                    results[contender.name].laps.append(lap)
    return results


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """Median, smallest and largest."""
    found = list(values)
    return statistics.median(found), min(found), max(found)
