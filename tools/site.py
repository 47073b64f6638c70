"""Fits the pages, which are written for readers of the repository, to the site. MkDocs calls these hooks (mkdocs.yml).

- CHANGELOG, CONTRIBUTING and the lists of examples and of alerts are pages of the site, too.
- Files of the repository to which a page links, such as examples, are part of the site.
- A block ``toml shop.toml`` gets the file's name as its title.
- A link whose text is the name of a page shows the title of that page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tools.markdown import FENCE, LINK, ROOT, heading, links, without_code

ADDED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "explanation/contributing.md",
    "examples/README.md": "examples/index.md",
    "ops/README.md": "ops/index.md",
}
"""Pages outside of docs/, and where they are on the site."""
BLOCK = re.compile(r"^( *```)(\w+)[ ]+([^\s=]+)$", re.MULTILINE)
NAME = re.compile(r"\[`?[\w./-]+\.md`?\]")


def on_files(files: Files, config: Any) -> Files:
    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    for page, place in ADDED.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / page)))
    for page in [*pages, *ADDED]:
        for link in links((ROOT / page).read_text()):
            target = os.path.normpath(Path(page).parent / link.path)
            if not link.is_external and _is_file_outside(target) and target not in files.src_uris:
                files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    site = page.file.src_uri
    source = next((name for name, place in ADDED.items() if place == site), f"docs/{site}")

    def moved(match: re.Match[str]) -> str:
        path, hash_, anchor = match["target"].partition("#")
        if not path or "://" in path:
            return str(match[0])
        target = os.path.normpath(f"{Path(source).parent}/{path}")
        text = f"[{heading(ROOT / target)}]" if NAME.fullmatch(match["text"]) else match["text"]
        return f"{text}({os.path.relpath(_place(target), Path(site).parent)}{hash_}{anchor})"

    shown = without_code(markdown)
    for match in reversed(list(LINK.finditer(shown))):
        begin, end = match.span()
        whole = LINK.fullmatch(markdown[begin:end])
        assert whole is not None, markdown[begin:end]
        markdown = markdown[:begin] + moved(whole) + markdown[end:]
    return FENCE.sub(lambda fence: BLOCK.sub(_titled, fence[0], count=1), markdown)


def _titled(match: re.Match[str]) -> str:
    start, language, name = match.groups()
    return f'{start}{language} title="{name}"' if "." in name else f"{start}{language}"


def _is_file_outside(target: str) -> bool:
    return (ROOT / target).is_file() and not target.endswith(".md") and not target.startswith("docs/")


def _place(target: str) -> str:
    """Where a file of the repository is on the site."""
    if (ROOT / target).is_dir():
        target = f"{target}/README.md"
    return ADDED.get(target, target.removeprefix("docs/"))
