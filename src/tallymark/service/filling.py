"""A consumer's handler on what was skipped: open skips, batch after batch, while the group goes on.

No partition is claimed and no position moves. Each batch is the first part of an open skip, which its transaction takes
away from it; if somebody else was quicker, it is refused whole.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

from tallymark.batch import Batch as Accounts
from tallymark.batches import Batch
from tallymark.brokers import Brokers
from tallymark.commit import Committer, Destination
from tallymark.errors import CommitRefused, Unreachable
from tallymark.fence import Skip
from tallymark.fetch import Fetcher, OutOfRange
from tallymark.formats import Decoder
from tallymark.handled import Handled, HandledCommitter
from tallymark.openskips import OpenSkips
from tallymark.patience import patiently
from tallymark.plan import Move, readable_from
from tallymark.records import decoded
from tallymark.setup import Setup, new_owner
from tallymark.spans import Span, Tally
from tallymark.steps import OnStep, Progress, Step, ignore
from tallymark.stores.transaction import Transaction

log = logging.getLogger(__name__)

FETCH_SECONDS = 0.2
T = TypeVar("T")


class Filling:
    """One backfill of a consumer."""

    def __init__(self, setup: Setup, destination: Destination, stop: threading.Event, on_step: OnStep = ignore) -> None:
        self._setup = setup
        self._stop = stop
        self._on_step = on_step
        self._destination = destination
        self._brokers = Brokers(setup.source.cluster, stop)
        self._decode = Decoder(setup.source.value)
        committer = Committer(setup.group, destination, setup.budget, lambda _: [], setup.patience, stop)
        self._committer = HandledCommitter(committer)
        self._run = new_owner().run
        self._batches = count(1)

    def batches(self, most: int, topic: str | None, partition: int | None) -> Iterator[Batch]:
        """The open skips of the group, or of one topic or partition."""
        skips = OpenSkips(self._setup.group, self._destination, self._brokers, topic, partition)
        self._patiently(self._destination.ledger.create_ledger)
        while not self._stop.is_set():
            found = self._patiently(skips.listed)
            if not found:
                return
            batch = self._patiently(partial(self._batch, skips, found[0], most))
            if batch is None:
                skips.leave(found[0])
                continue
            yield batch
            batch.check_taken()

    @contextmanager
    def transaction(self, skips: OpenSkips, batch: Batch) -> Iterator[Transaction]:
        """Fill the part of the skip with what is done in the block."""
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

    def _accounts(self, skips: OpenSkips, batch: Batch) -> Accounts:
        # Asked after the fetching: if it is the same topic still, it was the same topic then.
        skips.log(batch.moves[0].partition)
        return batch.accounts()

    def _batch(self, skips: OpenSkips, skip: Skip, most: int) -> Batch | None:
        """The first part of a skip; None if nothing of it can be read now."""
        partition, found = skip.span.partition, skips.log(skip.span.partition)
        start = min(readable_from(skip.span.start, found, self._setup.on_loss), skip.span.stop)
        stop = max(start, min(skip.span.stop, found.stop))
        stop, messages = self._fetched(Span(partition, start, stop), most) if stop > start else (start, [])
        move = Move(partition, skip.span.start, lost=start - skip.span.start, read=stop - start)
        if move.stop == move.start:
            return None
        records, letters = decoded(self._decode, messages)
        name = f"{self._run}-fill-{next(self._batches)}"
        return Batch(name, [move], {partition: messages}, records, letters, partial(self.transaction, skips), skip)

    def _fetched(self, span: Span, most: int) -> tuple[int, list[Any]]:
        """Up to so many messages of a span, and the offset behind them."""
        fetcher = Fetcher(self._setup.source, self._brokers)
        try:
            fetcher.add({span.partition: span.start})
            deadline = time.monotonic() + self._setup.patience
            while not self._stop.is_set():
                try:
                    got = fetcher.fetch(most, FETCH_SECONDS).get(span.partition)
                except OutOfRange as error:
                    # The log moved under us: planning again tells whether records are lost.
                    raise Unreachable(str(error)) from error
                if got is not None:
                    messages = [message for message in got.messages if message.offset() < span.stop]
                    return min(got.stop, span.stop), messages
                if time.monotonic() > deadline:
                    raise Unreachable(f"the brokers at {self._setup.source.brokers} do not deliver {span}")
            return span.start, []
        finally:
            fetcher.close()

    def _patiently(self, work: Callable[[], T]) -> T:
        return patiently(work, self._stop, self._setup.patience)
