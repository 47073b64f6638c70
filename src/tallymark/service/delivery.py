"""Delivers the batches of some work to a handler, and commits each in the handler's transaction.

Everything here runs on the thread that iterates over the batches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

from tallymark.core import drift
from tallymark.core.batch import BatchToCommit
from tallymark.core.claims import Entry
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.errors import BadInput, CommitRefused
from tallymark.run.commit import Destination
from tallymark.run.loop import BatchLoop
from tallymark.run.setup import Job
from tallymark.run.until import Until
from tallymark.service.batch import Batch
from tallymark.service.work import ServiceWork
from tallymark.stores.transaction import Transaction


class HandlerLoop(BatchLoop[Batch]):
    """A run, a backfill or a replay of a consumer, from its first check to its end."""

    pause_interval = 1.0

    def __init__(
        self, job: Job, work: ServiceWork, destination: Destination, stop: threading.Event, on_step: OnStep = ignore
    ) -> None:
        super().__init__(job, work, destination, stop, on_step)
        self.verify = work.verify

    def batches(self, most: int, until: Until = "stopped") -> Iterator[Batch]:
        """Yield batches until stopped, or until the work is finished."""
        if most < 1:
            raise BadInput(f"max_records={most} must be positive")
        most = min(most, self.work.most, self._store.most_records or most)
        with self._ending():
            self._committer.destination.ping(self._stop, self.job.patience)
            self.work.begin(until)
            self._retrying(self._ledger.create_ledger)
            if not self._may_go_on(lambda: None):
                return
            self.work.refresh()
            while not self._finished and self._may_go_on():
                self.work.refresh()
                batch = self._next(most)
                if batch is not None:
                    yield batch
                    batch.check_taken()
            # The last batch may have exhausted the budget.
            self._may_go_on()

    def _next(self, most: int) -> Batch | None:
        """Return the next batch with records, or None. A batch without records is committed without the handler."""
        began = time.monotonic()
        batch = self._retrying(lambda: self.work.next(most))
        if batch is None:
            return None
        if self.job.on_drift == "fail":
            drift.check(self.job.group, batch.drift)
        self.on_step(Step.READ, Progress(batch.name, batch.offsets, batch.behind, since=began))
        if not len(batch):
            self._settle(batch)
            return None
        self.work.taken(batch)
        batch.commit = self._transaction
        return batch

    def _transaction(self, batch: Batch) -> AbstractContextManager[Transaction]:
        """Commit the batch together with the writes of the block, and continue after it."""
        return self._committer.transaction(HandledBatch(self, batch))

    def _settle(self, batch: Batch) -> None:
        handled = HandledBatch(self, batch)
        try:
            # Checked before the transaction, which must not wait for brokers.
            accounts = self._retrying(handled.checked)
            entry = self._committer.write_entry(accounts, handled.claims, handled.step)
        except BaseException as error:
            handled.failed(error, None)
            if not isinstance(error, CommitRefused) or not batch.abandoned:
                raise
        else:
            handled.done(entry)


class HandledBatch:
    """One transaction of a batch: tells the work what becomes of the batch."""

    def __init__(self, loop: HandlerLoop, batch: Batch) -> None:
        self.claims = loop.work.claims
        self._loop, self._batch = loop, batch
        self._progress = Progress(batch.name, batch.offsets, batch.behind)
        self._same_topics: Callable[[], None] = lambda: None

    def begin(self) -> None:
        self._batch.begin()
        self._same_topics = self._loop.verify()

    def accounts(self) -> BatchToCommit:
        self._same_topics()
        return self._batch.accounts()

    def checked(self) -> BatchToCommit:
        """The accounts of a batch that no handler gets."""
        self.begin()
        return self.accounts()

    def step(self, step: Step) -> None:
        self._loop.on_step(step, self._progress)

    def done(self, entry: Entry) -> None:
        self._loop.work.done(entry)
        self._batch.end(committed=True)
        self._loop.report(entry, self._batch.moves, self._progress)

    def failed(self, error: BaseException, entry: Entry | None) -> None:
        self._loop.on_step(Step.DROPPED, replace(self._progress, error=error))
        try:
            if entry is not None:
                # At most once: the position has moved, so unfinished records are not tried again.
                self._batch.abandoned = True
                self._loop.work.done(entry)
            if self._loop.work.refused(error):
                # Set only after the recovery of the work: otherwise the next batch would skip records.
                self._batch.abandoned = True
        finally:
            self._batch.end(committed=False)
