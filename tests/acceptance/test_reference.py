"""The examples of the reference of Python run as they are, on a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import REPOSITORY
from tests.support.databases import query
from tests.support.kafka import Topics
from tests.support.pages import Block, blocks

PAGE = REPOSITORY / "docs" / "reference" / "python.md"
EXAMPLES = [block for block in blocks(PAGE) if block.kind == "python"]


def test_the_examples_without_spark_run(
    topics: Topics, brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topic = topic_of_orders(topics)
    for example in EXAMPLES:
        if example.name is None:
            run(example, brokers, topic)
    (received, totals) = (
        query("sqlite:///shop.db", f"SELECT {what}")[0][0] for what in ("count(*) FROM received", "orders FROM totals")
    )
    assert (received, totals) == (20, 20)


@pytest.mark.faults
def test_the_examples_with_spark_run(
    topics: Topics, brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topic = topic_of_orders(topics)
    for example in EXAMPLES:
        if example.name == "spark":
            run(example, brokers, topic)
    assert query("sqlite:///shop.db", "SELECT count(*), sum(amount) FROM orders") == [(20, 50.0)]
    assert query("sqlite:///shop.db", "SELECT value FROM lines ORDER BY value") == [("first",), ("second",)]


def topic_of_orders(topics: Topics) -> str:
    """A topic with the orders of the page."""
    topic = topics.create(1)
    topics.send_to(topic, 0, [{"id": n, "amount": 2.5} for n in range(20)])
    return topic


def run(example: Block, brokers: str, topic: str) -> None:
    code = example.text.replace("localhost:9092", brokers).replace("shop.orders", topic)
    exec(compile(code, PAGE.name, "exec"), {"__name__": "__main__"})
