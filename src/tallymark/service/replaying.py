"""A consumer's handler on dead letters: records as they came, batch after batch, while the group goes on.

No partition is claimed and no position moves. Each batch settles its letters in the handler's transaction; if somebody
else was quicker with one of them, it is refused whole.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE

from tallymark.batches import Batch
from tallymark.books import Letter, LetterQuery
from tallymark.brokers import Brokers
from tallymark.commit import Committer, Destination
from tallymark.errors import BadInput, CommitRefused
from tallymark.formats import Decoder
from tallymark.handled import Handled, HandledCommitter
from tallymark.openletters import MOST, OpenLetters, completed, outcome, place
from tallymark.patience import patiently
from tallymark.read import DeadLetter
from tallymark.records import decoded
from tallymark.replay import UNLIMITED, check_delivery
from tallymark.setup import Setup, new_owner
from tallymark.spans import Partition
from tallymark.steps import OnStep, Progress, Step, ignore
from tallymark.stores.transaction import Transaction

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Message:
    """A record that was kept, as the client of Kafka would have it."""

    letter: DeadLetter

    def topic(self) -> str:
        return self.letter.partition.topic

    def partition(self) -> int:
        return self.letter.partition.number

    def offset(self) -> int:
        return self.letter.offset

    def timestamp(self) -> tuple[int, int]:
        when = self.letter.record_time
        if when is None:
            return TIMESTAMP_NOT_AVAILABLE, -1
        return TIMESTAMP_CREATE_TIME, round(when.timestamp() * 1000)

    def leader_epoch(self) -> None:
        """Nobody has kept it."""

    def key(self) -> bytes | None:
        return self.letter.key

    def value(self) -> bytes | None:
        return self.letter.value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return list(self.letter.headers) or None


class Replaying:
    """One replay of a consumer."""

    def __init__(self, setup: Setup, destination: Destination, stop: threading.Event, on_step: OnStep = ignore) -> None:
        check_delivery(destination.delivery)
        self._setup = setup
        self._stop = stop
        self._on_step = on_step
        self._ledger = destination.ledger
        self._brokers = Brokers(setup.source.cluster, stop)
        self._decode = Decoder(setup.source.value)
        committer = Committer(setup.group, destination, UNLIMITED, lambda _: [], setup.patience, stop)
        self._committer = HandledCommitter(committer)
        self._run = new_owner().run
        self._batches = count(1)

    def batches(self, most: int, query: LetterQuery) -> Iterator[Batch]:
        """The open letters of the group that the query finds."""
        if most < 1:
            raise BadInput(f"max_records={most} must be positive")
        topics = self._setup.source.topic_names
        letters = self._patiently(lambda: OpenLetters(self._setup.group, self._ledger, topics, query))
        most = min(most, MOST)
        while not self._stop.is_set():
            found = self._patiently(lambda: letters.take(most))
            if not found:
                return
            batch = self._patiently(partial(self._batch, letters, found))
            if len(batch):
                yield batch
                batch.check_taken()
            else:
                self._patiently(partial(self._settle, batch))
            if batch.committed:
                letters.drop(letter.id for letter in batch.tried.values())

    @contextmanager
    def transaction(self, letters: OpenLetters, batch: Batch) -> Iterator[Transaction]:
        """Settle the letters with what is done in the block."""
        handled, progress = Handled({}), Progress(batch.name, len(batch.tried), len(letters) - len(batch.tried))
        try:
            with self._committer.transaction(batch.accounts, handled, lambda step: self._on_step(step, progress)) as db:
                yield db
        except CommitRefused as error:
            letters.refused(error)
            batch.abandoned = True
            raise
        assert handled.entry is not None
        progress = replace(progress, tally=outcome(handled.entry.replays), rows=handled.entry.rows)
        log.info("replayed group=%s batch=%s tally=%s", self._setup.group, batch.name, progress.tally)
        self._on_step(Step.COMMITTED, progress)
        self._on_step(Step.DONE, progress)

    def _settle(self, batch: Batch) -> None:
        """Nothing of it is for a handler: all died again."""
        with suppress(CommitRefused), batch.transaction():
            pass

    def _batch(self, letters: OpenLetters, found: Sequence[Letter]) -> Batch:
        whole, gone = completed(found, self._ledger, self._brokers)
        messages = [Message(one) for one in sorted(whole, key=lambda one: (one.partition, one.offset))]
        records, undecoded = decoded(self._decode, messages)
        by_partition: dict[Partition, list[Any]] = {}
        for message in messages:
            by_partition.setdefault(message.letter.partition, []).append(message)
        name = f"{self._run}-replay-{next(self._batches)}"
        tried = {place(letter): letter for letter in found}
        commit = partial(self.transaction, letters)
        return Batch(name, (), by_partition, records, [*undecoded, *gone], commit, tried=tried)

    def _patiently(self, work: Callable[[], T]) -> T:
        return patiently(work, self._stop, self._setup.patience)
