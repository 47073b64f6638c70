"""Draws an SVG that is readable on light and on dark pages."""

from __future__ import annotations

from html import escape

STYLE = """
  .page { fill: #ffffff; stroke: #d0d7de } .box { fill: #f6f8fa; stroke: #8c959f }
  .store { fill: #e6f6f1; stroke: #087f5b } .wrong { fill: #ffebe9; stroke: #b42318 }
  .crash { fill: none; stroke: #b42318; stroke-width: 2.5 }
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
    .crash { stroke: #ff8a80 }
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
        self.path(f"M{x1} {y1}L{x2} {y2}", style)

    def arrow(self, x1: float, y: float, x2: float, words: str, style: str = "small") -> None:
        """Draw a message from x1 to x2, with its words above."""
        step = 7 if x2 > x1 else -7
        self.line(x1, y, x2 - step, y)
        self.path(f"M{x2} {y}l{-step} -4v8z", "head")
        self.text((x1 + x2) / 2, y - 6, words, style, "middle")

    def path(self, shape: str, style: str) -> None:
        self._parts.append(f'<path class="{style}" d="{shape}"/>')

    def __str__(self) -> str:
        title = escape(self._title, quote=True)
        size = f'width="{self._width}" height="{self._height}" viewBox="0 0 {self._width} {self._height}"'
        start = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">\n<title>{title}</title>'
        )
        page = f'<rect class="page" x="0.5" y="0.5" width="{self._width - 1}" height="{self._height - 1}" rx="8"/>'
        body = "\n".join([page, *self._parts])
        return f"{start}\n<style>{STYLE}</style>\n{body}\n</svg>\n"
