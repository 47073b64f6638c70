"""``tallymark``: run pipelines, see how they are doing, try it all without a cluster."""

from __future__ import annotations

import gc
import logging
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from tallymark.cli import (
    audit,
    check,
    consume,
    dead_letters,
    delete_group,
    demo,
    doctor,
    groups,
    import_,
    init,
    journal,
    members,
    produce,
    reset,
    run,
    sandbox,
    status,
)
from tallymark.cli.defaults import assume
from tallymark.cli.logs import Format as LogFormat
from tallymark.cli.logs import configure, is_json, say
from tallymark.cli.values import printable
from tallymark.errors import TallymarkError
from tallymark.run.until import repeating_interrupts

INTERRUPTED = 130
"""The exit code after Ctrl-C, where it does not ask for the end of a batch."""

app = typer.Typer(
    help="Exactly-once Kafka to database: pipelines on PySpark, and services.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("run", epilog="Example: tallymark run orders.py --until caught-up")(run.run)
app.command("init", epilog="Example: tallymark init shop.toml --brokers localhost:9092 --topic orders")(init.init)
app.command("check", epilog="Example: tallymark check shop.toml")(check.check)
app.command("backfill", epilog="Example: tallymark backfill orders.py --topic orders")(run.backfill)
app.command("status", epilog="Example: tallymark status --store sqlite:///shop.db --brokers localhost:9092")(
    status.status
)
app.command("groups", epilog="Example: tallymark groups --store sqlite:///shop.db")(groups.groups)
app.command("members", epilog="Example: tallymark members orders-to-shop --brokers localhost:9092")(members.members)
app.command("pause", epilog='Example: tallymark pause orders-to-shop --reason "maintenance" --store sqlite:///shop.db')(
    groups.pause
)
app.command("resume", epilog="Example: tallymark resume orders-to-shop --store sqlite:///shop.db")(groups.resume)
app.command("reset", epilog="Example: tallymark reset orders-to-shop --topic orders --by-duration 2h --file orders.py")(
    reset.reset
)
app.command("import", epilog="Example: tallymark import orders-to-shop --from-kafka-group loader --file orders.py")(
    import_.import_
)
app.command("delete-group", epilog="Example: tallymark delete-group orders-to-shop --store sqlite:///shop.db")(
    delete_group.delete_group
)
app.command("audit", epilog="Example: tallymark audit --deep --file orders.py")(audit.audit)
app.command("consume", epilog="Example: tallymark consume orders --from -5 --brokers localhost:9092")(consume.consume)
app.command("doctor", epilog="Example: tallymark doctor --file orders.py")(doctor.doctor)
app.command("produce", epilog="Example: tallymark produce orders --file orders.jsonl --brokers localhost:9092")(
    produce.produce
)
app.command("demo", epilog="Example: tallymark demo --store postgresql://localhost/demo --json")(demo.demo)
app.command("losses", epilog="Example: tallymark losses orders-to-shop --store sqlite:///shop.db")(journal.losses)
app.command("journal", epilog="Example: tallymark journal orders-to-shop --store sqlite:///shop.db")(journal.journal)
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(journal.skips, name="skips")
app.add_typer(ledger.app, name="ledger")
app.add_typer(sandbox.app, name="sandbox")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("tallymark"))
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Say more: -v facts, -vv everything.")
    ] = 0,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format",
            envvar="TALLYMARK_LOG_FORMAT",
            help="How logs and errors are written to stderr: text or json.",
        ),
    ] = "text",
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    configure(verbose, log_format)
    assume(context)


def main() -> None:
    """The console script."""
    try:
        with repeating_interrupts():
            app()
    except TallymarkError as error:
        said = str(error)
    except SystemExit as left:
        if left.code == INTERRUPTED:
            print("interrupted", file=sys.stderr)
        raise
    else:
        return
    # With the error go the clients of Kafka that it held: one that outlives the interpreter can crash it.
    gc.collect()
    if is_json():
        say(logging.ERROR, "%s", said)
    else:
        shown = "\n".join(map(printable, said.split("\n")))
        Console(stderr=True, soft_wrap=True).print(f"[red]error:[/red] {escape(shown)}", highlight=False)
    sys.exit(1)
