"""The batch loop: plan, read, stage, commit. It uses Spark only through the Reader protocol.

The next batch is planned, read and staged in a separate thread while the current batch commits. Only the caller's
thread uses the ledger.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from tallymark.core.claims import Entry
from tallymark.core.plan import Plan
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.core.records import Reader
from tallymark.core.retry import Background
from tallymark.core.spans import Partition, Tally
from tallymark.errors import (
    BatchTooLarge,
    Fenced,
    LogTruncated,
    TallymarkError,
    TopicRecreated,
    UnknownTopic,
    Unreachable,
)
from tallymark.kafka.brokers import Brokers, Topic
from tallymark.kafka.membership import Alone, Membership
from tallymark.kafka.source import is_pattern
from tallymark.run.commit import Committer, Destination
from tallymark.run.ownership import Ownership, OwnershipChange
from tallymark.run.prepare import Cursor, Preparation, Prepared
from tallymark.run.setup import Job
from tallymark.run.until import Goals, Retrying, may_go_on

log = logging.getLogger(__name__)

Until = Literal["stopped", "caught-up"]

FIRST_WAIT, LONGEST_WAIT = 0.01, 0.1
"""Shortest and longest wait of an idle loop, in seconds; the wait grows while there are no new records."""


class Loop:
    """One run of a group, from claim to release."""

    def __init__(
        self,
        job: Job,
        brokers: Brokers,
        destination: Destination,
        reader: Reader,
        on_step: OnStep = ignore,
        membership: Membership | None = None,
    ) -> None:
        self.job = job
        self._brokers = brokers
        self._store = destination.rows
        self._ledger = destination.ledger
        self._reader = reader
        self._on_step = on_step
        self._stop = brokers.stop
        self._retrying = Retrying(self._stop, job.patience)
        member = membership or Alone(brokers, job.topics)
        self._ownership = Ownership(
            job.group,
            job.owner,
            member,
            brokers,
            self._ledger,
            job.start,
            self._stop,
            job.patience,
            tolerant=any(map(is_pattern, job.topics)),
            retention=job.retention,
        )
        self._cursor, self._total = Cursor(), Tally()
        self._ahead = Preparation(
            job, brokers, reader, self._ownership, self._cursor, self._store.most_records, self._stop, on_step
        )
        self._committer = Committer(job.group, destination, job.budget, self._ahead.letters, job.patience, self._stop)

    def stop(self) -> None:
        """Finish the batch that is being committed, then end the run."""
        self._stop.set()

    def run(self, until: Until = "stopped") -> Tally:
        """Run until stopped, or until all records that were in the topics at the start are in the tables."""
        try:
            topics = self._retrying(self._check)
            goals = self._ownership.goals(topics) if until == "caught-up" else None
            if not self._running(goals, lambda: None):
                return Tally()
            self._ownership.join(topics)
            return self._batches_until(goals)
        finally:
            if self._ownership.leave():
                with suppress(TallymarkError):
                    self._store.clear_stages(self.job.group, of=self.job.owner.run)

    def _check(self) -> dict[str, Topic]:
        """Check everything that can be checked before joining and claiming. Returns the existing topics."""
        topics = self._retrying(lambda: self._brokers.find(self.job.topics))
        schemas = self._reader.schemas()
        self._store.check_tables(self.job.tables, schemas)
        self._ledger.create_ledger()
        self._store.create_tables(self.job.tables, schemas)
        return topics

    def _running(self, goals: Goals | None, meanwhile: Callable[[], None] | None = None) -> bool:
        """Whether to continue; waits while the group is paused."""
        return may_go_on(
            self._ledger,
            self.job.group,
            self._stop,
            self.job.patience,
            has_end=goals is not None,
            meanwhile=meanwhile or self._reconcile,
        )

    def _reconcile(self) -> None:
        """Claim assigned partitions and release revoked partitions. Call only between batches."""
        self._follow(self._ownership.reconcile())

    def _follow(self, change: OwnershipChange) -> None:
        self._cursor.remove(change.gone)
        if change.gone:
            self._cursor.turn += 1
            self._reader.release(change.gone)
        self._cursor.add({partition: self._ownership.claims[partition].position.mark for partition in change.gained})
        if change.gained:
            self._check_gained(change.gained)
            self._retrying(self._clear_stages)

    def _check_gained(self, gained: Collection[Partition]) -> None:
        try:
            self._ownership.readable(gained, self.job.on_loss)
        except LogTruncated as cut:
            self._cut_back(cut)
        except UnknownTopic:
            if not self._ownership.tolerant:
                raise
            self._ownership.drop(gained)
            self._cursor.remove(gained)

    def _cut_back(self, cut: LogTruncated) -> None:
        # Only committed positions count: an abandoned batch may have been read past the truncation.
        at = {partition: claim.position.next_offset for partition, claim in self._ownership.claims.items()}
        truncations = [one for one in cut.found if at.get(one.partition) == one.position]
        if truncations and self.job.on_loss == "fail":
            raise cut
        self._follow(self._ownership.cut_back(truncations))

    def _clear_stages(self) -> None:
        """Remove the staging tables of runs that hold no partition any more."""
        positions = self._ledger.positions(self.job.group).get(self.job.group, [])
        alive = {position.owner.run for position in positions if position.owner}
        self._store.clear_stages(self.job.group, keep=alive | {self.job.owner.run})

    def _batches_until(self, goals: Goals | None) -> Tally:
        background = Background("tallymark-read")
        try:
            self._pump(background, goals)
        except Unreachable as error:
            if not self._stop.is_set():
                raise
            log.warning("stopped while a server was unreachable group=%s error=%s", self.job.group, error)
        finally:
            # Cancel a pending read instead of waiting for it.
            self._stop.set()
            self._reader.cancel()
            background.close()
        return self._total

    def _pump(self, background: Background, goals: Goals | None) -> None:
        """Commit batch after batch, each while the next is being read."""
        pause = FIRST_WAIT
        self._reconcile()
        ahead = background.submit(self._ahead.prepare)
        while True:
            prepared = self._wait(ahead)
            if prepared is not None:
                self._cursor.pass_by(prepared.batch.plan.moves)
                pause = FIRST_WAIT
            elif not self._finished(goals):
                self._stop.wait(pause)
                pause = min(LONGEST_WAIT, pause * 1.5)
                self._reconcile()
                if goals is not None:
                    goals.lower(self._cursor.offsets)
            finished = self._finished(goals)
            if not finished:
                ahead = background.submit(self._ahead.prepare)
            if prepared is not None and self._running(goals):
                self._total += self._commit_if_owned(prepared)
            if finished and self._finished(goals):
                self._running(goals)
                return

    def _wait(self, ahead: Future[Prepared | None]) -> Prepared | None:
        """Wait for the batch that is being read; None if the run stops or the batch is void."""
        while not self._stop.is_set():
            done = wait([ahead], timeout=0.2).done
            self._reconcile()
            if not done:
                continue
            try:
                prepared = ahead.result()
            except LogTruncated as cut:
                self._cut_back(cut)
                return None
            except TopicRecreated:
                # Check again: earlier batches have been committed since, and the error must name the current position.
                self._ownership.check_identity()
                raise
            if prepared is not None and prepared.turn != self._cursor.turn:
                self._abandon(prepared)
                return None
            return prepared
        return None

    def _abandon(self, prepared: Prepared) -> None:
        log.info("batch abandoned, partitions no longer owned group=%s batch=%s", self.job.group, prepared.batch.name)
        self._ahead.discard(prepared.batch)
        self._on_step(Step.DROPPED, Progress(prepared.batch.name, prepared.batch.plan.offsets, prepared.behind))

    def _finished(self, goals: Goals | None) -> bool:
        if self._stop.is_set():
            return True
        return goals is not None and self._ownership.assigned and goals.reached(self._cursor.offsets)

    def _commit_if_owned(self, prepared: Prepared) -> Tally:
        if prepared.turn != self._cursor.turn:
            claims, moved = self._ownership.claims, {move.partition for move in prepared.batch.plan.moves}
            self._cursor.go_back(
                {partition: claim.position.mark for partition, claim in claims.items() if partition in moved}
            )
            self._abandon(prepared)
            return Tally()
        try:
            return self._commit(prepared)
        except Fenced as refused:
            self._follow(self._ownership.recover(refused))
            return Tally()

    def _commit(self, prepared: Prepared) -> Tally:
        began, batch = time.monotonic(), prepared.batch
        progress = Progress(batch.name, batch.plan.offsets, prepared.behind, since=began)
        try:
            self._ownership.claims, entry = self._committer.commit(
                batch, self._ownership.claims, lambda step: self._on_step(step, progress)
            )
        except BatchTooLarge as error:
            self._on_step(Step.DROPPED, replace(progress, error=error))
            log.info("committing in smaller batches group=%s batch=%s error=%s", self.job.group, batch.name, error)
            return self._commit_in_parts(batch.plan, prepared.behind)
        except Exception as error:
            self._on_step(Step.DROPPED, replace(progress, error=error))
            raise
        finally:
            self._reader.discard(batch.reading)
        self._ahead.learn(batch, max(prepared.seconds, time.monotonic() - began))
        self._ownership.committed(entry)
        self._report(prepared, entry, progress)
        return entry.tally

    def _report(self, prepared: Prepared, entry: Entry, progress: Progress) -> None:
        for move in prepared.batch.plan.moves:
            if move.skipped:
                log.warning("skipped group=%s span=%s reason=%s", self.job.group, move.skipped_span, move.reason)
        tallies = {step.partition: step.tally for step in entry.advances}
        progress = replace(progress, tally=entry.tally, tallies=tallies, rows=entry.rows)
        self._on_step(Step.COMMITTED, progress)
        log.info(
            "committed group=%s batch=%s tally=%s behind=%d", entry.group, entry.batch, entry.tally, prepared.behind
        )
        self._on_step(Step.DONE, progress)

    def _commit_in_parts(self, planned: Plan, behind: int) -> Tally:
        """Commit the same moves in smaller batches, in which refused records can be found."""
        total = Tally()
        while planned:
            part = self._ahead.prepare_part(planned, behind)
            total += self._commit(part)
            planned = planned.after(part.batch.plan)
        return total
