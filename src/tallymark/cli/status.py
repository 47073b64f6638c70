"""``tallymark status``: the state of groups and their lag, from the ledger and Kafka alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tallymark.cli.output import FAILED, FOUND, Rows, note, plain, show
from tallymark.cli.target import AsJson, Target, targeted
from tallymark.cli.values import printable
from tallymark.cli.watch import watch
from tallymark.core.drift import described
from tallymark.core.durations import parse_duration
from tallymark.core.spans import OUTCOMES
from tallymark.errors import BadInput
from tallymark.operate import health
from tallymark.operate.health import TROUBLE, duration, moment
from tallymark.operate.survey import Pace, Sight, Survey, look

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Repeat it until Ctrl-C.")]
Every = Annotated[str, typer.Option("--every", help="Interval of --watch, such as 500ms, 10s or 1m; at least 200ms.")]
Fail = Annotated[bool, typer.Option("--fail", help=f"Exit with 1 if a group is {' or '.join(TROUBLE)}.")]

MOST_FIELDS = 5
"""Number of fields that the schema does not name which are listed; --json lists all."""
SHORTEST = 0.2
"""The shortest interval of --watch in seconds."""

COLUMNS = (
    *("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "LAG-SECONDS"),
    *("IN/S:rate_in", "APPLIED/S:rate_applied", "DRAIN", "EXPIRES"),
    *(name.upper() for name in OUTCOMES),
    "OWNER",
)
DISPENSABLE = (
    *("OWNER", "ABSENT", "LOST", "SKIPPED", "IN/S", "APPLIED/S", "DEAD", "APPLIED"),
    *("LOG-END-OFFSET", "EXPIRES", "DRAIN", "LAG-SECONDS", "CURRENT-OFFSET"),
)
"""Columns that narrow terminals leave out, in this order. Totals and owners are also above the table."""
STYLES = {health.FAILED: "bold red", health.STALLED: "bold red", health.RUNNING: "green", health.STOPPED: "dim"}


@targeted()
def status(
    target: Target, watching: Watch = False, every: Every = "2s", fail: Fail = False, as_json: AsJson = False
) -> None:
    """Show the state of groups and the reason for it, with runs, positions, lag, rates and tallies.

    It does not matter whether the pipeline runs. Without brokers it shows what the ledger knows. Brokers that do not
    answer are named on stderr, and the exit code is 2.
    """
    interval = parse_duration(every, "--every").total_seconds()
    if interval < SHORTEST:
        raise BadInput(f"--every={every} is too short; write 200ms or more")
    brokers, groups = target.optional_brokers, target.groups
    shown = partial(_shown, as_json=as_json, once=not watching)
    with target.ledger() as store:
        if watching:
            watch(lambda: look(store, groups, brokers), shown, interval, in_place=not as_json)
            return
        sight = look(store, groups, brokers)
    show(shown(sight))
    for group in sorted({*(groups or ())} - {one.group for one in sight.groups}):
        note(f"group {group} has not run yet")
    if sight.trouble:
        note(f"lag is not known: {sight.trouble}")
        raise typer.Exit(FAILED)
    if fail and any(one.verdict.state in TROUBLE for one in sight.groups):
        raise typer.Exit(FOUND)


def _shown(sight: Sight, *, as_json: bool, once: bool) -> RenderableType:
    if as_json:
        return json.dumps(sight.as_json(), indent=2 if once else None, default=plain)
    if not sight.groups:
        return f"no group has run into {sight.store} yet"
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
    if one.drift:
        yield Text(f"  {printable(described(one.drift, MOST_FIELDS))}", "yellow")
    if paces := one.paces:
        styles = ["" if pace.position.balanced else "red" for pace in paces]
        yield Rows(COLUMNS, [_row(pace) for pace in paces], DISPENSABLE, styles)


def _row(pace: Pace) -> dict[str, Any]:
    row, owner = pace.as_json(), pace.position.owner
    times = {"drain": _left(pace.drain), "expires": _left(row["expires_seconds"])}
    return row | times | {"owner": f"{owner.run}@{owner.host}" if owner else None}


def _left(seconds: float | None) -> Text:
    if seconds is None:
        return Text("-", justify="right")
    return Text("never" if math.isinf(seconds) else duration(max(0.0, seconds)), justify="right")
