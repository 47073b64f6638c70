"""``tallymark run`` and ``tallymark backfill``: one pipeline or app, with progress."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from tallymark.cli.load import load
from tallymark.cli.logs import is_json, say
from tallymark.core.progress import OnStep, Step
from tallymark.core.progress import Progress as BatchProgress
from tallymark.core.spans import Tally
from tallymark.errors import BadInput
from tallymark.run.observe import serving
from tallymark.run.setup import Settings
from tallymark.run.skips import check_order
from tallymark.service.app import App
from tallymark.spark.pipeline import Pipeline

LINE_SECONDS = 10.0
"""How often progress is told where it can't replace a line."""

File = Annotated[
    Path,
    typer.Argument(help="A TOML file (docs/toml.md), or a Python file that defines one tallymark.Pipeline or App."),
]
UntilOption = Annotated[str, typer.Option("--until", help="stopped, or caught-up: all that is there now is done.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the tally of the run as JSON, and no progress.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        envvar="TALLYMARK_METRICS_PORT",
        min=0,
        max=65535,
        help="Serve metrics for Prometheus on this port; 0: on any that is free.",
    ),
]
MetricsHost = Annotated[
    str | None,
    typer.Option(
        "--metrics-host",
        envvar="TALLYMARK_METRICS_HOST",
        help="The address to serve them at: 127.0.0.1 unless told otherwise, 0.0.0.0 for all networks.",
    ),
]
FailOnDead = Annotated[bool, typer.Option("--fail-on-dead", help="Exit with 1 if records became dead letters.")]
Topic = Annotated[str | None, typer.Option("--topic", help="Only this topic.")]
PartitionOption = Annotated[int | None, typer.Option("--partition", help="Only this partition.")]
ALLOW = "add --overwrite"
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Allow that older records overwrite newer rows.")]


def run(
    file: File,
    until: UntilOption = "stopped",
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    fail_on_dead: FailOnDead = False,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline or an app. Ctrl-C finishes the batch in flight and leaves; a second one leaves at once.

    Start it several times, here or elsewhere, and the runs share the partitions.
    """
    if until not in ("stopped", "caught-up"):
        raise BadInput(f"--until {until} is not known; write stopped or caught-up")
    found = load(file)
    with _serving(found, metrics_port, metrics_host):
        tally = _show(
            found, as_json, lambda watch: found.run("caught-up" if until == "caught-up" else "stopped", on_step=watch)
        )
    if tally.dead and not (as_json or is_json()):
        words = f"dead letters of this run: {tally.dead:,}; why: tallymark dead-letters list --summary --file {file}"
        Console(stderr=True).print(words, highlight=False, markup=False, soft_wrap=True)
    if tally.dead and fail_on_dead:
        raise typer.Exit(1)


def backfill(
    file: File,
    topic: Topic = None,
    partition: PartitionOption = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Fill in what was skipped, exactly once, while the group goes on elsewhere."""
    found = load(file)
    if isinstance(found, App):
        _show(found, as_json, lambda watch: found.backfill(topic=topic, partition=partition, on_step=watch))
    else:
        check_order(found.specs, overwrite=overwrite, allow=ALLOW)
        _show(
            found,
            as_json,
            lambda watch: found.backfill(topic=topic, partition=partition, overwrite=overwrite, on_step=watch),
        )


@contextmanager
def _serving(found: Pipeline | App, port: int | None, host: str | None) -> Iterator[None]:
    """Open the endpoint for metrics that the options ask for, or else the file, and say where it is."""
    wanted: Settings = {}
    if port is not None:
        wanted["metrics_port"] = port
    if host is not None:
        wanted["metrics_host"] = host
    if isinstance(found, Pipeline):
        found.setup = replace(found.setup, **wanted)
    else:
        found.change(**wanted)
    setups = [found.setup] if isinstance(found, Pipeline) else [listener.setup for listener in found.listeners]
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(setup)) for setup in setups]
        for url in dict.fromkeys(server.url for server in servers if server is not None):
            if is_json():
                say(logging.INFO, "serving metrics url=%s", url)
            else:
                Console(stderr=True).print(f"metrics: {url}", highlight=False, markup=False, soft_wrap=True)
        yield


def _show(found: Pipeline | App, as_json: bool, work: Callable[[OnStep], Tally]) -> Tally:
    began, name = time.monotonic(), _name(found)
    starting = "starting Spark" if isinstance(found, Pipeline) else "starting"
    with RunDisplay(name, Console(stderr=True, quiet=as_json or is_json()), starting) as display:
        tally = work(display)
    seconds = time.monotonic() - began
    if as_json:
        print(json.dumps({"group": name, **asdict(tally), "seconds": round(seconds, 3)}))
    else:
        Console().print(f"{name}: {describe(tally)} in {seconds:.1f} s", highlight=False, markup=False)
    return tally


def _name(found: Pipeline | App) -> str:
    if isinstance(found, Pipeline):
        return found.group
    return ", ".join(dict.fromkeys(listener.setup.group for listener in found.listeners))


def describe(tally: Tally) -> str:
    """A tally in words: always what was applied, the rest where there is any."""
    others = [f"{count:,} {name}" for name, count in asdict(tally).items() if count and name != "applied"]
    return ", ".join([f"{tally.applied:,} applied", *others])


class RunDisplay:
    """A live line on a terminal; elsewhere a line for the first batch, and then at most one in ten seconds."""

    def __init__(self, group: str, console: Console, starting: str = "starting") -> None:
        self._group = group
        self._starting = starting
        self._console = console
        self._total = Tally()
        self._began = time.monotonic()
        self._said = -LINE_SECONDS
        self._task: TaskID | None = None
        self._lock = threading.Lock()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", style="bold", markup=False),
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
        self._task = self._progress.add_task(self._group, total=None, said=self._starting)
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, step: Step, batch: BatchProgress) -> None:
        if step is not Step.DONE or self._task is None:
            return
        # The listeners of an app tell from threads of their own.
        with self._lock:
            self._tell(batch)

    def _tell(self, batch: BatchProgress) -> None:
        assert self._task is not None
        self._total += batch.tally
        done, behind = self._total.total, batch.behind
        rate = done / max(0.001, time.monotonic() - self._began)
        said = f"{describe(self._total)}, {behind:,} behind, {rate:,.0f}/s"
        self._progress.update(self._task, completed=done, total=done + behind, said=said)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._said >= LINE_SECONDS:
            self._said = now
            self._console.print(f"{self._group}: {said}", highlight=False, markup=False)
