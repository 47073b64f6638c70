"""``tallymark dead-letters``: records that could not be applied, and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from tallymark.cli import replay
from tallymark.cli.choice import (
    ErrorText,
    Execute,
    Kind,
    PartitionOption,
    Since,
    State,
    Table,
    Topic,
    Until,
    choice,
    kinds,
)
from tallymark.cli.groups import operator
from tallymark.cli.output import plain_table, print_table
from tallymark.cli.target import AsJson, FileOption, StoreUrl, target
from tallymark.cli.values import member, pretty, printable
from tallymark.core.journal import DEAD, DISCARDED, Letter, LetterQuery
from tallymark.errors import BadInput, CommitRefused
from tallymark.operate.health import moment
from tallymark.operate.survey import ledger
from tallymark.run.letters import MOST
from tallymark.stores.contract import Store

Group = Annotated[str | None, typer.Argument(help="Only this group.")]
GroupOption = Annotated[str | None, typer.Option("--group", help="Only of this group.")]
Id = Annotated[str, typer.Argument(help="As dead-letters list shows it.")]
Ids = Annotated[list[str] | None, typer.Argument(help="As dead-letters list shows them.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Show so many.")]
Summary = Annotated[bool, typer.Option("--summary", help="Count all by their errors instead.")]
All = Annotated[bool, typer.Option("--all", help="All that are open, or all that the filters leave.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; kept with the name of who says so.")]
NEEDS_STORE = "dead-letters needs --store (or TALLYMARK_STORE), or --file with a pipeline or an app"
COLUMNS = ("ID", "GROUP", "TOPIC", "PARTITION", "OFFSET", "TIME", "TABLE", "STATE", "ERROR")
CHANGED_BY = 255

app = typer.Typer(help="Records that could not be applied: see them, try them again, or give them up.")


@app.command("list", epilog="Example: tallymark dead-letters list orders-to-shop --since 2h --store sqlite:///shop.db")
def list_(
    group: Group = None,
    topic: Topic = None,
    partition: PartitionOption = None,
    error: ErrorText = None,
    table: Table = None,
    since: Since = None,
    until: Until = None,
    state: State = DEAD,
    limit: Limit = 100,
    summary: Summary = False,
    store: StoreUrl = None,
    file: FileOption = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the oldest first: those that are open, unless --state says otherwise."""
    of = target(file, group, store)
    query = choice(of.group, topic, partition, error, table, since, until, state=state)
    most = None if summary else limit + 1
    found = _letters(of.store, query, most)
    if summary:
        show_kinds(kinds(found), as_json=as_json)
    elif as_json:
        print(json.dumps([_as_json(letter) for letter in found[:limit]], indent=2))
    else:
        _print(found, limit)


@app.command(epilog="Example: tallymark dead-letters show 17 --store sqlite:///shop.db")
def show(
    letter: Id, group: GroupOption = None, store: StoreUrl = None, file: FileOption = None, as_json: AsJson = False
) -> None:
    """Show a dead letter whole: its record with key, headers and value, why it died, and what became of it."""
    of = target(file, group, store)
    found = _letters(of.store, LetterQuery(of.group, states=None, ids=[letter]))
    if not found:
        raise BadInput(f"there is no dead letter {letter}; tallymark dead-letters list shows those there are")
    if as_json:
        print(json.dumps(_as_json(found[0]) | _record(found[0]), indent=2))
    else:
        Console(soft_wrap=True, highlight=False, markup=False).print("\n".join(_lines(found[0])))


@app.command(epilog="Example: tallymark dead-letters discard 17 18 --reason test-data --execute --file orders.py")
def discard(
    ids: Ids = None,
    all_: All = False,
    group: GroupOption = None,
    topic: Topic = None,
    partition: PartitionOption = None,
    error: ErrorText = None,
    table: Table = None,
    since: Since = None,
    until: Until = None,
    reason: Reason = None,
    execute: Execute = False,
    store: StoreUrl = None,
    file: FileOption = None,
    as_json: AsJson = False,
) -> None:
    """Give dead letters up: they are no longer open, stay in the ledger, and count as dead for good.

    Shows which these would be; --execute does it.
    """
    if bool(ids) == all_:
        raise BadInput("name the dead letters, or write --all, with or without filters")
    of = target(file, group, store)
    query = choice(of.group, topic, partition, error, table, since, until, ids)
    if of.store is None:
        raise BadInput(NEEDS_STORE)
    with ledger(of.store, of.group) as opened:
        found = opened.journal().letters(query)
        _check_named(opened, ids or (), found)
        if execute:
            _discard(opened, found, f"{operator()}: {reason}" if reason else operator())
    if as_json:
        said = {"letters": len(found), "discarded": len(found) if execute else 0}
        print(json.dumps(said | {"errors": [kind.as_json() for kind in kinds(found)]}, indent=2))
    else:
        replay.preview(found, "discarded" if execute else "would be discarded", done=execute)


app.command("replay", epilog="Example: tallymark dead-letters replay orders.py --error schema --execute")(replay.replay)


def _letters(store_url: str | None, query: LetterQuery, most: int | None = None) -> list[Letter]:
    if store_url is None:
        raise BadInput(NEEDS_STORE)
    with ledger(store_url, query.group) as store:
        return store.journal().letters(LetterQuery(**{**vars(query), "most": most}))


def _check_named(store: Store, ids: Sequence[str], found: Sequence[Letter]) -> None:
    """Those that are named must be there, and open."""
    missing = set(ids) - {letter.id for letter in found}
    if missing:
        others = {one.id: one.state for one in store.journal().letters(LetterQuery(states=None, ids=list(missing)))}
        first = min(missing)
        words = f"dead letter {first} is {others.get(first, 'unknown')}"
        words += ", and the filters leave it out" if others.get(first) == DEAD else ""
        raise BadInput(f"{words}; nothing was changed: tallymark dead-letters list")


def _discard(store: Store, letters: Sequence[Letter], by: str) -> None:
    for at in range(0, len(letters), MOST):
        try:
            store.journal().settle(letters[at : at + MOST], DISCARDED, by[:CHANGED_BY], datetime.now(timezone.utc))
        except CommitRefused as error:
            raise type(error)(f"{error}; {at} of {len(letters)} were discarded before: look again") from error


def show_kinds(found: Sequence[Kind], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([kind.as_json() for kind in found], indent=2))
    else:
        replay.print_kinds(found)


def _print(found: Sequence[Letter], limit: int) -> None:
    if not found:
        Console().print("no dead letters")
        return
    table = plain_table(*COLUMNS, left=len(COLUMNS))
    for letter in found[:limit]:
        table.add_row(*(Text(printable(cell)) for cell in _cells(letter)))
    print_table(table)
    if len(found) > limit:
        more = "there are more: --limit shows them, --summary counts all by error, and show ID has all of one"
        Console(stderr=True).print(more, style="dim", highlight=False)


def _cells(letter: Letter) -> list[str]:
    record = letter.record
    place = [record.partition.topic, str(record.partition.number), str(record.offset)]
    rest = [moment(letter.recorded_at), record.table or "-", letter.state, record.error]
    return [letter.id, letter.group, *place, *rest]


def _as_json(letter: Letter) -> dict[str, Any]:
    record = letter.record
    return {
        "id": letter.id,
        "group": letter.group,
        "topic": record.partition.topic,
        "partition": record.partition.number,
        "offset": record.offset,
        "timestamp": _time(record.record_time),
        "died_at": _time(letter.recorded_at),
        "batch": letter.batch,
        "table": record.table,
        "error": record.error,
        "state": letter.state,
        "changed_at": _time(letter.changed_at),
        "changed_by": letter.changed_by,
    }


def _record(letter: Letter) -> dict[str, Any]:
    record = letter.record
    headers = [{"name": name, **member("value", value)} for name, value in record.headers]
    return {**member("key", record.key), **member("value", record.value), "headers": headers}


def _lines(letter: Letter) -> list[str]:
    record = letter.record
    lines = [
        f"dead letter {letter.id} of group {letter.group}: {letter.state}",
        f"record    {record.partition} offset {record.offset}"
        + (f", of {moment(record.record_time)}" if record.record_time else ""),
        f"error     {printable(record.error)}",
        *([f"table     {record.table}"] if record.table else []),
        f"history   {moment(letter.recorded_at)} died in batch {letter.batch}",
        *([f"          {moment(letter.changed_at)} {_change(letter)}"] if letter.changed_at else []),
        f"key       {printable(record.key)}",
        *(f"header    {printable(name)}: {printable(value)}" for name, value in record.headers),
    ]
    return [*lines, "value", *(f"  {line}" for line in pretty(record.value))]


def _change(letter: Letter) -> str:
    words = "tried again, and died again" if letter.state == DEAD else letter.state
    return f"{words} by {printable(letter.changed_by or 'nobody knows whom')}"


def _time(time: datetime | None) -> str | None:
    return time.isoformat() if time else None
