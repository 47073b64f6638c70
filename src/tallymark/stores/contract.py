"""What the loop knows of a destination: a contract that databases with SQL and Redis keep alike.

A store holds the user's tables, the ledger, or both. ``apply`` is the one call that writes: what it is given becomes
visible at once, or not at all. Errors are ours (``errors.py``): ``Unreachable`` means that the same call may succeed
later, and that its outcome is unknown.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime

import pyarrow as pa

from tallymark.books import Books, Run
from tallymark.errors import TallymarkError
from tallymark.fence import Claim, Decide, Entry, Rebalance, Skip
from tallymark.shape import Changes, Refusal, TableSpec
from tallymark.spans import GroupState, Owner, Partition, Position, Tally
from tallymark.steps import Step
from tallymark.stores.staging import Stages
from tallymark.stores.still import Still
from tallymark.stores.transaction import Transaction


class RowsRefused(TallymarkError):
    """Nothing was written: these records are why. Without them the same call may succeed."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__(f"{len(refusals)} records were refused, the first by table {refusals[0].table}")
        self.refusals = refusals


class Store(ABC):
    """One destination, named by a URL."""

    name: str
    """The URL without secrets, for messages."""
    most_records: int | None = None
    """The most records that one commit can take, if there is such a limit."""

    @abstractmethod
    def ping(self) -> None:
        """Raise what keeps us from using it, if anything does."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all connections."""

    @abstractmethod
    def has_ledger(self) -> bool: ...

    @abstractmethod
    def create_ledger(self) -> None:
        """Make the ledger if there is none. Two processes may do this at once."""

    @abstractmethod
    def positions(self, group: str | None = None) -> dict[str, list[Position]]:
        """All positions, of one group or of every group, in order."""

    @abstractmethod
    def state(self, group: str) -> GroupState | None:
        """What the group is meant to do; None if nobody has heard of it."""

    @abstractmethod
    def set_state(self, group: str, state: GroupState) -> None: ...

    @abstractmethod
    def books(self) -> Books:
        """The operator's side of the ledger."""

    @abstractmethod
    def still(self) -> AbstractContextManager[Still]:
        """The store at one moment, for whoever compares what it holds."""

    @abstractmethod
    def write_run(self, group: str, run: Run, *, new: bool = False) -> None:
        """Say what is known of a run now, if it is a new one or known; the newest 100 of a group are kept."""

    @abstractmethod
    def recent(self, group: str, since: datetime) -> Tally:
        """What became of the records of all batches since then."""

    @abstractmethod
    def skips(self, group: str) -> list[Skip]:
        """The spans that were skipped and that nobody has filled yet, in order."""

    @abstractmethod
    def filled(self, group: str, batch: str) -> bool:
        """Whether what this batch fills or replays was committed, for whoever has not got the answer."""

    @abstractmethod
    def record_rebalances(self, group: str, rebalances: Sequence[Rebalance]) -> None:
        """Write them down; the newest 1,000 of a group are kept."""

    @abstractmethod
    def rebalances(self, group: str, most: int = 100) -> list[Rebalance]:
        """The last ones, the newest first."""

    @abstractmethod
    def prune(self, group: str, before: datetime) -> None:
        """Forget older history. Positions, tallies, exceptions and dead letters stay."""

    @abstractmethod
    def claim(
        self,
        group: str,
        owner: Owner,
        partitions: Collection[Partition],
        decide: Decide,
        held: Mapping[Partition, Claim],
    ) -> dict[Partition, Claim]:
        """Take over these partitions, atomically: raise their epochs, name the owner, and do what ``decide`` wishes.

        Whoever held them is fenced. Raises if any of ``held``, what the caller has already, was taken away from it.
        """

    @abstractmethod
    def reclaim(self, group: str, claims: Mapping[Partition, Claim]) -> dict[Partition, Claim]:
        """Raise the epoch of what is still ours and read where it stands; raise if any of it is not ours any more.

        Settles what became of a commit whose answer was lost: it happened, or it never will.
        """

    @abstractmethod
    def release(self, group: str, claims: Iterable[Claim]) -> None:
        """Let go of partitions that are still ours: they have no owner, and their positions stay."""

    @abstractmethod
    def check_tables(self, specs: Sequence[TableSpec], schemas: Mapping[str, pa.Schema]) -> None:
        """Refuse tables that exist and do not fit. Nothing is created."""

    @abstractmethod
    def create_tables(self, specs: Sequence[TableSpec], schemas: Mapping[str, pa.Schema]) -> None:
        """Create and evolve tables as their specs allow, and check the others."""

    @abstractmethod
    def try_out(self, changes: Sequence[Changes], refusals: int = sys.maxsize) -> None:
        """Raise what ``apply`` would have to say about these rows, and write nothing."""

    def stages(self, group: str, run: str) -> Stages | None:  # noqa: ARG002
        """Where executors can stage rows for this run, if the store can do that."""
        return None

    def clear_stages(  # noqa: B027
        self, group: str, *, of: str | None = None, keep: Collection[str] = ()
    ) -> None:
        """Remove what runs of the group have staged and not committed: this one, or all but those to keep."""

    @abstractmethod
    def begin(
        self, entry: Callable[[], Entry | None], on_step: Callable[[Step], None] = lambda _: None
    ) -> AbstractContextManager[Transaction]:
        """An open transaction.

        When the block ends, what ``entry`` says then is written to the ledger, so that the block can still decide what
        is dead; the positions move last, and all of it commits. If anything raises, nothing of it happens. Without an
        entry the rows commit alone.
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

        Raises ``RowsRefused`` with the records that a table can't take, ``CommitRefused`` when a position or an open
        skip is not where ``entry`` has it, and writes nothing in either case. Looking for the records ends after so
        many ``refusals``.
        """
