"""``tallymark run`` and ``tallymark backfill``: run a pipeline or an app, and show its progress."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Annotated, Literal

import typer

from tallymark.cli.load import setups_of
from tallymark.cli.logs import is_json, write_line
from tallymark.cli.output import FOUND, note, say, show_json
from tallymark.cli.progress import Bars, RunBar, describe
from tallymark.cli.target import PartitionOption, Target, TopicOption, targeted
from tallymark.core.progress import OnStep
from tallymark.core.spans import Tally
from tallymark.run.observe import serving
from tallymark.run.setup import Settings
from tallymark.run.skips import check_order
from tallymark.service.app import App
from tallymark.spark.pipeline import Pipeline

Until = Annotated[
    Literal["stopped", "caught-up"],
    typer.Option("--until", help="caught-up: until all that is in the topics now is done."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the tally of the run as JSON, and no progress.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        envvar="TALLYMARK_METRICS_PORT",
        min=0,
        max=65535,
        help="Serve metrics for Prometheus on this port; 0: on a free one.",
    ),
]
MetricsHost = Annotated[
    str | None,
    typer.Option(
        "--metrics-host",
        envvar="TALLYMARK_METRICS_HOST",
        help="The address to serve metrics at: 127.0.0.1 by default, 0.0.0.0 for all networks.",
    ),
]
FailOnDead = Annotated[bool, typer.Option("--fail-on-dead", help="Exit with 1 if records became dead letters.")]
ALLOW = "add --overwrite"
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Allow older records to overwrite newer rows.")]


@targeted(None, store=False, brokers=False, file="argument")
def run(
    target: Target,
    until: Until = "stopped",
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    fail_on_dead: FailOnDead = False,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline or an app. Ctrl-C finishes the batch in flight and stops; a second one stops at once.

    Several runs, here or on other machines, share the partitions.
    """
    found = target.loaded
    with _serving(found, metrics_port, metrics_host):
        tally = _show(found, as_json, lambda watch: found.run(until, on_step=watch))
    if tally.dead and not (as_json or is_json()):
        why = f"tallymark dead-letters list --summary --file {target.file}"
        note(f"dead letters of this run: {tally.dead:,}; why: {why}")
    if tally.dead and fail_on_dead:
        raise typer.Exit(FOUND)


@targeted(None, store=False, brokers=False, file="argument")
def backfill(
    target: Target,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Read what was skipped, exactly once. The group may run meanwhile."""
    found = target.loaded
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
    """Serve metrics as the options or the file say, and print the address."""
    wanted: Settings = {}
    if port is not None:
        wanted["metrics_port"] = port
    if host is not None:
        wanted["metrics_host"] = host
    if isinstance(found, Pipeline):
        found.setup = replace(found.setup, **wanted)
    else:
        found.change(**wanted)
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(setup)) for setup in setups_of(found)]
        for url in dict.fromkeys(server.url for server in servers if server is not None):
            if is_json():
                write_line(logging.INFO, "serving metrics url=%s", url)
            else:
                note(f"metrics: {url}")
        yield


def _show(found: Pipeline | App, as_json: bool, work: Callable[[OnStep], Tally]) -> Tally:
    began, name = time.monotonic(), ", ".join(dict.fromkeys(setup.group for setup in setups_of(found)))
    with Bars(quiet=as_json) as bars:
        tally = work(RunBar(name, bars, "starting Spark" if isinstance(found, Pipeline) else "starting"))
    seconds = time.monotonic() - began
    if as_json:
        show_json({"group": name, **asdict(tally), "seconds": round(seconds, 3)}, indent=None)
    else:
        say(f"{name}: {describe(tally)} in {seconds:.1f} s")
    return tally
