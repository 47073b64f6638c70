"""``tallymark bench``: how fast is it here, on this cluster, with this database?"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tallymark.bench import lineup
from tallymark.bench.machine import database, machine, sentence, versions
from tallymark.bench.race import Contender, Course, OnLap, race
from tallymark.bench.records import Shape, Tell
from tallymark.bench.report import RATES, RATIOS, Outcome, rate_rows, ratio_rows
from tallymark.bench.streaming import has_jdbc, jdbc_jars
from tallymark.bench.venue import Venue
from tallymark.cli.options import AsJson, BrokersOption, StoreUrl
from tallymark.cli.tables import plain_table, print_table
from tallymark.errors import BadInput
from tallymark.local.sandbox import Sandbox
from tallymark.spark.session import session
from tallymark.stores.opening import open_sql

Records = Annotated[int, typer.Option("--records", min=1000, help="How many records to make.")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="How often everybody takes a turn, after one to warm up.")]
ShapeOption = Annotated[str, typer.Option("--shape", help="small: about 140 bytes a record; large: 1 KB.")]
Only = Annotated[str, typer.Option("--only", help="Only contenders with this in their name, such as 'tallymark'.")]

LARGEST = 250_000
"""Records of a batch, at the most; of few records there are four batches."""


def bench(
    brokers: BrokersOption = None,
    store: StoreUrl = None,
    records: Records = 200_000,
    rounds: Rounds = 3,
    shape: ShapeOption = "small",
    only: Only = "",
    as_json: AsJson = False,
) -> None:
    """Race pipelines, listeners, loops by hand and Spark's own writer on this machine, against what is the limit.

    On your cluster and database, or on a sandbox for what is not given. Topic, tables and groups have names of their
    own and are removed in the end; nothing else is touched.
    """
    if shape not in get_args(Shape):
        raise BadInput(f"--shape {shape} is not known; write {' or '.join(get_args(Shape))}")
    with _ending_on_term(), _Screen(Console(stderr=True)) as screen:
        run = _Run(records, rounds, "large" if shape == "large" else "small", only, screen)
        found = run.perform(brokers, store)
    if as_json:
        print(json.dumps(found.as_json(), indent=2))
        return
    for outcome in found.outcomes:
        _print(outcome)
    print(found.facts)


@dataclass(frozen=True)
class _Found:
    """What came out, and where."""

    store: str
    shape: str
    machine: dict[str, str]
    outcomes: Sequence[Outcome]

    @property
    def facts(self) -> str:
        return sentence(self.machine)

    def as_json(self) -> dict[str, Any]:
        races = [outcome.as_json() for outcome in self.outcomes]
        return {"store": self.store, "shape": self.shape, "machine": self.machine, "races": races}


@dataclass(frozen=True)
class _Run:
    records: int
    rounds: int
    shape: Shape
    only: str
    screen: _Screen

    def perform(self, brokers: str | None, store: str | None) -> _Found:
        with ExitStack() as stack:
            box = stack.enter_context(Sandbox())
            self.screen.say("starting servers" if brokers is None or store is None else "looking at the servers")
            venue = Venue(brokers or box.kafka().brokers, store or box.postgresql().url, self.records, self.shape)
            course = stack.enter_context(venue.course(self.screen.producing(self.records)))
            races = [one for one in self._races(course) if one[1]]
            if not races:
                raise BadInput(f"no contender has {self.only!r} in its name")
            self.screen.say("starting Spark")
            stack.callback(session({"spark.jars": jdbc_jars()}).stop)
            outcomes = [self._race(course, *one) for one in races]
            facts = {**machine(), **versions(sandbox=brokers is None), **database(course.url)}
            return _Found(open_sql(course.url).name, self.shape, facts, outcomes)

    def _races(self, course: Course) -> Iterator[tuple[str, list[Contender]]]:
        size = max(1, min(LARGEST, self.records // 4))
        appending = lineup.appending(course.kind, size, self.shape, jdbc=has_jdbc(course))
        append = [*lineup.scans(), *appending, *lineup.slow(self.records, quick=True)]
        upsert = lineup.upserting(size, self.shape, self.records, quick=True)
        for mode, contenders in (("append", append), ("upsert", upsert)):
            yield f"{course.kind}, {mode}, {self.shape} records, {size:,} a batch", lineup.chosen(contenders, self.only)

    def _race(self, course: Course, title: str, contenders: Sequence[Contender]) -> Outcome:
        told = self.screen.racing(title, (self.rounds + 1) * len(contenders))
        results = race(contenders, course, self.rounds, told)
        return Outcome(title, course.kind, course.records, results, lineup.comparisons(course.kind, targets=False))


def _print(outcome: Outcome) -> None:
    Console().print(f"\n[bold]{outcome.title}[/bold], {outcome.records:,} records", highlight=False)
    _print_rows(RATES, rate_rows(outcome), left=1)
    if outcome.compared:
        print()
        # Targets are for one machine.
        _print_rows(RATIOS[:4], (row[:4] for row in ratio_rows(outcome)), left=2)


def _print_rows(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> None:
    table = plain_table(*heads, left=left)
    for row in rows:
        table.add_row(*row)
    print_table(table)


@contextmanager
def _ending_on_term() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does, so that what was made is removed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Screen:
    """Progress on a terminal's stderr, and what is being done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        shown = console.is_terminal
        self._progress = Progress(*columns, TimeElapsedColumn(), console=console, disable=not shown)

    def __enter__(self) -> _Screen:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, words: str) -> None:
        self._console.print(words, style="dim", highlight=False)

    def producing(self, records: int) -> Tell:
        task = self._progress.add_task("records in Kafka", total=records)

        def told(made: int) -> None:
            self._progress.update(task, completed=made)

        return told

    def racing(self, title: str, laps: int) -> OnLap:
        self.say(title)
        task = self._progress.add_task(title, total=laps)
        done = iter(range(laps))

        def told(name: str, turn: int) -> None:
            said = f"{name}, {f'round {turn}' if turn else 'warming up'}"
            self._progress.update(task, description=said, completed=next(done))

        return told
