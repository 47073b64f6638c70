"""A decorated function at work: batches in, one transaction for each, and what to do when the function raises."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from tallymark.batches import Batch
from tallymark.books import LetterQuery
from tallymark.consumer import Consumer
from tallymark.errors import BadInput, DataRefused, TallymarkError, TooManyDead
from tallymark.handler import Handler, RecordFailed, told_apart
from tallymark.loop import Until
from tallymark.membership import Group
from tallymark.patience import patiently
from tallymark.records import Records
from tallymark.setup import Setup
from tallymark.spans import Tally
from tallymark.steps import OnStep, Progress, Step, ignore
from tallymark.stores.transaction import Transaction
from tallymark.workers import Order, Outcome, Workers

log = logging.getLogger(__name__)

MOST_FAILED = 100
"""Records of one batch that a handler may fail on, before it is taken for broken."""
FEW = 10
"""The same for a handler that fails on every record of a batch."""


@dataclass(frozen=True)
class Listener:
    """A function, and how its records come to it."""

    setup: Setup
    handler: Handler
    threads: int = 1
    workers: int = 1
    order: Order = "partition"
    max_records: int = 500

    def __post_init__(self) -> None:
        name = self.handler.name
        if min(self.threads, self.workers, self.max_records) < 1:
            raise BadInput(f"listener {name}: threads=, workers= and max_records= must be positive")
        if self.order not in get_args(Order):
            raise BadInput(f"listener {name}: order={self.order!r} is not known; write {', '.join(get_args(Order))}")
        if self.workers > 1 and self.handler.takes_batches:
            raise BadInput(f"listener {name}: workers= share out single records; leave it out, or leave out batch=True")
        if self.threads > 1 and self.setup.is_standalone:
            raise BadInput(f"listener {name}: threads= share a group's partitions, and Standalone() has no group")

    def consumer(self, thread: int) -> Consumer:
        membership = self.setup.membership
        if isinstance(membership, Group) and membership.instance and self.threads > 1:
            membership = replace(membership, instance=f"{membership.instance}-{thread}")
        return Consumer.of(replace(self.setup, membership=membership))


class Listening:
    """One thread of a listener: a consumer of its own, and workers behind it."""

    def __init__(self, listener: Listener, on_step: OnStep = ignore, thread: int = 0) -> None:
        self.consumer = listener.consumer(thread)
        self.total = Tally()
        self._listener = listener
        self._on_step = on_step
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()
        self.consumer.stop()

    def run(self, until: Until) -> None:
        if self._stop.is_set():
            return
        self._work_through(self.consumer.batches(self._listener.max_records, until=until, on_step=self._count))

    def backfill(self, topic: str | None, partition: int | None) -> None:
        """The same work on what was skipped."""
        self._work_through(
            self.consumer.backfill(self._listener.max_records, topic=topic, partition=partition, on_step=self._count)
        )

    def replay(self, letters: LetterQuery) -> None:
        """The same work on the dead letters of its group."""
        if letters.group not in (None, self.consumer.group):
            return
        self._work_through(self.consumer.replay(self._listener.max_records, letters=letters, on_step=self._count))

    def _work_through(self, batches: Generator[Batch, None, None]) -> None:
        # Left by an error, the consumer would stay in the group until somebody has forgotten the error.
        with self._working() as workers, closing(batches):
            for batch in batches:
                patiently(partial(self._handle, batch, workers), self._stop, self._listener.setup.patience)

    @contextmanager
    def _working(self) -> Iterator[Workers | None]:
        listener = self._listener
        if listener.workers == 1:
            yield None
            return
        workers = Workers(listener.handler, listener.workers, listener.order)
        try:
            yield workers
        finally:
            workers.close()

    def _handle(self, batch: Batch, workers: Workers | None) -> None:
        try:
            try:
                with batch.transaction() as db:
                    if workers is None:
                        self._listener.handler(batch.records, db)
                    else:
                        self._check_failures(batch, workers.work(batch, db))
            except (RecordFailed, DataRefused) as failed:
                if batch.abandoned:
                    raise
                log.info("looking for the records at fault batch=%s error=%s", batch.name, failed)
                with batch.transaction() as db:
                    self._check_failures(batch, Outcome(len(batch), self._blame(batch, batch.records, db)))
        except (TallymarkError, RecordFailed) as error:
            # It went to others; or, where positions move first, it was not to be tried a second time.
            if not batch.abandoned:
                raise
            log.warning("abandoned a batch group=%s batch=%s: %s", self.consumer.group, batch.name, error)

    def _blame(self, batch: Batch, records: Records, db: Transaction) -> list[RecordFailed]:
        """Work on the records in ever smaller parts, until those are alone that the handler fails on: why it does."""
        try:
            with db.savepoint():
                self._listener.handler(records, db)
                with told_apart():
                    db.check()
        except RecordFailed as error:
            if len(records) == 1:
                batch.dead(records[0], str(error))
                return [error]
            middle = len(records) // 2
            return self._blame(batch, records[:middle], db) + self._blame(batch, records[middle:], db)
        return []

    def _check_failures(self, batch: Batch, outcome: Outcome) -> None:
        if batch.tried:
            # They were dead before, and are no sign of a function that broke now.
            return
        failed = len(outcome.failed)
        if failed > MOST_FAILED or (failed == outcome.finished and failed >= FEW):
            raise TooManyDead(
                f"listener {self._listener.handler.name} failed on {failed} of {outcome.finished} records of a batch, "
                f"one of them: {outcome.failed[0]}; nothing moved: correct the function"
            )

    def _count(self, step: Step, progress: Progress) -> None:
        if step is Step.DONE:
            self.total += progress.tally
        self._on_step(step, progress)
