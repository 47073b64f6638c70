"""``tallymark``: run pipelines, see how they are doing, try it all without a cluster."""

from __future__ import annotations

import gc
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from tallymark.cli import consume, demo, doctor, groups, members, produce, run, sandbox, status
from tallymark.cli.logs import configure
from tallymark.errors import TallymarkError

app = typer.Typer(
    help="Exactly-once Kafka to database: pipelines on PySpark, and services.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("run", epilog="Example: tallymark run orders.py --until caught-up")(run.run)
app.command("backfill", epilog="Example: tallymark backfill orders.py --topic orders")(run.backfill)
app.command("status", epilog="Example: tallymark status --store sqlite:///shop.db --brokers localhost:9092")(
    status.status
)
app.command("members", epilog="Example: tallymark members orders-to-shop --brokers localhost:9092")(members.members)
app.command("pause", epilog='Example: tallymark pause orders-to-shop --reason "maintenance" --store sqlite:///shop.db')(
    groups.pause
)
app.command("resume", epilog="Example: tallymark resume orders-to-shop --store sqlite:///shop.db")(groups.resume)
app.command("consume", epilog="Example: tallymark consume orders --from -5 --brokers localhost:9092")(consume.consume)
app.command("doctor", epilog="Example: tallymark doctor --file orders.py")(doctor.doctor)
app.command("produce", epilog="Example: tallymark produce orders --file orders.jsonl --brokers localhost:9092")(
    produce.produce
)
app.command("demo", epilog="Example: tallymark demo --store postgresql://localhost/demo --json")(demo.demo)
app.add_typer(sandbox.app, name="sandbox")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("tallymark"))
        raise typer.Exit


@app.callback()
def options(
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Say more: -v facts, -vv everything.")
    ] = 0,
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    configure(verbose)


def main() -> None:
    """The console script."""
    try:
        app()
    except TallymarkError as error:
        said = str(error)
    else:
        return
    # With the error go the clients of Kafka that it held: one that outlives the interpreter can crash it.
    gc.collect()
    Console(stderr=True, soft_wrap=True).print(f"[red]error:[/red] {escape(said)}", highlight=False)
    sys.exit(1)
