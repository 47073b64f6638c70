"""Records per second from Kafka to COMMIT: pipelines, listeners, loops by hand, Spark's own writer and the limits.

On a sandbox, or on brokers and a store that are given: what the race makes there has names of its own and is removed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.contenders import lineup
from bench.harness import jdbc
from bench.harness.chart import chart
from bench.harness.command import Command, run
from bench.harness.machine import sentence
from bench.harness.race import Contender, Course, Outcome
from bench.harness.races import Race, measure
from bench.harness.records import Shape
from bench.harness.report import markdown, races_as_json, short
from bench.harness.servers import kind_of
from tallymark.errors import BadInput

NAMES = {"postgresql": "PostgreSQL", "mariadb": "MariaDB", "sqlite": "SQLite"}
SIZES: dict[Shape, str] = {"small": "140 B", "large": "1 KB"}
BATCH = 250_000
RECORDS, QUICK_RECORDS = 2_000_000, 200_000


def races(at: Course, shape: Shape, *, quick: bool) -> Iterator[tuple[str, list[Contender]]]:
    """The title and the contenders of every race on one course. Large records are raced for appends alone."""
    size = lineup.batch_size(BATCH, at.records, quick=quick)
    title = f"{NAMES[at.kind]}, {{}}, {short(size)} a batch, {SIZES[shape]} a record"
    append = [*lineup.scans(), *lineup.appending(at.kind, size, shape, jdbc=jdbc.reaches(at))]
    upsert = lineup.upserting(size, shape, at.records, quick=quick)
    if not quick:
        append += lineup.varieties(at.kind, size)
        upsert += lineup.peers(at.kind, "upsert")
    if shape == "small":
        append += lineup.slow(at.records, quick=quick)
        append += [] if quick else lineup.peers(at.kind, "append")
    yield title.format("append"), append
    if shape == "small" and at.kind == "postgresql" and not quick:
        yield f"PostgreSQL, append, 1M a batch, {SIZES[shape]} a record", lineup.in_millions()
    if shape == "small":
        yield title.format("upsert"), upsert


def measured(chosen: argparse.Namespace) -> dict[str, Any]:
    def planned(at: Course, shape: Shape) -> Iterator[Race]:
        compared = lineup.comparisons(at.kind, targets=not chosen.quick)
        for title, contenders in races(at, shape, quick=chosen.quick):
            if those := lineup.chosen(contenders, chosen.only):
                yield Race(title, those, compared)

    facts, outcomes = measure(chosen, _courses(chosen), planned)
    if not outcomes:
        raise BadInput(f"no contender has {chosen.only!r} in its name; leave out --only to see all names")
    return races_as_json(facts, outcomes)


def _courses(chosen: argparse.Namespace) -> Iterator[tuple[str, Shape, int]]:
    for kind in chosen.stores:
        if "small" in chosen.shapes:
            yield kind, "small", chosen.records
        if "large" in chosen.shapes and kind == "postgresql":
            yield kind, "large", max(1000, chosen.records // 2)


def report(results: dict[str, Any], page: Path | None) -> str:
    """The tables; for a page with a chart of each race, which are written beside it."""
    parts = [sentence(results["facts"])]
    for outcome in map(Outcome.from_json, results["races"]):
        parts += [_charted(outcome, page), markdown(outcome)] if page else [markdown(outcome)]
    return "\n\n".join(parts)


def _charted(outcome: Outcome, page: Path) -> str:
    name = "-".join("".join(one if one.isalnum() else " " for one in outcome.title.lower()).split())
    file = page.parent / "charts" / f"{name}.svg"
    file.parent.mkdir(exist_ok=True)
    ours, limits = filter(lineup.is_ours, outcome.results), filter(lineup.is_limit, outcome.results)
    file.write_text(chart(outcome, list(ours), list(limits)))
    return f"![{outcome.title}](charts/{file.name})"


def _parsed(command: Command) -> argparse.Namespace:
    options = command.options
    command.add_race_options(RECORDS, QUICK_RECORDS)
    options.add_argument("--only", default="", help="Contenders whose name has this in it, such as 'tallymark'.")
    options.add_argument("--stores", nargs="+", choices=list(NAMES), help="All, unless it is quick.")
    options.add_argument("--shapes", nargs="+", choices=list(SIZES), help="All, unless it is quick.")
    options.add_argument("--from", dest="kept", type=Path, help="Report the results in this file, without a race.")
    chosen = command.parse_race()
    if chosen.store:
        chosen.stores = [kind_of(chosen.store)]
    chosen.stores = chosen.stores or (["postgresql"] if chosen.quick else list(NAMES))
    chosen.shapes = chosen.shapes or (["small"] if chosen.quick else list(SIZES))
    return chosen


def main() -> None:
    command = Command("throughput", __doc__)
    chosen = _parsed(command)
    results = json.loads(chosen.kept.read_text()) if chosen.kept else measured(chosen)
    command.publish(chosen, report(results, chosen.write), results)


if __name__ == "__main__":
    run(main)
