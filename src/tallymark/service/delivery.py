"""One run of a consumer: from the assignment to batches that their handler commits, or does not.

Everything here happens on the thread that takes the batches. Between two of them partitions come and go; what was
handed out and not committed is fetched again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from itertools import count
from typing import TypeVar

import pyarrow as pa

from tallymark.ahead import Ahead, Answer
from tallymark.batch import Batch as Accounts
from tallymark.batches import Batch
from tallymark.brokers import Brokers, Topic
from tallymark.commit import Committer, Destination
from tallymark.errors import Fenced, LogTruncated, UnknownTopic, Unreachable
from tallymark.fence import Entry
from tallymark.fetch import Fetcher, OutOfRange
from tallymark.formats import Decoder
from tallymark.goals import Goals
from tallymark.handled import Handled, HandledCommitter
from tallymark.loop import Until
from tallymark.patience import patiently
from tallymark.pause import may_go_on
from tallymark.places import Place, place
from tallymark.plan import Move
from tallymark.records import Records
from tallymark.setup import Setup, new_owner
from tallymark.share import Settled, Share
from tallymark.skipahead import Lookout, jumps
from tallymark.source import is_pattern
from tallymark.spans import Owner, Partition
from tallymark.steps import OnStep, Progress, Step, ignore
from tallymark.stores.transaction import Transaction

log = logging.getLogger(__name__)

T = TypeVar("T")

FETCH_SECONDS = 0.1
"""How long to wait for records before looking whether partitions come or go."""
STATE_SECONDS = 1.0
"""How often to look whether the group is meant to pause."""
WORTH_WORKING_AHEAD = 50
"""Records of a batch from which on the next one is fetched and decoded while the handler works."""
NO_RECORDS = Records([], pa.nulls(0, pa.binary()))


class Consuming:
    """One run, from joining to leaving."""

    def __init__(
        self,
        setup: Setup,
        destination: Destination,
        stop: threading.Event,
        on_step: OnStep = ignore,
        owner: Owner | None = None,
    ) -> None:
        self.owner = owner or new_owner()
        self._setup = setup
        self._stop = stop
        self._on_step = on_step
        self._ledger = destination.ledger
        self._most = destination.rows.most_records
        self._brokers = Brokers(setup.source.cluster, stop)
        committer = Committer(setup.group, destination, setup.budget, lambda _: [], setup.patience, stop)
        self._committer = HandledCommitter(committer)
        membership = setup.member(self._brokers, self.owner)
        self.share = Share(
            setup.group,
            self.owner,
            membership,
            self._brokers,
            self._ledger,
            setup.starts,
            stop,
            setup.patience,
            tolerant=any(map(is_pattern, setup.source.topic_names)),
        )
        fetcher = Fetcher(setup.source, self._brokers)
        self._ahead = Ahead(fetcher, Decoder(setup.source.value), self.share.ask_identity)
        self._same_topics: Answer | None = None
        """Asked after the last batch was fetched, and good for one answer."""
        self._next: dict[Partition, Move] = {}
        """How the next move of each partition begins: what is lost and skipped before the first record of it."""
        self._lookout = Lookout(setup.catch_up) if setup.catch_up else None
        self._looked_at_state = -STATE_SECONDS
        self._batches = count(1)

    def batches(self, most: int, until: Until = "stopped") -> Iterator[Batch]:
        """Batch after batch, until stopped or at the end of what is there now."""
        try:
            topics = self._patiently(self._check)
            goals = self.share.goals(topics) if until == "caught-up" else None
            if not self._may_go_on(goals, lambda: None):
                return
            self.share.join(topics)
            while not self._finished(goals) and self._may_go_on(goals, self._settle):
                self._settle()
                self._skip_ahead()
                batch = self._fetch(min(most, self._most or most))
                if batch is not None:
                    # Of a few records the next are as quickly there, and whoever looks for them now is in the way.
                    if len(batch) >= WORTH_WORKING_AHEAD:
                        self._ahead.start(min(most, self._most or most), FETCH_SECONDS)
                    yield batch
                    batch.check_taken()
        except Unreachable as error:
            if not self._stop.is_set():
                raise
            log.warning("left without waiting any longer group=%s: %s", self._setup.group, error)
        finally:
            self._ahead.close()
            self.share.leave()

    def places(self) -> list[Place]:
        """Where we are in every partition that is ours."""
        logs = self._brokers.logs(self.share.held_topics())
        current = dict(self._ahead.current)
        saved = {one.partition: one for one in self._ledger.positions(self._setup.group).get(self._setup.group, [])}
        return [place(saved[one], found, current.get(one)) for one, found in sorted(logs.items()) if one in saved]

    @contextmanager
    def transaction(self, batch: Batch) -> Iterator[Transaction]:
        """Commit the batch with what is done in the block, and go on behind it."""
        with self._committing(batch) as (handled, on_step):
            accounts = partial(self._accounts, batch, self._identity())
            with self._committer.transaction(accounts, handled, on_step) as db:
                yield db

    @contextmanager
    def _committing(self, batch: Batch) -> Iterator[tuple[Handled, Callable[[Step], None]]]:
        handled = Handled(dict(self.share.claims))
        progress = Progress(batch.name, batch.offsets, 0)
        try:
            yield handled, lambda step: self._on_step(step, progress)
        except Fenced as refused:
            self._on_step(Step.DROPPED, replace(progress, error=refused))
            self._follow(self.share.recover(refused))
            # Only now: if we could not go back to the saved positions, going on would pass the records over.
            batch.abandoned = True
            raise
        except BaseException as error:
            self.share.failed(error)
            self.share.claims = handled.claims
            if handled.moved:
                # At most once: what was not done by now never will be.
                batch.abandoned = True
                self._advance(batch, handled)
            self._on_step(Step.DROPPED, replace(progress, error=error))
            raise
        self.share.failed(None)
        self.share.claims = handled.claims
        entry = self._advance(batch, handled)
        tallies = {step.partition: step.tally for step in entry.advances}
        progress = replace(progress, tally=entry.tally, tallies=tallies, rows=entry.rows)
        log.info("committed group=%s batch=%s tally=%s", self._setup.group, batch.name, progress.tally)
        self._on_step(Step.COMMITTED, progress)
        self._on_step(Step.DONE, progress)

    def _identity(self) -> Answer:
        """Tells whether the topics are the same still; a batch that is tried again asks again."""
        asked, self._same_topics = self._same_topics, None
        return asked or self.share.ask_identity()

    def _accounts(self, batch: Batch, same_topics: Answer) -> Accounts:
        # Asked after the fetching: if it is the same topic still, it was the same topic then.
        same_topics()
        return batch.accounts()

    def _advance(self, batch: Batch, handled: Handled) -> Entry:
        assert handled.entry is not None
        self.share.committed(handled.entry)
        for move in batch.moves:
            if move.skipped:
                log.warning("skipped group=%s span=%s: %s", self._setup.group, move.skipped_span, move.reason)
        behind = {partition: stop for partition, stop in batch.stops.items() if partition in self._next}
        self._next |= {partition: Move(partition, stop, 0, 0) for partition, stop in behind.items()}
        again = {partition: stop for partition, stop in behind.items() if self._ahead.current[partition] != stop}
        if again:
            self._ahead.add(again, {one: self.share.claims[one].position.leader_epoch for one in again})
        return handled.entry

    def _check(self) -> dict[str, Topic]:
        """Everything that can be wrong, before we join and claim. Returns the topics that there are."""
        topics = self._brokers.find(self._setup.source.topic_names)
        self._ledger.create_ledger()
        return topics

    def _may_go_on(self, goals: Goals | None, meanwhile: Callable[[], None]) -> bool:
        if time.monotonic() - self._looked_at_state < STATE_SECONDS:
            return True
        may = may_go_on(
            self._ledger,
            self._setup.group,
            self._stop,
            self._setup.patience,
            has_end=goals is not None,
            meanwhile=meanwhile,
        )
        self._looked_at_state = time.monotonic()
        return may

    def _finished(self, goals: Goals | None) -> bool:
        if self._stop.is_set():
            return True
        ours = {partition: move.start for partition, move in self._next.items()}
        return goals is not None and self.share.assigned and goals.reached(ours)

    def _settle(self) -> None:
        self._follow(self.share.settle())

    def _follow(self, settled: Settled) -> None:
        # Also what an attempt to recover had dropped before the store was out of reach.
        gone = settled.gone.union(self._next.keys() - self.share.claims.keys())
        self._ahead.remove(gone)
        for partition in gone:
            self._next.pop(partition, None)
        if settled.gained:
            try:
                self._begin(settled.gained)
            except UnknownTopic:
                if not self.share.tolerant:
                    raise
                self.share.forget(settled.gained)

    def _begin(self, partitions: Collection[Partition]) -> None:
        """Fetch these from their positions on, or from where the log begins if what is before it is lost."""
        try:
            starts = self.share.readable(partitions, self._setup.on_loss)
        except LogTruncated as cut:
            if self._setup.on_loss == "fail":
                raise
            settled = self.share.cut_back(cut.found)
            self._follow(replace(settled, gained=settled.gained.union(partitions) & self.share.claims.keys()))
            return
        positions = {one: self.share.claims[one].position.next_offset for one in starts}
        self._next |= {
            one: Move(one, at, starts[one].offset - at, 0, leader_epoch=starts[one].leader_epoch)
            for one, at in positions.items()
        }
        self._ahead.add(
            {one: mark.offset for one, mark in starts.items()},
            {one: mark.leader_epoch for one, mark in starts.items()},
        )

    def _skip_ahead(self) -> None:
        ahead = self._setup.catch_up
        if ahead is None or self._lookout is None or not self._next or not self._lookout.due(time.monotonic()):
            return
        positions = {partition: move.stop for partition, move in self._next.items()}
        logs = self.share.logs(positions)
        now = datetime.now(timezone.utc)
        found = self._patiently(lambda: jumps(ahead, positions, logs, self._brokers.offsets_at, now))
        for partition, jump in found.items():
            move, to = self._next[partition], min(jump.to, logs[partition].stop)
            if to > move.stop:
                epoch = logs[partition].leader_epoch
                skipped = move.skipped + to - move.stop
                self._next[partition] = replace(move, skipped=skipped, reason=jump.reason, leader_epoch=epoch)
                self._ahead.add({partition: to}, {partition: epoch})

    def _fetch(self, most: int) -> Batch | None:
        """The next batch, if there is one. What holds no records for a handler is committed on the way."""
        if not self._next:
            self._stop.wait(FETCH_SECONDS)
            return None
        began = time.monotonic()
        try:
            taken = self._patiently(lambda: self._ahead.take(most, FETCH_SECONDS))
        except OutOfRange as gone:
            if gone.partition in self._next:
                self._begin([gone.partition])
            return None
        except UnknownTopic:
            if not self.share.tolerant:
                raise
            # The group will take it away from us.
            return None
        fetched, self._same_topics = taken.fetched, taken.same_topics
        moves = [
            replace(move, read=fetched[one].stop - move.stop if one in fetched else 0)
            for one, move in sorted(self._next.items())
            if one in fetched or move.stop > move.start
        ]
        messages = {partition: got.messages for partition, got in fetched.items() if got.messages}
        if messages:
            name = f"{self.owner.run}-{next(self._batches)}"
            batch = Batch(name, moves, messages, taken.records, taken.letters, self.transaction)
            self._on_step(Step.READ, Progress(name, batch.offsets, 0, since=began))
            return batch
        if moves:
            self._pass_over(moves)
        return None

    def _pass_over(self, moves: Sequence[Move]) -> None:
        """Move positions over offsets that hold no records: markers of transactions, losses, skips."""
        batch = Batch(f"{self.owner.run}-{next(self._batches)}", moves, {}, NO_RECORDS, (), self.transaction)
        # Before the transaction: that must not wait for brokers.
        self._patiently(lambda: self._identity()())
        try:
            with self._committing(batch) as (handled, on_step):
                self._committer.ledger_only(batch.accounts, handled, on_step)
        except Fenced:
            if not batch.abandoned:
                raise

    def _patiently(self, work: Callable[[], T]) -> T:
        return patiently(work, self._stop, self._setup.patience)
