"""Decides whether a batch fits the driver's memory, from its limits and the size of earlier records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

from tallymark.core.spans import Span
from tallymark.errors import BatchTooLarge

HEAP_SHARE = 16
"""A batch that functions compute on may take 1/16 of Java's heap, because the heap holds about ten copies of it."""


class DriverMemory:
    """What one batch may take: ``memory`` bytes of keys and values, and a part of the heap if it passes through Java.

    ``heap`` is called once, and returns None if no function uses Java.
    """

    def __init__(self, memory: int, heap: Callable[[], int | None]) -> None:
        self.memory = memory
        self.average: float | None = None
        """Average bytes of a record; infinite if records have grown by an unknown amount."""
        self._ask = heap

    @cached_property
    def heap(self) -> int | None:
        return self._ask()

    @property
    def most(self) -> int:
        return self.memory if self.heap is None else min(self.memory, self.heap // HEAP_SHARE)

    def guess(self, spans: Sequence[Span]) -> float:
        """The estimated bytes of these spans, from the average size of earlier records."""
        return sum(map(len, spans)) * (self.average or 0)

    def holds(self, size: float, spans: Sequence[Span]) -> bool:
        # A batch can't be smaller than one record of each partition.
        return size <= self.most or sum(map(len, spans)) <= len(spans)

    def refusal(self, size: int) -> BatchTooLarge:
        if self.heap is None or self.most == self.memory:
            return BatchTooLarge(f"records of {size:,} bytes exceed limits.memory={self.memory:,}")
        return BatchTooLarge(
            f"records of {size:,} bytes exceed {self.most:,} bytes, the share of Java's heap of {self.heap:,} bytes "
            "for a batch that functions compute on; increase spark.driver.memory"
        )

    def learn(self, size: int, records: int) -> None:
        if records:
            self.average = size / records

    def forget(self) -> None:
        """Discard the average because records have grown; the next read measures it again."""
        self.average = math.inf
