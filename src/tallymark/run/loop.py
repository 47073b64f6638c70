"""The batch loop of a pipeline: takes tasks from its work, reads, stages and commits them.

The loop uses Spark only through the Reader protocol. If the work reads ahead, the next batch is planned, read and
staged in a separate thread while the current batch commits. Only the caller's thread uses the ledger.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Generic

from tallymark.core.batch import BatchToCommit
from tallymark.core.claims import Entry
from tallymark.core.plan import Move
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.core.records import Reading
from tallymark.core.retry import Background
from tallymark.core.spans import Partition, Tally
from tallymark.core.tables import TableSpec, visible
from tallymark.errors import BatchTooLarge, CommitRefused, TallymarkError, Unreachable
from tallymark.run.commit import Committer, Destination
from tallymark.run.prepare import Preparation, Prepared, Rereader
from tallymark.run.setup import Job
from tallymark.run.until import Retrying, Until, may_go_on
from tallymark.run.work import T, Task, Work

log = logging.getLogger(__name__)

SHORTEST_WAIT, LONGEST_WAIT, WAIT_SHARE = 0.01, 0.05, 0.1
"""An idle loop waits for a share of the time since the last batch, between these seconds.

So a record is late by at most a tenth of the pause before it, and a topic at rest costs little.
"""


def idle_wait(idle: float) -> float:
    """Return how long to wait before the next look for records, after so many seconds without any."""
    return min(LONGEST_WAIT, max(SHORTEST_WAIT, WAIT_SHARE * idle))


class BatchLoop(Generic[T]):
    """What the loops of both engines share: when they wait and end, and how they report a commit."""

    pause_interval = 0.0
    """Minimum number of seconds between two checks whether the group is paused."""

    def __init__(
        self, job: Job, work: Work[T], destination: Destination, stop: threading.Event, on_step: OnStep
    ) -> None:
        self.job = job
        self.work, self._stop, self.on_step = work, stop, on_step
        self._retrying = Retrying(stop, job.patience)
        self._store, self._ledger = destination.rows, destination.ledger
        self._committer = Committer(job.group, destination, job.budget, work.letters, job.patience, stop)
        self._checked_pause = -math.inf

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End the work after the block. A server that is unreachable while the loop stops is no error."""
        try:
            yield
        except Unreachable as error:
            if not self._stop.is_set():
                raise
            log.warning("stopped while a server was unreachable group=%s error=%s", self.job.group, error)
        finally:
            self._end()

    def _end(self) -> None:
        self.work.leave()

    @property
    def _finished(self) -> bool:
        return self._stop.is_set() or self.work.finished

    def _may_go_on(self, meanwhile: Callable[[], None] | None = None) -> bool:
        """Whether to continue; waits while the group is paused."""
        if time.monotonic() - self._checked_pause < self.pause_interval:
            return True
        meanwhile, has_end = meanwhile or self.work.refresh, self.work.has_end
        may = may_go_on(
            self._ledger, self.job.group, self._stop, self.job.patience, has_end=has_end, meanwhile=meanwhile
        )
        self._checked_pause = time.monotonic()
        return may

    def report(self, entry: Entry, moves: Sequence[Move], progress: Progress) -> None:
        if entry.pause is not None:
            self._checked_pause = -math.inf
        for move in moves:
            if move.skipped:
                log.warning("skipped group=%s span=%s reason=%s", self.job.group, move.skipped_span, move.reason)
        tallies = {step.partition: step.tally for step in entry.advances}
        progress = replace(progress, tally=entry.outcome, tallies=tallies, rows=entry.rows)
        self.on_step(Step.COMMITTED, progress)
        left = f" {self.work.left}={progress.behind}" if self.work.left else ""
        log.info("%s group=%s batch=%s tally=%s%s", self.work.verb, self.job.group, entry.batch, entry.outcome, left)
        self.on_step(Step.DONE, progress)


class Loop(BatchLoop[Task]):
    """A run, a backfill or a replay of a pipeline, from its first check to its end."""

    def __init__(
        self,
        job: Job,
        work: Work[Task],
        reader: Rereader,
        destination: Destination,
        stop: threading.Event,
        on_step: OnStep = ignore,
    ) -> None:
        super().__init__(job, work, destination, stop, on_step)
        self._reader = reader
        self._preparation = Preparation(job, work, reader, self._store.most_records, stop, on_step)
        self._background = Background("tallymark-read")
        self._total = Tally()
        self._checked: dict[TableSpec, set[str]] = {}
        """The tables that were checked, with their columns."""

    def stop(self) -> None:
        """Finish the batch that is being committed, then end."""
        self._stop.set()

    def run(self, until: Until = "stopped") -> Tally:
        """Run until stopped, or until the work is finished. Returns what became of the records."""
        with self._ending():
            self.work.begin(until)
            self._retrying(self._check)
            if self._may_go_on(lambda: None):
                self._pump()
        return self._total

    def _end(self) -> None:
        # Cancel a pending read instead of waiting for it.
        self._stop.set()
        self._background.close()
        try:
            self._reader.cancel()
        finally:
            super()._end()

    def _check(self) -> None:
        """Check everything that can be checked before anything is claimed or read."""
        tables, schemas = self._reader.tables, self._reader.schemas()
        self._store.check_tables(tables, schemas)
        self._ledger.create_ledger()
        self._store.create_tables(tables, schemas)
        self._checked = {spec: set(schemas[spec.name].names) for spec in tables}

    def _check_new(self, tables: Sequence[TableSpec], reading: Reading) -> None:
        """Check and create the tables of topics that are read for the first time, and columns of new schemas."""
        new = [spec for spec in tables if not self._has_columns(spec, reading)]
        if new:
            tables, schemas = self._reader.tables, self._reader.schemas()
            # With the tables that are known, because names may be too much alike.
            self._retrying(lambda: self._store.check_tables(tables, schemas))
            self._retrying(lambda: self._store.create_tables(new, schemas))
            self._checked.update({spec: set(schemas[spec.name].names) for spec in new})

    def _has_columns(self, spec: TableSpec, reading: Reading) -> bool:
        """Whether the table has the columns of these rows."""
        known = self._checked.get(spec)
        if known is None or not spec.follows:
            return known is not None
        return known.issuperset(visible(reading.rows[spec.name]).column_names)

    def _again(self, batch: BatchToCommit, without: Collection[tuple[Partition, int]]) -> Reading:
        """Read a batch again. Its rows may have more columns than before."""
        assert batch.again is not None
        reading = batch.again(without)
        self._check_new(batch.tables, reading)
        return reading

    def _pump(self) -> None:
        """Commit batch after batch, each while the next is being read if the work reads ahead."""
        idle_since, ahead = time.monotonic(), None
        self.work.refresh()
        if self.work.reads_ahead:
            ahead = self._background.submit(self._preparation.next)
        while True:
            prepared = self._wait(ahead)
            if prepared is not None:
                self.work.taken(prepared.task)
            elif not self._finished:
                self._stop.wait(idle_wait(time.monotonic() - idle_since))
                self.work.refresh()
            finished = self._finished
            if self.work.reads_ahead and not finished:
                ahead = self._background.submit(self._preparation.next)
            if prepared is not None and self._may_go_on():
                self._commit_if_valid(prepared)
                idle_since = time.monotonic()
            if finished and self._finished:
                # The last batch may have exhausted the budget.
                self._may_go_on()
                return

    def _wait(self, ahead: Future[Prepared | None] | None) -> Prepared | None:
        """Wait for the batch that is being read, or read one now. None if the run stops or the batch is void."""
        while ahead is not None and not self._stop.is_set() and not wait([ahead], timeout=0.2).done:
            self.work.refresh()
        if self._stop.is_set():
            return None
        self.work.refresh()
        try:
            prepared = ahead.result() if ahead is not None else self._preparation.next()
        except TallymarkError as error:
            if isinstance(error, CommitRefused) or not self.work.refused(error):
                raise
            return None
        if prepared is not None and not self.work.is_valid(prepared.task):
            self._abandon(prepared)
            return None
        return prepared

    def _abandon(self, prepared: Prepared) -> None:
        log.info("batch abandoned, partitions no longer owned group=%s batch=%s", self.job.group, prepared.batch.name)
        self._reader.discard(prepared.batch.reading)
        self.work.abandon(prepared.task)
        self.on_step(Step.DROPPED, Progress(prepared.batch.name, prepared.task.size, prepared.task.behind))

    def _commit_if_valid(self, prepared: Prepared) -> None:
        if not self.work.is_valid(prepared.task):
            self._abandon(prepared)
            return
        try:
            self._commit(prepared)
        except CommitRefused as error:
            if not self.work.refused(error):
                raise

    def _commit(self, prepared: Prepared) -> None:
        began, batch, task = time.monotonic(), prepared.batch, prepared.task
        progress = Progress(batch.name, task.size, task.behind, since=began)
        entry: Entry | None = None
        try:
            self._check_new(batch.tables, batch.reading)
            if batch.again is not None:
                batch = replace(batch, again=partial(self._again, batch))
            entry = self._committer.commit(batch, self.work.claims, lambda step: self.on_step(step, progress))
        except BatchTooLarge as error:
            self.on_step(Step.DROPPED, replace(progress, error=error))
            # Executors can't tell which row is refused; the driver can, also for the same offsets.
            if not batch.reading.staged:
                if task.part().size == task.size:
                    raise
                self._preparation.shrink(task.part())
            log.info("committing in smaller batches group=%s batch=%s error=%s", self.job.group, batch.name, error)
        except Exception as error:
            self.on_step(Step.DROPPED, replace(progress, error=error))
            raise
        finally:
            self._reader.discard(batch.reading)
        if entry is None:
            self._commit_in_parts(task)
            return
        self._preparation.learn(prepared, max(prepared.seconds, time.monotonic() - began))
        self.work.done(entry)
        self._total += entry.outcome
        self.report(entry, task.plan.moves, progress)

    def _commit_in_parts(self, task: Task) -> None:
        """Commit the same task in smaller batches, and follow rebalances and pauses between them."""
        while task and self._may_go_on():
            self.work.refresh()
            if not self.work.is_valid(task):
                break
            part = self._preparation.part(task.part())
            self._commit(part)
            task = task.after(part.task)
        if task:
            self.work.abandon(task)
