"""``tallymark groups``, ``pause`` and ``resume``: which groups there are, and what they are meant to do."""

from __future__ import annotations

import getpass
import json
import os
import socket
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tallymark.cli.output import FittedTable, whole_lines
from tallymark.cli.target import AsJson, BrokersOption, FileOption, StoreUrl, target
from tallymark.cli.values import printable
from tallymark.core.spans import GroupState
from tallymark.errors import BadInput
from tallymark.kafka.brokers import Brokers
from tallymark.operate.health import moment
from tallymark.operate.survey import Survey, ledger, look

Group = Annotated[str | None, typer.Argument(help="The group; not needed with --file.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; shown by status and to whoever runs the group.")]

COLUMNS = (*("GROUP", "STATE", "PARTITIONS", "LAG", "LAG-SECONDS", "DEAD-LETTERS", "SKIPS", "LAST-COMMIT", "REASON"),)
DISPENSABLE = ("REASON", "LAST-COMMIT", "SKIPS", "PARTITIONS", "DEAD-LETTERS", "LAG-SECONDS")


def groups(
    store: StoreUrl = None, brokers: BrokersOption = None, file: FileOption = None, as_json: AsJson = False
) -> None:
    """List the groups of a store, a line for each: state, lag, dead letters, skips, last commit, and why.

    Brokers that do not answer are named on stderr, and the command ends with code 1.
    """
    of = target(file, None, store, brokers, any_group=True)
    if of.store is None:
        raise BadInput("groups needs --store (or TALLYMARK_STORE), or --file with a pipeline")
    with ledger(of.store) as opened:
        sight = look(opened, None, Brokers(of.cluster) if of.cluster else None)
    if as_json:
        print(json.dumps([_as_json(one, sight.store) for one in sight.groups], indent=2))
    elif sight.groups:
        rows = [_cells(one) for one in sight.groups]
        whole_lines().print(FittedTable(COLUMNS, rows, DISPENSABLE, [""] * len(rows)))
    else:
        Console().print(f"no group has run into {sight.store} yet", highlight=False, markup=False)
    if sight.trouble:
        Console(stderr=True, soft_wrap=True).print(f"lag is not known: {sight.trouble}", highlight=False, markup=False)
        raise typer.Exit(1)


def _as_json(one: Survey, store: str) -> dict[str, object]:
    return one.as_json() | {"partitions": len(one.facts.positions), "store": store}


def _cells(one: Survey) -> list[str]:
    facts = one.facts
    return [
        printable(one.group),
        one.verdict.state,
        str(len(facts.positions)),
        str(facts.unread) if facts.unread is not None else "-",
        f"{facts.waited:.1f}" if facts.waited is not None else "-",
        str(one.letters),
        str(one.open_skips),
        moment(facts.last_commit) if facts.last_commit else "-",
        printable(one.verdict.reason),
    ]


def pause(
    group: Group = None,
    reason: Reason = None,
    store: StoreUrl = None,
    file: FileOption = None,
    as_json: AsJson = False,
) -> None:
    """Pause a group: it finishes the batch in flight, then waits until it is resumed."""
    _set(group, "paused", reason or "paused by hand", store, file, as_json)


def resume(group: Group = None, store: StoreUrl = None, file: FileOption = None, as_json: AsJson = False) -> None:
    """Let a paused group go on. The window of its budget for dead letters starts anew, also if it was not paused."""
    _set(group, "running", None, store, file, as_json)


def operator() -> str:
    """Who is at the keyboard. In a container the user may have no name."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid-{os.getuid()}"
    return f"{name}@{socket.gethostname()}"


def _set(
    group: str | None, desired: str, reason: str | None, store_url: str | None, file: Path | None, as_json: bool
) -> None:
    of = target(file, group, store_url)
    if of.group is None or of.store is None:
        raise BadInput("name the group and --store (or TALLYMARK_STORE), or --file with a pipeline")
    with ledger(of.store, of.group) as opened:
        before = opened.state(of.group)
        assert before is not None
        by = operator()
        opened.set_state(of.group, GroupState(desired, reason, by, datetime.now(timezone.utc)))
    if as_json:
        print(json.dumps({"group": of.group, "before": before.desired, "now": desired, "reason": reason, "by": by}))
    else:
        Console().print(f"{of.group}: {before.desired} -> {desired}", highlight=False, markup=False)
