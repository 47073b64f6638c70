"""``tallymark status``: how groups are doing and how far behind they are, from the database and Kafka alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from tallymark.cli.output import FittedTable, whole_lines
from tallymark.cli.target import AsJson, BrokersOption, FileOption, StoreUrl, target
from tallymark.cli.values import printable
from tallymark.cli.watch import watch
from tallymark.core.durations import parse_duration
from tallymark.core.spans import OUTCOMES
from tallymark.errors import BadInput
from tallymark.kafka.brokers import Brokers
from tallymark.operate.health import FAILED, RUNNING, STALLED, STOPPED, TROUBLE, duration, moment
from tallymark.operate.survey import Pace, Sight, Survey, ledger, look

GroupArgument = Annotated[str | None, typer.Argument(help="Only this group.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")]
Every = Annotated[str, typer.Option("--every", help="Interval of --watch, such as 500ms, 10s or 1m; at least 200ms.")]
Fail = Annotated[bool, typer.Option("--fail", help=f"End with code 3 if a group is {' or '.join(TROUBLE)}.")]

SHORTEST = 0.2

COLUMNS = (
    *("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "LAG-SECONDS"),
    *("IN/S", "APPLIED/S", "DRAIN", "EXPIRES"),
    *(name.upper() for name in OUTCOMES),
    "OWNER",
)
DISPENSABLE = (
    *("OWNER", "ABSENT", "LOST", "SKIPPED", "IN/S", "APPLIED/S", "DEAD", "APPLIED"),
    *("LOG-END-OFFSET", "EXPIRES", "DRAIN", "LAG-SECONDS", "CURRENT-OFFSET"),
)
"""What narrow terminals do without, in this order: totals and owners stand above the table, too."""
STYLES = {FAILED: "bold red", STALLED: "bold red", RUNNING: "green", STOPPED: "dim"}


def status(
    group: GroupArgument = None,
    watching: Watch = False,
    every: Every = "2s",
    fail: Fail = False,
    store: StoreUrl = None,
    brokers: BrokersOption = None,
    file: FileOption = None,
    as_json: AsJson = False,
) -> None:
    """Show how groups are doing, and why: state, runs, positions, lag, rates and tallies.

    Works while the pipeline runs and while it does not. Without brokers it shows what the ledger knows; brokers that do
    not answer are named on stderr, and the command ends with code 1.
    """
    interval = parse_duration(every, "--every").total_seconds()
    if interval < SHORTEST:
        raise BadInput(f"--every={every} is too short; write 200ms or more")
    of = target(file, group, store, brokers)
    if of.store is None:
        raise BadInput("status needs --store (or TALLYMARK_STORE), or --file with a pipeline")
    kafka = Brokers(of.cluster) if of.cluster else None
    shown = partial(_shown, as_json=as_json, once=not watching)
    with ledger(of.store, of.group) as opened:
        if watching:
            watch(lambda: look(opened, of.group, kafka), shown, interval, in_place=not as_json)
            return
        sight = look(opened, of.group, kafka)
    whole_lines().print(shown(sight), soft_wrap=as_json)
    if sight.trouble:
        Console(stderr=True, soft_wrap=True).print(f"lag is not known: {sight.trouble}", highlight=False, markup=False)
        raise typer.Exit(1)
    if fail and any(one.verdict.state in TROUBLE for one in sight.groups):
        raise typer.Exit(3)


def _shown(sight: Sight, *, as_json: bool, once: bool) -> RenderableType:
    if as_json:
        return Text(json.dumps(sight.as_json(), indent=2 if once else None))
    if not sight.groups:
        return Text(f"no group has run into {sight.store} yet")
    parts = [part for one in sight.groups for part in _group(one, sight)]
    if not once and sight.trouble:
        parts.append(Text(f"lag is not known: {sight.trouble}", style="red"))
    elif all(one.facts.lags is None for one in sight.groups) and not sight.trouble:
        parts.append(Text("lag needs Kafka: add --brokers", style="dim"))
    return Group(*parts) if once else Group(*parts, Text(""))


def _group(one: Survey, sight: Sight) -> Iterator[RenderableType]:
    if one is not sight.groups[0]:
        yield Text("")
    state, reason, facts = one.verdict.state, printable(one.verdict.reason), one.facts
    yield Text.assemble((printable(one.group), "bold"), " is ", (state, STYLES.get(state, "yellow")), f": {reason}")
    for run in facts.alive:
        seen = duration((facts.now - run.seen).total_seconds())
        yield Text(f"  run {run.name} on {run.host} since {moment(run.started)}, seen {seen} ago")
    counts = ", ".join(f"{count} {outcome}" for outcome, count in asdict(one.tally).items())
    yield Text(f"  {counts}; {one.letters} open dead letters, {one.open_skips} open skips")
    if paces := one.paces:
        styles = ["" if pace.position.balanced else "red" for pace in paces]
        yield FittedTable(COLUMNS, [_cells(pace) for pace in paces], DISPENSABLE, styles)


def _cells(pace: Pace) -> list[str]:
    position, lag = pace.position, pace.lag
    log = lag.log if lag else None
    return [
        position.partition.topic,
        str(position.partition.number),
        str(position.next_offset),
        str(log.end) if log else "-",
        str(lag.records) if lag and log else "-",
        f"{lag.seconds:.1f}" if lag and log and lag.seconds is not None else "-",
        f"{pace.rate_in:.1f}" if pace.rate_in is not None else "-",
        f"{pace.rate_applied:.1f}",
        _left(pace.drain),
        _left(lag.expires.total_seconds() if lag and lag.expires is not None else None),
        *map(str, asdict(position.tally).values()),
        f"{position.owner.run}@{position.owner.host}" if position.owner else "-",
    ]


def _left(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return "never" if math.isinf(seconds) else duration(max(0.0, seconds))
