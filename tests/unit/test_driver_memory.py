"""A batch must fit the driver's memory; its size decides its path."""

from __future__ import annotations

import pytest

from tallymark.core.spans import Partition, Span
from tallymark.spark.memory import SLACK, DriverMemory
from tallymark.spark.reader import SMALL, Path, choose
from tallymark.spark.rows import FEW

MANY = [Span(Partition("orders", 0), 0, 100), Span(Partition("orders", 1), 0, 100)]
LEAST = [Span(Partition("orders", 0), 7, 8), Span(Partition("orders", 1), 3, 4)]


def test_a_batch_fits_up_to_the_limit_or_if_it_can_not_be_smaller() -> None:
    memory = DriverMemory(1_000)
    assert memory.holds(1_000, MANY)
    assert not memory.holds(1_001, MANY)
    assert memory.holds(1_001, LEAST)


def test_a_refusal_says_which_share_of_the_batch_would_fit() -> None:
    refusal = DriverMemory(1_000).refusal(4_000)
    assert str(refusal) == "records of 4,000 bytes exceed limits.memory=1,000"
    assert refusal.share == SLACK / 4


def test_the_size_of_a_batch_is_estimated_from_earlier_records() -> None:
    memory = DriverMemory(1_000)
    assert memory.guess(MANY) == 0
    memory.learn(50, 10)
    memory.learn(0, 0)
    assert memory.guess(MANY) == 1_000
    memory.forget()
    assert not memory.holds(memory.guess(MANY), MANY)


@pytest.mark.parametrize(
    ("offsets", "fits", "in_bulk", "path"),
    [
        (1, True, True, "direct"),
        (SMALL, True, True, "direct"),
        (SMALL + 1, True, True, "tasks"),
        (FEW, True, False, "direct"),
        (FEW + 1, True, False, "tasks"),
        (SMALL + 1, False, True, "executors"),
        (1, False, False, "executors"),
    ],
)
def test_the_path_of_a_batch(offsets: int, fits: bool, in_bulk: bool, path: Path) -> None:
    assert choose(offsets, fits=fits, in_bulk=in_bulk) == path
