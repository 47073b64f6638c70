"""Which dead letters a command is about, and what they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

from tallymark.core.batch import alike
from tallymark.core.durations import parse_duration
from tallymark.core.journal import DEAD, LETTER_STATES, Letter, LetterQuery
from tallymark.errors import BadInput
from tallymark.operate.reset import before_now, parse_moment

Topic = Annotated[str | None, typer.Option("--topic", help="Only of this topic.")]
PartitionOption = Annotated[int | None, typer.Option("--partition", help="Only of this partition.")]
ErrorText = Annotated[str | None, typer.Option("--error", help="Only those whose error has this text in it.")]
Table = Annotated[str | None, typer.Option("--table", help="Only those that this table refused.")]
Since = Annotated[str | None, typer.Option("--since", help="Only those that died since then: a time, or 2h for ago.")]
Execute = Annotated[bool, typer.Option("--execute", help="Do it; without, it only shows which.")]
Until = Annotated[str | None, typer.Option("--until", help="Only those that died before: a time, or 2h for ago.")]
State = Annotated[str, typer.Option("--state", help=f"{', '.join(LETTER_STATES)}, or all.")]


def choice(
    group: str | None,
    topic: str | None = None,
    partition: int | None = None,
    error: str | None = None,
    table: str | None = None,
    since: str | None = None,
    until: str | None = None,
    ids: Sequence[str] | None = None,
    state: str = DEAD,
) -> LetterQuery:
    """What the options choose."""
    if state not in (*LETTER_STATES, "all"):
        raise BadInput(f"--state {state} is not known; write {', '.join(LETTER_STATES)} or all")
    states = None if state == "all" else (state,)
    times = moment_or_ago(since, "--since"), moment_or_ago(until, "--until")
    return LetterQuery(group, topic, partition, states, error, table, *times, list(ids) if ids else None)


def moment_or_ago(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    # A plain number is the date 20260131 rather than a number of seconds.
    if not text.isdecimal():
        with suppress(BadInput):
            return before_now(parse_duration(text, option))
    try:
        return parse_moment(text)
    except BadInput as error:
        raise BadInput(f"{option}: {error}, or 2h for two hours ago") from None


@dataclass
class Kind:
    """Letters whose errors differ in numbers, such as offsets and lines, or in the value of a field only."""

    error: str
    count: int
    first: datetime
    last: datetime

    def as_json(self) -> dict[str, Any]:
        times = {"first": self.first.isoformat(), "last": self.last.isoformat()}
        return {"error": self.error, "count": self.count, **times}


def kinds(letters: Iterable[Letter]) -> list[Kind]:
    """The most frequent first, each with the words of its first letter."""
    found: dict[str, Kind] = {}
    for letter in letters:
        at, error = letter.recorded_at, letter.record.error
        kind = found.setdefault(alike(error), Kind(error, 0, at, at))
        kind.count += 1
        kind.first, kind.last = min(kind.first, at), max(kind.last, at)
    return sorted(found.values(), key=lambda kind: -kind.count)
