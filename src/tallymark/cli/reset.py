"""``tallymark reset``: show where positions would move and what that repeats or skips, and move them."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tallymark.cli.output import Rows, note, say, show, show_json
from tallymark.cli.target import AsJson, Execute, Reason, TakeOver, Target, operator, targeted
from tallymark.core.durations import parse_duration
from tallymark.core.spans import Partition
from tallymark.errors import BadInput
from tallymark.operate.emptying import Consent
from tallymark.operate.moves import Resetting, positions_of
from tallymark.operate.repeats import UNKNOWN_TABLES
from tallymark.operate.reset import Aim, Planned, before_now, parse_moment, parse_scope, within
from tallymark.operate.takeover import read_offsets, write_offsets

STDOUT = "-"
REPEATED, EMPTIED = ("TABLE", "WRITE", "MEANING"), ("TABLE", "WRITE", "ROWS", "MEANING")
COLUMNS = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET", "MEANING")

Topics = Annotated[list[str] | None, typer.Option("--topic", "-t", help="A topic, or partitions of it: orders:0,3.")]
AllTopics = Annotated[bool, typer.Option("--all-topics", help="All partitions that the group has a position of.")]
Earliest = Annotated[bool, typer.Option("--to-earliest", help="To the start of the log.")]
Latest = Annotated[bool, typer.Option("--to-latest", help="To the end of what can be read now.")]
Offset = Annotated[int | None, typer.Option("--to-offset", help="To this offset.")]
Moment = Annotated[
    str | None, typer.Option("--to-datetime", help="To the first record of this time or later; UTC without a zone.")
]
Duration = Annotated[
    str | None, typer.Option("--by-duration", help="To the first record of the last 1h30m, 15m or 2d.")
]
Shift = Annotated[int | None, typer.Option("--shift-by", help="By this number of offsets; back if negative.")]
Current = Annotated[bool, typer.Option("--to-current", help="To the position, or the nearest offset of the log.")]
FromFile = Annotated[Path | None, typer.Option("--from-file", help="To the offsets in this CSV file; - is stdin.")]
Repeat = Annotated[
    bool, typer.Option("--repeat", help="Even if appended rows will be there twice, and totals be added again.")
]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="Delete all rows of the group's tables in the same transaction.")
]
Lose = Annotated[
    int | None, typer.Option("--lose", min=0, help="With --truncate: although Kafka has deleted so many offsets.")
]
Export = Annotated[
    str | None, typer.Option("--export", help="Write the new or else the present offsets as CSV; - is stdout.")
]


@targeted()
def reset(
    target: Target,
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
    repeat: Repeat = False,
    truncate: Truncate = False,
    lose: Lose = None,
    execute: Execute = False,
    take_over: TakeOver = False,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Show where positions would move and what that repeats or skips; with --execute, move them.

    Skipped records can be read later, by tallymark backfill. Repeated records are written again: upserts go back to
    older values until the group has caught up, appended rows are there twice, and totals count them twice, which needs
    --repeat. All partitions move in one transaction; with --truncate, all rows of the group's tables are deleted in it,
    and the group starts over.
    """
    group, topics, consent = target.group, topic or [], Consent(repeat, truncate, lose)
    aims = {
        "--to-earliest": to_earliest,
        "--to-latest": to_latest,
        "--to-offset": to_offset,
        "--to-datetime": to_datetime,
        "--by-duration": by_duration,
        "--shift-by": shift_by,
        "--to-current": to_current,
        "--from-file": from_file,
    }
    given = {option: value for option, value in aims.items() if value is not None and value is not False}
    if export is not None and not given:
        _export_positions(target, topics, export)
        return
    option, value = only_one("reset", given, aims)
    aim = _aim(option, value, group)
    with target.ledger() as store:
        resetting = Resetting(store, group, target.brokers, aim, topics, all_topics=all_topics)
        by, effects = operator(), _effects(resetting, truncate=truncate)
        refused = None if execute else resetting.refusal(consent)
        plan = resetting.preview
        if execute:
            plan = resetting.execute(by, reason, take_over=take_over, consent=consent)
        held = [] if execute else resetting.busy
    if export is not None:
        _write({one.partition: one.new for one in plan if one.new is not None}, export)
    warn = note if export == STDOUT or as_json else say
    for one in plan:
        if one.warning:
            warn(f"warning: {one.warning}", "yellow")
    rows = [_row(one) for one in plan]
    if as_json and export != STDOUT:
        owners = sorted({str(one.owner) for one in held})
        facts = {"group": group, "option": aim.said, "by": by, "executed": execute, "held_by": owners}
        show_json({**facts, "refused": refused, "partitions": rows, "tables": effects})
    elif export != STDOUT:
        meanings = [{"group": group, "meaning": one.words} for one in plan]
        show(Rows(COLUMNS, [row | more for row, more in zip(rows, meanings, strict=True)]))
        if effects:
            show(Rows(EMPTIED if truncate else REPEATED, effects))
        elif any(one.repeats for one in plan):
            say(UNKNOWN_TABLES, "yellow")
        for position in held[:1]:
            words = f"{position.partition} is held by {position.owner}, which may be at work: stop it, or --take-over"
            say(words, "yellow")
        if refused:
            say(f"--execute would be refused: {refused}", "yellow")
            return
        emptied = f", {len(effects)} tables emptied" if truncate else ""
        # The tables may have rows although no position changes.
        changed = sum(one.changes for one in plan)
        show_result(changed or truncate, f"of {len(plan)} partitions moved{emptied}", executed=execute)


def _effects(resetting: Resetting, *, truncate: bool) -> list[dict[str, Any]]:
    """What happens to each table that the ledger knows: how many rows are deleted, or else repeated."""
    if truncate:
        counts = resetting.row_counts()
        return [
            {"table": table.name, "write": table.write, "rows": counts.get(table.name, 0), "meaning": "deleted"}
            for table in resetting.tables
        ]
    return [
        {"table": each.table.name, "write": each.table.write, "meaning": each.words}
        | {"rows_repeated": each.rows, "offsets_not_in_history": each.unknown}
        for each in resetting.repeated()
    ]


def only_one(command: str, given: Mapping[str, Any], options: Sequence[str] | Mapping[str, Any]) -> tuple[str, Any]:
    """The one option that was given."""
    if len(given) != 1:
        what = f"{' and '.join(given)} exclude each other" if given else "nothing says where to"
        raise BadInput(f"{command}: {what}; give one of {', '.join(options)}")
    return next(iter(given.items()))


def show_result(changed: int, done: str, *, executed: bool) -> None:
    if executed:
        say(f"{changed} {done}" if changed else "there was nothing to change", "green")
    else:
        say("nothing was changed: --execute does it" if changed else "there is nothing to change", "dim")


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


def _export_positions(target: Target, topics: Sequence[str], to: str) -> None:
    with target.ledger() as store:
        found = positions_of(store, target.group)
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


def _row(planned: Planned) -> dict[str, Any]:
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
