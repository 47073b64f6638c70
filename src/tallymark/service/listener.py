"""Runs a listener: calls its function for each batch in one transaction, and isolates records that it fails on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from tallymark.core.halving import Undoing, in_any_order, in_new_transactions, in_order, one_by_one
from tallymark.core.journal import LetterQuery
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.core.retry import retrying
from tallymark.core.spans import Partition, Tally
from tallymark.errors import BadInput, DataRefused, TallymarkError, TooManyDead, TransactionUndone
from tallymark.kafka.membership import Group
from tallymark.run.setup import Setup
from tallymark.run.until import Until
from tallymark.service.batch import Batch
from tallymark.service.consumer import Consumer
from tallymark.service.handler import Handler, RecordFailed, classified
from tallymark.service.records import Records
from tallymark.service.workers import LanesOutcome, Order, Workers
from tallymark.stores.transaction import Transaction

log = logging.getLogger(__name__)

MOST_FAILED = 100
"""Maximum number of failed records in a batch. With more, the handler counts as broken."""
FEW = 10
"""A handler that fails on every record of a batch counts as broken from this number of records on."""


Failed = tuple[Records, RecordFailed]
"""A single record that the handler fails on, and why."""


class _Undo(Exception):
    """Rolls back to a savepoint."""


@dataclass(frozen=True)
class Listener:
    """A decorated function with its settings."""

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
            raise BadInput(f"listener {name}: workers= needs single records; leave out workers= or batch=True")
        if self.threads > 1 and self.setup.is_standalone:
            raise BadInput(f"listener {name}: threads= needs a group, and Standalone() has none; leave out one of them")

    def consumer(self, thread: int) -> Consumer:
        membership = self.setup.membership
        if isinstance(membership, Group) and membership.instance and self.threads > 1:
            membership = replace(membership, instance=f"{membership.instance}-{thread}")
        return Consumer.of(replace(self.setup, membership=membership))


class Listening:
    """One thread of a listener, with its own consumer and workers."""

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
        """Handle the records of open skips."""
        self._work_through(
            self.consumer.backfill(self._listener.max_records, topic=topic, partition=partition, on_step=self._count)
        )

    def replay(self, letters: LetterQuery) -> None:
        """Handle the dead letters of the listener's group."""
        if letters.group not in (None, self.consumer.group):
            return
        self._work_through(self.consumer.replay(self._listener.max_records, letters=letters, on_step=self._count))

    def _work_through(self, batches: Generator[Batch, None, None]) -> None:
        # Without closing(), the error's traceback would keep the generator alive, and the consumer in its group.
        with self._working() as workers, closing(batches):
            for batch in batches:
                retrying(partial(self._handle, batch, workers), self._stop, self._listener.setup.patience_seconds)

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
                log.info("handler failed, isolating the failing records batch=%s error=%s", batch.name, failed)
                in_new_transactions(partial(self._handle_others, batch))
        except (TallymarkError, RecordFailed) as error:
            # Its partitions moved to another member, or the delivery is at most once and does not allow a second try.
            if not batch.abandoned:
                raise
            log.warning("batch abandoned group=%s batch=%s error=%s", self.consumer.group, batch.name, error)

    def _handle_others(self, batch: Batch, undoing: Sequence[Failed], singly: bool) -> None:
        """Apply all records except those that the handler fails on, which become dead letters."""
        with batch.transaction() as db:
            failed = [*undoing, *self._isolate(batch.records.without(_places(undoing)), db, singly)]
            for records, error in failed:
                batch.dead(records[0], str(error))
            self._check_failures(batch, LanesOutcome(len(batch), [error for _, error in failed]))

    def _isolate(self, records: Records, db: Transaction, singly: bool) -> list[Failed]:
        """Apply the records in ever smaller parts to isolate those that the handler fails on. Returns them with errors.

        With deferred constraints, a record may depend on a later record. So records that fail only in the check are
        searched for in any order and rolled back; then all good records are applied again in order.
        """
        checked = partial(self._try, db, check=True)
        parts = one_by_one(records) if singly else [records]
        if not db.defers:
            return list(in_order(parts, checked))
        failed: list[Failed] = []
        with suppress(RecordFailed), db.savepoint():
            failed += in_order(parts, partial(self._try, db, check=False))
            with classified():
                db.check()
            return failed
        with suppress(_Undo), db.savepoint():
            failed += in_any_order([records.without(_places(failed))], checked)
            raise _Undo
        return failed + list(in_order([records.without(_places(failed))], checked))

    def _try(self, db: Transaction, records: Records, *, check: bool) -> RecordFailed | None:
        """Apply these records, or roll them back and return why the handler or the store refuses them."""
        try:
            with db.savepoint():
                self._listener.handler(records, db)
                if check:
                    with classified():
                        db.check()
        except TransactionUndone as undone:
            raise Undoing(records, RecordFailed(str(undone))) from undone
        except RecordFailed as error:
            return error
        return None

    def _check_failures(self, batch: Batch, outcome: LanesOutcome) -> None:
        if batch.tried:
            # Letters that die again do not show that the function is broken.
            return
        failed = len(outcome.failed)
        if failed > MOST_FAILED or (failed == outcome.finished and failed >= FEW):
            raise TooManyDead(
                f"listener {self._listener.handler.name} failed on {failed} of {outcome.finished} records of a batch, "
                f"for example: {outcome.failed[0]}; this batch moved no position: correct the function"
            )

    def _count(self, step: Step, progress: Progress) -> None:
        if step is Step.DONE:
            self.total += progress.tally
        self._on_step(step, progress)


def _places(failed: Iterable[Failed]) -> set[tuple[Partition, int]]:
    return {records[0].place for records, _ in failed}
