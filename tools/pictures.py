"""Draws the pictures of the documentation, for light and dark pages: ``python -m tools.pictures``."""

from __future__ import annotations

from dataclasses import dataclass

from tools.markdown import ROOT

PICTURES = ROOT / "docs" / "pictures"
STYLE = """
  .page { fill: #ffffff; stroke: #d0d7de } .box { fill: #f6f8fa; stroke: #8c959f }
  .frame { fill: #e6f6f1; stroke: #087f5b }
  .crash { stroke: #b42318; stroke-width: 2.5; fill: none }
  text { font: 14px system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif; fill: #1f2328 }
  .title { font-weight: 600 } .small { font-size: 12.5px; fill: #57606a } .middle { text-anchor: middle }
  .bad { fill: #b42318; font-weight: 600 } .good { fill: #087f5b; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #30363d } .box { fill: #21262d; stroke: #8b949e }
    .frame { fill: #0b2f26; stroke: #5ad1a8 }
    .crash { stroke: #ff8a80 } text { fill: #e6edf3 }
    .small { fill: #9da7b3 } .bad { fill: #ff8a80 } .good { fill: #5ad1a8 }
  }
"""


@dataclass(frozen=True)
class Row:
    title: str
    first: str
    second: str
    result: str
    detail: str
    is_one_transaction: bool = False


HEADING = "A crash between saving the rows and saving the offsets"
LABEL = "What a crash does to two steps, and to one transaction"
CRASH = (
    Row(
        "Rows first", "rows of 100 to 199", "next offset: 200", "100 records repeated", "the next run reads them again"
    ),
    Row("Offsets first", "next offset: 200", "rows of 100 to 199", "100 records lost", "the next run begins at 200"),
    Row(
        "tallymark",
        "rows of 100 to 199",
        "next offset: 200",
        "nothing lost or repeated",
        "both rolled back, read again",
        is_one_transaction=True,
    ),
)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "one-transaction.svg").write_text(crash())
    (PICTURES / "one-transaction-narrow.svg").write_text(narrow_crash())


def crash() -> str:
    """A crash between two steps, in either order, and inside one transaction."""
    shapes = [text(24, 34, HEADING, "title")]
    for number, row in enumerate(CRASH):
        top = 58 + 88 * number
        shapes += [text(24, top + 38, row.title, "title"), *_steps(row, 136, top)]
        shapes += _outcome(row, 582, top + 31)
    return picture(820, 336, LABEL, shapes)


def narrow_crash() -> str:
    """The same for a telephone."""
    shapes = []
    for number, row in enumerate(CRASH):
        top = 44 + 156 * number
        shapes += [text(16, top - 12, row.title, "title"), *_steps(row, 8, top)]
        shapes += _outcome(row, 22, top + 94)
    return picture(440, 490, LABEL, shapes)


def _steps(row: Row, left: int, top: int) -> list[str]:
    """The two steps with the crash in between, in a frame if they are one transaction."""
    steps = [*box(left + 14, top + 12, row.first), *bolt(left + 212, top + 9), *box(left + 244, top + 12, row.second)]
    if not row.is_one_transaction:
        return steps
    frame = f'<rect class="frame" x="{left}" y="{top}" width="424" height="72" rx="8"/>'
    return [frame, text(left + 212, top + 67, "one transaction", "small middle"), *steps]


def _outcome(row: Row, x: int, y: int) -> list[str]:
    kind = "good" if row.is_one_transaction else "bad"
    return [text(x, y, row.result, kind), text(x, y + 20, row.detail, "small")]


def box(x: int, y: int, label: str) -> list[str]:
    return [
        f'<rect class="box" x="{x}" y="{y}" width="166" height="38" rx="6"/>',
        text(x + 83, y + 24, label, "middle"),
    ]


def bolt(x: int, y: int) -> list[str]:
    """The crash."""
    return [f'<path class="crash" d="M {x + 6} {y} l -12 22 h 12 l -12 22"/>']


def text(x: int, y: int, words: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{words}</text>'


def picture(width: int, height: int, label: str, shapes: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{label}">\n<style>{STYLE}</style>\n'
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    main()
