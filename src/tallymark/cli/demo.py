"""``tallymark demo``: see it survive, and see it counted."""

from __future__ import annotations

import importlib.util
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from tallymark.cli.output import plain_table, print_table
from tallymark.core.spans import OUTCOMES, Tally
from tallymark.errors import BadInput
from tallymark.operate.demo.play import KILLS, Play
from tallymark.operate.demo.verdict import DemoVerdict

StoreUrl = Annotated[
    str | None, typer.Option("--store", help="A database for the rows and the offsets; SQLite if none.")
]
Records = Annotated[int, typer.Option("--records", help="How many orders to produce.")]
MOST_KILLS = len(KILLS)
Kills = Annotated[int, typer.Option("--kills", min=0, max=MOST_KILLS, help="How often to kill the pipeline.")]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the table; without --store in ./tallymark-demo.db.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the verdict as one JSON object.")]


def demo(
    store: StoreUrl = None,
    records: Records = 200_000,
    kills: Kills = MOST_KILLS,
    keep: Keep = False,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline on a real broker, kill it up to three times, and count what became of every record.

    Ends with exit code 1 if a single record is missing or there twice.
    """
    if records < 1000:
        raise BadInput(f"--records {records} is too few to be killed in the middle of; take at least 1000")
    if importlib.util.find_spec("pyspark") is None:
        raise BadInput("the demo needs Spark and a Kafka broker: pip install 'tallymark[spark,sandbox]'")
    with Screen(records, Console(stderr=True)) as screen:
        verdict = Play(records, store, keep, kills).perform(screen)
    if as_json:
        print(json.dumps(as_object(verdict)))
    else:
        _print(verdict, Console())
    if not verdict.holds:
        raise typer.Exit(1)


def as_object(verdict: DemoVerdict) -> dict[str, int | float]:
    tally = verdict.tally
    return {
        "records": verdict.total("records"),
        **{name: getattr(tally, name) for name in OUTCOMES},
        "missing": verdict.total("missing"),
        "duplicated": verdict.total("duplicated"),
        "kills": verdict.kills,
        "seconds": round(verdict.seconds, 1),
    }


def _print(verdict: DemoVerdict, out: Console) -> None:
    heads = ("partition", "position", *OUTCOMES, "kafka", "rows", "letters", "verdict")
    table = plain_table(*heads)
    for line in verdict.partitions:
        position = line.position
        counts = [getattr(position.tally, name) for name in OUTCOMES]
        cells = [position.partition.number, position.next_offset, *counts, line.records, line.rows, line.letters]
        table.add_row(*(str(cell) for cell in cells), "[green]holds[/green]" if line.holds else "[red]broken[/red]")
    print_table(table)
    facts = as_object(verdict)
    out.print(
        f"\n{facts['records']:,} committed records: {facts['applied']:,} applied exactly once, "
        f"{facts['dead']:,} dead letters, {facts['missing']:,} missing, {facts['duplicated']:,} duplicated; "
        f"killed {facts['kills']} times, {facts['seconds']} s",
        style="bold green" if verdict.holds else "bold red",
        highlight=False,
        soft_wrap=True,
    )


class Screen:
    """Live progress on a terminal, lines elsewhere; on stderr, so that stdout is the verdict alone."""

    def __init__(self, records: int, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._fetch: TaskID | None = None
        self._produce = self._progress.add_task("records in Kafka", total=records)
        self._account = self._progress.add_task("records accounted for", total=records)

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def note(self, said: str) -> None:
        self._console.print(said, style="dim", highlight=False)

    def fetched(self, here: int, total: int) -> None:
        """Only the first demonstration on a machine downloads anything."""
        if self._fetch is None:
            self._fetch = self._progress.add_task("jars downloaded", total=total)
            self.note("downloading Kafka and Spark's Kafka connector, once")
        self._progress.update(self._fetch, completed=here, total=total)

    def produced(self, records: int) -> None:
        self._progress.update(self._produce, completed=records)

    def accounted(self, tally: Tally) -> None:
        self._progress.update(self._account, completed=tally.applied + tally.dead)
