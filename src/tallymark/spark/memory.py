"""Whether a batch fits the driver: what may come there, and how large records are, by those before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

from tallymark.errors import BatchTooLarge
from tallymark.spans import Span

HEAP_SHARE = 16
"""Of Java's heap, for a batch that functions compute on: on the way to them and back it is there some ten times."""


class Room:
    """For one batch: ``memory`` bytes of keys and values, and a share of Java's heap where it goes through that.

    ``heap`` is asked once, and has None for functions that leave Java alone.
    """

    def __init__(self, memory: int, heap: Callable[[], int | None]) -> None:
        self.memory = memory
        self.average: float | None = None
        """Bytes of a record; infinite if records have grown by nobody knows how much."""
        self._ask = heap

    @cached_property
    def heap(self) -> int | None:
        return self._ask()

    @property
    def most(self) -> int:
        return self.memory if self.heap is None else min(self.memory, self.heap // HEAP_SHARE)

    def guess(self, spans: Sequence[Span]) -> float:
        """The bytes of these spans, if their records are like those before."""
        return sum(map(len, spans)) * (self.average or 0)

    def holds(self, size: float, spans: Sequence[Span]) -> bool:
        # One record of each partition is what a batch holds at least.
        return size <= self.most or sum(map(len, spans)) <= len(spans)

    def refusal(self, size: int) -> BatchTooLarge:
        if self.heap is None or self.most == self.memory:
            return BatchTooLarge(f"records of {size:,} bytes are more than limits.memory={self.memory:,}")
        return BatchTooLarge(
            f"records of {size:,} bytes are more than {self.most:,}, what Java's heap of {self.heap:,} bytes "
            "has room for where a function computes; a larger spark.driver.memory has more"
        )

    def learn(self, size: int, records: int) -> None:
        if records:
            self.average = size / records

    def forget(self) -> None:
        """Records have grown: whoever reads the next ones is to find out by how much."""
        self.average = math.inf
