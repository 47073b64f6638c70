"""The work of a consumer's run: the partitions that it has claimed, fetched from their positions on.

The assignment can change between two batches; records that were delivered but not committed are fetched again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

from tallymark.core.claims import Entry
from tallymark.core.plan import Move
from tallymark.core.skip_ahead import jumps
from tallymark.core.spans import Mark, Owner, Partition
from tallymark.errors import UnknownTopic
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.fetch import Fetcher, OutOfRange
from tallymark.run.claimed import Claimed
from tallymark.run.commit import Destination
from tallymark.run.ownership import OwnershipChange
from tallymark.run.setup import Setup
from tallymark.service.ahead import Ahead, Answer
from tallymark.service.batch import Batch
from tallymark.service.progress import PartitionProgress, progress_of
from tallymark.service.work import ServiceWork

FETCH_SECONDS = 0.1
"""How long to wait for records before checking for a new assignment."""
WORTH_WORKING_AHEAD = 50
"""Minimum number of records in a batch for the next batch to be fetched and decoded while the handler works.

Only for handlers that take Arrow: with Python objects both threads would compete for the interpreter's lock, which
takes longer than one after the other.
"""

FENCE_SECONDS = 1.0
"""How old the last check of the claims may be when a handler begins."""


class FetchedPartitions(Claimed[Batch], ServiceWork):
    """Fetches the claimed partitions of one run."""

    def __init__(self, setup: Setup, destination: Destination, stop: threading.Event, owner: Owner) -> None:
        brokers = Brokers(setup.source.cluster, stop)
        super().__init__(setup.job(owner), brokers, destination.ledger, setup.member(brokers, owner))
        self.owner = owner
        fetcher = Fetcher(setup.source, brokers)
        self._ahead = Ahead(
            fetcher,
            setup.source.decoders(None, stop, setup.patience_seconds, finds=self._job.finds_drift),
            self.ownership.ask_identity,
        )
        self._same_topics: Answer | None = None
        """The check that topics were not recreated. It was requested after the last fetch and is used only once."""
        self._next: dict[Partition, Move] = {}
        """The beginning of each partition's next move: what is lost and skipped before its first record."""
        self._batches = count(1)
        self._most = 0
        self._batch: Batch | None = None
        self._in_bulk = False
        """Whether the handler has taken the last batch as Arrow."""

    def next(self, most: int) -> Batch | None:
        self._most = most
        self._skip_ahead()
        self._batch = self._fetch(most)
        if self._batch is None and self._goals is not None:
            self._goals.lower(self._offsets)
        return self._batch

    def taken(self, task: Batch) -> None:
        if self._in_bulk and len(task) >= WORTH_WORKING_AHEAD:
            self._ahead.start(self._most, FETCH_SECONDS)

    def verify(self) -> Answer:
        """A batch that is tried again requests a new check of its topics."""
        self.ownership.look(FENCE_SECONDS)
        check, self._same_topics = self._same_topics, None
        # The answer comes after the fetch: if the topic is still the same then, the records came from it.
        return check or self.ownership.ask_identity()

    def done(self, entry: Entry) -> None:
        super().done(entry)
        self.ownership.failed(None)
        stops = self._batch.stops if self._batch is not None else {}
        if self._batch is not None and len(self._batch):
            self._in_bulk = not self._batch.records.as_objects
        behind = {partition: stop for partition, stop in stops.items() if partition in self._next}
        self._next |= {partition: Move(partition, stop, 0, 0) for partition, stop in behind.items()}
        again = {partition: stop for partition, stop in behind.items() if self._ahead.current[partition] != stop}
        if again:
            self._ahead.add(again, {partition: self.claims[partition].position.leader_epoch for partition in again})

    def refused(self, error: BaseException) -> bool:
        if super().refused(error):
            return True
        self.ownership.failed(error)
        return False

    def leave(self) -> None:
        self._ahead.close()
        super().leave()

    def progress(self) -> list[PartitionProgress]:
        """Return where this run is in each partition that it holds."""
        logs = self._brokers.logs(self.ownership.held_topics())
        current = dict(self._ahead.current)
        saved = {
            position.partition: position
            for position in self._ledger.positions(self._job.group).get(self._job.group, [])
        }
        return [
            progress_of(saved[partition], partition_log, current.get(partition))
            for partition, partition_log in sorted(logs.items())
            if partition in saved
        ]

    @property
    def _offsets(self) -> dict[Partition, int]:
        return {partition: move.start for partition, move in self._next.items()}

    def _forget(self, partitions: Collection[Partition]) -> None:
        # Includes partitions dropped by a recovery that failed because the store became unreachable.
        gone = {*partitions, *(self._next.keys() - self.claims.keys())}
        self._ahead.remove(gone)
        for partition in gone:
            self._next.pop(partition, None)

    def _start(self, marks: Mapping[Partition, Mark]) -> None:
        positions = {partition: self.claims[partition].position.next_offset for partition in marks}
        self._next |= {
            partition: Move(partition, at, marks[partition].offset - at, 0, leader_epoch=marks[partition].leader_epoch)
            for partition, at in positions.items()
        }
        self._ahead.add(
            {partition: mark.offset for partition, mark in marks.items()},
            {partition: mark.leader_epoch for partition, mark in marks.items()},
        )

    def _skip_ahead(self) -> None:
        ahead, interval = self._job.catch_up, self._skip_interval
        if ahead is None or interval is None or not self._next or not interval.due(time.monotonic()):
            return
        positions = {partition: move.stop for partition, move in self._next.items()}
        logs = self.ownership.logs(positions)
        now = datetime.now(UTC)
        targets = jumps(ahead, positions, logs, self._brokers.offsets_at, now)
        for partition, jump in targets.items():
            move, to = self._next[partition], min(jump.to, logs[partition].stop)
            if to > move.stop:
                epoch = logs[partition].leader_epoch
                skipped = move.skipped + to - move.stop
                self._next[partition] = replace(move, skipped=skipped, reason=jump.reason, leader_epoch=epoch)
                self._ahead.add({partition: to}, {partition: epoch})

    def _fetch(self, most: int) -> Batch | None:
        """Return the next batch, or None. A batch may have only moves, over offsets without records."""
        if not self._next:
            self._brokers.stop.wait(FETCH_SECONDS)
            return None
        try:
            taken = self._ahead.take(most, FETCH_SECONDS)
        except OutOfRange as gone:
            if gone.partition in self._next:
                self._follow(OwnershipChange(gained=frozenset([gone.partition])))
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
        if not moves:
            return None
        name = f"{self.owner.run}-{next(self._batches)}"
        return Batch(name, moves, messages, taken.records, taken.letters, unnamed=taken.unnamed)
