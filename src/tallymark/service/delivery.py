"""Runs a consumer: follows the group's assignment, fetches batches and commits them.

Everything here runs on the thread that iterates over the batches. The assignment can change between two batches;
records that were delivered but not committed are fetched again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count

import pyarrow as pa

from tallymark.core.batch import BatchToCommit
from tallymark.core.claims import Entry
from tallymark.core.plan import Move
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.core.skip_ahead import Every, jumps
from tallymark.core.spans import Owner, Partition
from tallymark.errors import Fenced, LogTruncated, UnknownTopic, Unreachable
from tallymark.formats.json import JsonDecoder
from tallymark.kafka.brokers import Brokers, Topic
from tallymark.kafka.fetch import Fetcher, OutOfRange
from tallymark.kafka.source import is_pattern
from tallymark.run.commit import Committer, Destination, Handled, HandledCommitter
from tallymark.run.loop import Until
from tallymark.run.ownership import Ownership, OwnershipChange
from tallymark.run.setup import Setup, new_owner
from tallymark.run.until import Goals, Retrying, may_go_on
from tallymark.service.ahead import Ahead, Answer
from tallymark.service.batch import Batch, Records
from tallymark.service.progress import PartitionProgress, progress_of
from tallymark.stores.transaction import Transaction

log = logging.getLogger(__name__)


FETCH_SECONDS = 0.1
"""How long to wait for records before checking for a new assignment."""
STATE_SECONDS = 1.0
"""How often to check whether the group is paused."""
WORTH_WORKING_AHEAD = 50
"""Minimum number of records in a batch for the next batch to be fetched and decoded while the handler works."""
NO_RECORDS = Records([], pa.nulls(0, pa.binary()))


class Consuming:
    """One run of a consumer, from joining the group to leaving it."""

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
        self._retrying = Retrying(stop, setup.patience_seconds)
        self._on_step = on_step
        self._ledger = destination.ledger
        self._most = destination.rows.most_records
        self._brokers = Brokers(setup.source.cluster, stop)
        committer = Committer(setup.group, destination, setup.budget, lambda _: [], setup.patience_seconds, stop)
        self._committer = HandledCommitter(committer)
        membership = setup.member(self._brokers, self.owner)
        self.ownership = Ownership(
            setup.group,
            self.owner,
            membership,
            self._brokers,
            self._ledger,
            setup.starts,
            stop,
            setup.patience_seconds,
            retention=setup.retention,
            tolerant=any(map(is_pattern, setup.source.topic_names)),
        )
        fetcher = Fetcher(setup.source, self._brokers)
        self._ahead = Ahead(fetcher, JsonDecoder(setup.source.value), self.ownership.ask_identity)
        self._same_topics: Answer | None = None
        """The check that topics were not recreated. It was requested after the last fetch and is used only once."""
        self._next: dict[Partition, Move] = {}
        """The beginning of each partition's next move: what is lost and skipped before its first record."""
        self._skip_interval = Every(setup.catch_up) if setup.catch_up else None
        self._looked_at_state = -STATE_SECONDS
        self._batches = count(1)

    def batches(self, most: int, until: Until = "stopped") -> Iterator[Batch]:
        """Yield batches until stopped, or until the present ends of the partitions are reached."""
        try:
            topics = self._retrying(self._check)
            goals = self.ownership.goals(topics) if until == "caught-up" else None
            if not self._may_go_on(goals, lambda: None):
                return
            self.ownership.join(topics)
            while not self._finished(goals) and self._may_go_on(goals, self._reconcile):
                self._reconcile()
                self._skip_ahead()
                batch = self._fetch(min(most, self._most or most))
                if batch is not None:
                    # Fetching ahead does not pay for small batches.
                    if len(batch) >= WORTH_WORKING_AHEAD:
                        self._ahead.start(min(most, self._most or most), FETCH_SECONDS)
                    yield batch
                    batch.check_taken()
                elif goals is not None:
                    goals.lower(self._positions)
        except Unreachable as error:
            if not self._stop.is_set():
                raise
            log.warning("stopped while a server was unreachable group=%s error=%s", self._setup.group, error)
        finally:
            self._ahead.close()
            self.ownership.leave()

    def progress(self) -> list[PartitionProgress]:
        """Return where this run is in each partition that it holds."""
        logs = self._brokers.logs(self.ownership.held_topics())
        current = dict(self._ahead.current)
        saved = {
            position.partition: position
            for position in self._ledger.positions(self._setup.group).get(self._setup.group, [])
        }
        return [
            progress_of(saved[partition], partition_log, current.get(partition))
            for partition, partition_log in sorted(logs.items())
            if partition in saved
        ]

    @contextmanager
    def transaction(self, batch: Batch) -> Iterator[Transaction]:
        """Commit the batch together with the writes of the block, and continue after it."""
        with self._committing(batch) as (handled, on_step):
            accounts = partial(self._accounts, batch, self._identity())
            with self._committer.transaction(accounts, handled, on_step) as db:
                yield db

    @contextmanager
    def _committing(self, batch: Batch) -> Iterator[tuple[Handled, Callable[[Step], None]]]:
        handled = Handled(dict(self.ownership.claims))
        progress = Progress(batch.name, batch.offsets, 0)
        try:
            yield handled, lambda step: self._on_step(step, progress)
        except Fenced as refused:
            self._on_step(Step.DROPPED, replace(progress, error=refused))
            self._follow(self.ownership.recover(refused))
            # Set only after recovery: without a return to the saved positions, the next batch would skip records.
            batch.abandoned = True
            raise
        except BaseException as error:
            self.ownership.failed(error)
            self.ownership.claims = handled.claims
            if handled.moved:
                # At most once: the position has moved, so unfinished records are not tried again.
                batch.abandoned = True
                self._advance(batch, handled)
            self._on_step(Step.DROPPED, replace(progress, error=error))
            raise
        self.ownership.failed(None)
        self.ownership.claims = handled.claims
        entry = self._advance(batch, handled)
        tallies = {step.partition: step.tally for step in entry.advances}
        progress = replace(progress, tally=entry.tally, tallies=tallies, rows=entry.rows)
        log.info("committed group=%s batch=%s tally=%s", self._setup.group, batch.name, progress.tally)
        self._on_step(Step.COMMITTED, progress)
        self._on_step(Step.DONE, progress)

    def _identity(self) -> Answer:
        """Return a check that the topics are still the same. A batch that is tried again requests a new check."""
        check, self._same_topics = self._same_topics, None
        return check or self.ownership.ask_identity()

    def _accounts(self, batch: Batch, same_topics: Answer) -> BatchToCommit:
        # This runs after the fetch: if the topic is still the same now, the records came from it.
        same_topics()
        return batch.accounts()

    def _advance(self, batch: Batch, handled: Handled) -> Entry:
        assert handled.entry is not None
        self.ownership.committed(handled.entry)
        for move in batch.moves:
            if move.skipped:
                log.warning("skipped group=%s span=%s reason=%s", self._setup.group, move.skipped_span, move.reason)
        behind = {partition: stop for partition, stop in batch.stops.items() if partition in self._next}
        self._next |= {partition: Move(partition, stop, 0, 0) for partition, stop in behind.items()}
        again = {partition: stop for partition, stop in behind.items() if self._ahead.current[partition] != stop}
        if again:
            self._ahead.add(
                again, {partition: self.ownership.claims[partition].position.leader_epoch for partition in again}
            )
        return handled.entry

    def _check(self) -> dict[str, Topic]:
        """Check topics and ledger before joining and claiming. Returns the topics found."""
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
            self._setup.patience_seconds,
            has_end=goals is not None,
            meanwhile=meanwhile,
        )
        self._looked_at_state = time.monotonic()
        return may

    def _finished(self, goals: Goals | None) -> bool:
        if self._stop.is_set():
            return True
        return goals is not None and self.ownership.assigned and goals.reached(self._positions)

    @property
    def _positions(self) -> dict[Partition, int]:
        return {partition: move.start for partition, move in self._next.items()}

    def _reconcile(self) -> None:
        self._follow(self.ownership.reconcile())

    def _follow(self, change: OwnershipChange) -> None:
        # Includes partitions dropped by a recovery that failed because the store became unreachable.
        gone = change.gone.union(self._next.keys() - self.ownership.claims.keys())
        self._ahead.remove(gone)
        for partition in gone:
            self._next.pop(partition, None)
        if change.gained:
            try:
                self._begin(change.gained)
            except UnknownTopic:
                if not self.ownership.tolerant:
                    raise
                self.ownership.drop(change.gained)

    def _begin(self, partitions: Collection[Partition]) -> None:
        """Fetch partitions from their positions, or from the start of the log if earlier records are lost."""
        try:
            starts = self.ownership.readable(partitions, self._setup.on_loss)
        except LogTruncated as cut:
            if self._setup.on_loss == "fail":
                raise
            change = self.ownership.cut_back(cut.found)
            self._follow(replace(change, gained=change.gained.union(partitions) & self.ownership.claims.keys()))
            return
        positions = {partition: self.ownership.claims[partition].position.next_offset for partition in starts}
        self._next |= {
            partition: Move(
                partition, at, starts[partition].offset - at, 0, leader_epoch=starts[partition].leader_epoch
            )
            for partition, at in positions.items()
        }
        self._ahead.add(
            {partition: mark.offset for partition, mark in starts.items()},
            {partition: mark.leader_epoch for partition, mark in starts.items()},
        )

    def _skip_ahead(self) -> None:
        ahead = self._setup.catch_up
        if (
            ahead is None
            or self._skip_interval is None
            or not self._next
            or not self._skip_interval.due(time.monotonic())
        ):
            return
        positions = {partition: move.stop for partition, move in self._next.items()}
        logs = self.ownership.logs(positions)
        now = datetime.now(UTC)
        targets = self._retrying(lambda: jumps(ahead, positions, logs, self._brokers.offsets_at, now))
        for partition, jump in targets.items():
            move, to = self._next[partition], min(jump.to, logs[partition].stop)
            if to > move.stop:
                epoch = logs[partition].leader_epoch
                skipped = move.skipped + to - move.stop
                self._next[partition] = replace(move, skipped=skipped, reason=jump.reason, leader_epoch=epoch)
                self._ahead.add({partition: to}, {partition: epoch})

    def _fetch(self, most: int) -> Batch | None:
        """Return the next batch, or None. Moves without records for a handler are committed here."""
        if not self._next:
            self._stop.wait(FETCH_SECONDS)
            return None
        began = time.monotonic()
        try:
            taken = self._retrying(lambda: self._ahead.take(most, FETCH_SECONDS))
        except OutOfRange as gone:
            if gone.partition in self._next:
                self._begin([gone.partition])
            return None
        except UnknownTopic:
            if not self.ownership.tolerant:
                raise
            # The topic was deleted; the next assignment will not include it.
            return None
        fetched, self._same_topics = taken.fetched, taken.same_topics
        moves = [
            replace(move, read=fetched[partition].stop - move.stop, leader_epoch=fetched[partition].leader_epoch)
            if partition in fetched
            else move
            for partition, move in sorted(self._next.items())
            if partition in fetched or move.stop > move.start
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
        """Move positions past offsets without records: transaction markers, losses, skips."""
        batch = Batch(f"{self.owner.run}-{next(self._batches)}", moves, {}, NO_RECORDS, (), self.transaction)
        # Checked before the transaction, which must not wait for brokers.
        self._retrying(lambda: self._identity()())
        try:
            with self._committing(batch) as (handled, on_step):
                self._committer.ledger_only(batch.accounts, handled, on_step)
        except Fenced:
            if not batch.abandoned:
                raise
