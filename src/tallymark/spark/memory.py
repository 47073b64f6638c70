"""Decides whether a batch fits the driver's memory, from its limit and the size of earlier records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tallymark.core.spans import Span
from tallymark.errors import BatchTooLarge

SLACK = 0.9
"""Records differ in size: the part of a batch that is expected to fit is smaller by this factor."""


class DriverMemory:
    """What one batch may take: ``most`` bytes of keys and values."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.average: float | None = None
        """Average bytes of a record; infinite if records have grown by an unknown amount."""

    def guess(self, spans: Sequence[Span]) -> float:
        """The estimated bytes of these spans, from the average size of earlier records."""
        return sum(map(len, spans)) * (self.average or 0)

    def holds(self, size: float, spans: Sequence[Span]) -> bool:
        # A batch can't be smaller than one record of each partition.
        return size <= self.most or sum(map(len, spans)) <= len(spans)

    def refusal(self, size: float) -> BatchTooLarge:
        return BatchTooLarge(
            f"records of {size:,.0f} bytes exceed limits.memory={self.most:,}", SLACK * self.most / size
        )

    def learn(self, size: int, records: int) -> None:
        if records:
            self.average = size / records

    def forget(self) -> None:
        """Discard the average because records have grown; the next read measures it again."""
        self.average = math.inf
