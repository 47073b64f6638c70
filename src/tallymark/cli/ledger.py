"""``tallymark ledger``: create, upgrade and prune the ledger, or print its statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from tallymark.cli.output import Rows, say, show, show_json
from tallymark.cli.target import AsJson, Execute, Target, targeted
from tallymark.core.retention import Retention, parse_age
from tallymark.errors import BadInput
from tallymark.operate import ledger
from tallymark.operate.ledger import Change, Pruned

app = typer.Typer(help="Create, upgrade and prune the ledger, or print its SQL statements.", no_args_is_help=True)


@app.command(epilog="Example: tallymark ledger create --store postgresql://admin@localhost/shop")
@targeted(None, brokers=False)
def create(target: Target, as_json: AsJson = False) -> None:
    """Create the ledger, for applications that may not create tables. Changes nothing if there is one."""
    _show_change(ledger.create(target.store), as_json)


@app.command(epilog="Example: tallymark ledger upgrade --store postgresql://admin@localhost/shop")
@targeted(None, brokers=False)
def upgrade(target: Target, as_json: AsJson = False) -> None:
    """Upgrade the ledger of an older tallymark. Changes nothing if it has the present version."""
    _show_change(ledger.upgrade(target.store), as_json)


@app.command(epilog="Example: tallymark ledger sql --dialect postgresql > ledger.sql")
@targeted(None, brokers=False)
def sql(
    target: Target,
    dialect: Annotated[
        Literal["postgresql", "mysql", "sqlite"] | None,
        typer.Option("--dialect", help="The kind of database (MariaDB: mysql). Connects to nothing."),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option("--from", min=1, metavar="VERSION", help="With --dialect: upgrade a ledger of this version."),
    ] = None,
) -> None:
    """Print the statements that create or upgrade the ledger, for an administrator to run."""
    if dialect is None and since is not None:
        raise BadInput("--from needs --dialect; the ledger of --store says its version itself")
    if dialect is None and target.optional_store is None:
        raise BadInput("ledger sql needs --dialect, --store (or TALLYMARK_STORE), or --file with a pipeline or an app")
    print(ledger.sql_for(dialect, since) if dialect is not None else ledger.sql(target.store), end="")


@app.command(epilog="Example: tallymark ledger prune --older-than 30d --store sqlite:///shop.db")
@targeted(brokers=False)
def prune(
    target: Target,
    older_than: Annotated[str, typer.Option("--older-than", help="The age of what is removed, at least 1h.")] = "30d",
    execute: Execute = False,
    as_json: AsJson = False,
) -> None:
    """Remove old commits, ended runs, rebalances and settled dead letters. Nothing that is open is removed."""
    group = target.group if target.groups is not None else None
    retention = Retention.of(parse_age("--older-than", older_than))
    pruned = ledger.prune(target.store, group, retention, execute=execute)
    if as_json:
        show_json({"executed": execute, "removed": pruned})
    else:
        _show_pruned(pruned, executed=execute)


def _show_change(change: Change, as_json: bool) -> None:
    if as_json:
        show_json(change, indent=None)
    elif change.before is None:
        say(f"created the ledger in {change.store}, version {change.now}")
    elif change.before == change.now:
        say(f"the ledger in {change.store} has version {change.now} already: nothing was changed")
    else:
        say(f"upgraded the ledger in {change.store} from version {change.before} to version {change.now}")


def _show_pruned(pruned: Sequence[Pruned], *, executed: bool) -> None:
    if pruned:
        show(Rows(("GROUP", "TABLE", "ROWS"), [asdict(one) for one in pruned]))
    total = sum(one.rows for one in pruned)
    say(f"removed {total:,} rows" if executed else f"nothing was changed: --execute removes {total:,} rows")
