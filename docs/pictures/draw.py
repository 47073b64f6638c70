"""Draws the pictures of the documentation as SVG, beside this file: ``python docs/pictures/draw.py``."""

from __future__ import annotations

from html import escape
from pathlib import Path

STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2328; }
.strong { font-weight: 600; } .small { font-size: 12px; } .code { font: 12px ui-monospace, monospace; }
.quiet { fill: #59636e; } .good { fill: #1a7f37; } .bad { fill: #cf222e; }
.box { fill: #f6f8fa; stroke: #8b949e; } .store { fill: #dafbe1; stroke: #1a7f37; } .wrong { fill: #ffebe9; stroke: #cf222e; }
.line { fill: none; stroke: #59636e; } .life { fill: none; stroke: #b6c2cf; stroke-dasharray: 3 4; }
.dead { fill: #fff8c5; stroke: #9a6700; } .none { fill: none; stroke: #8b949e; stroke-dasharray: 3 3; }
.head { fill: #59636e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .quiet { fill: #9198a1; } .good { fill: #3fb950; } .bad { fill: #f85149; }
  .box { fill: #21262d; stroke: #6e7681; } .store { fill: #12261e; stroke: #3fb950; } .wrong { fill: #2d1316; stroke: #f85149; }
  .line { stroke: #9198a1; } .life { stroke: #3d444d; }
  .dead { fill: #272115; stroke: #d29922; } .none { stroke: #6e7681; } .head { fill: #9198a1; }
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

    def cross(self, x: float, y: float) -> None:
        self.text(x, y + 7, "✕", "strong bad", "middle")

    def save(self, name: str) -> None:
        title = escape(self._title, quote=True)
        size = f'width="{self._width}" height="{self._height}" viewBox="0 0 {self._width} {self._height}"'
        start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">\n<title>{title}</title>'
        body = "\n".join(self._parts)
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


def crash() -> None:
    """Where a crash hurts: two commits, or one."""
    picture = Picture("A crash between two commits, and a crash around one", 760, 250)
    rows = (
        (50, "rows, then offsets", [("rows", "box"), ("offsets", "box")], "these rows are written again", "bad"),
        (110, "offsets, then rows", [("offsets", "box"), ("rows", "box")], "these rows are lost", "bad"),
        (170, "tallymark", [("rows and offsets", "store")], "both are there, or neither", "good"),
    )
    for y, name, steps, result, style in rows:
        picture.text(20, y + 20, name, "strong")
        x = 190
        for step, kind in steps:
            width = 110 if len(steps) == 2 else 280
            picture.label(x, y, width, 32, step, kind)
            x += width + 60
        picture.text(540, y + 20, result, style)
        if len(steps) == 2:
            picture.cross(330, y + 15)
        else:
            for place in (175, 250, 485):
                picture.cross(place, y + 15)
    picture.text(190, 34, "commits, in the order of time", "small quiet")
    picture.text(190, 232, "✕ a crash", "small bad")
    picture.save("crash.svg")


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
    picture = Picture("Every offset is counted once", 760, 250)
    log = (("lost", 2, "wrong"), ("applied", 5, "store"), ("dead", 1, "dead"), ("skipped", 3, "box"), ("absent", 1, "none"), ("applied", 2, "store"))
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
    picture.text(20, 212, "      7 +    1 +       3 +    2 +      1 = 114         - 100", "code")
    picture.save("counting.svg")


if __name__ == "__main__":
    protocol()
    crash()
    fencing()
    counting()
