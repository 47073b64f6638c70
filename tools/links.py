"""Checks that every link of the documentation leads to a file and a heading that exist: ``python -m tools.links``.

Pages that comments and docstrings of the code name, as ``docs/reference/json.md``, have to exist, too. Links to other
hosts are not followed: the check needs no network.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.markdown import ROOT, Link, anchors, links

CODE = (".py", ".java", ".lua", ".yml", ".toml")
MENTION = re.compile(r"\bdocs/[\w/-]+\.md\b")


def main() -> None:
    broken = [*broken_links(ROOT), *unknown_mentions(ROOT)]
    for sentence in broken:
        print(sentence)
    sys.exit(bool(broken))


def broken_links(root: Path) -> Iterator[str]:
    for page in _files(root, ".md"):
        for link in links(page.read_text()):
            if not link.is_external and (why := _broken(page, link, root)):
                yield f"{page.relative_to(root)}:{link.line}: {link.target}: {why}"


def unknown_mentions(root: Path) -> Iterator[str]:
    """The pages that code names and that do not exist."""
    for file in _files(root, *CODE):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            for name in MENTION.findall(line):
                if not (root / name).exists():
                    yield f"{file.relative_to(root)}:{number}: {name}: no such page"


def _broken(page: Path, link: Link, root: Path) -> str | None:
    """What is wrong with a link, if anything."""
    target = (page.parent / link.path).resolve() if link.path else page
    if not target.is_relative_to(root):
        return "outside of the repository"
    if not target.exists():
        return "no such file"
    if not link.anchor:
        return None
    if target.suffix != ".md":
        return "only pages have headings"
    return None if link.anchor in _anchors(target) else "no such heading"


def _files(root: Path, *suffixes: str) -> Iterator[Path]:
    """The files with these suffixes outside of hidden directories and of what was built."""
    for file in sorted(root.rglob("*")):
        parts = file.relative_to(root).parts
        if file.suffix in suffixes and parts[0] != "site" and not any(part.startswith(".") for part in parts):
            yield file


@cache
def _anchors(page: Path) -> set[str]:
    return anchors(page.read_text())


if __name__ == "__main__":
    main()
