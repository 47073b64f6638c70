"""A race: contenders take turns on one course, round after round, and what counts are the ratios within a round."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field
from typing import Any, Protocol, TypeVar

from tallymark.errors import TallymarkError

T = TypeVar("T")


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
        """The rate from the first commit to the last, which is all that is visible of another process."""
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


class Idle:
    """A contender that needs nothing around its laps."""

    def start(self, course: Course) -> None:
        """Nothing is needed."""

    def stop(self) -> None:
        """Nothing was started."""


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

    def ratios(self, other: Result, *, steady: bool = False) -> list[float]:
        """How many times as fast as the other one, round by round; ``steady``: from the first commit on."""
        pairs = zip(self.laps, other.laps, strict=True)
        return [a.steady_rate / b.steady_rate if steady else a.rate / b.rate for a, b in pairs]


@dataclass(frozen=True)
class Comparison:
    """One contender beside another: how many times as fast it has to be, and how fast we would like it."""

    ours: str
    peer: str
    least: float | None = None
    aim: float | None = None
    steady: bool = False
    """Whether both are timed from their first commit on, because the start of the peer is not visible."""

    def verdict(self, ratio: float) -> str:
        if self.least is None:
            return ""
        if ratio < self.least:
            return "missed"
        return "met" if self.aim is None or ratio < self.aim else "aim met"

    @property
    def target(self) -> str:
        least = "" if self.least is None else f"{self.least:g}x"
        return least if self.aim is None else f"{least}, aim {self.aim:g}x"


@dataclass
class Outcome:
    """The results of one race, its title, and what is compared."""

    title: str
    records: int
    results: dict[str, Result]
    comparisons: Sequence[Comparison] = field(default_factory=tuple)

    @property
    def rounds(self) -> int:
        return max((len(result.laps) for result in self.results.values()), default=0)

    @property
    def compared(self) -> list[tuple[Comparison, tuple[float, float, float]]]:
        """The comparisons whose contenders both took part, with median, smallest and largest ratio."""
        there = (one for one in self.comparisons if {one.ours, one.peer} <= self.results.keys())
        return [
            (one, spread(self.results[one.ours].ratios(self.results[one.peer], steady=one.steady))) for one in there
        ]

    def as_json(self) -> dict[str, Any]:
        """All that is needed to make every table and chart again."""
        results = self.results.items()
        return {
            "title": self.title,
            "records": self.records,
            "laps": {name: [[round(one, 6) for one in astuple(lap)] for lap in found.laps] for name, found in results},
            "rates": {name: round(result.median, 1) for name, result in results},
            "comparisons": [
                {**vars(one), "ratio": round(ratio[0], 4), "verdict": one.verdict(ratio[0])}
                for one, ratio in self.compared
            ],
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Outcome:
        results = {name: Result(name, [Lap(*lap) for lap in laps]) for name, laps in found["laps"].items()}
        names = Comparison.__dataclass_fields__
        comparisons = [Comparison(**{k: v for k, v in one.items() if k in names}) for one in found["comparisons"]]
        return cls(found["title"], found["records"], results, comparisons)


def race(
    title: str,
    contenders: Sequence[Contender],
    course: Course,
    rounds: int,
    comparisons: Sequence[Comparison] = (),
    warm: int = 1,
) -> Outcome:
    """Let all contenders take turns. A contender that can't be started is left out with a sentence on stderr."""
    names = [contender.name for contender in contenders]
    if len(set(names)) < len(names):
        raise TallymarkError(f"two contenders of {title} have the same name: {', '.join(names)}")
    with ExitStack() as stack:
        ready = [contender for contender in contenders if _starts(contender, course, stack)]
        results = {contender.name: Result(contender.name) for contender in ready}
        for turn, contender in turns(ready, rounds, warm):
            say(f"{title}: {contender.name}, {f'round {turn}' if turn else 'warming up'}")
            lap = contender.lap(course)
            if turn:
                results[contender.name].laps.append(lap)
    return Outcome(title, course.records, results, comparisons)


def turns(contenders: Sequence[T], rounds: int, warm: int = 1) -> Iterator[tuple[int, T]]:
    """Yield each turn as the number of its round and its contender. Rounds that warm up have the number 0.

    Every other round has an order of its own, so that what a contender leaves behind (a busy compiler, a large heap)
    does not always meet the same contender.
    """
    dice = random.Random(rounds)
    for turn in [0] * warm + list(range(1, rounds + 1)):
        for contender in dice.sample(contenders, len(contenders)) if turn else contenders:
            yield turn, contender


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """Median, smallest and largest."""
    found = list(values)
    return statistics.median(found), min(found), max(found)


def say(words: str) -> None:
    """Tell on stderr what is being done: stdout is for results."""
    print(words, file=sys.stderr, flush=True)


def _starts(contender: Contender, course: Course, stack: ExitStack) -> bool:
    try:
        contender.start(course)
    except (TallymarkError, OSError) as error:
        say(f"without {contender.name}: {error}")
        return False
    stack.callback(contender.stop)
    return True
