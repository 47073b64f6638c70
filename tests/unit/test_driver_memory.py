"""A batch must fit the driver's memory, and Java's heap if it passes through Java."""

from __future__ import annotations

import pytest

from tallymark.core.spans import Partition, Span
from tallymark.spark.memory import DriverMemory

MANY = [Span(Partition("orders", 0), 0, 100), Span(Partition("orders", 1), 0, 100)]
LEAST = [Span(Partition("orders", 0), 7, 8), Span(Partition("orders", 1), 3, 4)]


@pytest.mark.parametrize(
    ("heap", "most", "words"),
    [
        (None, 1_000, "limits.memory=1,000"),
        (16_000, 1_000, "limits.memory=1,000"),
        (8_000, 500, "500 bytes, the share of Java's heap of 8,000 bytes"),
    ],
)
def test_the_smaller_of_memory_and_the_share_of_the_heap_is_the_most(heap: int | None, most: int, words: str) -> None:
    memory = DriverMemory(1_000, lambda: heap)
    assert memory.most == most
    assert memory.holds(most, MANY)
    assert not memory.holds(most + 1, MANY)
    assert memory.holds(most + 1, LEAST)
    assert words in str(memory.refusal(most + 1))


def test_what_was_read_tells_how_large_others_are() -> None:
    memory = DriverMemory(1_000, lambda: None)
    assert memory.guess(MANY) == 0
    memory.learn(50, 10)
    memory.learn(0, 0)
    assert memory.guess(MANY) == 1_000
    memory.forget()
    assert not memory.holds(memory.guess(MANY), MANY)
