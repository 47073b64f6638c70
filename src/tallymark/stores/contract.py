"""The interface that every store implements, SQL databases and Redis alike.

A store holds the user's tables, the ledger, or both. Rows are written only by ``apply`` and in the
transaction of ``begin``; both are atomic. Errors are those of ``errors.py``: ``Unreachable`` means that the outcome of
the call is unknown and that the same call may succeed later.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from tallymark.core.claims import BACK, Claim, Decide, Entry, Note, Skip
from tallymark.core.journal import BatchLine, Journal, Rebalance, Run
from tallymark.core.progress import Step
from tallymark.core.retention import Cutoffs
from tallymark.core.spans import GroupState, Owner, Partition, Position, Span, Tally
from tallymark.core.tables import PROVENANCE, Changes, Refusal, TableSpec
from tallymark.errors import TallymarkError
from tallymark.stores.sql.staging import Stages
from tallymark.stores.transaction import Transaction

NOTES = ("loss", *BACK, "backfill", "replay")
HISTORY = 100_000
"""The maximum number of commits that are read."""
ORIGIN = pa.schema(
    [(name, PROVENANCE[name]) for name in ("tallymark_topic", "tallymark_partition", "tallymark_offset")]
)


class RowsRefused(TallymarkError):
    """Nothing was written because of these records. Without them the same call may succeed."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__(f"{len(refusals)} records were refused, the first by table {refusals[0].table}")
        self.refusals = refusals


@dataclass(frozen=True)
class SnapshotMark:
    """A dead letter whose record is not in the tables."""

    partition: Partition
    offset: int
    state: str
    recorded_at: datetime


@dataclass(frozen=True)
class Moment:
    """The ledger of a group in a snapshot. Notes are in the order in which they were written, commits newest first."""

    positions: Sequence[Position]
    skips: Sequence[Span]
    notes: Sequence[tuple[Note, datetime]]
    letters: Sequence[SnapshotMark]
    history: Sequence[BatchLine]


class Snapshot(ABC):
    """A consistent snapshot of a store, taken at the first read.

    Without it, the audit of a running group could find rows of a commit whose position it has not read.
    """

    @abstractmethod
    def moment(self, group: str) -> Moment:
        """Return the part of the group's ledger that an audit compares."""

    @abstractmethod
    def origins(self, table: str) -> Iterator[pa.Table] | None:
        """Yield topic, partition and offset of every row, in pieces; None if the table does not have these columns."""


class Store(ABC):
    """A database that holds tables, the ledger, or both. A URL identifies it."""

    name: str
    """The URL without secrets, for messages."""
    latest_version: int
    """The version of the ledger that this tallymark creates."""
    most_records: int | None = None
    """The maximum number of records in one commit; None means no limit."""

    @abstractmethod
    def ping(self) -> None:
        """Raise the error that prevents using the store, if any."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""

    @abstractmethod
    def ledger_version(self) -> int | None:
        """Return the version of the ledger; None if there is none."""

    def has_ledger(self) -> bool:
        return self.ledger_version() is not None

    @abstractmethod
    def create_ledger(self) -> None:
        """Create the ledger, or upgrade it to ``latest_version``. Safe to call from several processes at once."""

    @abstractmethod
    def positions(self, group: str | None = None) -> dict[str, list[Position]]:
        """Return the positions of one group or of all groups, in order."""

    @abstractmethod
    def state(self, group: str) -> GroupState | None:
        """Return the desired state of the group; None if the group is unknown."""

    @abstractmethod
    def set_state(self, group: str, state: GroupState) -> None: ...

    @abstractmethod
    def journal(self) -> Journal:
        """Return the part of the ledger that operators read and change."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Return a consistent snapshot of the store, for audits."""

    @abstractmethod
    def write_run(self, group: str, run: Run, *, new: bool = False) -> None:
        """Update the run unless it has ended; insert it if it is ``new``. The newest 100 runs of a group are kept."""

    @abstractmethod
    def recent(self, group: str, since: datetime) -> Tally:
        """Return the tally of all batches since then."""

    @abstractmethod
    def skips(self, group: str) -> list[Skip]:
        """Return the skipped spans that are not filled yet, in order."""

    @abstractmethod
    def filled(self, group: str, batch: str) -> bool:
        """Whether this backfill or replay batch was committed. Settles a commit whose answer was lost."""

    @abstractmethod
    def record_rebalances(self, group: str, rebalances: Sequence[Rebalance]) -> None:
        """Record rebalances. The newest 1,000 of a group are kept."""

    @abstractmethod
    def rebalances(self, group: str, most: int = 100) -> list[Rebalance]:
        """Return the latest rebalances, newest first."""

    @abstractmethod
    def prune(self, group: str, cutoffs: Cutoffs, *, execute: bool = True) -> dict[str, int]:
        """Delete older history that nothing depends on. Returns the number of rows by table, or by key.

        Without ``execute`` nothing is deleted.
        """

    @abstractmethod
    def claim(
        self,
        group: str,
        owner: Owner,
        partitions: Collection[Partition],
        decide: Decide,
        held: Mapping[Partition, Claim],
    ) -> dict[Partition, Claim]:
        """Claim these partitions atomically: raise their epochs, record the owner, and apply what ``decide`` returns.

        Previous owners are fenced. Raises if the caller has lost any of the claims in ``held``.
        """

    @abstractmethod
    def reclaim(self, group: str, claims: Mapping[Partition, Claim]) -> dict[Partition, Claim]:
        """Raise the epochs of claims that are still held and read their positions; raise if any claim is lost.

        This settles a commit whose answer was lost: either it has happened, or it never will.
        """

    @abstractmethod
    def release(self, group: str, claims: Iterable[Claim]) -> None:
        """Give up the claims that are still held. The partitions have no owner then; their positions stay."""

    @abstractmethod
    def check_tables(self, specs: Sequence[TableSpec], schemas: Mapping[str, pa.Schema]) -> None:
        """Refuse existing tables that do not match their specs. Creates nothing."""

    @abstractmethod
    def create_tables(self, specs: Sequence[TableSpec], schemas: Mapping[str, pa.Schema]) -> None:
        """Create and evolve tables if their specs allow it; check the other tables."""

    @abstractmethod
    def try_out(self, changes: Sequence[Changes], refusals: int = sys.maxsize) -> None:
        """Raise the errors that ``apply`` would raise for these rows, without writing them."""

    def stages(self, group: str, run: str) -> Stages | None:  # noqa: ARG002
        """Where executors stage rows for this run; None if the store has no staging."""
        return None

    def clear_stages(  # noqa: B027
        self, group: str, *, of: str | None = None, keep: Collection[str] = ()
    ) -> None:
        """Delete staged rows that are not committed: those of the run ``of``, or of all runs except ``keep``."""

    @abstractmethod
    def begin(
        self, entry: Callable[[], Entry | None], on_step: Callable[[Step], None] = lambda _: None
    ) -> AbstractContextManager[Transaction]:
        """Open a transaction.

        When the block ends, ``entry`` is called and its result is written to the ledger, so that the block can still
        decide which records are dead. The positions move last, and then everything commits. If anything raises,
        everything is rolled back. Without an entry only the rows commit.
        """

    @abstractmethod
    def apply(
        self,
        changes: Sequence[Changes],
        entry: Entry | None,
        on_step: Callable[[Step], None] = lambda _: None,
        refusals: int = sys.maxsize,
    ) -> None:
        """Write rows, ledger or both in one transaction, and move the positions last.

        Raises ``RowsRefused`` with the records that a table refuses, and ``CommitRefused`` when a position or an open
        skip differs from what ``entry`` expects. Nothing is written in either case. The search for refused records
        stops after ``refusals`` of them.
        """
