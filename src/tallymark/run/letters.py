"""Trying dead letters again: decode, shape and commit their records with the pipeline's present code.

Every batch is one transaction that writes the rows and settles the letters they come from; what dies again stays dead,
with the words it has now. It claims nothing and moves no position, so that the group goes on undisturbed; of two
replays of a letter the second one is refused, and looks again. Run it with a reader that stages nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from itertools import count
from typing import Protocol, TypeVar

from tallymark.backfill import check_order
from tallymark.batch import Batch
from tallymark.books import Letter
from tallymark.brokers import Brokers
from tallymark.budget import Budget
from tallymark.commit import Committer, Destination
from tallymark.errors import BadInput, BatchTooLarge, CommitRefused, TallymarkError
from tallymark.job import Job
from tallymark.letters import check_letters, parted, refused
from tallymark.openletters import MOST, OpenLetters, completed, outcome, place
from tallymark.patience import patiently
from tallymark.plan import Plan
from tallymark.read import DeadLetter, Reader, Reading
from tallymark.shape import Refusal
from tallymark.spans import Partition, Tally
from tallymark.steps import OnStep, Progress, Step, ignore

log = logging.getLogger(__name__)

T = TypeVar("T")

UNLIMITED = Budget(max_dead_per_batch=None, max_dead_ratio_per_batch=None)
"""What dies again was dead before."""


class Rereader(Reader, Protocol):
    """A reader that can be given records, too."""

    def reread(self, letters: Sequence[DeadLetter], batch: str) -> Reading:
        """Shape the records of these letters, as if they had been read together."""


def check_delivery(delivery: str) -> None:
    if delivery != "exactly-once":
        raise BadInput(
            f"replay is exactly-once only; leave out delivery={delivery!r}, "
            "or send the dead letters elsewhere: tallymark dead-letters replay --to-topic"
        )


def replay(
    job: Job,
    brokers: Brokers,
    destination: Destination,
    reader: Rereader,
    letters: OpenLetters,
    on_step: OnStep = ignore,
    stop: threading.Event | None = None,
    *,
    overwrite: bool = False,
) -> Tally:
    """Try these letters of the group; returns how many were applied, and how many died again.

    ``overwrite`` allows tables in which these older records can replace what newer ones have written.
    """
    check_delivery(destination.delivery)
    check_order(job.tables, overwrite=overwrite)
    return Replayer(job, brokers, destination, reader, on_step, stop or threading.Event()).run(letters)


class Replayer:
    """One replay, batch after batch."""

    def __init__(
        self,
        job: Job,
        brokers: Brokers,
        destination: Destination,
        reader: Rereader,
        on_step: OnStep,
        stop: threading.Event,
    ) -> None:
        self._job, self._brokers, self._reader, self._on_step, self._stop = job, brokers, reader, on_step, stop
        self._store = destination.rows
        self._records: dict[tuple[object, int], DeadLetter] = {}
        self._committer = Committer(job.group, destination, UNLIMITED, self._letters, job.patience, stop)
        self._limit = min(MOST, job.limits.records, self._store.most_records or MOST)
        self._batches = count(1)

    def run(self, left: OpenLetters) -> Tally:
        self._patiently(self._check)
        total = Tally()
        while not self._stop.is_set():
            letters = self._patiently(lambda: left.take(self._limit))
            if not letters:
                break
            try:
                total += self._try(letters, len(left) - len(letters))
            except CommitRefused as error:
                log.warning("looking again group=%s: %s", self._job.group, error)
                left.refused(error)
            except BatchTooLarge as error:
                self._try_fewer(len(letters), error)
            else:
                left.drop(letter.id for letter in letters)
        return total

    def _check(self) -> None:
        schemas = self._reader.schemas()
        self._store.check_tables(self._job.tables, schemas)
        self._store.create_tables(self._job.tables, schemas)

    def _try(self, letters: Sequence[Letter], left: int) -> Tally:
        name = f"{self._job.owner.run}-replay-{next(self._batches)}"
        progress = Progress(name, len(letters), left)
        self._on_step(Step.PLANNED, progress)
        batch = self._patiently(partial(self._prepared, name, letters, progress))
        try:
            _, entry = self._committer.commit(batch, {}, lambda step: self._on_step(step, progress))
        finally:
            self._reader.forget(batch.reading)
        tally = outcome(entry.replays)
        done = replace(progress, tally=tally, rows=entry.rows)
        self._on_step(Step.COMMITTED, done)
        log.info("replayed group=%s batch=%s tally=%s left=%d", entry.group, name, tally, left)
        self._on_step(Step.DONE, done)
        return tally

    def _prepared(self, name: str, letters: Sequence[Letter], progress: Progress) -> Batch:
        started = datetime.now(timezone.utc)
        records, gone = completed(letters, self._store, self._brokers)
        self._records = {(one.partition, one.offset): one for one in records}
        again, tables = partial(self._reading, records, name), self._job.tables
        reading = again()
        self._on_step(Step.READ, progress)
        reading, refusals = parted(reading, refused(reading, tables), tables, again)
        dead = [*gone, *reading.dead_letters, *self._letters(refusals)]
        tried = {place(letter): letter for letter in letters}
        batch = Batch.shaped(name, started, Plan(()), reading, tables, dead, tried=tried, again=again)
        self._on_step(Step.STAGED, progress)
        return batch

    def _reading(
        self, records: Sequence[DeadLetter], name: str, without: Collection[tuple[Partition, int]] = ()
    ) -> Reading:
        wanted = [one for one in records if (one.partition, one.offset) not in without]
        reading = self._reader.reread(wanted, name) if wanted else self._nothing()
        _check_count(reading, len(wanted))
        return reading

    def _try_fewer(self, letters: int, error: BatchTooLarge) -> None:
        if letters <= 1:
            raise error
        self._limit = letters // 2
        log.info("replaying in smaller batches: %s group=%s letters=%d", error, self._job.group, self._limit)

    def _letters(self, refusals: Sequence[Refusal]) -> list[DeadLetter]:
        return [replace(self._records[one.record], table=one.table, error=one.error) for one in refusals]

    def _nothing(self) -> Reading:
        return Reading({}, {name: schema.empty_table() for name, schema in self._reader.schemas().items()}, [])

    def _patiently(self, work: Callable[[], T]) -> T:
        return patiently(work, self._stop, self._job.patience)


def _check_count(reading: Reading, given: int) -> None:
    """A letter that is settled without its record having been seen would be lost."""
    check_letters(reading)
    counted = sum(seen.records for seen in reading.seen.values())
    if counted != given:
        raise TallymarkError(f"the reader was given {given} records of dead letters and counted {counted}")
