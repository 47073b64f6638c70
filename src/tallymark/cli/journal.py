"""``tallymark journal``, ``losses`` and ``skips list``: what is not in the tables, or was read again, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import typer

from tallymark.cli.output import Row, Rows, say, show, show_json
from tallymark.cli.target import AsJson, Target, targeted
from tallymark.core.claims import BACK
from tallymark.core.spans import Partition, Span
from tallymark.run.skips import held, held_logs
from tallymark.stores.contract import Store

KINDS = ("skip", "loss", *BACK, "backfill", "replay", "begin")
LOSSES = ("GROUP", "TOPIC", "PARTITION", "START", "STOP", "OFFSETS", "TIME:at", "REASON")
JOURNAL = (LOSSES[0], "KIND", *LOSSES[1:])
SKIPS = (*LOSSES[:-1], "IN-KAFKA", "REASON")

skips = typer.Typer(help="What was skipped and can be read later, by tallymark backfill.")


@skips.callback()
def _group_of_commands() -> None:
    """Makes ``list`` a command of its own: a Typer with one command would run it without its name."""


@skips.command("list", epilog="Example: tallymark skips list orders-to-shop --file orders.py")
@targeted()
def list_skips(target: Target, as_json: AsJson = False) -> None:
    """List the open skips: which offsets, why, since when, and whether Kafka still holds them."""
    with target.ledger() as store:
        rows = _notes(store, target.groups, ["skip"], in_kafka=None)
        if (brokers := target.optional_brokers) is not None:
            positions = store.positions(None)
            for group in positions:
                mine = [row for row in rows if row["group"] == group]
                logs = held_logs(positions[group], {_span(row).partition for row in mine}, brokers)
                for row in mine:
                    row["in_kafka"] = held(_span(row), logs.get(_span(row).partition))
    _show(rows, SKIPS, as_json, "nothing is skipped", "skipped, and open")


@targeted(brokers=False)
def losses(target: Target, as_json: AsJson = False) -> None:
    """List what Kafka had deleted before it was read: which offsets, and when that was noticed."""
    with target.ledger() as store:
        rows = _notes(store, target.groups, ["loss"])
    _show(rows, LOSSES, as_json, "nothing is lost", "lost")


@targeted(brokers=False)
def journal(target: Target, as_json: AsJson = False) -> None:
    """Show the notes of a group in order of time: open skips, losses, resets, backfills, replays and others."""
    with target.ledger() as store:
        rows = _notes(store, target.groups, KINDS)
    _show(rows, JOURNAL, as_json, "nothing was noted")


def _notes(store: Store, groups: Collection[str] | None, kinds: Collection[str], **more: Any) -> list[dict[str, Any]]:
    journal = store.journal()
    return [
        {
            "group": group,
            "kind": found.note.kind,
            "topic": found.note.span.partition.topic,
            "partition": found.note.span.partition.number,
            "start": found.note.span.start,
            "stop": found.note.span.stop,
            "offsets": len(found.note.span),
            "reason": found.note.reason,
            "at": found.recorded_at,
            "batch": found.batch,
            **more,
        }
        for group in journal.groups()
        if groups is None or group in groups
        for found in journal.notes(group, kinds)
    ]


def _span(row: Row) -> Span:
    return Span(Partition(row["topic"], row["partition"]), row["start"], row["stop"])


def _show(rows: Sequence[Row], heads: Sequence[str], as_json: bool, nothing: str, total: str | None = None) -> None:
    if as_json:
        show_json(rows)
    elif not rows:
        say(nothing)
    else:
        show(Rows(heads, rows))
        if total is not None:
            partitions = {(row["group"], row["topic"], row["partition"]) for row in rows}
            say(f"{sum(row['offsets'] for row in rows):,} offsets of {len(partitions)} partitions {total}")
