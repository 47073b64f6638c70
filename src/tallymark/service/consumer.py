"""The consumer a service writes: batches of records, each with a transaction in hand."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, get_args

from tallymark.batches import Batch
from tallymark.books import LetterQuery
from tallymark.consume import Consuming
from tallymark.errors import BadInput
from tallymark.filling import Filling
from tallymark.loop import Until
from tallymark.observe import observed
from tallymark.places import Place
from tallymark.replaying import Replaying
from tallymark.setup import Setup, new_owner
from tallymark.signals import leaving_on_signals
from tallymark.source import Kafka
from tallymark.spans import Owner
from tallymark.steps import OnStep, ignore

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tallymark.setup import Settings


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
        self._run: Consuming | None = None

    @classmethod
    def of(cls, setup: Setup) -> Consumer:
        """A consumer for settings that were checked before."""
        made = cls.__new__(cls)
        made.setup, made._stop, made._run = setup, threading.Event(), None
        return made

    @property
    def group(self) -> str:
        return self.setup.group

    def batches(
        self, max_records: int = 500, *, until: Until = "stopped", on_step: OnStep = ignore
    ) -> Generator[Batch, None, None]:
        """Batch after batch, until stopped or ``until="caught-up"``: all that is in the topics now was handed out.

        Each has to be committed before the next one is taken. A slow block does not get this member thrown out. Ctrl-C
        and SIGTERM end the loop after the batch in hand; a second one ends the process.
        """
        if max_records < 1:
            raise BadInput(f"max_records={max_records} must be positive")
        if until not in get_args(Until):
            raise BadInput(f"until={until!r} is not known; write {' or '.join(get_args(Until))}")
        if self._run is not None:
            raise BadInput("this consumer is running already; make another one for another thread")
        owner = new_owner()
        with ExitStack() as stack:
            destination = stack.enter_context(self.setup.destination())
            stack.enter_context(leaving_on_signals(self.stop))
            destination.ping(self._stop, self.setup.patience)
            watch = stack.enter_context(observed(self.setup, owner.run, on_step))
            self._run = Consuming(self.setup, destination, self._stop, watch, owner)
            try:
                yield from self._run.batches(max_records, until)
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
        """What was skipped and is still open, batch after batch, until all of it is filled in.

        It is for a process of its own: the group goes on undisturbed. These records are older than what the group has
        applied since. A batch that somebody else has filled meanwhile raises ``CommitRefused`` and writes nothing.
        """
        with self.setup.destination() as destination, leaving_on_signals(self.stop):
            try:
                yield from Filling(self.setup, destination, self._stop, on_step).batches(max_records, topic, partition)
            finally:
                self._stop.clear()

    def replay(
        self, max_records: int = 500, *, letters: LetterQuery | None = None, on_step: OnStep = ignore
    ) -> Generator[Batch, None, None]:
        """Dead letters that are open, as records, batch after batch, until each was tried once; all, or those chosen.

        What is applied in a batch's transaction is settled with it; what ``batch.dead`` sets aside stays dead, with its
        new words. A batch of which somebody else has settled a letter raises ``CommitRefused`` and writes nothing; what
        is left of it comes again.
        """
        with self.setup.destination() as destination, leaving_on_signals(self.stop):
            try:
                replaying = Replaying(self.setup, destination, self._stop, on_step)
                yield from replaying.batches(max_records, letters or LetterQuery())
            finally:
                self._stop.clear()

    def positions(self) -> list[Place]:
        """Where this consumer is in each partition that it holds now: committed, current, the ends of the log, lag."""
        return self._run.places() if self._run is not None else []

    @property
    def owner(self) -> Owner | None:
        """Who this consumer is in the ledger, while it runs."""
        return self._run.owner if self._run is not None else None

    def stop(self) -> None:
        """End the loop after the batch in hand."""
        self._stop.set()
