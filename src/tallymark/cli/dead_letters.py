"""``tallymark dead-letters``: list, show, replay and discard records that could not be applied."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tallymark.cli.load import setups_of
from tallymark.cli.output import Rows, note, say, show, show_json
from tallymark.cli.progress import Bars, RunBar
from tallymark.cli.run import ALLOW, Overwrite
from tallymark.cli.target import (
    AsJson,
    Execute,
    Limit,
    PartitionOption,
    Reason,
    RegistryOption,
    Target,
    TopicOption,
    operator,
    targeted,
)
from tallymark.cli.values import member, pretty, printable
from tallymark.core.journal import DEAD, LETTER_STATES, Letter, LetterQuery
from tallymark.errors import BadInput
from tallymark.operate.health import moment
from tallymark.operate.letters import Kind, LetterReplay, Outcome, check_named, discard, kinds
from tallymark.operate.reset import moment_or_ago
from tallymark.operate.shown import Shown, shown
from tallymark.run.setup import Setup
from tallymark.spark.pipeline import Pipeline

ErrorText = Annotated[str | None, typer.Option("--error", help="Only those whose error contains this text.")]
Table = Annotated[str | None, typer.Option("--table", help="Only those that this table refused.")]
Since = Annotated[str | None, typer.Option("--since", help="Only those that died since: a time, or 2h for ago.")]
Until = Annotated[str | None, typer.Option("--until", help="Only those that died before: a time, or 2h for ago.")]
State = Annotated[str, typer.Option("--state", help=f"{', '.join(LETTER_STATES)}, or all.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="As dead-letters list shows it.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="As dead-letters list shows them.")]
FileAndIds = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE|ID", help="The pipeline or the app, unless --file names it; and ids, for only these letters."
    ),
]
Summary = Annotated[bool, typer.Option("--summary", help="Count all by their errors instead.")]
All = Annotated[bool, typer.Option("--all", help="All open letters, or all that the filters leave.")]
ToTopic = Annotated[
    str | None, typer.Option("--to-topic", help="Send them there instead, at least once: a crash can send some again.")
]
COLUMNS = ("ID", "GROUP", "TOPIC", "PARTITION", "OFFSET", "TIME:died_at", "TABLE", "STATE", "ERROR")
FILES = (".py", ".toml")
FILTERS: dict[str, Any] = {
    "topic": TopicOption,
    "partition": PartitionOption,
    "error": ErrorText,
    "table": Table,
    "since": Since,
    "until": Until,
}

app = typer.Typer(help="List, show, replay or discard records that could not be applied.")


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose among open dead letters; its second argument is the query they make."""
    target, _, *own = inspect.signature(command, eval_str=True).parameters.values()

    @functools.wraps(command)
    def wrapper(target: Target, **given: Any) -> None:
        filters = {name: given.pop(name) for name in FILTERS}
        times = {name: moment_or_ago(filters[name], f"--{name}") for name in ("since", "until")}
        command(target, LetterQuery(**filters | times), **given)

    options = [target.replace(name=name, annotation=kind, default=None) for name, kind in FILTERS.items()]
    wrapper.__signature__ = inspect.Signature([target, *options, *own])  # type: ignore[attr-defined]
    return wrapper


@app.command("list", epilog="Example: tallymark dead-letters list orders-to-shop --since 2h --store sqlite:///shop.db")
@targeted(brokers=False)
@filtered
def list_(
    target: Target,
    query: LetterQuery,
    state: State = DEAD,
    limit: Limit = 100,
    summary: Summary = False,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the oldest first: the open ones, unless --state says otherwise."""
    if state not in (*LETTER_STATES, "all"):
        raise BadInput(f"--state {state} is not known; write {', '.join(LETTER_STATES)} or all")
    states = None if state == "all" else (state,)
    found = _letters(target, replace(query, states=states, most=None if summary else limit + 1))
    if summary:
        _show_kinds(kinds(found), as_json=as_json)
    elif as_json:
        show_json([_row(letter) for letter in found[:limit]])
    elif not found:
        say("no dead letters")
    else:
        show(Rows(COLUMNS, [_row(letter) for letter in found[:limit]]))
        if len(found) > limit:
            note("there are more: --limit shows them, --summary counts all by error, and show ID has all of one", "dim")


@app.command("show", epilog="Example: tallymark dead-letters show 17 --store sqlite:///shop.db")
@targeted("option", brokers=False)
def show_(target: Target, letter: Id, registry: RegistryOption = None, as_json: AsJson = False) -> None:
    """Show a dead letter: its record with key, headers and value, its error, and its state.

    With --registry, a key or value that names a schema is decoded.
    """
    found = _letters(target, LetterQuery(states=None, ids=[letter]))
    if not found:
        raise BadInput(f"there is no dead letter {letter}; tallymark dead-letters list shows those there are")
    record = found[0].record
    key, value = shown(target.schemas(registry), record.key, record.value, record.headers)
    if as_json:
        headers = [{"name": name, **member("value", content)} for name, content in record.headers]
        content = {**member("key", record.key, key), **member("value", record.value, value), "headers": headers}
        show_json(_row(found[0]) | content)
    else:
        say("\n".join(_lines(found[0], key, value)))


@app.command(
    "discard", epilog="Example: tallymark dead-letters discard 17 18 --reason test-data --execute --file orders.py"
)
@targeted("option", brokers=False)
@filtered
def discard_(
    target: Target,
    query: LetterQuery,
    ids: Ids = None,
    all_: All = False,
    reason: Reason = None,
    execute: Execute = False,
    as_json: AsJson = False,
) -> None:
    """Show which dead letters would be discarded; with --execute, discard them.

    They are no longer open, stay in the ledger, and count as dead.
    """
    if bool(ids) == all_:
        raise BadInput("name the dead letters, or write --all, with or without filters")
    with target.ledger() as store:
        found = store.journal().letters(replace(_of_group(target, query), ids=ids or None))
        check_named(store, ids or (), found)
        if execute:
            discard(store, found, f"{operator()}: {reason}" if reason else operator())
    if as_json:
        counts = {"letters": len(found), "discarded": len(found) if execute else 0}
        show_json(counts | {"errors": kinds(found)})
    else:
        _preview(found, "discarded" if execute else "would be discarded", done=execute)


@app.command("replay", epilog="Example: tallymark dead-letters replay orders.py --error schema --execute")
@targeted("option", store=False)
@filtered
def replay(
    target: Target,
    query: LetterQuery,
    arguments: FileAndIds = None,
    overwrite: Overwrite = False,
    to_topic: ToTopic = None,
    execute: Execute = False,
    as_json: AsJson = False,
) -> None:
    """Show which dead letters would be replayed; with --execute, apply the present code of FILE to them, exactly once.

    Without ids and filters: all open letters. The group may run meanwhile. A letter is settled in the transaction that
    writes its rows; one that dies again stays dead, with its new error. --to-topic sends the records to a topic of the
    file's cluster, or of --brokers, with headers that name their origin.
    """
    ids = list(arguments or ())
    if ids and ids[0].endswith(FILES):
        target = target.at(Path(ids.pop(0)))
    query = replace(query, ids=ids or None)
    found, cluster = target.loaded, target.named_cluster
    replaying = LetterReplay(found, _setups(target), query, overwrite=overwrite, allow=ALLOW)
    if not execute or not replaying.letters:
        refused = replaying.refusal(to_topic, cluster) if replaying.letters else None
        _show_preview(replaying.letters, to_topic, refused, as_json)
        return
    began = time.monotonic()
    if to_topic is not None:
        outcome = replaying.send(to_topic, cluster, operator())
    else:
        with Bars(quiet=as_json) as bars:
            starting = "starting Spark" if isinstance(found, Pipeline) else "starting"
            outcome = replaying.run(RunBar("dead letters", bars, starting))
    _show_outcome(outcome, to_topic, time.monotonic() - began, as_json)


def _of_group(target: Target, query: LetterQuery) -> LetterQuery:
    return replace(query, group=target.group if target.groups is not None else None)


def _letters(target: Target, query: LetterQuery) -> list[Letter]:
    with target.ledger() as store:
        return store.journal().letters(_of_group(target, query))


def _setups(target: Target) -> list[Setup]:
    groups = target.groups or ()
    return [setup for setup in setups_of(target.loaded) if setup.group in groups]


def _row(letter: Letter) -> dict[str, Any]:
    record = letter.record
    return {
        "id": letter.id,
        "group": letter.group,
        "topic": record.partition.topic,
        "partition": record.partition.number,
        "offset": record.offset,
        "timestamp": record.record_time,
        "died_at": letter.recorded_at,
        "batch": letter.batch,
        "table": record.table,
        "error": record.error,
        "state": letter.state,
        "changed_at": letter.changed_at,
        "changed_by": letter.changed_by,
    }


def _lines(letter: Letter, key: Shown | None, value: Shown | None) -> list[str]:
    record = letter.record
    lines = [
        f"dead letter {letter.id} of group {letter.group}: {letter.state}",
        f"record    {record.partition} offset {record.offset}"
        + (f", of {moment(record.record_time)}" if record.record_time else ""),
        f"error     {printable(record.error)}",
        *([f"table     {record.table}"] if record.table else []),
        f"history   {moment(letter.recorded_at)} died in batch {letter.batch}",
        *([f"          {moment(letter.changed_at)} {_change(letter)}"] if letter.changed_at else []),
        f"key       {printable(record.key, key)}",
        *(f"header    {printable(name)}: {printable(content)}" for name, content in record.headers),
    ]
    return [*lines, "value", *(f"  {line}" for line in pretty(record.value, value))]


def _change(letter: Letter) -> str:
    words = "replayed, and died again" if letter.state == DEAD else letter.state
    return f"{words} by {printable(letter.changed_by or 'an unknown user')}"


def _show_kinds(found: Sequence[Kind], *, as_json: bool = False) -> None:
    if as_json:
        show_json(found)
    else:
        show(Rows(("COUNT", "FIRST", "LAST", "ERROR"), [vars(kind) for kind in found]))


def _show_preview(letters: Sequence[Letter], to_topic: str | None, refused: str | None, as_json: bool) -> None:
    if as_json:
        facts = {"chosen": len(letters), "errors": kinds(letters), "to_topic": to_topic}
        show_json(facts | {"executed": False, "refused": refused})
    else:
        words = f"would be sent to {to_topic}" if to_topic else "would be replayed"
        _preview(letters, words, done=False, refused=refused)


def _preview(letters: Sequence[Letter], words: str, *, done: bool, refused: str | None = None) -> None:
    if not letters:
        say("no open dead letter matches")
        return
    _show_kinds(kinds(letters))
    groups = ", ".join(sorted({letter.group for letter in letters}))
    then = "" if done else "; --execute would be refused" if refused else "; --execute does it"
    say(f"{len(letters):,} dead letters of {groups} {words}{then}" + (f": {refused}" if refused else ""))


def _show_outcome(done: Outcome, to_topic: str | None, seconds: float, as_json: bool) -> None:
    if as_json:
        facts = {"to_topic": to_topic, "executed": True, "seconds": round(seconds, 3)}
        show_json({**vars(done), **facts}, indent=None)
        return
    words = [f"{done.applied:,} {f'sent to {to_topic}' if to_topic else 'applied'}"]
    for count, outcome in ((done.dead, "dead still"), (done.settled, "settled by others"), (done.left, "not tried")):
        words += [f"{count:,} {outcome}"] if count else []
    say(f"of {done.chosen:,} dead letters: {', '.join(words)}, in {seconds:.1f} s")
