"""What a race has brought, for people and for programs: tables, JSON, and sections of a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from bench.harness.race import Lap, Result, spread
from tallymark.errors import BadInput


@dataclass(frozen=True)
class Comparison:
    """One contender of ours beside another: how many times as fast it has to be, and how fast we would like it."""

    ours: str
    peer: str
    least: float | None = None
    aim: float | None = None
    steady: bool = False
    """Whether ours is timed from its first commit on, as the other one is, whose start can't be seen."""

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
    """The results of one race, what it was about, and what is compared."""

    title: str
    kind: str
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
        return {
            "title": self.title,
            "kind": self.kind,
            "records": self.records,
            "laps": {
                name: [[round(one, 6) for one in astuple(lap)] for lap in result.laps]
                for name, result in self.results.items()
            },
            "rates": {name: round(result.median, 1) for name, result in self.results.items()},
            "comparisons": [
                {
                    "ours": one.ours,
                    "peer": one.peer,
                    "least": one.least,
                    "aim": one.aim,
                    "steady": one.steady,
                    "ratio": round(ratio[0], 4),
                    "verdict": one.verdict(ratio[0]),
                }
                for one, ratio in self.compared
            ],
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Outcome:
        results = {name: Result(name, [Lap(*lap) for lap in laps]) for name, laps in found["laps"].items()}
        comparisons = [
            Comparison(**{name: one[name] for name in _FIELDS if name in one}) for one in found["comparisons"]
        ]
        return cls(found["title"], found["kind"], found["records"], results, comparisons)


_FIELDS = ("ours", "peer", "least", "aim", "steady")
RATES = ("contender", "k records/s", "spread")
RATIOS = ("ours", "against", "is", "spread", "target", "verdict")


def rate_rows(outcome: Outcome) -> Iterator[tuple[str, str, str]]:
    for result in outcome.results.values():
        median, least, most = spread(result.rates)
        yield result.name, thousands(median), f"{thousands(least)}-{thousands(most)}"


def ratio_rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    for one, (median, least, most) in outcome.compared:
        peer = f"{one.peer}, both from the first commit on" if one.steady else one.peer
        yield one.ours, peer, f"{median:.2f}x", f"{least:.2f}-{most:.2f}", one.target, one.verdict(median)


def thousands(rate: float) -> str:
    """Of records per second: as many digits as mean something."""
    return f"{rate / 1000:,.0f}" if rate >= 100_000 else f"{rate / 1000:,.1f}"


def markdown(outcome: Outcome) -> str:
    """A heading and the tables, for a page."""
    lines = [f"**{outcome.title}**, {outcome.records:,} records", "", *_markdown(RATES, rate_rows(outcome), left=1)]
    if outcome.compared:
        lines += ["", *_markdown(RATIOS, ratio_rows(outcome), left=2)]
    return "\n".join([*lines, "", f"Medians of {outcome.rounds} rounds in turns, after the laps that warmed up."])


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> list[str]:
    rule = ["---" if number < left else "---:" for number in range(len(heads))]
    return [f"| {' | '.join(heads)} |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(row)} |" for row in rows)]


def replace_section(page: Path, name: str, said: str) -> None:
    """Put text between the marks of that name, in the place of what stands there."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = page.read_text().partition(start)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise BadInput(f"{page} has no section between {start} and {end}; add both marks")
    page.write_text(f"{before}{start}\n{said.strip()}\n{end}{after}")
