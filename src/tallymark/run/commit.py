"""Commits one batch to the store: rows or a handler's writes, dead letters, losses and positions.

``exactly-once`` writes them in a single transaction. ``at-least-once`` writes the rows first and then the ledger;
``at-most-once`` writes the ledger first and then the rows. A crash in between repeats or loses the rows of that batch.

A record that a table refuses is removed from all tables and recorded as a dead letter; the other records are written
again. If a table merges records, the batch is read again without the refused record.

If the connection breaks, the outcome is unknown until ``reclaim`` has asked the database. A batch that fills an open
skip or replays dead letters has no claim; its outcome is found by looking up its name in the journal.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, Protocol, TypeVar, get_args

from tallymark.core.batch import BatchToCommit, Letters, most_frequent, records_of, without_refused
from tallymark.core.budget import Budget
from tallymark.core.claims import Claim, Entry
from tallymark.core.progress import Step
from tallymark.core.retry import LAST_SECONDS, retrying
from tallymark.core.spans import Partition, Tally
from tallymark.core.tables import Changes, Refusal, WrittenTable
from tallymark.errors import BadInput, BatchTooLarge, CommitRefused, TallymarkError, Unreachable
from tallymark.stores.contract import RowsRefused, Store
from tallymark.stores.transaction import Transaction

log = logging.getLogger(__name__)

Delivery = Literal["exactly-once", "at-least-once", "at-most-once"]
Claims = dict[Partition, Claim]
OnStep = Callable[[Step], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Destination:
    """The stores for rows and positions, and the order in which they are written."""

    rows: Store
    ledger: Store
    delivery: Delivery = "exactly-once"

    def __post_init__(self) -> None:
        if self.delivery not in get_args(Delivery):
            raise BadInput(f"delivery={self.delivery!r} is not known; write {', '.join(get_args(Delivery))}")
        if self.delivery == "exactly-once" and self.rows is not self.ledger:
            raise BadInput(
                f"delivery='exactly-once' needs rows and ledger in one transaction, which {self.rows.name} and "
                f"{self.ledger.name} can't share; leave out ledger=, or set delivery='at-least-once' or 'at-most-once'"
            )

    def ping(self, stop: threading.Event | None = None, patience: float | None = None) -> None:
        """Check that both stores can be used; transient errors are retried."""
        for store in dict.fromkeys((self.rows, self.ledger)):
            retrying(store.ping, stop, patience)


class Handling(Protocol):
    """A batch in the hands of a handler, as its ``Committer.transaction`` sees it."""

    claims: Claims

    def begin(self) -> None:
        """Called before the block. Raises if the batch can't be committed any more."""

    def accounts(self) -> BatchToCommit:
        """Return the batch as the ledger has to record it, once the block has decided which records are dead."""

    def step(self, step: Step, /) -> None:
        """Called at every step."""

    def done(self, entry: Entry) -> None:
        """Called after the commit."""

    def failed(self, error: BaseException, entry: Entry | None) -> None:
        """Called if the transaction raises. ``entry`` is what the ledger has recorded all the same (at-most-once)."""


class Committer:
    """Commits the batches of one group: the changes of a pipeline, or what a handler writes in its transaction.

    ``letters`` fetches the dead letters of records that a table refused. Every method that takes ``claims`` renews them
    in place if the connection breaks, so they remain valid even if the method raises.
    """

    def __init__(
        self,
        group: str,
        destination: Destination,
        budget: Budget,
        letters: Letters,
        patience: float | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.group = group
        self.destination = destination
        self._rows = destination.rows
        self._ledger = destination.ledger
        self._budget = budget
        self._letters = letters
        self._patience = patience
        self._stop = stop
        self._written: set[WrittenTable] = set()
        self._recorded: set[WrittenTable] = set()

    def commit(self, batch: BatchToCommit, claims: Claims, on_step: OnStep) -> Entry:
        """Write the batch. Returns the entry that was committed."""
        while True:
            self._check_budget(batch)
            try:
                return self._deliver(batch, claims, on_step)
            except RowsRefused as refused:
                batch = self._refusing(batch, refused.refusals)

    @contextmanager
    def transaction(self, handling: Handling) -> Iterator[Transaction]:
        """Commit what the block writes together with the batch, or before or after it, as ``delivery`` says.

        A broken connection ends the block: only the caller can repeat it. Whether its commit has happened is looked up.
        """
        delivery, entry = self.destination.delivery, None
        claims, on_step = handling.claims, handling.step

        def at_end() -> Entry | None:
            nonlocal entry
            if delivery == "exactly-once":
                entry = self._writing(self._entry(handling.accounts(), claims), db.tables, db.written)
                return entry
            if delivery == "at-least-once":
                # Before the rows are committed: a batch with too many dead records must not leave any.
                self._check_budget(handling.accounts())
            return None

        try:
            handling.begin()
            if delivery == "at-most-once":
                entry = self.write_entry(handling.accounts(), claims, on_step)
                on_step(Step.HALFWAY)
            try:
                with self._rows.begin(at_end, on_step) as db:
                    db.delivery = delivery
                    db.group = self.group if delivery == "exactly-once" else None
                    yield db
            except (Unreachable, CommitRefused) as error:
                if delivery != "exactly-once" or entry is None or not self._has_landed(entry, claims, error, on_step):
                    raise
            if delivery == "at-least-once":
                on_step(Step.HALFWAY)
                entry = self.write_entry(handling.accounts(), claims, on_step, db)
        except BaseException as error:
            handling.failed(error, entry if delivery == "at-most-once" else None)
            raise
        assert entry is not None
        self._recorded.update(entry.tables)
        # With at-most-once the entry came first: the next one records the tables.
        self._note(db.tables)
        handling.done(entry)

    def write_entry(
        self, batch: BatchToCommit, claims: Claims, on_step: OnStep, db: Transaction | None = None
    ) -> Entry:
        """Write only the ledger's entry of a batch, after what a handler has written in ``db``."""
        tables, rows = (db.tables, db.written) if db is not None else ((), {})
        entry = self._writing(self._entry(batch, claims), tables, rows)
        self.write_ledger((), entry, claims, on_step)
        return entry

    def _writing(self, entry: Entry, tables: Iterable[WrittenTable], rows: Mapping[str, int]) -> Entry:
        """The entry, with the rows of each table and the tables that the ledger may not know yet."""
        self._note(tables)
        return replace(entry, rows=dict(rows), tables=sorted(self._written - self._recorded))

    def _note(self, tables: Iterable[WrittenTable]) -> None:
        elsewhere = None if self._rows is self._ledger else self._rows.name
        self._written.update(replace(table, store=elsewhere) for table in tables)

    def _retrying(self, work: Callable[[], T]) -> T:
        """Retry ``work`` for up to ``LAST_SECONDS`` after a stop, so that a batch in flight can finish."""
        return retrying(work, self._stop, self._patience, after_stop=LAST_SECONDS)

    def _entry(self, batch: BatchToCommit, claims: Claims) -> Entry:
        self._check_budget(batch)
        return self._budgeted(batch.entry(self.group, claims))

    def _has_landed(self, entry: Entry, claims: Claims, error: TallymarkError, on_step: OnStep) -> bool:
        """Whether the commit of a handler's transaction that ended with this error has happened."""
        if isinstance(error, CommitRefused):
            return self._has_fills(entry)
        log.warning("commit outcome unknown batch=%s error=%s", entry.batch, error)
        on_step(Step.UNKNOWN)
        return self._retrying(lambda: self._outcome(entry, claims))

    def _deliver(self, batch: BatchToCommit, claims: Claims, on_step: OnStep) -> Entry:
        delivery, changes = self.destination.delivery, batch.changes
        if delivery == "at-least-once":
            self._retrying(lambda: self._write_rows(changes, on_step))
            on_step(Step.HALFWAY)
        elif delivery == "at-most-once":
            # Refused rows must be known before the positions move.
            self._retrying(lambda: self._rows.try_out(changes, self._refusals_wanted))
        entry = self._budgeted(batch.entry(self.group, claims))
        entry = self._writing(entry, [WrittenTable(spec.name, spec.write) for spec in batch.tables], entry.rows)
        self.write_ledger(changes if delivery == "exactly-once" else (), entry, claims, on_step)
        if delivery == "at-most-once":
            on_step(Step.HALFWAY)
            self._write_rows_once(changes, on_step)
        self._recorded.update(entry.tables)
        return entry

    def _write_rows(self, changes: Sequence[Changes], on_step: OnStep) -> None:
        self._rows.apply(changes, None, on_step, self._refusals_wanted)

    def _write_rows_once(self, changes: Sequence[Changes], on_step: OnStep) -> None:
        """Write rows at most once: they are not sent again after they may have reached the store."""
        sent = False

        def watch(step: Step) -> None:
            nonlocal sent
            sent = sent or step is Step.WRITTEN
            on_step(step)

        def attempt() -> None:
            try:
                self._write_rows(changes, watch)
            except (Unreachable, RowsRefused, BatchTooLarge) as error:
                if not sent and isinstance(error, Unreachable):
                    raise
                log.error(
                    "rows not written, positions already committed delivery=at-most-once group=%s error=%s",
                    self.group,
                    error,
                )

        self._retrying(attempt)

    def write_ledger(self, changes: Sequence[Changes], entry: Entry, claims: Claims, on_step: OnStep) -> None:
        """Apply to the ledger's store, and determine the outcome if the connection breaks."""
        unknown = False

        def attempt() -> None:
            nonlocal unknown
            if unknown:
                if self._outcome(entry, claims):
                    log.warning("commit confirmed after a connection loss group=%s batch=%s", self.group, entry.batch)
                    return
                unknown = False
            try:
                self._ledger.apply(changes, _with_epochs(entry, claims), on_step, self._refusals_wanted)
            except Unreachable as error:
                log.warning("commit outcome unknown group=%s batch=%s error=%s", self.group, entry.batch, error)
                unknown = True
                on_step(Step.UNKNOWN)
                raise
            except CommitRefused:
                # Fills are not fenced, so the conflicting fill may be an earlier attempt of this batch.
                if not self._has_fills(entry):
                    raise

        self._retrying(attempt)

    def _outcome(self, entry: Entry, claims: Claims) -> bool:
        """Whether a commit of unknown outcome has reached the database. Renews the claims."""
        if not entry.advances:
            return self._has_fills(entry)
        claims.update(self._ledger.reclaim(self.group, claims))
        return _landed(entry, claims)

    def _has_fills(self, entry: Entry) -> bool:
        mends = bool(entry.fills or entry.replays) and not entry.advances
        return mends and self._ledger.filled(self.group, entry.batch)

    @property
    def _refusals_wanted(self) -> int:
        """How many refused records to look for at once: one more than the budget allows is enough to fail."""
        allowed = self._budget.max_dead_per_batch
        return sys.maxsize if allowed is None else allowed + 1

    def _refusing(self, batch: BatchToCommit, refusals: Sequence[Refusal]) -> BatchToCommit:
        distinct = {refusal.record: refusal for refusal in reversed(refusals)}
        log.warning(
            "records refused group=%s batch=%s records=%d first=%s",
            self.group,
            batch.name,
            len(distinct),
            refusals[0].error,
        )
        known_refusals = [*batch.reading.refusals, *distinct.values()]
        reading, refused = self._retrying(
            lambda: without_refused(batch.reading, known_refusals, batch.tables, batch.again)
        )
        known = records_of(batch.letters)
        undecoded = [letter for letter in reading.dead_letters if (letter.partition, letter.offset) not in known]
        fetched = self._letters([refusal for refusal in refused if refusal.record not in known])
        return batch.refusing(reading, [*undecoded, *fetched])

    def _check_budget(self, batch: BatchToCommit) -> None:
        if not batch.letters:
            return
        last, dead = batch.letters[-1], len(batch.letters)
        self._budget.check_batch(self.group, dead, f"{last.partition} offset {last.offset}: {last.error}")
        records = sum(seen.records for seen in batch.reading.seen.values())
        tally = Tally(applied=records - dead, dead=dead)
        if self._budget.is_suspicious(tally):
            recent = self._recent(datetime.now(UTC))
            self._budget.check_ratio(self.group, recent + tally, most_frequent(batch.letters))

    def _budgeted(self, entry: Entry) -> Entry:
        """The entry, with a pause added if it exhausts the budget of the window."""
        if not self._budget.has_window or not entry.tally.dead:
            return entry
        return replace(entry, pause=self._budget.overdrawn(self._recent(entry.now) + entry.tally))

    def _recent(self, now: datetime) -> Tally:
        """The tally of the records in the budget's window."""

        def recent() -> Tally:
            return self._ledger.recent(self.group, self._budget.window_start(now, self._ledger.state(self.group)))

        return self._retrying(recent)


def _with_epochs(entry: Entry, held: Mapping[Partition, Claim]) -> Entry:
    return replace(entry, advances=[replace(step, epoch=held[step.partition].epoch) for step in entry.advances])


def _landed(entry: Entry, held: Mapping[Partition, Claim]) -> bool:
    """Whether the commit happened: all positions are at its stop, or all are still at its start."""
    at_stop = [held[step.partition].position.next_offset == step.stop for step in entry.advances]
    at_start = [held[step.partition].position.next_offset == step.start for step in entry.advances]
    if not all(at_stop) and not all(at_start):
        raise CommitRefused(f"group {entry.group}: positions changed during a connection loss; start the run again")
    return all(at_stop)
