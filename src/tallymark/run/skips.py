"""Filling in what was skipped: read, shape and commit open skips while the group goes on.

Every chunk is one transaction that writes its rows and takes it out of the open skip. It claims nothing and moves no
position, so that whoever owns the partition is not disturbed; of two backfills that fill the same chunk, the second one
is refused and looks again. Run it with a reader that stages nothing: a member that starts removes such tables.
"""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from itertools import count
from typing import TypeVar

from tallymark.batch import Batch
from tallymark.brokers import Brokers
from tallymark.commit import Committer, Destination
from tallymark.errors import BadInput, BatchTooLarge, GroupPaused, PositionMoved
from tallymark.fence import Skip
from tallymark.job import Job
from tallymark.letters import check_letters, fetched, parted, refused
from tallymark.openskips import OpenSkips
from tallymark.patience import patiently
from tallymark.plan import Move, Plan, adapt, readable_from
from tallymark.read import DeadLetter, Reader, Reading
from tallymark.shape import Refusal, TableSpec
from tallymark.spans import Partition, Span, Tally
from tallymark.steps import OnStep, Progress, Step, ignore

log = logging.getLogger(__name__)

T = TypeVar("T")


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
    """Fill all open skips of the group, or those of one topic or partition; returns what became of their offsets.

    What Kafka has deleted since is lost, as ``on_loss`` says. ``overwrite`` allows tables in which the older records
    that are filled in now can replace what newer ones have written.
    """
    skips = OpenSkips(job.group, destination, brokers, topic, partition)
    check_order(job.tables, overwrite=overwrite)
    return Filler(job, skips, brokers, destination, reader, on_step, stop or threading.Event()).run()


def check_order(tables: Sequence[TableSpec], *, overwrite: bool, allow: str = "pass overwrite=True") -> None:
    """Refuse tables whose rows depend on the order in which records come. ``allow`` is how to say that it is fine."""
    for spec in tables:
        if overwrite or spec.write != "upsert":
            continue
        if spec.version is None:
            raise BadInput(
                f"table {spec.name}: filling in older records would overwrite newer rows; give version=, or {allow}"
            )
        if spec.delete is not None:
            raise BadInput(
                f"table {spec.name}: filling in older records could bring back rows that newer ones have deleted; "
                f"{allow} if that is fine"
            )


class Filler:
    """One backfill, chunk after chunk."""

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
        self._store = destination.rows
        self._committer = Committer(job.group, destination, job.budget, self._letters, job.patience, stop)
        most = min(job.limits.records, self._store.most_records or job.limits.records)
        self._most = replace(job.limits, records=most)
        self._limit = most
        self._batches = count(1)

    def run(self) -> Tally:
        self._patiently(self._check)
        total = Tally()
        while not self._stop.is_set():
            skips = self._patiently(self._skips.listed)
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
        batch = self._patiently(partial(self._prepared, skip, left))
        if batch is None:
            self._skips.leave(skip)
            return Tally()
        offsets = batch.plan.offsets
        progress = Progress(batch.name, offsets, left - offsets)
        try:
            _, entry = self._committer.commit(batch, {}, lambda step: self._on_step(step, progress))
        except PositionMoved as error:
            log.warning("looking again group=%s: %s", self._job.group, error)
            return Tally()
        except BatchTooLarge as error:
            self._read_less(offsets, error)
            return Tally()
        finally:
            self._reader.forget(batch.reading)
        tally = Tally.sum(fill.tally for fill in entry.fills)
        self._on_step(Step.COMMITTED, replace(progress, tally=tally))
        self._limit = adapt(self._limit, offsets, time.monotonic() - began, batch.reading.size, self._most)
        log.info("filled group=%s batch=%s tally=%s left=%d", entry.group, entry.batch, tally, progress.behind)
        self._on_step(Step.DONE, replace(progress, tally=tally))
        if entry.pause is not None:
            raise GroupPaused(
                f"group {entry.group} was paused by its backfill: {entry.pause}; correct the pipeline, "
                f"then tallymark resume {shlex.quote(entry.group)} and fill in the rest"
            )
        return tally

    def _prepared(self, skip: Skip, left: int) -> Batch | None:
        """Read and shape the first chunk; None if nothing of it can be read now."""
        name, started = f"{self._job.owner.run}-fill-{next(self._batches)}", datetime.now(timezone.utc)
        move = self._first_move(skip.span)
        if move.stop == move.start:
            return None
        progress = Progress(name, move.read, left - move.read)
        self._on_step(Step.PLANNED, progress)
        again, tables = partial(self._reading, move, name), self._job.tables
        try:
            reading = again()
            self._on_step(Step.READ, progress)
            reading, refusals = parted(reading, refused(reading, tables), tables, again)
        except BatchTooLarge as error:
            self._read_less(move.read, error)
            return self._prepared(skip, left)
        letters = [*reading.dead_letters, *self._letters(refusals)]
        batch = Batch.shaped(name, started, Plan((move,)), reading, tables, letters, skip, again=again)
        self._on_step(Step.STAGED, progress)
        return batch

    def _reading(self, move: Move, name: str, without: Collection[tuple[Partition, int]] = ()) -> Reading:
        reading = self._reader.read([move.read_span], name, without) if move.read else self._nothing()
        # Asked after the reading: if it is the same topic still, it was the same topic then.
        self._skips.log(move.partition)
        check_letters(reading)
        return reading

    def _first_move(self, span: Span) -> Move:
        found = self._skips.log(span.partition)
        start = min(readable_from(span.start, found, self._job.on_loss), span.stop)
        read = max(0, min(self._limit, span.stop - start, found.stop - start))
        return Move(span.partition, span.start, lost=start - span.start, read=read)

    def _read_less(self, offsets: int, error: BatchTooLarge) -> None:
        if offsets <= 1:
            raise error
        self._limit = offsets // 2
        log.info("filling in smaller chunks: %s group=%s offsets=%d", error, self._job.group, self._limit)

    def _letters(self, refusals: Sequence[Refusal]) -> list[DeadLetter]:
        return fetched(refusals, lambda wanted: self._patiently(lambda: self._brokers.records(wanted)))

    def _nothing(self) -> Reading:
        return Reading({}, {name: schema.empty_table() for name, schema in self._reader.schemas().items()}, [])

    def _patiently(self, work: Callable[[], T]) -> T:
        return patiently(work, self._stop, self._job.patience)
