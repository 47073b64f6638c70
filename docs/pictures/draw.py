"""Draws the pictures of the documentation as SVG, beside this file: ``python docs/pictures/draw.py``."""

from __future__ import annotations

from html import escape
from pathlib import Path

STYLE = """
  .page { fill: #ffffff; stroke: #d0d7de } .box { fill: #f6f8fa; stroke: #8c959f }
  .store { fill: #e6f6f1; stroke: #087f5b } .wrong { fill: #ffebe9; stroke: #b42318 }
  .dead { fill: #fff8c5; stroke: #9a6700 }
  .none { fill: none; stroke: #8c959f; stroke-dasharray: 3 3 }
  .life { fill: none; stroke: #b6c2cf; stroke-dasharray: 3 4 }
  .line { fill: none; stroke: #57606a } .head { fill: #57606a }
  text { font: 14px system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif; fill: #1f2328 }
  .strong { font-weight: 600 } .small { font-size: 12.5px }
  .code { font: 12.5px ui-monospace, Menlo, Consolas, monospace }
  .quiet { fill: #57606a } .bad { fill: #b42318 } .good { fill: #087f5b }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #30363d } .box { fill: #21262d; stroke: #8b949e }
    .store { fill: #0b2f26; stroke: #5ad1a8 } .wrong { fill: #2d1316; stroke: #ff8a80 }
    .dead { fill: #272115; stroke: #d29922 }
    .none { stroke: #8b949e } .life { stroke: #3d444d } .line { stroke: #9da7b3 } .head { fill: #9da7b3 }
    text { fill: #e6edf3 } .quiet { fill: #9da7b3 } .bad { fill: #ff8a80 } .good { fill: #5ad1a8 }
  }
"""


class Picture:
    """Collects the elements of one SVG. Coordinates are pixels from the upper left corner."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._title, self._width, self._height = title, width, height
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, style: str = "", anchor: str = "start") -> None:
        self._parts.append(f'<text class="{style}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, style: str = "box") -> None:
        self._parts.append(f'<rect class="{style}" x="{x}" y="{y}" width="{width}" height="{height}" rx="4"/>')

    def label(self, x: float, y: float, width: float, height: float, words: str, style: str = "box") -> None:
        self.box(x, y, width, height, style)
        self.text(x + width / 2, y + height / 2 + 5, words, "small", "middle")

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str = "line") -> None:
        self._parts.append(f'<path class="{style}" d="M{x1} {y1}L{x2} {y2}"/>')

    def arrow(self, x1: float, y: float, x2: float, words: str, style: str = "small") -> None:
        """Draw a message from x1 to x2, with its words above."""
        step = 7 if x2 > x1 else -7
        self.line(x1, y, x2 - step, y)
        self._parts.append(f'<path class="head" d="M{x2} {y}l{-step} -4v8z"/>')
        self.text((x1 + x2) / 2, y - 6, words, style, "middle")

    def save(self, name: str) -> None:
        title = escape(self._title, quote=True)
        size = f'width="{self._width}" height="{self._height}" viewBox="0 0 {self._width} {self._height}"'
        start = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">\n<title>{title}</title>'
        )
        page = f'<rect class="page" x="0.5" y="0.5" width="{self._width - 1}" height="{self._height - 1}" rx="8"/>'
        body = "\n".join([page, *self._parts])
        (Path(__file__).parent / name).write_text(f"{start}\n<style>{STYLE}</style>\n{body}\n</svg>\n")


def protocol() -> None:
    """The messages of one batch."""
    picture = Picture("One batch: Kafka, a run, the database", 760, 560)
    kafka, run, store = 90, 380, 670
    for x, name in ((kafka, "Kafka"), (run, "a run"), (store, "your database")):
        picture.box(x - 75, 16, 150, 32)
        picture.text(x, 37, name, "strong", "middle")
        picture.line(x, 48, x, 544, "life")
    picture.arrow(kafka, 84, run, "you are assigned orders[0]")
    picture.arrow(run, 118, store, "claim orders[0]: epoch 4 becomes 5")
    picture.arrow(store, 148, run, "the position: 8200")
    picture.arrow(run, 186, kafka, "records from 8200 on?")
    picture.arrow(kafka, 216, run, "8200 to 8699")
    picture.text(run + 14, 244, "decode, compute, count", "small quiet")
    picture.box(run - 12, 262, store - run + 88, 196, "store")
    picture.text(run + 4, 282, "one transaction", "small strong good")
    for y, words in (
        (308, "BEGIN"),
        (342, "the rows of every table"),
        (376, "dead letters, history, tally"),
        (410, "position 8200 becomes 8700, if epoch = 5"),
        (444, "COMMIT"),
    ):
        picture.arrow(run, y, store, words)
    picture.arrow(store, 488, run, "done")
    picture.text(run - 22, 412, "no row matched?", "small quiet", "end")
    picture.text(run - 22, 430, "ROLLBACK: another owner", "small quiet", "end")
    picture.text(run - 22, 448, "has claimed orders[0]", "small quiet", "end")
    picture.text(run - 22, 492, "no answer? ask the database", "small quiet", "end")
    picture.text(run - 22, 510, "which position it has", "small quiet", "end")
    picture.text(run + 14, 528, "the next batch begins at 8700", "small quiet")
    picture.save("protocol.svg")


def fencing() -> None:
    """Two owners of one partition, and the epoch that decides."""
    picture = Picture("An owner that was disconnected can't commit", 760, 430)
    first, store, second = 130, 380, 630
    for x, name in ((first, "run A"), (store, "the row of orders[0]"), (second, "run B")):
        picture.box(x - 85, 16, 170, 32)
        picture.text(x, 37, name, "strong", "middle")
        picture.line(x, 48, x, 414, "life")
    picture.arrow(first, 84, store, "claim")
    picture.label(store - 75, 94, 150, 28, "epoch 4, position 8000", "store")
    picture.arrow(first, 150, store, "commit with epoch 4")
    picture.label(store - 75, 160, 150, 28, "epoch 4, position 8200", "store")
    picture.label(first - 75, 200, 150, 66, "", "wrong")
    picture.text(first, 228, "frozen, or cut off;", "small", "middle")
    picture.text(first, 246, "its batch is in memory", "small", "middle")
    picture.arrow(second, 222, store, "claim")
    picture.label(store - 75, 232, 150, 28, "epoch 5, position 8200", "store")
    picture.arrow(second, 290, store, "commit with epoch 5")
    picture.label(store - 75, 300, 150, 28, "epoch 5, position 8700", "store")
    picture.arrow(first, 360, store, "commit with epoch 4")
    picture.text(store + 14, 364, "no row matches: rolled back, Fenced", "small bad")
    picture.text(store, 400, "8200 to 8699 are in the tables once", "small strong good", "middle")
    picture.save("fencing.svg")


def counting() -> None:
    """The log of one partition, and what became of each offset."""
    picture = Picture("Every offset is counted once", 760, 234)
    log = (
        ("lost", 2, "wrong"),
        ("applied", 5, "store"),
        ("dead", 1, "dead"),
        ("skipped", 3, "box"),
        ("absent", 1, "none"),
        ("applied", 2, "store"),
    )
    x, offset, size = 20.0, 100, 40
    names: list[tuple[float, float, str]] = []
    for outcome, number, style in log:
        start = x
        for _ in range(number):
            picture.box(x, 70, size - 4, 40, style)
            picture.text(x + size / 2 - 2, 95, str(offset), "small", "middle")
            x, offset = x + size, offset + 1
        names.append((start, x, outcome))
    for start, end, outcome in names:
        picture.text((start + end) / 2 - 2, 132, outcome, "small quiet", "middle")
    picture.box(x, 70, size - 4, 40, "none")
    picture.text(x + size / 2 - 2, 95, str(offset), "small quiet", "middle")
    picture.text(x + 50, 95, "unread …", "small quiet")
    picture.text(20, 46, "first_offset = 100", "code")
    picture.line(22, 52, 22, 68)
    picture.text(x + 2, 46, f"next_offset = {offset}", "code")
    picture.line(x + 2, 52, x + 2, 68)
    picture.text(20, 186, "applied + dead + skipped + lost + absent = next_offset - first_offset", "code")
    picture.text(20, 212, "7 + 1 + 3 + 2 + 1 = 114 - 100", "code")
    picture.save("counting.svg")


if __name__ == "__main__":
    protocol()
    fencing()
    counting()
