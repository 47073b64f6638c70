"""Every example runs unchanged on real servers and prints what the list shows. Each has its own assertions."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY
from tests.support.pages import Block, Reader, blocks

pytestmark = pytest.mark.xdist_group("processes")

EXAMPLES = REPOSITORY / "examples"
CALLED = re.compile(r"^\$ (?:TALLYMARK_STORE=\S+ )?(python examples/(\w+)\.py)$", re.MULTILINE)
SHOWN = {
    match[2]: block
    for block in blocks(EXAMPLES / "README.md")
    if (match := CALLED.search(block.text)) and "sandbox up" not in block.text
}
SHOWN_BY_OTHER_TESTS = [
    "offset_table",
    "offsets_in_redis",
    "delivery",
    "subscription",
    "rebalances",
    "first_poll",
    "skip_ahead",
    "standalone",
    "threads",
    "settings",
    "positions",
    "running_totals",
    "streaming",
]
STORES = {"offset_table": "mariadb", "one_transaction": "postgresql", "streaming": "postgresql"}


@pytest.mark.faults_where(name=SHOWN_BY_OTHER_TESTS)
@pytest.mark.parametrize("name", SHOWN)
def test_an_example_prints_what_the_list_shows(
    name: str, brokers: str, database: Callable[[str], str], redis_url: str, tmp_path: Path
) -> None:
    store = redis_url if "redis" in name else database(STORES.get(name, "sqlite"))
    (tmp_path / "examples").symlink_to(EXAMPLES)
    block = Block("console", None, CALLED.sub(r"$ \1 2> log.txt", SHOWN[name].text))

    with closing(Reader(tmp_path, TALLYMARK_BROKERS=brokers, TALLYMARK_STORE=store)) as reader:
        reader.type(block)


def test_every_example_is_listed_and_run() -> None:
    files = {file.stem for file in EXAMPLES.glob("*.py")} - {"common"}
    assert files == {*SHOWN, "orders"}
    listed = (EXAMPLES / "README.md").read_text()
    assert {name for name in files if f"({name}.py)" not in listed} == set()
