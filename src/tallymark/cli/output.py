"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

GAP = 2
SHORTEST = 5
WIDE = 10_000


def plain_table(*heads: str, left: int = 0) -> Table:
    """A table of aligned columns and nothing else, the first ``left`` of them text, the others numbers."""
    table = Table(*heads, box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column in table.columns[left:]:
        column.justify = "right"
    return table


def print_table(table: Table) -> None:
    """Print it in full: a cell that was cut to fit the window would be worse than a long line."""
    out = Console()
    needed = Measurement.get(out, out.options.update(max_width=WIDE), table).maximum
    Console(width=max(needed, out.width)).print(table, no_wrap=True, overflow="ignore", crop=False)


def whole_lines() -> Console:
    """What is not for a terminal has lines as long as they have to be."""
    out = Console()
    return out if out.is_terminal else Console(width=WIDE, soft_wrap=True)


@dataclass(frozen=True)
class FittedTable:
    """A table that leaves out whole columns where the terminal is narrow, those of ``dispensable`` in that order.

    Numbers are never cut; of the first column, a text, the end may go where it takes more than a third of the width.
    What is not for a terminal is whole.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    dispensable: Sequence[str]
    styles: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        heads = self.fitting(options.max_width) if console.is_terminal else list(self.heads)
        numbers = [self.heads.index(head) for head in heads]
        room = options.max_width - self._needed(heads[1:]) - GAP
        table = plain_table(*heads, left=1)
        for row, style in zip(self.rows, self.styles, strict=True):
            first = _shortened(row[0], room) if console.is_terminal else row[0]
            table.add_row(*(Text(first if n == 0 else row[n]) for n in numbers), style=style)
        yield table
        if len(heads) < len(self.heads):
            left_out = (
                f"{len(self.heads) - len(heads)} columns left out: {self._needed(self.heads)} characters show all"
            )
            yield Text(left_out, style="dim")

    def fitting(self, width: int) -> list[str]:
        """The columns for a terminal of this width."""
        heads, dispensable = list(self.heads), list(self.dispensable)
        first = min(self._width(heads[0]), width // 3)
        while dispensable and first + GAP + self._needed(heads[1:]) > width:
            heads.remove(dispensable.pop(0))
        return heads

    def _needed(self, heads: Sequence[str]) -> int:
        return sum(map(self._width, heads)) + GAP * (len(heads) - 1)

    def _width(self, head: str) -> int:
        number = self.heads.index(head)
        return max(len(head), *(len(row[number]) for row in self.rows))


def _shortened(text: str, room: int) -> str:
    room = max(room, SHORTEST)
    return text if len(text) <= room else f"{text[: room - 1]}…"
