"""``tallymark ledger``: create, upgrade and prune the ledger, or print its statements."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from tallymark.cli.options import AsJson, FileOption, StoreUrl, target
from tallymark.cli.tables import plain_table, print_table
from tallymark.cli.values import printable
from tallymark.core.retention import Retention, parse_age
from tallymark.errors import BadInput
from tallymark.operate import ledger
from tallymark.operate.ledger import Change, Pruned

app = typer.Typer(help="Create, upgrade and prune the ledger, or print its SQL statements.", no_args_is_help=True)


@app.command(epilog="Example: tallymark ledger create --store postgresql://admin@localhost/shop")
def create(store: StoreUrl = None, file: FileOption = None, as_json: AsJson = False) -> None:
    """Create the ledger, for applications that may not create tables. Changes nothing if there is one."""
    _say(ledger.create(target(file, None, store, any_group=True).store or _missing("create")), as_json)


@app.command(epilog="Example: tallymark ledger upgrade --store postgresql://admin@localhost/shop")
def upgrade(store: StoreUrl = None, file: FileOption = None, as_json: AsJson = False) -> None:
    """Upgrade the ledger of an older tallymark. Changes nothing if it has the present version."""
    _say(ledger.upgrade(target(file, None, store, any_group=True).store or _missing("upgrade")), as_json)


@app.command(epilog="Example: tallymark ledger sql --dialect postgresql > ledger.sql")
def sql(
    dialect: Annotated[
        Literal["postgresql", "mysql", "sqlite"] | None,
        typer.Option("--dialect", help="The kind of database (MariaDB: mysql). Connects to nothing."),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option("--from", min=1, metavar="VERSION", help="With --dialect: upgrade a ledger of this version."),
    ] = None,
    store: StoreUrl = None,
    file: FileOption = None,
) -> None:
    """Print the statements that create or upgrade the ledger, for an administrator to run."""
    if dialect is not None:
        written = ledger.sql_for(dialect, since)
    elif since is not None:
        raise BadInput("--from needs --dialect; the ledger of --store says its version itself")
    else:
        written = ledger.sql(target(file, None, store, any_group=True).store or _missing("sql", "--dialect, or "))
    print(written, end="")


@app.command(epilog="Example: tallymark ledger prune --older-than 30d --store sqlite:///shop.db")
def prune(
    group: Annotated[str | None, typer.Argument(help="Only this group.")] = None,
    older_than: Annotated[str, typer.Option("--older-than", help="The age of what is removed, at least 1h.")] = "30d",
    execute: Annotated[bool, typer.Option("--execute", help="Remove it; without, it is only counted.")] = False,
    store: StoreUrl = None,
    file: FileOption = None,
    as_json: AsJson = False,
) -> None:
    """Remove old commits, ended runs, rebalances and settled dead letters. Nothing that is open is removed."""
    of = target(file, group, store)
    retention = Retention.of(parse_age("--older-than", older_than))
    pruned = ledger.prune(of.store or _missing("prune"), of.group, retention, execute=execute)
    if as_json:
        print(json.dumps({"executed": execute, "removed": [asdict(one) for one in pruned]}, indent=2))
    else:
        _print(pruned, execute)


def _missing(command: str, other: str = "") -> str:
    raise BadInput(f"ledger {command} needs {other}--store (or TALLYMARK_STORE), or --file with a pipeline or an app")


def _say(change: Change, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(change)))
        return
    if change.before is None:
        said = f"created the ledger in {change.store}, version {change.now}"
    elif change.before == change.now:
        said = f"the ledger in {change.store} has version {change.now} already: nothing was changed"
    else:
        said = f"upgraded the ledger in {change.store} from version {change.before} to version {change.now}"
    Console(soft_wrap=True, highlight=False, markup=False).print(said)


def _print(pruned: list[Pruned], executed: bool) -> None:
    total = sum(one.rows for one in pruned)
    if pruned:
        table = plain_table("GROUP", "TABLE", "ROWS", left=2)
        for one in pruned:
            table.add_row(Text(printable(one.group)), Text(one.table), Text(str(one.rows)))
        print_table(table)
    said = f"removed {total:,} rows" if executed else f"nothing was changed: --execute removes {total:,} rows"
    Console(soft_wrap=True, highlight=False, markup=False).print(said)
