"""What the loop knows of whoever reads Kafka: a small contract, kept by Spark and by anything else that can count.

For every batch the driver calls ``read`` with spans that do not overlap. The answer accounts for each of them: how many
records the span really holds (offsets of transaction markers, aborted and compacted records hold none), which of them
could not be decoded, and the rows of every table as Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from tallymark.spans import Partition, Span


@dataclass(frozen=True)
class Seen:
    """What a span of one partition held."""

    records: int = 0
    dead: int = 0
    last_timestamp: datetime | None = None


@dataclass(frozen=True)
class DeadLetter:
    """A record that could not be applied, as it came from Kafka, and why."""

    partition: Partition
    offset: int
    record_time: datetime | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    table: str | None
    error: str


@dataclass(frozen=True)
class Reading:
    """One batch as it was read and shaped. A partition that is missing from ``seen`` held no record."""

    seen: Mapping[Partition, Seen]
    rows: Mapping[str, pa.Table]
    dead_letters: Sequence[DeadLetter]


class Reader(Protocol):
    """Reads spans and shapes them into tables."""

    def schemas(self) -> Mapping[str, pa.Schema]:
        """The columns of every table, known before the first record is read."""

    def read(self, spans: Sequence[Span]) -> Reading:
        """Read these spans, all of them, or raise. Called from a thread of its own, one batch at a time."""

    def cancel(self) -> None:
        """Give up a read that is under way; its answer is not wanted any more."""
