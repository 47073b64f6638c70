"""Replays dead letters through a consumer's handler, in batches, while the group continues.

No partition is claimed and no position moves. Each batch settles its letters in the handler's transaction. If another
process has settled a letter of the batch first, the whole batch is refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE

from tallymark.core.journal import Letter, LetterQuery
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.core.records import DeadLetter
from tallymark.core.spans import Partition
from tallymark.errors import BadInput, CommitRefused
from tallymark.formats.json import JsonDecoder
from tallymark.kafka.brokers import Brokers
from tallymark.run.commit import Committer, Destination, Handled, HandledCommitter
from tallymark.run.letters import MOST, UNLIMITED, OpenLetters, check_delivery, completed, coordinates, outcome
from tallymark.run.setup import Setup, new_owner
from tallymark.run.until import Retrying
from tallymark.service.batch import Batch, decoded
from tallymark.stores.transaction import Transaction

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Message:
    """A dead letter's record with the interface of confluent_kafka's ``Message``."""

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
        """Dead letters do not store it."""

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
        self._retrying = Retrying(stop, setup.patience_seconds)
        self._on_step = on_step
        self._ledger = destination.ledger
        self._brokers = Brokers(setup.source.cluster, stop)
        self._decode = JsonDecoder(setup.source.value)
        committer = Committer(setup.group, destination, UNLIMITED, lambda _: [], setup.patience_seconds, stop)
        self._committer = HandledCommitter(committer)
        self._run = new_owner().run
        self._batches = count(1)

    def batches(self, most: int, query: LetterQuery) -> Iterator[Batch]:
        """Yield batches of the group's open dead letters that match the query."""
        if most < 1:
            raise BadInput(f"max_records={most} must be positive")
        topics = self._setup.source.topic_names
        letters = self._retrying(lambda: OpenLetters(self._setup.group, self._ledger, topics, query))
        most = min(most, MOST)
        while not self._stop.is_set():
            batch_letters = self._retrying(lambda: letters.take(most))
            if not batch_letters:
                return
            batch = self._retrying(partial(self._batch, letters, batch_letters))
            if len(batch):
                yield batch
                batch.check_taken()
            else:
                self._retrying(partial(self._settle, batch))
            if batch.committed:
                letters.drop(letter.id for letter in batch.tried.values())

    @contextmanager
    def transaction(self, letters: OpenLetters, batch: Batch) -> Iterator[Transaction]:
        """Settle the letters together with the writes of the block."""
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
        """Commit a batch without records for the handler: all of its letters died again."""
        with suppress(CommitRefused), batch.transaction():
            pass

    def _batch(self, letters: OpenLetters, batch_letters: Sequence[Letter]) -> Batch:
        whole, gone = completed(batch_letters, self._ledger, self._brokers)
        messages = [Message(record) for record in sorted(whole, key=lambda record: (record.partition, record.offset))]
        records, undecoded = decoded(self._decode, messages)
        by_partition: dict[Partition, list[Any]] = {}
        for message in messages:
            by_partition.setdefault(message.letter.partition, []).append(message)
        name = f"{self._run}-replay-{next(self._batches)}"
        tried = {coordinates(letter): letter for letter in batch_letters}
        commit = partial(self.transaction, letters)
        return Batch(name, (), by_partition, records, [*undecoded, *gone], commit, tried=tried)
