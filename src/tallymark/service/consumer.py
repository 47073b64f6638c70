"""The consumer for services: batches of records, each with a transaction."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, get_args

from tallymark.core.journal import LetterQuery
from tallymark.core.progress import OnStep, ignore
from tallymark.core.retry import retrying
from tallymark.core.spans import Owner
from tallymark.errors import BadInput
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.source import Kafka
from tallymark.run.commit import Destination
from tallymark.run.letters import UNLIMITED, OpenLetters, check_delivery
from tallymark.run.observe import observed
from tallymark.run.setup import Job, Setup, new_owner
from tallymark.run.skips import OpenSkips
from tallymark.run.until import Until, leaving_on_signals
from tallymark.service.batch import Batch
from tallymark.service.claimed import FetchedPartitions
from tallymark.service.delivery import HandlerLoop
from tallymark.service.progress import PartitionProgress
from tallymark.service.work import Redelivery

if TYPE_CHECKING:
    from typing import Unpack

    from tallymark.run.setup import Settings


class Consumer:
    """Kafka to database without Spark, exactly once.

    >>> consumer = Consumer(
    ...     group="log-to-db", source=Kafka("localhost:9092", "app-log"), store="postgresql://localhost/shop"
    ... )
    >>> for batch in consumer.batches(max_records=500):
    ...     with batch.transaction() as db:
    ...         db.write("log", [{"line": record.value.decode()} for record in batch.records])

    All consumers with the same group share its partitions. The settings are those of ``Pipeline``.
    """

    def __init__(self, *, group: str, source: Kafka, store: str, **settings: Unpack[Settings]) -> None:
        self.setup = Setup(group, source, store, **settings)
        self._stop = threading.Event()
        self._run: FetchedPartitions | None = None

    @classmethod
    def of(cls, setup: Setup) -> Consumer:
        """Create a consumer from settings that are already checked."""
        consumer = cls.__new__(cls)
        consumer.setup, consumer._stop, consumer._run = setup, threading.Event(), None
        return consumer

    @property
    def group(self) -> str:
        return self.setup.group

    def batches(
        self, max_records: int = 500, *, until: Until = "stopped", on_step: OnStep = ignore
    ) -> Generator[Batch, None, None]:
        """Yield batches until stopped, or with ``until="caught-up"`` until the present ends of the topics are reached.

        Commit each batch before taking the next. A slow block does not remove this member from the group. Ctrl-C and
        SIGTERM end the loop after the current batch; a second signal ends the process.
        """
        if until not in get_args(Until):
            raise BadInput(f"until={until!r} is not known; write {' or '.join(get_args(Until))}")
        if self._run is not None:
            raise BadInput("this consumer is already running; create another consumer for another thread")
        owner = new_owner()
        with ExitStack() as stack:
            destination = stack.enter_context(self.setup.destination())
            stack.enter_context(leaving_on_signals(self.stop))
            watch = stack.enter_context(observed(self.setup, owner.run, on_step))
            self._run = FetchedPartitions(self.setup, destination, self._stop, owner)
            try:
                delivery = HandlerLoop(self.setup.job(owner), self._run, destination, self._stop, watch)
                yield from delivery.batches(max_records, until)
            finally:
                self._run = None
                self._stop.clear()

    def backfill(
        self,
        max_records: int = 500,
        *,
        topic: str | None = None,
        partition: int | None = None,
        on_step: OnStep = ignore,
    ) -> Generator[Batch, None, None]:
        """Yield the records of open skips in batches, until all skips are filled.

        Run this in a separate process: it does not disturb the group. These records are older than those that the group
        has applied since. A batch that another process has already filled raises ``CommitRefused`` and writes nothing.
        """
        with self._mending() as (job, destination, brokers):
            skips = OpenSkips(job, destination, brokers, topic, partition)
            work = Redelivery(skips, job, self.setup.source, brokers)
            yield from HandlerLoop(job, work, destination, self._stop, on_step).batches(max_records)

    def replay(
        self, max_records: int = 500, *, letters: LetterQuery | None = None, on_step: OnStep = ignore
    ) -> Generator[Batch, None, None]:
        """Yield the open dead letters that ``letters`` selects (default: all) as records, in batches, each letter once.

        Letters whose records are applied are settled in the batch's transaction. Records passed to ``batch.dead`` stay
        dead, with the new error. If another process has settled a letter of the batch, the batch raises
        ``CommitRefused`` and writes nothing; its remaining letters are delivered again.
        """
        with self._mending() as (job, destination, brokers):
            check_delivery(destination.delivery)
            query = letters or LetterQuery()
            in_runs = self.setup.source.has_changes
            found = partial(OpenLetters, job.group, destination.ledger, job.topics, query, brokers, in_runs=in_runs)
            chosen = retrying(found, self._stop, job.patience)
            work = Redelivery(chosen, job, self.setup.source, brokers)
            job = replace(job, budget=UNLIMITED)
            yield from HandlerLoop(job, work, destination, self._stop, on_step).batches(max_records)

    @contextmanager
    def _mending(self) -> Iterator[tuple[Job, Destination, Brokers]]:
        """Everything that a backfill or a replay needs, beside a run of the same group."""
        with self.setup.destination() as destination, leaving_on_signals(self.stop):
            try:
                yield self.setup.job(new_owner()), destination, Brokers(self.setup.source.cluster, self._stop)
            finally:
                self._stop.clear()

    def positions(self) -> list[PartitionProgress]:
        """Return the committed and current offsets, log ends and lag of each partition that this consumer holds."""
        return self._run.progress() if self._run is not None else []

    @property
    def owner(self) -> Owner | None:
        """The owner that the ledger records for this consumer, while it runs."""
        return self._run.owner if self._run is not None else None

    def stop(self) -> None:
        """End the loop after the current batch."""
        self._stop.set()
