"""Backfills open skips through a consumer's handler, in batches, while the group continues.

No partition is claimed and no position moves. Each batch is the first part of an open skip, and its transaction removes
that part from the skip. If another process has filled it first, the whole batch is refused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from tallymark.core.batch import BatchToCommit
from tallymark.core.claims import Skip
from tallymark.core.plan import Move, readable_from
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.core.spans import Span, Tally
from tallymark.errors import CommitRefused, Unreachable
from tallymark.formats.json import JsonDecoder
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.fetch import Fetcher, OutOfRange
from tallymark.run.commit import Committer, Destination, Handled, HandledCommitter
from tallymark.run.setup import Setup, new_owner
from tallymark.run.skips import OpenSkips
from tallymark.run.until import Retrying
from tallymark.service.batch import Batch, decoded
from tallymark.stores.transaction import Transaction

log = logging.getLogger(__name__)

FETCH_SECONDS = 0.2


class Filling:
    """One backfill of a consumer."""

    def __init__(self, setup: Setup, destination: Destination, stop: threading.Event, on_step: OnStep = ignore) -> None:
        self._setup = setup
        self._stop = stop
        self._retrying = Retrying(stop, setup.patience_seconds)
        self._on_step = on_step
        self._destination = destination
        self._brokers = Brokers(setup.source.cluster, stop)
        self._decode = JsonDecoder(setup.source.value)
        committer = Committer(setup.group, destination, setup.budget, lambda _: [], setup.patience_seconds, stop)
        self._committer = HandledCommitter(committer)
        self._run = new_owner().run
        self._batches = count(1)

    def batches(self, most: int, topic: str | None, partition: int | None) -> Iterator[Batch]:
        """Yield batches of the open skips of the group, or of one topic or partition."""
        skips = OpenSkips(self._setup.group, self._destination, self._brokers, topic, partition)
        self._retrying(self._destination.ledger.create_ledger)
        while not self._stop.is_set():
            listed = self._retrying(skips.listed)
            if not listed:
                return
            batch = self._retrying(partial(self._batch, skips, listed[0], most))
            if batch is None:
                skips.leave(listed[0])
                continue
            yield batch
            batch.check_taken()

    @contextmanager
    def transaction(self, skips: OpenSkips, batch: Batch) -> Iterator[Transaction]:
        """Fill this part of the skip together with the writes of the block."""
        handled, progress = Handled({}), Progress(batch.name, batch.offsets, 0)
        accounts = partial(self._accounts, skips, batch)
        try:
            with self._committer.transaction(accounts, handled, lambda step: self._on_step(step, progress)) as db:
                yield db
        except CommitRefused:
            batch.abandoned = True
            raise
        assert handled.entry is not None
        progress = replace(progress, tally=Tally.sum(fill.tally for fill in handled.entry.fills))
        log.info("filled group=%s batch=%s tally=%s", self._setup.group, batch.name, progress.tally)
        self._on_step(Step.COMMITTED, progress)
        self._on_step(Step.DONE, progress)

    def _accounts(self, skips: OpenSkips, batch: Batch) -> BatchToCommit:
        # This runs after the fetch: if the topic is still the same now, the records came from it.
        skips.log(batch.moves[0].partition)
        return batch.accounts()

    def _batch(self, skips: OpenSkips, skip: Skip, most: int) -> Batch | None:
        """Return a batch of the first part of a skip, or None if nothing of it can be read now."""
        partition, partition_log = skip.span.partition, skips.log(skip.span.partition)
        start = min(readable_from(skip.span.start, partition_log, self._setup.on_loss), skip.span.stop)
        stop = max(start, min(skip.span.stop, partition_log.stop))
        stop, messages = self._fetched(Span(partition, start, stop), most) if stop > start else (start, [])
        move = Move(partition, skip.span.start, lost=start - skip.span.start, read=stop - start)
        if move.stop == move.start:
            return None
        records, letters = decoded(self._decode, messages)
        name = f"{self._run}-fill-{next(self._batches)}"
        return Batch(name, [move], {partition: messages}, records, letters, partial(self.transaction, skips), skip)

    def _fetched(self, span: Span, most: int) -> tuple[int, list[Any]]:
        """Return up to ``most`` messages of a span, and the offset after them."""
        fetcher = Fetcher(self._setup.source, self._brokers)
        try:
            fetcher.add({span.partition: span.start})
            deadline = time.monotonic() + self._setup.patience_seconds
            while not self._stop.is_set():
                try:
                    fetched = fetcher.fetch(most, FETCH_SECONDS).get(span.partition)
                except OutOfRange as error:
                    # The start or end of the log has moved: a new plan determines whether records are lost.
                    raise Unreachable(str(error)) from error
                if fetched is not None:
                    messages = [message for message in fetched.messages if message.offset() < span.stop]
                    return min(fetched.stop, span.stop), messages
                if time.monotonic() > deadline:
                    raise Unreachable(f"the brokers at {self._setup.source.brokers} did not deliver {span} in time")
            return span.start, []
        finally:
            fetcher.close()
