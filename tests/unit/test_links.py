"""Broken links of the documentation are found, and code in it is not taken for a link."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.links import broken_links, unknown_mentions
from tools.markdown import anchors

OTHER = "# Other\n\n## Who reads `this`, and why?\n\n```\n# no heading\n```\n"


@pytest.mark.parametrize(
    "link",
    [
        "[other](docs/index.md)",
        "[other](docs/index.md#who-reads-this-and-why)",
        "[`tm.Sink`](docs/)",
        "[here](#title)",
        "[elsewhere](https://example.org/nothing.md)",
        '<img src="picture.svg">',
        "`[code](nothing.md)`",
        "```python\n[code](nothing.md)\n```",
    ],
)
def test_what_exists_is_found(tmp_path: Path, link: str) -> None:
    assert list(broken_links(pages(tmp_path, link))) == []


@pytest.mark.parametrize(
    ("link", "sentence"),
    [
        ("[other](docs/missing.svg)", "page.md:3: docs/missing.svg: no such file"),
        ("[other](docs/index.md#who-reads)", "page.md:3: docs/index.md#who-reads: no such heading"),
        ("[other](docs/index.md#no-heading)", "page.md:3: docs/index.md#no-heading: no such heading"),
        ("[two\nlines](other.md)", "page.md:3: other.md: no such file"),
        ("[`tm.Sink`](sink.md)", "page.md:3: sink.md: no such file"),
        ("[here](#titel)", "page.md:3: #titel: no such heading"),
        ("[up](../other.md)", "page.md:3: ../other.md: outside of the repository"),
        ("[picture](picture.svg#part)", "page.md:3: picture.svg#part: only pages have headings"),
        ('<source srcset="dark.svg">', "page.md:3: dark.svg: no such file"),
    ],
)
def test_what_does_not_exist_is_named_with_its_line(tmp_path: Path, link: str, sentence: str) -> None:
    assert list(broken_links(pages(tmp_path, link))) == [sentence]


def test_pages_that_code_names_have_to_exist(tmp_path: Path) -> None:
    root, missing = pages(tmp_path, ""), "/".join(["docs", "missing.md"])
    (root / "code.py").write_text(f"As docs/index.md says,\nand {missing}.\n")
    assert list(unknown_mentions(root)) == [f"code.py:2: {missing}: no such page"]


def test_anchors_are_those_of_the_headings() -> None:
    assert anchors(OTHER) == {"other", "who-reads-this-and-why"}


def pages(root: Path, link: str) -> Path:
    """A directory with a page that has the link, another page, and a picture."""
    (root / "docs").mkdir()
    (root / "page.md").write_text(f"# Title\n\n{link}\n")
    (root / "docs" / "index.md").write_text(OTHER)
    (root / "picture.svg").write_text("<svg/>")
    return root
