"""A consistent snapshot of a store, for audits: a group's ledger, and the origins of the rows of tables.

Without a snapshot, the audit of a running group could find rows of a commit whose position it has not read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from tallymark.core.claims import BACK, Note
from tallymark.core.journal import BatchLine
from tallymark.core.spans import Partition, Position, Span
from tallymark.core.tables import PROVENANCE

NOTES = ("loss", *BACK, "backfill", "replay")
HISTORY = 100_000
"""The maximum number of commits that are read."""
ORIGIN = pa.schema(
    [(name, PROVENANCE[name]) for name in ("tallymark_topic", "tallymark_partition", "tallymark_offset")]
)


@dataclass(frozen=True)
class SnapshotMark:
    """A dead letter whose record is not in the tables."""

    partition: Partition
    offset: int
    state: str
    recorded_at: datetime


@dataclass(frozen=True)
class Moment:
    """The ledger of a group. Notes are in the order in which they were written, commits newest first."""

    positions: Sequence[Position]
    skips: Sequence[Span]
    notes: Sequence[tuple[Note, datetime]]
    letters: Sequence[SnapshotMark]
    history: Sequence[BatchLine]


class Snapshot(ABC):
    """The store at the time of the first read."""

    @abstractmethod
    def moment(self, group: str) -> Moment:
        """Return the part of the group's ledger that an audit compares."""

    @abstractmethod
    def origins(self, table: str) -> Iterator[pa.Table] | None:
        """Yield topic, partition and offset of every row, in pieces; None if the table does not have these columns."""
