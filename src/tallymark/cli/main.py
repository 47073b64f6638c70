"""``tallymark``: the list of its commands, the options of all of them, and its exit codes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from tallymark.cli.defaults import assume
from tallymark.cli.lazy import Command, LazyGroup
from tallymark.cli.logs import Format as LogFormat
from tallymark.cli.logs import configure
from tallymark.cli.output import FAILED, INTERRUPTED, report
from tallymark.errors import TallymarkError
from tallymark.run.interrupts import repeating_interrupts

BUILD, LOOK, ACT, TOPICS = "Build and run", "Look", "Act", "Topics and servers"


class Commands(LazyGroup):
    listed = {  # noqa: RUF012
        "init": Command(
            "init:init",
            BUILD,
            "Write a pipeline to start from, as a TOML file.",
            "tallymark init shop.toml --brokers localhost:9092 --topic orders",
        ),
        "check": Command(
            "check:check", BUILD, "Try a pipeline on real records and write nothing.", "tallymark check shop.toml"
        ),
        "run": Command("run:run", BUILD, "Run a pipeline or an app.", "tallymark run orders.py --until caught-up"),
        "backfill": Command(
            "run:backfill", BUILD, "Read what was skipped, exactly once.", "tallymark backfill orders.py --topic orders"
        ),
        "demo": Command(
            "demo:demo",
            BUILD,
            "Kill a pipeline three times, and count every record.",
            "tallymark demo --store postgresql://localhost/demo --json",
        ),
        "status": Command(
            "status:status",
            LOOK,
            "Show the state of groups, their lag and their tallies.",
            "tallymark status --store sqlite:///shop.db --brokers localhost:9092",
        ),
        "groups": Command(
            "groups:groups", LOOK, "List the groups of a store.", "tallymark groups --store sqlite:///shop.db"
        ),
        "members": Command(
            "members:members",
            LOOK,
            "Show the members of a group and its last rebalances.",
            "tallymark members orders-to-shop --brokers localhost:9092",
        ),
        "journal": Command(
            "journal:journal",
            LOOK,
            "Show skips, losses, resets, backfills and replays of a group.",
            "tallymark journal orders-to-shop --store sqlite:///shop.db",
        ),
        "skips": Command("journal:skips", LOOK, "List what was skipped and can still be read."),
        "losses": Command(
            "journal:losses",
            LOOK,
            "List what Kafka had deleted before it was read.",
            "tallymark losses orders-to-shop --store sqlite:///shop.db",
        ),
        "audit": Command(
            "audit:audit",
            LOOK,
            "Check that the ledger adds up, and with --deep the tables.",
            "tallymark audit --deep --file orders.py",
        ),
        "doctor": Command(
            "doctor:doctor",
            LOOK,
            "Check the cluster, the store and this machine for what would lose records.",
            "tallymark doctor --file orders.py",
        ),
        "pause": Command(
            "pause:pause",
            ACT,
            "Pause a group.",
            'tallymark pause orders-to-shop --reason "maintenance" --store sqlite:///shop.db',
        ),
        "resume": Command(
            "pause:resume", ACT, "Resume a paused group.", "tallymark resume orders-to-shop --store sqlite:///shop.db"
        ),
        "dead-letters": Command(
            "dead_letters:app", ACT, "List, show, replay or discard records that could not be applied."
        ),
        "reset": Command(
            "reset:reset",
            ACT,
            "Move the positions of a group.",
            "tallymark reset orders-to-shop --topic orders --by-duration 2h --file orders.py",
        ),
        "import": Command(
            "import_:import_",
            ACT,
            "Take over the offsets of a Kafka group or of a streaming query.",
            "tallymark import orders-to-shop --from-kafka-group loader --file orders.py",
        ),
        "ledger": Command("ledger:app", ACT, "Create, upgrade or prune the ledger, or print its SQL statements."),
        "delete-group": Command(
            "delete_group:delete_group",
            ACT,
            "Delete all that the ledger holds of a group.",
            "tallymark delete-group orders-to-shop --store sqlite:///shop.db",
        ),
        "consume": Command(
            "consume:consume",
            TOPICS,
            "Print the records of a topic.",
            "tallymark consume orders --from -5 --brokers localhost:9092",
        ),
        "produce": Command(
            "produce:produce",
            TOPICS,
            "Write lines to a topic.",
            "tallymark produce orders orders.txt --brokers localhost:9092",
        ),
        "sandbox": Command("sandbox:app", TOPICS, "Run Kafka and databases on this machine."),
    }


app = typer.Typer(
    cls=Commands,
    help="Exactly-once Kafka to database: pipelines on PySpark, and services.",
    epilog="Exit codes: 0 done; 1 it looked and found something wrong; 2 it could not look, or was used wrongly.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("tallymark"))
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    verbose: Annotated[
        int,
        typer.Option("--verbose", "-v", count=True, show_default=False, help="Log more: -v facts, -vv everything."),
    ] = 0,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format", envvar="TALLYMARK_LOG_FORMAT", help="The format of logs and errors on stderr: text or json."
        ),
    ] = "text",
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    configure(verbose, log_format)
    assume(context)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Exits with one of the codes of ``output``."""
    try:
        with repeating_interrupts():
            app(None if arguments is None else list(arguments), prog_name="tallymark")
    except TallymarkError as error:
        said = str(error)
    except SystemExit as left:
        if left.code == INTERRUPTED:
            print("interrupted", file=sys.stderr)
        raise
    else:
        return
    # The error holds Kafka clients, and a client that outlives the interpreter can crash it.
    gc.collect()
    report(said)
    sys.exit(FAILED)
