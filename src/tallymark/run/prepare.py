"""Prepares a batch of a pipeline for its commit: reads, shapes and stages what a task asks for.

``next`` runs in the reading thread while the previous batch commits, if the work reads ahead. It uses Kafka and the
reader, but not the ledger.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Protocol

from tallymark.core import drift
from tallymark.core.batch import BatchToCommit, check_letters, refused, without_refused
from tallymark.core.plan import adapt
from tallymark.core.progress import OnStep, Progress, Step
from tallymark.core.records import DeadLetter, Reader, Reading
from tallymark.core.spans import Partition, Span
from tallymark.errors import BatchTooLarge, TallymarkError
from tallymark.run.setup import Job
from tallymark.run.until import Retrying
from tallymark.run.work import Task, Work

log = logging.getLogger(__name__)

CAREFUL = 20
"""Number of batches after a batch that was too large before the batch size may grow again."""


class Rereader(Reader, Protocol):
    """A reader that also accepts records instead of spans."""

    def reread(self, letters: Sequence[DeadLetter], batch: str) -> Reading:
        """Shape the records of these letters as if they had been read in one batch."""


@dataclass(frozen=True)
class Prepared:
    """A batch that is ready to commit, its task, and the time that it took to prepare."""

    task: Task
    batch: BatchToCommit
    seconds: float


class Preparation:
    """Prepares task after task."""

    def __init__(
        self,
        job: Job,
        work: Work[Task],
        reader: Rereader,
        most_records: int | None,
        stop: threading.Event,
        on_step: OnStep,
    ) -> None:
        self._job, self._work, self._reader, self._on_step = job, work, reader, on_step
        self._retrying = Retrying(stop, job.patience)
        records = min(job.limits.records, work.most, most_records or job.limits.records)
        self._most = replace(job.limits, records=records)
        self._limit = records
        self._careful = 0  # batches until the size may grow again
        self._batches = count(1)

    def next(self) -> Prepared | None:
        """The next batch of the work; None if there is nothing to do now."""
        return self._retrying(self._next)

    def part(self, task: Task) -> Prepared:
        """A part of an earlier task, read and staged again."""
        return self._retrying(lambda: self._prepared(task, time.monotonic()))

    def learn(self, prepared: Prepared, seconds: float) -> None:
        """Adapt the size of the next batches to the time and memory that this batch took."""
        reading = prepared.batch.reading
        # Rows staged by executors were never in the driver's memory.
        size = 0 if reading.staged else reading.size
        adapted = adapt(self._limit, prepared.task.size, seconds, size, self._most)
        self._careful = max(0, self._careful - 1)
        self._limit = min(adapted, self._limit) if self._careful else adapted

    def shrink(self, task: Task) -> None:
        """Keep the next batches as small as this task."""
        self._limit, self._careful = max(1, task.size), CAREFUL

    def _next(self) -> Prepared | None:
        began = time.monotonic()
        task = self._work.next(self._limit)
        return None if task is None else self._prepared(task, began)

    def _prepared(self, task: Task, began: float) -> Prepared:
        """Read and shape the task, or the part of it that fits in memory."""
        name = f"{self._job.owner.run}-{self._work.prefix}{next(self._batches)}"
        progress = Progress(name, task.size, task.behind, since=began)
        try:
            self._on_step(Step.PLANNED, progress)
            return Prepared(task, self._read(name, task, progress), time.monotonic() - began)
        except BatchTooLarge as error:
            self._on_step(Step.DROPPED, replace(progress, error=error))
            part = task.part(error.share)
            if part.size == task.size:
                raise
            log.info("reading a part group=%s batch=%s offsets=%d error=%s", self._job.group, name, part.size, error)
            self.shrink(part)
        except Exception as error:
            self._on_step(Step.DROPPED, replace(progress, error=error))
            raise
        return self._prepared(part, time.monotonic())

    def _read(self, name: str, task: Task, progress: Progress) -> BatchToCommit:
        started = datetime.now(UTC)
        again = partial(self._reading, task, name)
        reading = again(then=task.then)
        tables = [spec for spec in self._reader.tables if spec.name in reading.rows]
        if self._job.on_drift == "fail":
            drift.check(self._job.group, reading.drift)
        self._on_step(Step.READ, progress)
        reading, refusals = without_refused(reading, refused(reading, tables), tables, again)
        letters = [*task.gone, *reading.dead_letters, *self._work.letters(refusals)]
        more = task.skip, task.tried, again, self._reader.drift
        batch = BatchToCommit.shaped(name, started, task.plan, reading, tables, letters, *more)
        self._on_step(Step.STAGED, progress)
        return batch

    def _reading(
        self,
        task: Task,
        name: str,
        without: Collection[tuple[Partition, int]] = (),
        then: Sequence[Span] | None = None,
    ) -> Reading:
        if task.tried:
            return self._rereading(task, name, without)
        spans = task.plan.spans
        reading = self._reader.read(spans, name, without, then) if spans else self._nothing()
        # Checked after the read: a topic that is the same now was the same during the read.
        self._work.check()
        check_letters(reading)
        return reading

    def _rereading(self, task: Task, name: str, without: Collection[tuple[Partition, int]]) -> Reading:
        records = [record for record in task.records if (record.partition, record.offset) not in without]
        reading = self._reader.reread(records, name) if records else self._nothing()
        check_letters(reading)
        counted = sum(seen.records for seen in reading.seen.values())
        if counted != len(records):
            # Settling a letter whose record was not read would lose the record.
            raise TallymarkError(
                f"the reader counted {counted} records for {len(records)} dead letters; none of them was settled"
            )
        return reading

    def _nothing(self) -> Reading:
        """The reading of a batch without records, which only passes over offsets or settles letters."""
        return Reading({}, {name: schema.empty_table() for name, schema in self._reader.schemas().items()}, [])
