"""Backfills open skips while the group continues to run, and determines how much of a skip Kafka still holds.

Every chunk is one transaction that writes its rows and removes the chunk from the open skip. A backfill claims nothing
and moves no position, so it does not disturb the partition's owner. If two backfills fill the same chunk, the second is
refused and looks up the open skips again. The reader must not stage anything, because a member that starts removes the
staging tables of runs without claims.
"""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count

from tallymark.core.batch import BatchToCommit, check_letters, fetched, refused, without_refused
from tallymark.core.claims import Skip, explain_loss
from tallymark.core.plan import Move, Plan, adapt, check_identity, readable_from
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.core.records import DeadLetter, Reader, Reading
from tallymark.core.spans import Log, Partition, Position, Span, Tally
from tallymark.core.tables import Refusal, TableSpec
from tallymark.errors import BadInput, BatchTooLarge, GroupPaused, PositionMoved
from tallymark.kafka.brokers import Brokers
from tallymark.run.commit import Committer, Destination
from tallymark.run.prepare import empty_reading
from tallymark.run.setup import Job
from tallymark.run.until import Retrying

log = logging.getLogger(__name__)


class OpenSkips:
    """The open skips of a group, optionally limited to one topic or partition."""

    def __init__(
        self,
        group: str,
        destination: Destination,
        brokers: Brokers,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        if destination.delivery != "exactly-once":
            raise BadInput(f"backfill requires exactly-once delivery; leave out delivery={destination.delivery!r}")
        self._group = group
        self._ledger = destination.ledger
        self._brokers = brokers
        self._topic = topic
        self._partition = partition
        self._left: set[Span] = set()

    def listed(self) -> list[Skip]:
        """The skips that can be filled, in order."""
        return [
            skip
            for skip in self._ledger.skips(self._group)
            if self._topic in (None, skip.span.partition.topic)
            and self._partition in (None, skip.span.partition.number)
            and skip.span not in self._left
        ]

    def leave(self, skip: Skip) -> None:
        """Leave a skip open because nothing of it can be read now; ``listed`` omits it from now on."""
        log.warning("skip left open, none of it can be read yet group=%s span=%s", self._group, skip.span)
        self._left.add(skip.span)

    def log(self, partition: Partition) -> Log:
        """The brokers' log of the partition; raises if the topic was recreated since the ledger recorded it."""
        topic = self._brokers.topics([partition.topic])[partition.topic]
        log = self._brokers.logs({topic.name: topic.only([partition])})[partition]
        for position in self._ledger.positions(self._group).get(self._group, []):
            if position.partition == partition:
                check_identity(position, log.topic_id, log.cluster_id)
                return log
        raise explain_loss(partition, 0, None)


def held(span: Span, log: Log | None) -> str:
    """How much of a span is still in Kafka: all, part, or gone. ``log`` is None for a deleted or recreated topic."""
    left = max(0, span.stop - max(span.start, log.start)) if log else 0
    return "all" if left == len(span) else "part" if left else "gone"


def held_logs(
    positions: Sequence[Position], partitions: Collection[Partition], brokers: Brokers
) -> dict[Partition, Log]:
    """The brokers' logs of these partitions, except those whose topic or cluster id differs from the position's."""
    topics = brokers.topics(sorted({partition.topic for partition in partitions}), existing_only=True)
    logs = brokers.logs({name: topic.only(partitions) for name, topic in topics.items()})
    ids = {position.partition: (position.topic_id, position.cluster_id) for position in positions}
    return {partition: log for partition, log in logs.items() if ids.get(partition) == (log.topic_id, log.cluster_id)}


def backfill(
    job: Job,
    brokers: Brokers,
    destination: Destination,
    reader: Reader,
    on_step: OnStep = ignore,
    stop: threading.Event | None = None,
    *,
    topic: str | None = None,
    partition: int | None = None,
    overwrite: bool = False,
) -> Tally:
    """Fill all open skips of the group, or those of one topic or partition; returns the tally of their offsets.

    ``on_loss`` applies to records that Kafka has deleted since. ``overwrite`` allows tables in which the older records
    that are filled in can replace rows of newer records.
    """
    skips = OpenSkips(job.group, destination, brokers, topic, partition)
    check_order(job.tables, overwrite=overwrite)
    return Filler(job, skips, brokers, destination, reader, on_step, stop or threading.Event()).run()


def check_order(tables: Sequence[TableSpec], *, overwrite: bool, allow: str = "pass overwrite=True") -> None:
    """Refuse tables whose rows depend on the order of records. ``allow`` tells the user how to override the check."""
    for spec in tables:
        if overwrite or spec.write != "upsert":
            continue
        if spec.version is None:
            raise BadInput(f"table {spec.name}: older records would overwrite newer rows; set version=, or {allow}")
        if spec.delete is not None:
            raise BadInput(
                f"table {spec.name}: older records could restore rows that newer records have deleted; "
                f"{allow} to accept that"
            )


class Filler:
    """Runs one backfill, chunk after chunk."""

    def __init__(
        self,
        job: Job,
        skips: OpenSkips,
        brokers: Brokers,
        destination: Destination,
        reader: Reader,
        on_step: OnStep,
        stop: threading.Event,
    ) -> None:
        self._skips = skips
        self._job, self._brokers, self._reader, self._on_step, self._stop = job, brokers, reader, on_step, stop
        self._retrying = Retrying(stop, job.patience)
        self._store = destination.rows
        self._committer = Committer(job.group, destination, job.budget, self._letters, job.patience, stop)
        most = min(job.limits.records, self._store.most_records or job.limits.records)
        self._most = replace(job.limits, records=most)
        self._limit = most
        self._batches = count(1)

    def run(self) -> Tally:
        self._retrying(self._check)
        total = Tally()
        while not self._stop.is_set():
            skips = self._retrying(self._skips.listed)
            if not skips:
                break
            total += self._fill(skips[0], sum(len(skip.span) for skip in skips))
        return total

    def _check(self) -> None:
        schemas = self._reader.schemas()
        self._store.check_tables(self._job.tables, schemas)
        self._store.create_ledger()
        self._store.create_tables(self._job.tables, schemas)

    def _fill(self, skip: Skip, left: int) -> Tally:
        """Fill the first chunk of this skip."""
        began = time.monotonic()
        batch = self._retrying(partial(self._prepared, skip, left))
        if batch is None:
            self._skips.leave(skip)
            return Tally()
        offsets = batch.plan.offsets
        progress = Progress(batch.name, offsets, left - offsets)
        try:
            _, entry = self._committer.commit(batch, {}, lambda step: self._on_step(step, progress))
        except PositionMoved as error:
            log.warning("chunk refused, looking up the open skips again group=%s error=%s", self._job.group, error)
            return Tally()
        except BatchTooLarge as error:
            self._read_less(offsets, error)
            return Tally()
        finally:
            self._reader.discard(batch.reading)
        tally = Tally.sum(fill.tally for fill in entry.fills)
        self._on_step(Step.COMMITTED, replace(progress, tally=tally))
        self._limit = adapt(self._limit, offsets, time.monotonic() - began, batch.reading.size, self._most)
        log.info("filled group=%s batch=%s tally=%s left=%d", entry.group, entry.batch, tally, progress.behind)
        self._on_step(Step.DONE, replace(progress, tally=tally))
        if entry.pause is not None:
            raise GroupPaused(
                f"group {entry.group} was paused by its backfill: {entry.pause}; correct the pipeline, "
                f"resume the group with tallymark resume {shlex.quote(entry.group)}, and start the backfill again"
            )
        return tally

    def _prepared(self, skip: Skip, left: int) -> BatchToCommit | None:
        """Read and shape the first chunk; None if nothing can be read now."""
        name, started = f"{self._job.owner.run}-fill-{next(self._batches)}", datetime.now(UTC)
        move = self._first_move(skip.span)
        if move.stop == move.start:
            return None
        progress = Progress(name, move.read, left - move.read)
        self._on_step(Step.PLANNED, progress)
        again, tables = partial(self._reading, move, name), self._job.tables
        try:
            reading = again()
            self._on_step(Step.READ, progress)
            reading, refusals = without_refused(reading, refused(reading, tables), tables, again)
        except BatchTooLarge as error:
            self._read_less(move.read, error)
            return self._prepared(skip, left)
        letters = [*reading.dead_letters, *self._letters(refusals)]
        batch = BatchToCommit.shaped(name, started, Plan((move,)), reading, tables, letters, skip, again=again)
        self._on_step(Step.STAGED, progress)
        return batch

    def _reading(self, move: Move, name: str, without: Collection[tuple[Partition, int]] = ()) -> Reading:
        reading = self._reader.read([move.read_span], name, without) if move.read else empty_reading(self._reader)
        # Checked after the read: a topic that is the same now was the same during the read.
        self._skips.log(move.partition)
        check_letters(reading)
        return reading

    def _first_move(self, span: Span) -> Move:
        log = self._skips.log(span.partition)
        start = min(readable_from(span.start, log, self._job.on_loss), span.stop)
        read = max(0, min(self._limit, span.stop - start, log.stop - start))
        return Move(span.partition, span.start, lost=start - span.start, read=read)

    def _read_less(self, offsets: int, error: BatchTooLarge) -> None:
        if offsets <= 1:
            raise error
        self._limit = offsets // 2
        log.info("filling in smaller chunks group=%s offsets=%d error=%s", self._job.group, self._limit, error)

    def _letters(self, refusals: Sequence[Refusal]) -> list[DeadLetter]:
        return fetched(refusals, lambda offsets: self._retrying(lambda: self._brokers.records(offsets)))
