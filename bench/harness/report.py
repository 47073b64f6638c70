"""The report of a race: tables for people, sections of a page, and JSON that has every lap."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.harness.race import Comparison, Outcome, spread
from tallymark.errors import BadInput

RATES = ("contender", "k records/s", "spread")
RATIOS = ("ours", "against", "is", "spread", "target", "verdict")


def markdown(outcome: Outcome) -> str:
    """A heading, the rates, and the ratios with their targets."""
    lines = [f"**{outcome.title}**, {outcome.records:,} records", "", *table(RATES, rate_rows(outcome))]
    if outcome.compared:
        lines += ["", *table(RATIOS, ratio_rows(outcome), left=2)]
    return "\n".join([*lines, "", f"Medians of {outcome.rounds} rounds in turns, after the laps that warmed up."])


def summary(outcomes: Sequence[Outcome]) -> str:
    """One table of several races, with the ratios of a contender in its row."""
    rows = [(outcome.title, *row, _ratios(outcome, row[0])) for outcome in outcomes for row in rate_rows(outcome)]
    rounds = max(outcome.rounds for outcome in outcomes)
    lines = table(("race", *RATES, "is"), rows, left=2)
    return "\n".join([*lines, "", f"Medians of {rounds} rounds in turns, after the laps that warmed up."])


def rate_rows(outcome: Outcome) -> Iterator[tuple[str, str, str]]:
    for result in outcome.results.values():
        median, least, most = map(thousands, spread(result.rates))
        yield result.name, median, f"{least}-{most}"


def ratio_rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    for one, (median, least, most) in outcome.compared:
        peer = f"{one.peer}, both from the first commit on" if one.steady else one.peer
        yield one.ours, peer, f"{median:.2f}x", f"{least:.2f}-{most:.2f}", one.target, one.verdict(median)


def _ratios(outcome: Outcome, name: str) -> str:
    compared = ((one, ratio) for one, ratio in outcome.compared if one.ours == name)
    return "; ".join(f"{ratio_of(ratio)} {one.peer}{_judged(one, ratio[0])}" for one, ratio in compared)


def _judged(one: Comparison, ratio: float) -> str:
    return f", target {one.target}: **{one.verdict(ratio)}**" if one.least is not None else ""


def ratio_of(ratio: tuple[float, float, float]) -> str:
    median, least, most = ratio
    return f"{median:.2f}x ({least:.2f}-{most:.2f})"


def thousands(rate: float) -> str:
    """Of records per second: as many digits as mean something."""
    return f"{rate / 1000:,.0f}" if rate >= 100_000 else f"{rate / 1000:,.1f}"


def short(size: int) -> str:
    """Of a batch: 1M, 250k, 1,250."""
    if size % 1_000_000 == 0:
        return f"{size // 1_000_000}M"
    return f"{size // 1000}k" if size % 1000 == 0 else f"{size:,}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """The lines of a table in Markdown; all columns but the first ``left`` are aligned to the right."""
    rule = ["---" if number < left else "---:" for number in range(len(heads))]
    return [f"| {' | '.join(heads)} |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(row)} |" for row in rows)]


def replace_section(page: Path, name: str, text: str) -> None:
    """Put text between the marks of that name, in the place of what is there."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = page.read_text().partition(start)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise BadInput(f"{page} has no section between {start} and {end}; add both marks")
    page.write_text(f"{before}{start}\n{text.strip()}\n{end}{after}")


def races_as_json(facts: dict[str, str], outcomes: Iterable[Outcome]) -> dict[str, Any]:
    return {"facts": facts, "races": [outcome.as_json() for outcome in outcomes]}


def keep(file: Path | None, results: Any) -> None:
    """Write the results to a file as JSON, if there is one to be written."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(results, indent=1) + "\n")
