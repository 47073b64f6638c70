"""``tallymark sandbox``: real servers for a first try, with one command and without root."""

from __future__ import annotations

import json
import shlex
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tallymark.cli.output import plain_table, print_table
from tallymark.errors import BadInput
from tallymark.local.sandbox import control
from tallymark.local.sandbox.state import SERVICES, State

app = typer.Typer(
    help="Run Kafka, PostgreSQL, MariaDB, MySQL, Valkey and Redis on this machine, without root.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

NOTHING_UP = "no sandbox is up: tallymark sandbox up"
STATE_STYLES = {"running": "green", "starting": "yellow", "stopped": "yellow", "failed": "red", "ended": "red"}

With = Annotated[
    list[str] | None,
    typer.Option(
        "--with", help="A server beside Kafka: postgresql, mariadb, mysql, valkey, redis. Repeat it or use commas."
    ),
]
Secure = Annotated[bool, typer.Option("--secure", help="Kafka behind TLS, with users, passwords and permissions.")]
Brokers = Annotated[
    int | None, typer.Option("--brokers", help="Nodes of Kafka: 1, 3 or 5; records are on three of them.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Service = Annotated[str, typer.Argument(help="As status shows it: kafka, kafka-2, postgresql, ...")]
KeepData = Annotated[bool, typer.Option("--keep-data", help="Keep the servers' data for the next up.")]


@app.command(epilog="Example: tallymark sandbox up --with postgresql --with valkey")
def up(with_: With = None, secure: Secure = False, brokers: Brokers = None, as_json: AsJson = False) -> None:
    """Start Kafka, and the servers asked for, in the background; a second up adds what is missing or has ended."""
    names = list(dict.fromkeys([*_names(with_ or []), *control.unwell()]))
    kafka = {**({"secure": True} if secure else {}), **({} if brokers is None else {"brokers": brokers})}
    control.kafka_options(kafka)
    known, unwell = control.look().services, control.unwell()
    missing = [name for name in names if name not in known or name in unwell]
    state = _bring_up(missing, kafka) if missing else control.look()
    if as_json:
        _print_json({"up": True, "started": missing, **state.as_json()})
        return
    out = Console()
    if not missing:
        out.print(f"already up: {', '.join(names)}")
    _print_table(state)
    _print_next(state)


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


@app.command(epilog="Example: tallymark sandbox stop postgresql")
def stop(service: Service, as_json: AsJson = False) -> None:
    """Stop one server, as an outage would, and leave the others; its data and its address stay."""
    _ordered("stop", service, as_json)


@app.command(epilog="Example: tallymark sandbox start postgresql")
def start(service: Service, as_json: AsJson = False) -> None:
    """Start a server that was stopped or has ended, with its data, at its address."""
    _ordered("start", service, as_json)


def _ordered(word: str, service: str, as_json: bool) -> None:
    with Console(stderr=True, quiet=as_json).status(f"{word} {service}"):
        state = control.order(word, service, lambda _: None)
    if as_json:
        _print_json({"up": True, **state.as_json()})
    else:
        _print_table(state)


@app.command(epilog="Example: tallymark sandbox status --json")
def status(as_json: AsJson = False) -> None:
    """Show what runs, where, and since when."""
    state = control.look()
    if as_json:
        _print_json({"up": bool(state.services), **state.as_json()})
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


def _bring_up(names: list[str], kafka: dict[str, Any]) -> State:
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
        return control.bring_up(names, kafka, lambda what: progress.update(task, description=what))


def _download(name: str, progress: Progress) -> None:
    task = progress.add_task(f"fetching {name}", total=None)
    control.download(name, lambda here, total: progress.update(task, completed=here, total=total))
    progress.remove_task(task)


def _print_table(state: State) -> None:
    table = plain_table("service", "state", "pid", "since", "address", left=5)
    for service in state.services.values():
        since = datetime.fromisoformat(service.since).astimezone().strftime("%d %b %H:%M")
        for process in service.nodes or (service,):
            style = STATE_STYLES[process.state]
            shown = f"[{style}]{process.state}[/{style}]"
            table.add_row(process.name, shown, str(process.pid or "-"), since, process.url or "-")
    print_table(table)


def _print_next(state: State) -> None:
    if len(state.environment) == 1:
        address = state.services["kafka"].url
        Console().print(f"next: use brokers [bold]{address}[/bold]; end with: tallymark sandbox down", soft_wrap=True)
        return
    typer.echo("next: set these, and end with: tallymark sandbox down")
    for name, value in state.environment.items():
        typer.echo(f"export {name}={shlex.quote(value)}")


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))
