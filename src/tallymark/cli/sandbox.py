"""``tallymark sandbox``: real servers for a first try, with one command and without root."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tallymark.cli.tables import plain_table, print_table
from tallymark.errors import BadInput
from tallymark.sandbox import control
from tallymark.sandbox.state import SERVICES, State

app = typer.Typer(
    help="Run Kafka, PostgreSQL, MariaDB and Valkey on this machine, without root.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

NOTHING_UP = "no sandbox is up: tallymark sandbox up"
STATE_STYLES = {"running": "green", "starting": "yellow", "failed": "red", "ended": "red"}

With = Annotated[
    list[str] | None,
    typer.Option("--with", help="A server beside Kafka: postgresql, mariadb, valkey. Repeat it or use commas."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
KeepData = Annotated[bool, typer.Option("--keep-data", help="Keep the servers' data for the next up.")]


@app.command(epilog="Example: tallymark sandbox up --with postgresql --with valkey")
def up(with_: With = None, as_json: AsJson = False) -> None:
    """Start Kafka, and the servers asked for, in the background; a second up adds what is missing."""
    names = _names(with_ or [])
    running = {service.name for service in control.look().services.values() if service.state == "running"}
    missing = [name for name in names if name not in running]
    state = _bring_up(missing) if missing else control.look()
    if as_json:
        _print_json({"up": True, "started": missing, "services": state.as_json()})
        return
    out = Console()
    if not missing:
        out.print(f"already up: {', '.join(names)}")
    _print_table(state)
    out.print(f"next: use brokers [bold]{state.services['kafka'].url}[/bold]; end with: tallymark sandbox down")


@app.command(epilog="Example: tallymark sandbox down --keep-data")
def down(keep_data: KeepData = False, as_json: AsJson = False) -> None:
    """Stop all servers and remove their data."""
    stopped = list(control.take_down(keep_data=keep_data).services)
    if as_json:
        _print_json({"up": False, "stopped": stopped, "data": "kept" if keep_data else "removed"})
    elif stopped:
        Console().print(f"stopped {', '.join(stopped)}; data {'kept' if keep_data else 'removed'}")
    else:
        Console().print(NOTHING_UP)


@app.command(epilog="Example: tallymark sandbox status --json")
def status(as_json: AsJson = False) -> None:
    """Show what runs, where, and since when."""
    state = control.look()
    if as_json:
        _print_json({"up": bool(state.services), "services": state.as_json()})
    elif state.services:
        _print_table(state)
    else:
        Console().print(NOTHING_UP)


def _names(asked: list[str]) -> list[str]:
    words = [word.strip().lower() for item in asked for word in item.split(",")]
    names = list(dict.fromkeys(["kafka", *filter(None, words)]))
    for name in names:
        if name not in SERVICES:
            raise BadInput(f"no server is called {name!r}: choose from {', '.join(SERVICES[1:])}")
    return names


def _bring_up(names: list[str]) -> State:
    """Download here, where the user sees it move, then have the keeper start the servers."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for name in names:
            _download(name, progress)
        task = progress.add_task("starting", total=None)
        return control.bring_up(names, lambda what: progress.update(task, description=what))


def _download(name: str, progress: Progress) -> None:
    task = progress.add_task(f"fetching {name}", total=None)
    control.download(name, lambda here, total: progress.update(task, completed=here, total=total))
    progress.remove_task(task)


def _print_table(state: State) -> None:
    table = plain_table("service", "state", "pid", "since", "address", left=5)
    for service in state.services.values():
        style = STATE_STYLES[service.state]
        shown = f"[{style}]{service.state}[/{style}]"
        since = datetime.fromisoformat(service.since).astimezone().strftime("%d %b %H:%M")
        table.add_row(service.name, shown, str(service.pid or "-"), since, service.url or "-")
    print_table(table)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))
