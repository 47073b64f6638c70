"""``tallymark sandbox``: real servers on this machine, without root."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from tallymark.cli.output import Rows, say, show, show_json
from tallymark.cli.progress import Bars
from tallymark.cli.target import AsJson
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
Nodes = Annotated[int | None, typer.Option("--nodes", help="Nodes of Kafka: 1, 3 or 5; records are on three of them.")]
Service = Annotated[str, typer.Argument(help="As status shows it: kafka, kafka-2, postgresql, ...")]
KeepData = Annotated[bool, typer.Option("--keep-data", help="Keep the servers' data for the next up.")]


@app.command(epilog="Example: tallymark sandbox up --with postgresql --with valkey")
def up(with_: With = None, secure: Secure = False, nodes: Nodes = None, as_json: AsJson = False) -> None:
    """Start Kafka and other servers in the background. A second up starts what is missing or has ended."""
    names = list(dict.fromkeys([*_names(with_ or []), *control.unwell()]))
    kafka = {**({"secure": True} if secure else {}), **({} if nodes is None else {"brokers": nodes})}
    control.kafka_options(kafka)
    known, unwell = control.look().services, control.unwell()
    missing = [name for name in names if name not in known or name in unwell]
    state = _bring_up(missing, kafka) if missing else control.look()
    if as_json:
        show_json({"up": True, "started": missing, **state.as_json()})
        return
    if not missing:
        say(f"already up: {', '.join(names)}")
    _show(state)
    _show_next(state)


@app.command(epilog="Example: tallymark sandbox down --keep-data")
def down(keep_data: KeepData = False, as_json: AsJson = False) -> None:
    """Stop all servers and remove their data."""
    stopped = list(control.take_down(keep_data=keep_data).services)
    data = "kept" if keep_data else "removed"
    if as_json:
        show_json({"up": False, "stopped": stopped, "data": data})
    else:
        say(f"stopped {', '.join(stopped)}; data {data}" if stopped else NOTHING_UP)


@app.command(epilog="Example: tallymark sandbox stop postgresql")
def stop(service: Service, as_json: AsJson = False) -> None:
    """Stop one server, as an outage would. It keeps its data and its address."""
    _order("stop", service, as_json)


@app.command(epilog="Example: tallymark sandbox start postgresql")
def start(service: Service, as_json: AsJson = False) -> None:
    """Start a server that was stopped or has ended, with its data, at its address."""
    _order("start", service, as_json)


def _order(word: str, service: str, as_json: bool) -> None:
    with Bars(quiet=as_json) as bars:
        bars.add(f"{word} {service}")
        state = control.order(word, service, lambda _: None)
    if as_json:
        show_json({"up": True, **state.as_json()})
    else:
        _show(state)


@app.command(epilog="Example: tallymark sandbox status --json")
def status(as_json: AsJson = False) -> None:
    """Show which servers run, their addresses, and since when."""
    state = control.look()
    if as_json:
        show_json({"up": bool(state.services), **state.as_json()})
    elif state.services:
        _show(state)
    else:
        say(NOTHING_UP)


def _names(asked: list[str]) -> list[str]:
    words = [word.strip().lower() for item in asked for word in item.split(",")]
    names = list(dict.fromkeys(["kafka", *filter(None, words)]))
    for name in names:
        if name not in SERVICES:
            raise BadInput(f"no server is called {name!r}: choose from {', '.join(SERVICES[1:])}")
    return names


def _bring_up(names: list[str], kafka: dict[str, Any]) -> State:
    """Download in this process, which can show the progress, then let the keeper start the servers."""
    with Bars() as bars:
        for name in names:
            bar = bars.add(f"fetching {name}")
            control.download(name, bar)
            bar.remove()
        return control.bring_up(names, kafka, bars.add("starting").say)


def _show(state: State) -> None:
    rows = [
        {
            "service": process.name,
            "state": Text(process.state, STATE_STYLES[process.state]),
            "pid": process.pid or None,
            "since": datetime.fromisoformat(service.since).astimezone().strftime("%d %b %H:%M"),
            "address": process.url,
        }
        for service in state.services.values()
        for process in service.nodes or (service,)
    ]
    show(Rows(("service", "state", "pid", "since", "address"), rows))


def _show_next(state: State) -> None:
    say("next: set these, and end with: tallymark sandbox down")
    for name, value in state.environment.items():
        say(f"export {name}={shlex.quote(value)}")
