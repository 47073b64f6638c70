"""Tables on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


def plain_table(*heads: str, left: int = 0) -> Table:
    """A table of aligned columns and nothing else, the first ``left`` of them text, the others numbers."""
    table = Table(*heads, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in table.columns[left:]:
        column.justify = "right"
    return table


def print_table(table: Table) -> None:
    """Print it in full: a cell that was cut to fit the window would be worse than a long line."""
    out = Console()
    needed = Measurement.get(out, out.options.update(max_width=10_000), table).maximum
    Console(width=max(needed, out.width)).print(table, no_wrap=True, overflow="ignore", crop=False)
