"""``tallymark skips list``, ``losses`` and ``journal``: what is not in the tables, or is there again, and why."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from tallymark.cli.output import plain_table, print_table
from tallymark.cli.target import AsJson, BrokersOption, FileOption, StoreUrl, target
from tallymark.cli.values import printable
from tallymark.core.claims import BACK
from tallymark.core.journal import NoteLine
from tallymark.core.spans import Partition, Position, Span
from tallymark.errors import BadInput
from tallymark.kafka.brokers import Brokers
from tallymark.operate.health import moment
from tallymark.operate.survey import ledger
from tallymark.run.skips import held, held_logs
from tallymark.stores.contract import Store

Group = Annotated[str | None, typer.Argument(help="Only this group.")]
KINDS = ("skip", "loss", *BACK, "backfill", "replay", "begin")

skips = typer.Typer()


@skips.callback()
def _skips() -> None:
    """What was skipped and can be filled in later: tallymark backfill does that."""


@dataclass(frozen=True)
class Line:
    """A note of a group. ``held`` is what Kafka still has of its span; None if nobody has asked."""

    group: str
    found: NoteLine
    held: str | None = None

    @property
    def span(self) -> Span:
        return self.found.note.span

    def as_json(self) -> dict[str, Any]:
        note = self.found.note
        return {
            "group": self.group,
            "kind": note.kind,
            "topic": self.span.partition.topic,
            "partition": self.span.partition.number,
            "start": self.span.start,
            "stop": self.span.stop,
            "offsets": len(self.span),
            "reason": note.reason,
            "at": self.found.recorded_at.isoformat(),
            "batch": self.found.batch,
        }

    def cells(self) -> list[str]:
        span, note = self.span, self.found.note
        place = [span.partition.topic, str(span.partition.number), str(span.start), str(span.stop), str(len(span))]
        return [self.group, note.kind, *place, moment(self.found.recorded_at), self.held or "-", note.reason]


COLUMNS = ("GROUP", "KIND", "TOPIC", "PARTITION", "START", "STOP", "OFFSETS", "TIME", "IN-KAFKA", "REASON")


@skips.command("list", epilog="Example: tallymark skips list orders-to-shop --file orders.py")
def list_skips(
    group: Group = None,
    store: StoreUrl = None,
    brokers: BrokersOption = None,
    file: FileOption = None,
    as_json: AsJson = False,
) -> None:
    """List what was skipped and is open: which offsets, why, since when, and whether Kafka still holds them."""
    of = target(file, group, store, brokers)
    with ledger(_needed(of.store, "skips list"), of.group) as opened:
        lines = _notes(opened, of.group, ["skip"])
        if of.cluster is not None:
            asked, positions = Brokers(of.cluster), opened.positions(of.group)
            lines = [one for name in positions for one in _with_logs(lines, name, positions[name], asked)]
    if as_json:
        print(json.dumps([line.as_json() | {"in_kafka": line.held} for line in lines], indent=2))
    else:
        _print(lines, "nothing is skipped", [one for one in COLUMNS if one != "KIND"], "skipped, and open")


def losses(group: Group = None, store: StoreUrl = None, file: FileOption = None, as_json: AsJson = False) -> None:
    """List what Kafka had deleted before it was read: which offsets, when that was noticed, and how many."""
    of = target(file, group, store)
    with ledger(_needed(of.store, "losses"), of.group) as opened:
        lines = _notes(opened, of.group, ["loss"])
    if as_json:
        print(json.dumps([line.as_json() for line in lines], indent=2))
    else:
        _print(lines, "nothing is lost", [one for one in COLUMNS if one not in ("KIND", "IN-KAFKA")], "lost")


def journal(group: Group = None, store: StoreUrl = None, file: FileOption = None, as_json: AsJson = False) -> None:
    """Show all that was noted of a group, in the order of time: open skips, losses, resets, backfills and more."""
    of = target(file, group, store)
    with ledger(_needed(of.store, "journal"), of.group) as opened:
        lines = _notes(opened, of.group, KINDS)
    if as_json:
        print(json.dumps([line.as_json() for line in lines], indent=2))
    else:
        _print(lines, "nothing was noted", [one for one in COLUMNS if one != "IN-KAFKA"])


def _needed(store: str | None, command: str) -> str:
    if store is None:
        raise BadInput(f"{command} needs --store (or TALLYMARK_STORE), or --file with a pipeline or an app")
    return store


def _notes(store: Store, group: str | None, kinds: Collection[str]) -> list[Line]:
    journal = store.journal()
    groups = journal.groups()
    return [Line(name, note) for name in groups if group in (None, name) for note in journal.notes(name, kinds)]


def _with_logs(lines: Sequence[Line], group: str, positions: Sequence[Position], brokers: Brokers) -> list[Line]:
    mine = [line for line in lines if line.group == group]
    logs = held_logs(positions, {line.span.partition for line in mine}, brokers)
    return [Line(group, line.found, held(line.span, logs.get(line.span.partition))) for line in mine]


def _print(lines: Sequence[Line], nothing: str, heads: Sequence[str], sum_of: str | None = None) -> None:
    out = Console(highlight=False, markup=False)
    if not lines:
        out.print(nothing)
        return
    table = plain_table(*heads, left=len(heads))
    for line in lines:
        cells: Mapping[str, str] = dict(zip(COLUMNS, line.cells(), strict=True))
        table.add_row(*(Text(printable(cells[head])) for head in heads))
    print_table(table)
    if sum_of is not None:
        partitions: set[tuple[str, Partition]] = {(line.group, line.span.partition) for line in lines}
        total = sum(len(line.span) for line in lines)
        out.print(f"{total:,} offsets of {len(partitions)} partitions {sum_of}")
