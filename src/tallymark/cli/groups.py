"""``tallymark pause`` and ``tallymark resume``: what a group is meant to do, kept in the ledger."""

from __future__ import annotations

import getpass
import json
import socket
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tallymark.cli.options import AsJson, FileOption, StoreUrl, target
from tallymark.errors import BadInput
from tallymark.spans import GroupState
from tallymark.stores.opening import open_store

Group = Annotated[str | None, typer.Argument(help="The group; not needed with --file.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; shown by status and to whoever runs the group.")]


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
    """Let a paused group go on. Its budget for dead letters starts anew."""
    _set(group, "running", None, store, file, as_json)


def _set(
    group: str | None, desired: str, reason: str | None, store_url: str | None, file: Path | None, as_json: bool
) -> None:
    of = target(file, group, store_url)
    group, store_url = of.group, of.store
    if group is None or store_url is None:
        raise BadInput("name the group and --store (or TALLYMARK_STORE), or --file with a pipeline")
    store = open_store(store_url)
    try:
        before = store.state(group) if store.has_ledger() else None
        if before is None:
            raise BadInput(f"{store.name} knows no group {group}; tallymark status lists those it knows")
        by = f"{getpass.getuser()}@{socket.gethostname()}"
        store.set_state(group, GroupState(desired, reason, by, datetime.now(timezone.utc)))
    finally:
        store.close()
    if as_json:
        print(json.dumps({"group": group, "before": before.desired, "now": desired, "reason": reason, "by": by}))
    else:
        Console().print(f"{group}: {before.desired} -> {desired}", highlight=False)
