"""The examples of the reference of Python run as they are, on a real broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY
from tests.support.databases import query
from tests.support.kafka import Topics
from tests.support.pages import blocks

PAGE = REPOSITORY / "docs" / "reference" / "python.md"
STORE = "sqlite:///shop.db"


@pytest.fixture
def run_examples(
    topics: Topics, brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str | None], None]:
    """Runs the examples with this mark in an empty directory, with a topic that has the orders of the page."""
    monkeypatch.chdir(tmp_path)
    topic = topics.create(1)
    topics.send_to(topic, 0, [{"id": n, "amount": 2.5} for n in range(20)])

    def run(mark: str | None) -> None:
        for block in blocks(PAGE):
            if (block.kind, block.name) == ("python", mark):
                code = block.text.replace("localhost:9092", brokers).replace("shop.orders", topic)
                exec(compile(code, PAGE.name, "exec"), {"__name__": "__main__"})

    return run


def test_the_examples_without_spark_run(run_examples: Callable[[str | None], None]) -> None:
    run_examples(None)
    assert query(STORE, "SELECT count(*) FROM received") == [(20,)]
    assert query(STORE, "SELECT shop, orders FROM totals") == [("all", 20)]


@pytest.mark.faults
def test_the_examples_with_spark_run(run_examples: Callable[[str | None], None]) -> None:
    run_examples("spark")
    assert query(STORE, "SELECT count(*), sum(amount) FROM orders") == [(20, 50.0)]
    assert query(STORE, "SELECT value FROM lines ORDER BY value") == [("first",), ("second",)]
