"""Prints results as tables or as JSON, and everything else that a command says."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import date, datetime
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tallymark.cli.logs import is_json, write_line
from tallymark.cli.values import printable

FOUND, FAILED, INTERRUPTED = 1, 2, 130
"""Exit codes: what it looked at is wrong; it could not do its work; Ctrl-C, unless that ends a run after its batch."""

GAP = 2
SHORTEST = 5
WIDE = 10_000

Row = Mapping[str, Any]
"""A line of a table. The column CURRENT-OFFSET shows the value of ``current_offset``, and TIME:at that of ``at``."""


@dataclass(frozen=True)
class Rows:
    """A table. Columns of numbers are aligned to the right.

    A narrow terminal shows fewer columns: those of ``dispensable`` are left out, in that order. Numbers are never cut;
    the first column is cut if it takes more than a third of the width. Without ``dispensable``, and where the output is
    not a terminal, the table is complete.
    """

    heads: Sequence[str]
    rows: Sequence[Row]
    dispensable: Sequence[str] = ()
    styles: Sequence[str] | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [Column(*_named(head), self.rows) for head in self.heads]
        shown = self._fitting(columns, options.max_width) if self.dispensable and console.is_terminal else columns
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        for column in shown:
            table.add_column(column.head, justify="right" if column.is_number else "left", no_wrap=True)
        for number, cells in enumerate(zip(*(column.cells for column in shown), strict=True)):
            table.add_row(*cells, style=self.styles[number] if self.styles else None)
        needed = Measurement.get(console, options.update(max_width=WIDE), table).maximum
        yield from console.render(table, options.update(max_width=max(needed, options.max_width)))
        if len(shown) < len(columns):
            hidden = len(columns) - len(shown)
            yield Text(f"{hidden} columns left out: {_width(columns)} characters show all", style="dim")

    def _fitting(self, columns: Sequence[Column], width: int) -> list[Column]:
        shown, dispensable = list(columns), list(self.dispensable)
        first = min(columns[0].width, width // 3)
        while dispensable and first + GAP + _width(shown[1:]) > width:
            shown = [column for column in shown if column.head != dispensable[0]]
            dispensable.pop(0)
        room = max(SHORTEST, width - _width(shown[1:]) - GAP)
        shown[0].cells = [one if len(one) <= room else one[: room - 1] + "…" for one in shown[0].cells]
        return shown


class Column:
    def __init__(self, head: str, key: str, rows: Sequence[Row]) -> None:
        values = [row[key] for row in rows]
        self.head, self.cells = head, [cell(value) for value in values]
        self.is_number = any(one is not None for one in values) and all(
            isinstance(one, int | float | None) for one in values
        )

    @property
    def width(self) -> int:
        return max([len(self.head), *map(len, self.cells)])


def _named(head: str) -> tuple[str, str]:
    name, _, key = head.partition(":")
    return name, key or name.lower().replace("-", "_")


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)


def cell(value: Any) -> Text:
    """A value as it is shown in a table."""
    match value:
        case Text():
            return value
        case None:
            return Text("-")
        case datetime():
            return Text(f"{value:%Y-%m-%d %H:%M:%S} UTC")
        case float():
            return Text(f"{value:.1f}")
    return Text(printable(str(value)))


def show(*parts: RenderableType) -> None:
    """Print to stdout. Lines are as long as they have to be."""
    out = Console()
    if not out.is_terminal:
        out = Console(width=WIDE)
    for part in parts:
        out.print(part, crop=False, soft_wrap=isinstance(part, str), highlight=False, markup=False)


def show_json(value: Any, *, indent: int | None = 2) -> None:
    print(json.dumps(value, indent=indent, default=plain))


def plain(value: Any) -> Any:
    """A value for JSON: times as ISO 8601, bytes as hexadecimal digits, dataclasses as objects, and others as text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime | date):
        return value.isoformat()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def say(words: str, style: str | None = None) -> None:
    """Print a line to stdout that is never wrapped."""
    Console(soft_wrap=True).print(words, style=style, highlight=False, markup=False)


def note(words: str, style: str | None = None) -> None:
    """Print a line to stderr that is never wrapped."""
    Console(stderr=True, soft_wrap=True).print(words, style=style, highlight=False, markup=False)


def report(words: str) -> None:
    """Write an error to stderr, in the format of the log."""
    if is_json():
        write_line(logging.ERROR, "%s", words)
    else:
        shown = "\n".join(map(printable, words.split("\n")))
        Console(stderr=True, soft_wrap=True).print(Text.assemble(("error:", "red"), f" {shown}"), highlight=False)
