"""Runs a command and draws what it prints as an SVG: ``python -m tools.terminal demo.svg -- tallymark demo``.

The lines appear in their order, with pauses of at most a second and a half. Where nothing moves, all lines are shown.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path

COLUMNS, LINE, CHARACTER, MARGIN, BAR = 112, 19, 7.85, 18, 34
LONGEST_PAUSE = 1.5
STYLE = """
  .screen { fill: #f6f8fa; stroke: #d0d7de } .bar { fill: #d0d7de }
  text { fill: #1f2328; white-space: pre }
  text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace }
  .command { font-weight: bold } .bad { fill: #b42318 } .good { fill: #087f5b }
  .line { animation: show 0.05s linear both } @keyframes show { from { opacity: 0.2 } to { opacity: 1 } }
  @media (prefers-color-scheme: dark) {
    .screen { fill: #161b22; stroke: #30363d } .bar { fill: #30363d } text { fill: #e6edf3 }
    .bad { fill: #ff8a80 } .good { fill: #5ad1a8 }
  }
  @media (prefers-reduced-motion) { .line { animation: none } }
"""


@dataclass(frozen=True)
class Printed:
    seconds: float
    """Since the command began."""
    text: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("picture", type=Path)
    parser.add_argument("command", nargs="+")
    chosen = parser.parse_args()
    printed = record(chosen.command)
    chosen.picture.write_text(draw(" ".join(chosen.command), printed))


def record(command: list[str]) -> list[Printed]:
    """What the command prints, line by line. Ends the program if the command fails."""
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        printed = [Printed(time.monotonic() - began, line.rstrip()) for line in process.stdout]
    if process.returncode:
        sys.exit(f"{command[0]} ended with exit code {process.returncode}")
    return printed


def draw(command: str, printed: list[Printed]) -> str:
    rows = [Printed(0, f"$ {command}"), *(part for line in printed for part in wrapped(line))]
    width, height = round(2 * MARGIN + COLUMNS * CHARACTER), BAR + MARGIN + LINE * len(rows)
    shown, clock, last = [], 0.0, 0.0
    for number, row in enumerate(rows):
        clock += min(row.seconds - last, LONGEST_PAUSE)
        last = row.seconds
        shown.append(
            f'<g class="line" style="animation-delay: {clock:.2f}s"><text x="{MARGIN}" y="{BAR + LINE * (number + 1)}"'
            f' class="{kind(row.text)}" xml:space="preserve">{escape(row.text, quote=False)}</text></g>'
        )
    dots = "".join(f'<circle class="bar" cx="{MARGIN + 18 * n}" cy="17" r="5"/>' for n in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="The output of {escape(command)}">\n<style>{STYLE}</style>\n'
        f'<rect class="screen" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>{dots}\n'
        + "\n".join(shown)
        + "\n</svg>\n"
    )


def wrapped(line: Printed) -> list[Printed]:
    """The line in parts that are not wider than the screen."""
    parts = [line.text] if len(line.text) <= COLUMNS else textwrap.wrap(line.text, COLUMNS)
    return [Printed(line.seconds, part) for part in parts]


def kind(text: str) -> str:
    """The class of a line by its words, which gives it its colour."""
    if text.startswith("$ "):
        return "command"
    if "SIGKILL" in text:
        return "bad"
    return "good" if text.endswith("holds") or "exactly once" in text else "plain"


if __name__ == "__main__":
    main()
