"""One batch into the store, whole: the rows of every table, dead letters, losses and the positions.

``exactly-once`` writes them in a single transaction. ``at-least-once`` writes the rows first and then the ledger,
``at-most-once`` the ledger first and then the rows, and a crash in between repeats or loses the rows of that batch.

A record that a table refuses is taken out of all tables and written down as a dead letter; the rest is written again.
Where a table merges records, the rest is read again for that, as if the record were not there.

A connection that breaks leaves the outcome unknown until ``reclaim`` has asked the database; a batch that fills an open
skip or replays dead letters has no claim, and asks for its name in the journal.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Literal, TypeVar, get_args

from tallymark.batch import Batch
from tallymark.budget import Budget
from tallymark.errors import BadInput, BatchTooLarge, CommitRefused, Unreachable
from tallymark.fence import Claim, Entry
from tallymark.letters import Letters, most_frequent, parted, places
from tallymark.patience import LAST_SECONDS, patiently
from tallymark.shape import Changes, Refusal
from tallymark.spans import Partition, Tally
from tallymark.steps import Step
from tallymark.stores.store import RowsRefused, Store

log = logging.getLogger(__name__)

Delivery = Literal["exactly-once", "at-least-once", "at-most-once"]
Claims = dict[Partition, Claim]
OnStep = Callable[[Step], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Destination:
    """Where rows and positions go, and in which order."""

    rows: Store
    ledger: Store
    delivery: Delivery = "exactly-once"

    def __post_init__(self) -> None:
        if self.delivery not in get_args(Delivery):
            raise BadInput(f"delivery={self.delivery!r} is not known; write {', '.join(get_args(Delivery))}")
        if self.delivery == "exactly-once" and self.rows is not self.ledger:
            raise BadInput(
                f"exactly once needs rows and ledger in one transaction, and {self.rows.name} and {self.ledger.name} "
                "can't share one; leave out ledger=, or choose delivery='at-least-once' or 'at-most-once'"
            )

    def ping(self, stop: threading.Event | None = None, patience: float | None = None) -> None:
        """Raise what keeps us from using it, unless it passes."""
        for store in dict.fromkeys((self.rows, self.ledger)):
            patiently(store.ping, stop, patience)


class Committer:
    """Commits the batches of one group. ``letters`` fetches what is to be kept of records that a table refused."""

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
        self._deliver = {
            "exactly-once": self._together,
            "at-least-once": self._rows_first,
            "at-most-once": self._ledger_first,
        }[destination.delivery]

    def commit(self, batch: Batch, claims: Claims, on_step: OnStep) -> tuple[Claims, Entry]:
        """Write it all. Returns the claims to go on with, and what was done.

        If a connection broke, the claims are renewed in place: they are the ones to go on with whatever happens.
        """
        while True:
            self.check_budget(batch)
            try:
                return self._deliver(batch, claims, on_step)
            except RowsRefused as refused:
                batch = self._refusing(batch, refused.refusals)

    def patiently(self, work: Callable[[], T]) -> T:
        """What a batch in flight needs is tried again a little longer than its run is wanted."""
        return patiently(work, self._stop, self._patience, after_stop=LAST_SECONDS)

    def _together(self, batch: Batch, claims: Claims, on_step: OnStep) -> tuple[Claims, Entry]:
        entry = self.budgeted(batch.entry(self.group, claims))
        return self.write_ledger(batch.changes, entry, claims, on_step), entry

    def _rows_first(self, batch: Batch, claims: Claims, on_step: OnStep) -> tuple[Claims, Entry]:
        self.patiently(lambda: self._write_rows(batch.changes, on_step))
        on_step(Step.HALFWAY)
        entry = self.budgeted(batch.entry(self.group, claims))
        return self.write_ledger((), entry, claims, on_step), entry

    def _ledger_first(self, batch: Batch, claims: Claims, on_step: OnStep) -> tuple[Claims, Entry]:
        # Which rows are refused has to be known before the positions move.
        self.patiently(lambda: self._rows.try_out(batch.changes, self._refusals_wanted))
        entry = self.budgeted(batch.entry(self.group, claims))
        held = self.write_ledger((), entry, claims, on_step)
        on_step(Step.HALFWAY)
        self._write_rows_once(batch.changes, on_step)
        return held, entry

    def _write_rows(self, changes: Sequence[Changes], on_step: OnStep) -> None:
        self._rows.apply(changes, None, on_step, self._refusals_wanted)

    def _write_rows_once(self, changes: Sequence[Changes], on_step: OnStep) -> None:
        """Never twice: from the moment that the rows may have arrived, they are not sent again."""
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
                log.error("rows may be lost, as at-most-once allows group=%s error=%s", self.group, error)

        self.patiently(attempt)

    def write_ledger(self, changes: Sequence[Changes], entry: Entry, claims: Claims, on_step: OnStep) -> Claims:
        """Apply to the ledger's store, and find out what became of it if the connection breaks."""
        unknown = False

        def attempt() -> None:
            nonlocal unknown
            if unknown:
                renewed, landed = self.settled(entry, claims)
                claims.update(renewed)
                if landed:
                    log.warning("commit had reached the database group=%s batch=%s", self.group, entry.batch)
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
                # Nothing shuts out a fill that is late: what was filled meanwhile may be our own.
                if not self.has_fills(entry):
                    raise

        self.patiently(attempt)
        return claims

    def settled(self, entry: Entry, held: Claims) -> tuple[Claims, bool]:
        """The claims to go on with, and whether a commit whose outcome was unknown had reached the database."""
        if not entry.advances:
            return held, self.has_fills(entry)
        held = self._ledger.reclaim(self.group, held)
        return held, _landed(entry, held)

    def has_fills(self, entry: Entry) -> bool:
        mends = bool(entry.fills or entry.replays) and not entry.advances
        return mends and self._ledger.filled(self.group, entry.batch)

    @property
    def _refusals_wanted(self) -> int:
        """How many refused records to look for in one go: one more than the budget allows is enough to fail."""
        allowed = self._budget.max_dead_per_batch
        return sys.maxsize if allowed is None else allowed + 1

    def _refusing(self, batch: Batch, refusals: Sequence[Refusal]) -> Batch:
        distinct = {refusal.record: refusal for refusal in reversed(refusals)}
        log.warning(
            "tables refused records group=%s batch=%s records=%d first=%s",
            self.group,
            batch.name,
            len(distinct),
            refusals[0].error,
        )
        found = [*batch.reading.refusals, *distinct.values()]
        reading, refused = self.patiently(lambda: parted(batch.reading, found, batch.tables, batch.again))
        known = places(batch.letters)
        undecoded = [letter for letter in reading.dead_letters if (letter.partition, letter.offset) not in known]
        fetched = self._letters([refusal for refusal in refused if refusal.record not in known])
        return batch.refusing(reading, [*undecoded, *fetched])

    def check_budget(self, batch: Batch) -> None:
        if not batch.letters:
            return
        last, dead = batch.letters[-1], len(batch.letters)
        self._budget.check_batch(self.group, dead, f"{last.partition} offset {last.offset}: {last.error}")
        records = sum(seen.records for seen in batch.reading.seen.values())
        tally = Tally(applied=records - dead, dead=dead)
        if self._budget.is_suspicious(tally):
            recent = self._recent(datetime.now(timezone.utc))
            self._budget.check_ratio(self.group, recent + tally, most_frequent(batch.letters))

    def budgeted(self, entry: Entry) -> Entry:
        """The entry, with a pause in it if it uses up the window's budget."""
        if not self._budget.has_window or not entry.tally.dead:
            return entry
        return replace(entry, pause=self._budget.overdrawn(self._recent(entry.now) + entry.tally))

    def _recent(self, now: datetime) -> Tally:
        """What became of the records of the budget's window."""

        def recent() -> Tally:
            return self._ledger.recent(self.group, self._budget.window_start(now, self._ledger.state(self.group)))

        return self.patiently(recent)


def _with_epochs(entry: Entry, held: Mapping[Partition, Claim]) -> Entry:
    return replace(entry, advances=[replace(step, epoch=held[step.partition].epoch) for step in entry.advances])


def _landed(entry: Entry, held: Mapping[Partition, Claim]) -> bool:
    """Whether the commit happened after all: all positions at its stop, or all still at its start."""
    at_stop = [held[step.partition].position.next_offset == step.stop for step in entry.advances]
    at_start = [held[step.partition].position.next_offset == step.start for step in entry.advances]
    if not all(at_stop) and not all(at_start):
        raise CommitRefused(f"group {entry.group}: positions moved while the connection was broken; start again")
    return all(at_stop)
