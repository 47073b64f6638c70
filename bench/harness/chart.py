"""A bar for each contender, as an SVG that is readable on white and on black, made without any library."""

from __future__ import annotations

from collections.abc import Collection
from xml.sax.saxutils import escape

from bench.harness.race import Outcome, Result, spread
from bench.harness.report import thousands

WIDTH, LABELS, VALUES = 900, 330, 130
"""Pixels: of all, left of the bars, and right of them."""
LINE, BAR, TOP, BOTTOM = 26, 16, 56, 34
LETTER = 7.2
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-size: 16px; font-weight: 600; }
.quiet { fill: #59636e; font-size: 12px; }
.bar { fill: #8b949e; } .ours { fill: #1a7f37; } .limit { fill: #b6c2cf; } .whisker { stroke: #1f2328; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .quiet { fill: #9198a1; }
  .bar { fill: #6e7681; } .ours { fill: #3fb950; } .limit { fill: #3d444d; } .whisker { stroke: #e6edf3; }
}
"""


def chart(outcome: Outcome, ours: Collection[str], limits: Collection[str] = ()) -> str:
    """All contenders, the fastest first; ours and the limits in colours of their own."""
    results = sorted(outcome.results.values(), key=lambda result: -result.median)
    most = max((max(result.rates) for result in results), default=1.0)
    height = TOP + LINE * len(results) + BOTTOM
    title = f"{outcome.title}, {outcome.records:,} records"
    bars = [
        _bar(result, TOP + LINE * number, most, _kind(result.name, ours, limits))
        for number, result in enumerate(results)
    ]
    legend = "thousands of records a second; green: tallymark, pale: limits; the line is the spread of the rounds"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{_attribute(title)}">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f'<text class="title" x="12" y="28">{escape(title)}</text>',
            *bars,
            f'<text class="quiet" x="12" y="{height - 12}">{escape(legend)}</text>',
            "</svg>",
            "",
        ]
    )


def _bar(result: Result, y: int, most: float, kind: str) -> str:
    median, least, highest = spread(result.rates)
    scale = (WIDTH - LABELS - VALUES) / most
    ends = [LABELS + rate * scale for rate in (median, least, highest)]
    middle = y + BAR / 2
    return (
        f'<text x="{LABELS - 10}" y="{y + 13}" text-anchor="end">{escape(_shortened(result.name))}</text>'
        f'<rect class="{kind}" x="{LABELS}" y="{y}" width="{max(1.0, ends[0] - LABELS):.1f}" height="{BAR}" rx="2"/>'
        f'<line class="whisker" x1="{ends[1]:.1f}" y1="{middle}" x2="{ends[2]:.1f}" y2="{middle}"/>'
        f'<text x="{ends[2] + 8:.1f}" y="{y + 13}">{thousands(median)}</text>'
    )


def _kind(name: str, ours: Collection[str], limits: Collection[str]) -> str:
    return "ours" if name in ours else "limit" if name in limits else "bar"


def _shortened(name: str) -> str:
    most = int((LABELS - 20) / LETTER)
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _attribute(text: str) -> str:
    return escape(text, {'"': "&quot;"})
