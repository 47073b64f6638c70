"""``tallymark reset``: send a group's positions somewhere else, after a look at what that means."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tallymark.cli.groups import operator
from tallymark.cli.moves import (
    counted,
    logs,
    needed_brokers,
    needed_target,
    only_one,
    opened,
    positions,
    said,
    say,
)
from tallymark.cli.output import plain_table, print_table
from tallymark.cli.target import AsJson, BrokersOption, FileOption, StoreUrl, Target
from tallymark.core.spans import Partition, Position
from tallymark.errors import BadInput
from tallymark.kafka.brokers import Brokers
from tallymark.operate.reset import (
    Aim,
    Planned,
    Reset,
    before_now,
    busy,
    parse_moment,
    parse_scope,
    within,
)
from tallymark.operate.takeover import read_offsets, write_offsets
from tallymark.stores.contract import Store

STDOUT = "-"
WAYS = "--to-earliest, --to-latest, --to-offset, --to-datetime, --by-duration, --shift-by, --to-current, --from-file"

Group = Annotated[str | None, typer.Argument(help="The group; not needed with --file.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="A topic, or partitions of it: orders:0,3.")]
AllTopics = Annotated[bool, typer.Option("--all-topics", help="All that the group has a position of.")]
Earliest = Annotated[bool, typer.Option("--to-earliest", help="To where the log begins.")]
Latest = Annotated[bool, typer.Option("--to-latest", help="To the end of what can be read now.")]
Offset = Annotated[int | None, typer.Option("--to-offset", help="To this offset.")]
Moment = Annotated[
    str | None, typer.Option("--to-datetime", help="To the first record of this time or later; UTC without a zone.")
]
Duration = Annotated[str | None, typer.Option("--by-duration", help="To the first of the last 1h30m, 15m, 2d.")]
Shift = Annotated[int | None, typer.Option("--shift-by", help="By so many offsets; back if negative.")]
Current = Annotated[bool, typer.Option("--to-current", help="To where it is, or the nearest that the log holds.")]
FromFile = Annotated[Path | None, typer.Option("--from-file", help="To the offsets in this CSV; - is stdin.")]
Export = Annotated[str | None, typer.Option("--export", help="Write where it would go, or is, as CSV; - is stdout.")]
Execute = Annotated[bool, typer.Option("--execute", help="Do it. Without this it is only shown.")]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Even while a run is alive: it is fenced.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; kept in the journal.")]


def reset(
    group: Group = None,
    topic: Topics = None,
    all_topics: AllTopics = False,
    to_earliest: Earliest = False,
    to_latest: Latest = False,
    to_offset: Offset = None,
    to_datetime: Moment = None,
    by_duration: Duration = None,
    shift_by: Shift = None,
    to_current: Current = False,
    from_file: FromFile = None,
    export: Export = None,
    execute: Execute = False,
    take_over: TakeOver = False,
    reason: Reason = None,
    store: StoreUrl = None,
    brokers: BrokersOption = None,
    file: FileOption = None,
    as_json: AsJson = False,
) -> None:
    """Send positions somewhere else: show what that repeats or skips, and with --execute do it.

    What is skipped can be filled in later by backfill. What is repeated is written again: upserts stay as they are,
    appended rows are there twice. All partitions move in one transaction, or none does.
    """
    of = needed_target(file, group, store, brokers)
    given = {
        "--to-earliest": to_earliest,
        "--to-latest": to_latest,
        "--to-offset": to_offset,
        "--to-datetime": to_datetime,
        "--by-duration": by_duration,
        "--shift-by": shift_by,
        "--to-current": to_current,
        "--from-file": from_file,
    }
    if export is not None and not said(given):
        _export_positions(of, topic or [], export)
        return
    option = only_one("reset", given, WAYS)
    aim = _aim(option, given[option], of.group or "")
    with opened(of) as opened_store:
        resetting = _Resetting(of, opened_store, aim, topic or [], all_topics)
        plan = resetting.execute(take_over, reason) if execute else resetting.preview
        _show(plan, resetting, executed=execute, export=export, as_json=as_json)


class _Resetting:
    """One reset, from what the ledger and the brokers say now."""

    def __init__(self, of: Target, store: Store, aim: Aim, topics: Sequence[str], all_topics: bool) -> None:
        self.group, self.store, self.aim = of.group or "", store, aim
        found = _known_positions(store, self.group)
        brokers = needed_brokers(of, "reset")
        there = logs(brokers, _scope(aim, found, brokers, topics, all_topics))
        self.now, self.by = datetime.now(timezone.utc), operator()
        self.reset = Reset(aim, there, brokers.offsets_at(there, aim.moment) if aim.moment else {})
        self.preview = self.reset.plan(found)

    @property
    def in_the_way(self) -> list[Position]:
        return busy(self.preview, self.store.journal().runs(self.group), self.now)

    def execute(self, take_over: bool, reason: str | None) -> list[Planned]:
        words = f"{self.aim.said} by {self.by}" + (f": {reason}" if reason else "")
        plan = list(self.preview)

        def done(planned: Sequence[Planned]) -> None:
            plan[:] = planned

        decide = self.reset.decide(self.preview, self.now, words, done, take_over=take_over)
        self.store.journal().move(self.group, self.reset.logs, decide, self.by, self.now)
        return plan


def _aim(option: str, value: Any, group: str) -> Aim:
    match option:
        case "--to-earliest":
            return Aim("earliest", option)
        case "--to-latest":
            return Aim("latest", option)
        case "--to-current":
            return Aim("current", option)
        case "--to-offset":
            return Aim("offset", f"{option} {value}", number=value)
        case "--shift-by":
            return Aim("shift", f"{option} {value}", number=value)
        case "--to-datetime":
            moment = parse_moment(value)
            return Aim("time", f"{option} {moment.isoformat()}", moment=moment)
        case "--by-duration":
            return Aim("time", f"{option} {value}", moment=before_now(parse_duration(value, option)))
    return Aim("file", f"{option} {value}", offsets=_read(value, group))


def _read(path: Path, group: str) -> dict[Partition, int]:
    try:
        if str(path) == STDOUT:
            return read_offsets(sys.stdin, group, "stdin")
        with path.open(newline="") as lines:
            return read_offsets(lines, group, str(path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"--from-file {path} can't be read: {getattr(error, 'strerror', None) or error}") from None


def _known_positions(store: Store, group: str) -> dict[Partition, Position]:
    if not store.has_ledger() or store.state(group) is None:
        raise BadInput(f"{store.name} knows no group {group}; tallymark groups lists those it knows")
    return positions(store, group)


def _scope(
    aim: Aim, found: dict[Partition, Position], brokers: Brokers, topics: Sequence[str], all_topics: bool
) -> list[Partition]:
    """Which partitions: those of the options, and else those of the file."""
    if (topics and all_topics) or not (topics or all_topics or aim.offsets):
        raise BadInput("reset: give --topic (several are fine) or --all-topics, and not both")
    chosen = sorted(aim.offsets)
    if topics:
        scope = parse_scope(topics)
        there = {one for topic in brokers.topics(sorted(scope)).values() for one in topic.partitions}
        chosen = within(scope, there)
    elif all_topics:
        chosen = sorted(found)
    return [one for one in chosen if not aim.offsets or one in aim.offsets]


def _export_positions(of: Target, topics: Sequence[str], to: str) -> None:
    with opened(of) as store:
        found = _known_positions(store, of.group or "")
    chosen = within(parse_scope(topics), found) if topics else sorted(found)
    _write({one: found[one].next_offset for one in chosen}, to)


def _write(offsets: dict[Partition, int], to: str) -> None:
    text = write_offsets(offsets)
    if to == STDOUT:
        sys.stdout.write(text)
        return
    try:
        Path(to).write_text(text)
    except OSError as error:
        raise BadInput(f"--export {to} can't be written: {error.strerror}") from None


def _show(plan: Sequence[Planned], resetting: _Resetting, *, executed: bool, export: str | None, as_json: bool) -> None:
    if export is not None:
        _write({one.partition: one.new for one in plan if one.new is not None}, export)
    aside = export == STDOUT or as_json
    for one in plan:
        if one.warning:
            say(f"warning: {one.warning}", "yellow", aside=aside)
    if as_json and export != STDOUT:
        print(json.dumps(_as_json(plan, resetting, executed), indent=2))
    elif not aside:
        _print(plan, resetting, executed)


def _as_json(plan: Sequence[Planned], resetting: _Resetting, executed: bool) -> dict[str, Any]:
    return {
        "group": resetting.group,
        "option": resetting.aim.said,
        "by": resetting.by,
        "executed": executed,
        "held_by": [] if executed else sorted({str(one.owner) for one in resetting.in_the_way}),
        "partitions": [_line(one) for one in plan],
    }


def _line(planned: Planned) -> dict[str, Any]:
    return {
        "topic": planned.partition.topic,
        "partition": planned.partition.number,
        "current_offset": planned.current,
        "new_offset": planned.new,
        "wanted_offset": planned.wanted,
        "log_start_offset": planned.log.start,
        "log_end_offset": planned.log.end,
        "repeats": planned.repeats,
        "skips": planned.skips,
        "skips_gone": planned.gone,
    }


def _print(plan: Sequence[Planned], resetting: _Resetting, executed: bool) -> None:
    table = plain_table("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET", "MEANING", left=2)
    table.columns[-1].justify = "left"
    for one in plan:
        offsets = counted(one.current), counted(one.new)
        table.add_row(Text(resetting.group), one.partition.topic, str(one.partition.number), *offsets, one.words)
    print_table(table)
    moving = sum(one.changes for one in plan)
    if executed:
        say(f"{moving} of {len(plan)} partitions moved" if moving else "there was nothing to change", "green")
        return
    for position in resetting.in_the_way[:1]:
        say(
            f"{position.partition} is held by {position.owner}, which may be at work: stop it, or --take-over", "yellow"
        )
    say("nothing was changed: --execute does it" if moving else "there is nothing to change", "dim")
