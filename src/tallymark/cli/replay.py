"""``tallymark dead-letters replay``: through the present code into the tables, or to another topic."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from tallymark.cli.choice import ErrorText, Execute, Kind, PartitionOption, Since, Table, Topic, Until, choice, kinds
from tallymark.cli.groups import operator
from tallymark.cli.load import load
from tallymark.cli.output import plain_table, print_table
from tallymark.cli.run import ALLOW, File, Overwrite, RunDisplay
from tallymark.cli.target import AsJson, BrokersOption
from tallymark.cli.values import printable
from tallymark.core.journal import Letter, LetterQuery
from tallymark.core.progress import OnStep
from tallymark.core.spans import Tally
from tallymark.errors import BadInput, TallymarkError
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.cluster import Cluster
from tallymark.operate.health import moment
from tallymark.operate.resend import resend
from tallymark.operate.survey import ledger
from tallymark.produce.producer import Producer
from tallymark.run.letters import OpenLetters, check_delivery, chosen
from tallymark.run.setup import Setup
from tallymark.run.skips import check_order
from tallymark.service.app import App
from tallymark.spark.pipeline import Pipeline

Ids = Annotated[list[str] | None, typer.Argument(help="Only these, as dead-letters list shows them.")]
GroupOption = Annotated[str | None, typer.Option("--group", help="Only of this group of the file.")]
ToTopic = Annotated[
    str | None,
    typer.Option("--to-topic", help="Send them there instead, at least once: a crash can send some again."),
]


@dataclass(frozen=True)
class Outcome:
    """What became of the letters that were chosen; the four numbers add up to ``chosen``.

    ``settled`` were settled by others before we came to them.
    """

    chosen: int
    applied: int
    dead: int
    settled: int
    left: int


def replay(
    file: File,
    ids: Ids = None,
    group: GroupOption = None,
    topic: Topic = None,
    partition: PartitionOption = None,
    error: ErrorText = None,
    table: Table = None,
    since: Since = None,
    until: Until = None,
    overwrite: Overwrite = False,
    to_topic: ToTopic = None,
    brokers: BrokersOption = None,
    execute: Execute = False,
    as_json: AsJson = False,
) -> None:
    """Try dead letters again with the present code of FILE, exactly once, while the group goes on elsewhere.

    Without ids and filters: all that are open. Shows which these are; --execute does it. What is applied is settled in
    the same transaction, and what dies again stays dead, with its new error. --to-topic sends them to a topic instead,
    of the file's cluster or of --brokers, with headers that say where they come from.
    """
    found = load(file)
    setups = _setups(found, group)
    query = choice(group, topic, partition, error, table, since, until, ids)
    letters = _chosen(setups, query)
    _check_ids(setups, ids or ())
    if not execute or not letters:
        refused = _refusal(found, setups, overwrite, to_topic, brokers) if letters else None
        _say_preview(letters, to_topic, refused, as_json)
        return
    if to_topic is None:
        _check(found, setups, overwrite)
    began = time.monotonic()
    # What dies while we work was not chosen.
    query = replace(query, ids=frozenset(letter.id for letter in letters))
    if to_topic is None:
        tally = _watched(found, as_json, lambda watch: _replay(found, query, overwrite, watch))
    else:
        tally = _resend(setups, query, to_topic, brokers)
    done = _outcome(setups, query, len(letters), tally)
    _say(done, to_topic, time.monotonic() - began, as_json)


def _refusal(
    found: Pipeline | App, setups: Sequence[Setup], overwrite: bool, to_topic: str | None, brokers: str | None
) -> str | None:
    """Why --execute would do nothing now."""
    try:
        if to_topic is None:
            _check(found, setups, overwrite)
        for setup in setups if to_topic else ():
            Brokers(Cluster(brokers) if brokers else setup.source.cluster).find([to_topic or ""])
    except TallymarkError as error:
        return str(error)
    return None


def _check(found: Pipeline | App, setups: Sequence[Setup], overwrite: bool) -> None:
    for setup in setups:
        check_delivery(setup.delivery)
    if isinstance(found, Pipeline):
        check_order(found.specs, overwrite=overwrite, allow=ALLOW)


def _setups(found: Pipeline | App, group: str | None) -> list[Setup]:
    setups = [found.setup] if isinstance(found, Pipeline) else [listener.setup for listener in found.listeners]
    known = [setup for setup in setups if group in (None, setup.group)]
    if not known:
        groups = ", ".join(sorted({setup.group for setup in setups})) or "none"
        raise BadInput(f"the file has no group {group}; it has {groups}")
    return known


def _chosen(setups: Sequence[Setup], query: LetterQuery) -> list[Letter]:
    found: list[Letter] = []
    for setup in setups:
        with ledger(setup.ledger_url) as store:
            found += chosen(store, replace(query, group=setup.group), setup.source.topic_names)
    return found


def _check_ids(setups: Sequence[Setup], ids: Sequence[str]) -> None:
    unknown = set(ids)
    for setup in setups if ids else ():
        with ledger(setup.ledger_url) as store:
            there = store.journal().letters(LetterQuery(setup.group, states=None, ids=list(ids)))
            unknown -= {letter.id for letter in there}
    if unknown:
        raise BadInput(f"the groups of the file have no dead letter {min(unknown)}: tallymark dead-letters list")


def _replay(found: Pipeline | App, query: LetterQuery, overwrite: bool, watch: OnStep) -> Tally:
    if isinstance(found, App):
        return found.replay(query, on_step=watch)
    return found.replay(query, overwrite=overwrite, on_step=watch)


def _watched(found: Pipeline | App, quiet: bool, work: Callable[[OnStep], Tally]) -> Tally:
    starting = "starting Spark" if isinstance(found, Pipeline) else "starting"
    with RunDisplay("dead letters", Console(stderr=True, quiet=quiet), starting) as display:
        return work(display)


def _resend(setups: Sequence[Setup], query: LetterQuery, topic: str, brokers: str | None) -> Tally:
    total = Tally()
    for setup in setups:
        source = setup.source.cluster
        cluster = Cluster(brokers) if brokers else source
        Brokers(cluster).find([topic])
        with ExitStack() as stack:
            store = stack.enter_context(ledger(setup.ledger_url))
            producer = stack.enter_context(Producer(cluster.brokers, security=cluster.security, tls=cluster.tls))
            letters = OpenLetters(setup.group, store, setup.source.topic_names, query)
            total += resend(letters, store, Brokers(source), producer, topic, operator())
    return total


def _outcome(setups: Sequence[Setup], query: LetterQuery, count: int, tally: Tally) -> Outcome:
    """What is open and was not tried is left, because somebody wanted to end. The rest was settled by others."""
    still = len(_chosen(setups, LetterQuery(ids=query.ids)))
    left = min(max(0, still - tally.dead), count - tally.applied - tally.dead)
    return Outcome(count, tally.applied, tally.dead, count - tally.applied - tally.dead - left, left)


def _say(done: Outcome, to_topic: str | None, seconds: float, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**vars(done), "to_topic": to_topic, "executed": True, "seconds": round(seconds, 3)}))
        return
    words = [f"{done.applied:,} {f'sent to {to_topic}' if to_topic else 'applied'}"]
    for count, said in ((done.dead, "dead still"), (done.settled, "settled by others"), (done.left, "not tried")):
        words += [f"{count:,} {said}"] if count else []
    out = Console(soft_wrap=True, highlight=False, markup=False)
    out.print(f"of {done.chosen:,} dead letters: {', '.join(words)}, in {seconds:.1f} s")


def _say_preview(letters: Sequence[Letter], to_topic: str | None, refused: str | None, as_json: bool) -> None:
    if as_json:
        errors = [kind.as_json() for kind in kinds(letters)]
        said = {"chosen": len(letters), "errors": errors, "to_topic": to_topic, "executed": False, "refused": refused}
        print(json.dumps(said, indent=2))
    else:
        words = f"would be sent to {to_topic}" if to_topic else "would be tried again"
        preview(letters, words, done=False, refused=refused)


def preview(letters: Sequence[Letter], words: str, *, done: bool, refused: str | None = None) -> None:
    """Count them by what is wrong with them, and say what is to be done, or why it would be ``refused``."""
    out = Console(soft_wrap=True, highlight=False, markup=False)
    if not letters:
        out.print("no dead letter is open that fits")
        return
    print_kinds(kinds(letters))
    groups = ", ".join(sorted({letter.group for letter in letters}))
    then = "" if done else "; --execute would be refused" if refused else "; --execute does it"
    out.print(f"{len(letters):,} dead letters of {groups} {words}{then}" + (f": {refused}" if refused else ""))


def print_kinds(found: Sequence[Kind]) -> None:
    table = plain_table("COUNT", "FIRST", "LAST", "ERROR", left=4)
    for kind in found:
        table.add_row(f"{kind.count:,}", moment(kind.first), moment(kind.last), Text(printable(kind.error)))
    print_table(table)
