"""``tallymark run``: one pipeline, with progress."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from tallymark.cli.load import load_pipeline
from tallymark.errors import BadInput
from tallymark.spans import Tally
from tallymark.steps import Progress as BatchProgress
from tallymark.steps import Step

File = Annotated[Path, typer.Argument(help="A Python file that defines one tallymark.Pipeline.")]
UntilOption = Annotated[str, typer.Option("--until", help="stopped, or caught-up: all that is there now is done.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the tally of the run as JSON, and no progress.")]


def run(file: File, until: UntilOption = "stopped", as_json: AsJson = False) -> None:
    """Run a pipeline. Ctrl-C finishes the batch in flight and leaves; a second one leaves at once."""
    if until not in ("stopped", "caught-up"):
        raise BadInput(f"--until {until} is not known; write stopped or caught-up")
    pipeline = load_pipeline(file)
    began = time.monotonic()
    with RunDisplay(pipeline.group, Console(stderr=True, quiet=as_json)) as display:
        tally = pipeline.run("caught-up" if until == "caught-up" else "stopped", on_step=display)
    seconds = time.monotonic() - began
    if as_json:
        print(json.dumps({"group": pipeline.group, **asdict(tally), "seconds": round(seconds, 3)}))
    else:
        Console().print(f"{pipeline.group}: {describe(tally)} in {seconds:.1f} s", highlight=False)


def describe(tally: Tally) -> str:
    """A tally in words: always what was applied, the rest where there is any."""
    others = [f"{count:,} {name}" for name, count in asdict(tally).items() if count and name != "applied"]
    return ", ".join([f"{tally.applied:,} applied", *others])


class RunDisplay:
    """A live line on a terminal, a line per batch elsewhere."""

    def __init__(self, group: str, console: Console) -> None:
        self._group = group
        self._console = console
        self._total = Tally()
        self._began = time.monotonic()
        self._task: TaskID | None = None
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> RunDisplay:
        self._progress.start()
        # A second Ctrl-C ends the process on the spot, and must not leave a terminal without a cursor.
        self._console.show_cursor(True)
        self._task = self._progress.add_task(self._group, total=None, said="starting Spark")
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, step: Step, batch: BatchProgress) -> None:
        if step is not Step.DONE or self._task is None:
            return
        self._total += batch.tally
        done, behind = self._total.total, batch.behind
        rate = done / max(0.001, time.monotonic() - self._began)
        said = f"{describe(self._total)}, {behind:,} behind, {rate:,.0f}/s"
        self._progress.update(self._task, completed=done, total=done + behind, said=said)
        if not self._console.is_terminal:
            self._console.print(f"{self._group}: {said}", highlight=False)
