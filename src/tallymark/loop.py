"""The batch loop: plan, read, stage, commit. It knows Spark only as a Reader.

The next batch is planned, read and staged in a thread of its own while this one commits. All dealings with the ledger
stay on the caller's thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import count
from typing import Literal

import pyarrow as pa

from tallymark.background import Background
from tallymark.brokers import Brokers, Topic
from tallymark.budget import Budget
from tallymark.commit import Batch, Committer, Destination, check_letters
from tallymark.errors import BatchTooLarge, Fenced, PositionRefused, TallymarkError, UnknownTopic
from tallymark.goals import Goals
from tallymark.letters import fetched, refused
from tallymark.membership import Alone, Membership
from tallymark.patience import patiently
from tallymark.pause import may_go_on
from tallymark.plan import Limits, OnLoss, Plan, adapt, plan
from tallymark.positions import Start
from tallymark.read import DeadLetter, Reader, Reading
from tallymark.shape import Refusal, TableSpec
from tallymark.share import Settled, Share
from tallymark.skipahead import Lookout, SkipAhead, jumps
from tallymark.source import is_pattern
from tallymark.spans import Log, Owner, Partition, Tally
from tallymark.steps import OnStep, Progress, Step, ignore

log = logging.getLogger(__name__)

Until = Literal["stopped", "caught-up"]

POLL_SECONDS = 0.1
"""How long an idle loop waits before it looks for new records."""
KEEP_BATCHES = timedelta(days=7)


@dataclass(frozen=True)
class Job:
    """What to run: fixed for the whole run."""

    group: str
    topics: Sequence[str]
    tables: Sequence[TableSpec]
    owner: Owner
    start: Start
    limits: Limits = field(default_factory=Limits)
    on_loss: OnLoss = "fail"
    budget: Budget = field(default_factory=Budget)
    patience: float | None = None
    catch_up: SkipAhead | None = None


@dataclass(frozen=True)
class Prepared:
    """A batch that only has to be committed, and what it took to get there."""

    batch: Batch
    behind: int
    seconds: float
    turn: int


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
        self._committer = Committer(job.group, destination, job.budget, self._letters, job.patience)
        self._reader = reader
        self._on_step = on_step
        self._stop = threading.Event()
        member = membership or Alone(brokers, job.topics)
        self._share = Share(
            job.group,
            job.owner,
            member,
            brokers,
            self._ledger,
            job.start,
            self._stop,
            job.patience,
            tolerant=any(map(is_pattern, job.topics)),
        )
        self._cursor: dict[Partition, int] = {}
        self._turn = 0
        """Changes when partitions are taken away: a batch that was read before that is void."""
        self._lookout = Lookout(job.catch_up) if job.catch_up else None
        most = min(job.limits.records, self._store.most_records or job.limits.records)
        self._most = replace(job.limits, records=most)
        self._limit = most
        self._batches = count(1)

    def stop(self) -> None:
        """Finish the batch that is being committed, and leave."""
        self._stop.set()

    def run(self, until: Until = "stopped") -> Tally:
        """Run until stopped, or until all that was in the topics at the start is in the tables."""
        topics = self._check()
        goals = self._share.goals(topics) if until == "caught-up" else None
        self._ledger.prune(self.job.group, _now() - KEEP_BATCHES)
        if not self._running(goals, lambda: None):
            return Tally()
        self._share.join(topics)
        try:
            return self._batches_until(goals)
        finally:
            self._share.leave()
            with suppress(TallymarkError):
                self._store.clear_stages(self.job.group, of=self.job.owner.run)

    def _check(self) -> dict[str, Topic]:
        """Everything that can be wrong, before we join and claim. Returns the topics that there are."""
        topics = self._brokers.find(self.job.topics)
        schemas = self._reader.schemas()
        self._store.check_tables(self.job.tables, schemas)
        self._ledger.create_ledger()
        self._store.create_tables(self.job.tables, schemas)
        return topics

    def _running(self, goals: Goals | None, meanwhile: Callable[[], None] | None = None) -> bool:
        """Whether to go on; a paused group waits here."""
        return may_go_on(
            self._ledger,
            self.job.group,
            self._stop,
            self.job.patience,
            has_end=goals is not None,
            meanwhile=meanwhile or self._settle,
        )

    def _settle(self) -> None:
        """Take what was assigned, let go of what is leaving. Between batches only."""
        self._follow(self._share.settle())

    def _follow(self, settled: Settled) -> None:
        for partition in settled.gone:
            self._cursor.pop(partition, None)
        for partition in settled.gained:
            self._cursor[partition] = self._share.claims[partition].position.next_offset
        if settled.gone:
            self._turn += 1
        if settled.gained:
            self._check_gained(settled.gained)
            self._clear_stages()

    def _check_gained(self, gained: Collection[Partition]) -> None:
        try:
            self._share.readable({one: self._cursor[one] for one in gained}, self.job.on_loss)
        except UnknownTopic:
            if not self._share.tolerant:
                raise
            self._share.forget(gained)
            for partition in gained:
                del self._cursor[partition]

    def _clear_stages(self) -> None:
        """Remove what runs have left that hold nothing any more."""
        positions = self._ledger.positions(self.job.group).get(self.job.group, [])
        alive = {position.owner.run for position in positions if position.owner}
        self._store.clear_stages(self.job.group, keep=alive | {self.job.owner.run})

    def _batches_until(self, goals: Goals | None) -> Tally:
        background = Background("tallymark-read")
        try:
            return self._pump(background, goals)
        finally:
            # A read that nobody wants any more is given up, not waited for.
            self._stop.set()
            self._reader.cancel()
            background.close()

    def _pump(self, background: Background, goals: Goals | None) -> Tally:
        """Commit batch after batch, each while the next one is being read."""
        total = Tally()
        self._settle()
        ahead = background.submit(self._prepare)
        while True:
            prepared = self._wait(ahead)
            if prepared is not None:
                self._cursor |= {move.partition: move.stop for move in prepared.batch.plan.moves}
            elif not self._finished(goals):
                self._stop.wait(POLL_SECONDS)
                self._settle()
            finished = self._finished(goals)
            if not finished:
                ahead = background.submit(self._prepare)
            if prepared is not None and self._running(goals):
                total += self._commit_if_ours(prepared)
            if finished and self._finished(goals):
                self._running(goals)
                return total

    def _wait(self, ahead: Future[Prepared | None]) -> Prepared | None:
        """The batch that is being read, unless somebody wants to leave, or its partitions are gone meanwhile."""
        while not self._stop.is_set():
            done = wait([ahead], timeout=0.2).done
            self._settle()
            if not done:
                continue
            prepared = ahead.result()
            if prepared is not None and prepared.turn != self._turn:
                self._abandon(prepared)
                return None
            return prepared
        return None

    def _abandon(self, prepared: Prepared) -> None:
        log.info("abandoned a batch, its partitions are gone group=%s batch=%s", self.job.group, prepared.batch.name)
        self._reader.forget(prepared.batch.reading)
        self._look_again(prepared.batch.plan)

    def _look_again(self, planned: Plan) -> None:
        """A jump that was not committed is due again."""
        if self._lookout and any(move.skipped for move in planned.moves):
            self._lookout.again()

    def _finished(self, goals: Goals | None) -> bool:
        if self._stop.is_set():
            return True
        return goals is not None and self._share.assigned and goals.reached(self._cursor)

    def _prepare(self) -> Prepared | None:
        """Plan, read and stage the next batch. Runs in the reading thread."""
        return patiently(self._prepare_once, self._stop, self.job.patience)

    def _prepare_once(self) -> Prepared | None:
        began, turn, cursor = time.monotonic(), self._turn, dict(self._cursor)
        try:
            logs = self._brokers.logs(self._share.held_topics())
        except UnknownTopic:
            if self._share.tolerant:
                # The group will take it away from us.
                return None
            raise
        cursor = {partition: position for partition, position in cursor.items() if partition in logs}
        planned = self._plan(cursor, logs)
        if not planned:
            return None
        lag = sum(max(0, logs[move.partition].stop - move.read_span.start) for move in planned.moves)
        try:
            batch = self._shaped(planned, lag)
        except TallymarkError:
            self._look_again(planned)
            raise
        return Prepared(batch, lag - batch.plan.offsets, time.monotonic() - began, turn)

    def _shaped(self, planned: Plan, lag: int) -> Batch:
        """Read and shape what is planned, or as much of it as fits the memory."""
        name, started = f"{self.job.owner.run}-{next(self._batches)}", _now()
        progress = Progress(name, planned.offsets, lag - planned.offsets)
        self._on_step(Step.PLANNED, progress)
        try:
            reading = self._reader.read(planned.spans, name) if planned.spans else Reading({}, self._no_rows(), [])
        except BatchTooLarge as error:
            half = planned.half()
            log.info("reading half: %s group=%s batch=%s offsets=%d", error, self.job.group, name, half.offsets)
            self._limit = max(1, half.offsets)
            return self._shaped(half, lag)
        # Asked after the reading: if it is the same topic still, it was the same topic then.
        self._share.check_identity()
        self._on_step(Step.READ, progress)
        check_letters(reading)
        letters = [*reading.dead_letters, *self._letters(refused(reading, self.job.tables))]
        batch = Batch.shaped(name, started, planned, reading, self.job.tables, letters)
        self._on_step(Step.STAGED, progress)
        return batch

    def _letters(self, refusals: Sequence[Refusal]) -> list[DeadLetter]:
        """What is kept of records that were decoded and refused: fetched again, as they are in Kafka."""
        ask = self._brokers.records
        return fetched(refusals, lambda wanted: patiently(lambda: ask(wanted), self._stop, self.job.patience))

    def _plan(self, cursor: Mapping[Partition, int], logs: Mapping[Partition, Log]) -> Plan:
        skips = {}
        # A look at nothing, before partitions are assigned, would count as one.
        if cursor and self.job.catch_up and self._lookout and self._lookout.due(time.monotonic()):
            skips = jumps(self.job.catch_up, cursor, logs, self._brokers.offsets_at, _now())
        try:
            return plan(cursor, logs, self._limit, self.job.on_loss, skips)
        except PositionRefused:
            # That the topic was replaced meanwhile would be the better explanation.
            self._share.check_identity()
            raise

    def _no_rows(self) -> dict[str, pa.Table]:
        return {name: schema.empty_table() for name, schema in self._reader.schemas().items()}

    def _commit_if_ours(self, prepared: Prepared) -> Tally:
        if prepared.turn != self._turn:
            # What is left of its partitions goes on where the batch began, and so does what was read behind it.
            starts = {move.partition: move.start for move in prepared.batch.plan.moves}
            self._cursor |= {partition: starts[partition] for partition in starts if partition in self._cursor}
            self._turn += 1
            self._abandon(prepared)
            return Tally()
        try:
            return self._commit(prepared)
        except Fenced as refused:
            self._follow(self._share.recover(refused))
            return Tally()

    def _commit(self, prepared: Prepared) -> Tally:
        began, batch = time.monotonic(), prepared.batch
        progress = Progress(batch.name, batch.plan.offsets, prepared.behind)
        try:
            self._share.claims, entry = self._committer.commit(
                batch, self._share.claims, lambda step: self._on_step(step, progress)
            )
        except BatchTooLarge as error:
            log.info("committing in parts: %s group=%s batch=%s", error, self.job.group, batch.name)
            return self._commit_in_parts(batch.plan, prepared.behind)
        finally:
            self._reader.forget(batch.reading)
        for move in batch.plan.moves:
            if move.skipped:
                log.warning("skipped group=%s span=%s: %s", self.job.group, move.skipped_span, move.reason)
        progress = replace(progress, tally=entry.tally)
        self._on_step(Step.COMMITTED, progress)
        seconds = max(prepared.seconds, time.monotonic() - began)
        # What the executors have staged was never in the driver's memory.
        size = 0 if batch.reading.staged else batch.reading.size
        self._limit = adapt(self._limit, batch.plan.offsets, seconds, size, self._most)
        log.info(
            "committed group=%s batch=%s tally=%s behind=%d", entry.group, entry.batch, entry.tally, prepared.behind
        )
        self._on_step(Step.DONE, progress)
        return entry.tally

    def _commit_in_parts(self, planned: Plan, behind: int) -> Tally:
        """The same moves by smaller batches, in which refused records can be found."""
        total = Tally()
        while planned:
            began, read = time.monotonic(), partial(self._shaped, planned.half(), behind)
            batch = patiently(read, self._stop, self.job.patience)
            total += self._commit(Prepared(batch, behind, time.monotonic() - began, self._turn))
            planned = planned.after(batch.plan)
        return total


def _now() -> datetime:
    return datetime.now(timezone.utc)
