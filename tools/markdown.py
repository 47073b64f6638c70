"""The parts of Markdown that the checks and the site need: links, anchors, and the text outside of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,}).*?^(?P=indent)(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n\n).)+?(?<!`)(?P=ticks)(?!`)", re.DOTALL)
LINK = re.compile(r"(?P<text>\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^()\s]*)\)")
REFERENCE = re.compile(r"\b(?:src|srcset|href)=\"(?P<target>[^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(?P<title>.+?) *$", re.MULTILINE)
NAMED = re.compile(r"<a id=\"([^\"]+)\">")


@dataclass(frozen=True)
class Link:
    line: int
    target: str

    @property
    def path(self) -> str:
        return self.target.partition("#")[0]

    @property
    def anchor(self) -> str:
        return self.target.partition("#")[2]

    @property
    def is_external(self) -> bool:
        return "://" in self.target or self.target.startswith("mailto:")


def without_code(text: str) -> str:
    """The text with blanks for code, so that positions and lines stay."""
    for code in (FENCE, INLINE):
        text = code.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return text


def links(text: str) -> Iterator[Link]:
    """The links of a page, and the files that its HTML names."""
    shown = without_code(text)
    for pattern in (LINK, REFERENCE):
        for match in pattern.finditer(shown):
            yield Link(shown.count("\n", 0, match.start()) + 1, match["target"])


def anchors(text: str) -> set[str]:
    """The anchors of a page, as GitHub and the site make them from its headings."""
    return {slug(match["title"]) for match in HEADING.finditer(FENCE.sub("", text))} | set(NAMED.findall(text))


def slug(title: str) -> str:
    """The anchor of a heading: its words in lower case, with hyphens, without other punctuation."""
    words = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", title).lower())
    return words.replace(" ", "-")


def heading(page: Path) -> str:
    """The title of a page."""
    match = HEADING.search(page.read_text())
    return match["title"] if match else page.name
