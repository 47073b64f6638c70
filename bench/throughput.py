"""Records per second from Kafka to COMMIT: all contenders in turns, for docs/benchmarks.md. ``make bench`` runs it.

Every lap is kept in a JSON file, so that tables and charts can be made again without a race: ``--from FILE``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.contenders import lineup
from bench.contenders.streaming import jdbc_jars
from bench.harness.chart import chart
from bench.harness.machine import database, machine, sentence, versions
from bench.harness.race import Contender, Course, Lap, OnLap, race
from bench.harness.records import Shape
from bench.harness.report import Outcome, markdown, replace_section
from bench.harness.venue import Venue
from tallymark.errors import TallymarkError
from tallymark.local.sandbox import Sandbox
from tallymark.local.sandbox.kafka import Kafka
from tallymark.spark.session import session

SECTION = "throughput"
BATCH = 250_000
NAMES = {"postgresql": "PostgreSQL", "mariadb": "MariaDB", "sqlite": "SQLite"}
SIZES: dict[Shape, str] = {"small": "140 B", "large": "1 KB"}
SHARES = {"debezium": 0.5, "quix": 0.1}
WARM = 2
"""Rounds before those that count. After a single one, whoever came after a slow loop still had a faster JVM."""
err = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Event:
    """One race: what it is called, and who takes part."""

    title: str
    contenders: Sequence[Contender]


@dataclass
class Started:
    """A peer that is up already: whether it can be was tried before the race."""

    peer: Contender
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.peer.name

    def start(self, _: Course) -> None:
        """It is."""

    def lap(self, course: Course) -> Lap:
        return self.peer.lap(course)

    def stop(self) -> None:
        """Whoever has started it stops it."""


def events(course: Course, shape: Shape) -> Iterator[Event]:
    """The races on one store and one topic. Large records are raced for appends alone."""
    kind, records = course.kind, course.records
    jdbc = kind in ("postgresql", "mariadb")
    about = f"{NAMES[kind]}, {{}}, {SIZES[shape]} a record"
    append = [*lineup.scans(), *lineup.appending(kind, BATCH, shape, jdbc=jdbc), *lineup.varieties(kind, BATCH)]
    if shape == "large":
        yield Event(about.format("append, 250k a batch"), append)
        return
    yield Event(
        about.format("append, 250k a batch"), [*append, *lineup.slow(records, quick=False), *_peers("append", kind)]
    )
    if kind == "postgresql":
        yield Event(about.format("append, 1M a batch"), lineup.in_millions())
    upsert = lineup.upserting(BATCH, shape, records, quick=False)
    yield Event(about.format("upsert, 250k a batch"), [*upsert, *_peers("upsert", kind)])


def _peers(mode: str, kind: str) -> list[Contender]:
    """Those in processes of their own, as far as they are there."""
    if kind == "sqlite":
        return []
    found: list[Contender] = []
    for name, make in {"Debezium": _debezium, "Quix": _quix}.items():
        try:
            found += make(mode, kind)
        except (ImportError, TallymarkError, OSError) as error:
            err.print(f"without {name}: {error}", style="yellow", markup=False)
    return found


def _debezium(mode: str, _: str) -> list[Contender]:
    from bench.peers.debezium import Debezium

    share = SHARES["debezium"]
    if mode == "upsert":
        return [Debezium("upsert", share=share, name=lineup.DEBEZIUM_UPSERT)]
    plain = Debezium("insert", tuned=False, share=share, name=f"{lineup.DEBEZIUM}, default")
    return [Debezium("insert", share=share, name=lineup.DEBEZIUM), plain]


def _quix(mode: str, kind: str) -> list[Contender]:
    if mode != "append" or kind != "postgresql":
        return []
    from bench.peers.quix import Quix

    return [Quix(share=SHARES["quix"], name=lineup.QUIX)]


def able(contenders: Sequence[Contender], course: Course, stack: ExitStack) -> Iterator[Contender]:
    """All who are ready. A peer that does not start is left out, with a sentence."""
    for one in contenders:
        if not type(one).__module__.startswith("bench.peers."):
            yield one
            continue
        try:
            one.start(course)
        except (TallymarkError, OSError, RuntimeError) as error:
            err.print(f"without {one.name}: {error}", style="yellow", markup=False)
        else:
            stack.callback(one.stop)
            yield Started(one)


def run(event: Event, course: Course, rounds: int, only: str, told: Callable[[str, int], OnLap]) -> Outcome | None:
    with ExitStack() as stack:
        contenders = list(able(lineup.chosen(event.contenders, only), course, stack))
        if not contenders:
            return None
        results = race(contenders, course, rounds, told(event.title, (WARM + rounds) * len(contenders)), WARM)
    return Outcome(event.title, course.kind, course.records, results, lineup.comparisons(course.kind, targets=True))


class Board:
    """Progress on stderr."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def racing(self, title: str, laps: int) -> OnLap:
        task = self._progress.add_task(title, total=laps)
        done = iter(range(laps))

        def told(name: str, turn: int) -> None:
            self._progress.update(task, description=f"{title}: {name}, round {turn}", completed=next(done))
            if not self._progress.console.is_terminal:
                err.print(f"{title}: {name}, round {turn}", markup=False)

        return told

    def producing(self, records: int) -> Callable[[int], None]:
        task = self._progress.add_task("records in Kafka", total=records)

        def told(made: int) -> None:
            self._progress.update(task, completed=made)

        return told


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all races, and return all that is worth keeping."""
    outcomes: list[Outcome] = []
    facts = {**machine(), **versions()}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ExitStack() as stack, Progress(*columns, console=err) as progress:
        board = Board(progress)
        box = stack.enter_context(Sandbox())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        # A broker that is compiled for throughput, and not for a quick start.
        kafka = Kafka(directory / "kafka", fast=False, temporary=True).start()
        stack.callback(kafka.kill)
        urls = {
            "postgresql": lambda: box.postgresql().url,
            "mariadb": lambda: box.mariadb().url,
            "sqlite": lambda: f"sqlite:///{directory}/bench.db",
        }
        stack.callback(session({"spark.master": "local[2]", "spark.jars": jdbc_jars()}).stop)
        for kind in options.stores:
            facts |= database(urls[kind]())
            for shape, records in _topics(options, kind):
                venue = Venue(kafka.brokers, urls[kind](), records, shape)
                with venue.course(board.producing(records)) as course:
                    for event in events(course, shape):
                        if outcome := run(event, course, options.rounds, options.only, board.racing):
                            outcomes.append(outcome)
                            _keep(options.json, facts, outcomes)
    return _kept(facts, outcomes)


def _topics(options: argparse.Namespace, kind: str) -> Iterator[tuple[Shape, int]]:
    if "small" in options.shapes:
        yield "small", options.records
    if "large" in options.shapes and kind == "postgresql":
        yield "large", max(1000, options.records // 2)


def _kept(facts: dict[str, str], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {"facts": facts, "races": [outcome.as_json() for outcome in outcomes]}


def _keep(file: Path | None, facts: dict[str, str], outcomes: Sequence[Outcome]) -> None:
    """After every race, so that one that fails later costs nothing."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(_kept(facts, outcomes), indent=1) + "\n")


def present(found: dict[str, Any], page: Path | None) -> None:
    """Print the tables; with a page, put them there, and a chart of each race beside it."""
    outcomes = [Outcome.from_json(one) for one in found["races"]]
    parts = [sentence(found["facts"])]
    for outcome in outcomes:
        name = f"{_slug(outcome.title)}.svg"
        parts.append(f"![{outcome.title}](charts/{name})\n\n{markdown(outcome)}" if page else markdown(outcome))
        if page:
            ours, limits = filter(lineup.is_ours, outcome.results), filter(lineup.is_limit, outcome.results)
            charts = page.parent / "charts"
            charts.mkdir(exist_ok=True)
            (charts / name).write_text(chart(outcome, list(ours), list(limits)))
    said = "\n\n".join(parts)
    print(said)
    if page:
        replace_section(page, SECTION, said)


def _slug(title: str) -> str:
    return "-".join("".join(one if one.isalnum() else " " for one in title.lower()).split())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--records", type=int, default=2_000_000, help="Small ones; of large ones half.")
    options.add_argument("--stores", nargs="+", default=list(NAMES), choices=list(NAMES))
    options.add_argument("--shapes", nargs="+", default=list(SIZES), choices=list(SIZES))
    options.add_argument("--only", default="", help="Contenders whose name has this in it.")
    options.add_argument("--write", type=Path, help="Put tables and charts into this page, between the marks.")
    options.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "throughput.json")
    options.add_argument("--from", dest="kept", type=Path, help="No race: present what this file has.")
    chosen = options.parse_args()
    present(json.loads(chosen.kept.read_text()) if chosen.kept else measure(chosen), chosen.write)


if __name__ == "__main__":
    main()
