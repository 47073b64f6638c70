"""A store that holds still: all that the ledger says of a group, and where the rows of tables come from, at one moment.

Who audits a group that runs would else find rows of a commit whose position it has not seen yet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from tallymark.books import BatchLine
from tallymark.fence import BACK, Note
from tallymark.shape import PROVENANCE
from tallymark.spans import Partition, Position, Span

NOTES = ("loss", *BACK, "backfill", "replay")
HISTORY = 100_000
"""The most commits that are looked at."""
ORIGIN = pa.schema(
    [(name, PROVENANCE[name]) for name in ("tallymark_topic", "tallymark_partition", "tallymark_offset")]
)


@dataclass(frozen=True)
class Mark:
    """A dead letter of a record that is not in the tables: where it is from, its state, and when it was written."""

    partition: Partition
    offset: int
    state: str
    recorded_at: datetime


@dataclass(frozen=True)
class Moment:
    """What the ledger says of a group. Notes are in the order in which they were written, commits the newest first."""

    positions: Sequence[Position]
    skips: Sequence[Span]
    notes: Sequence[tuple[Note, datetime]]
    letters: Sequence[Mark]
    history: Sequence[BatchLine]


class Still(ABC):
    """The store as it was when it was first asked."""

    @abstractmethod
    def moment(self, group: str) -> Moment:
        """All of the ledger that an audit compares."""

    @abstractmethod
    def origins(self, table: str) -> Iterator[pa.Table] | None:
        """Topic, partition and offset of every row, piece by piece; None if the table does not have these columns."""
