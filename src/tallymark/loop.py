"""The batch loop: plan, read, stage, commit. It knows Spark only as a Reader.

The next batch is planned, read and staged in a thread of its own while this one commits. All dealings with the ledger
stay on the caller's thread.
"""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import count
from typing import Literal

import pyarrow as pa

from tallymark.background import Background
from tallymark.budget import Budget
from tallymark.commit import Batch, Committer, Destination, check_letters
from tallymark.errors import BatchTooLarge, GroupPaused, PositionRefused, TallymarkError, Unreachable
from tallymark.fence import Claim, FirstClaim, Restart, Wish
from tallymark.membership import Brokers, Topic
from tallymark.patience import patiently
from tallymark.plan import Limits, OnLoss, Plan, adapt, caught_up, check_identity, plan
from tallymark.positions import Start, overridden_offset, starting_offset
from tallymark.read import DeadLetter, Reader, Reading
from tallymark.shape import Refusal, TableSpec, null_keys
from tallymark.spans import GroupState, Log, Owner, Partition, Position, Span, Tally
from tallymark.steps import OnStep, Progress, Step, ignore

log = logging.getLogger(__name__)

Until = Literal["stopped", "caught-up"]

POLL_SECONDS = 0.1
"""How long an idle loop waits before it looks for new records."""
DISCOVERY_SECONDS = 1.0
"""How often it looks for new partitions and replaced topics."""
PAUSE_SECONDS = 1.0
"""How often a paused group looks whether it may go on."""
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


@dataclass(frozen=True)
class Prepared:
    """A batch that only has to be committed, and what it took to get there."""

    batch: Batch
    behind: int
    seconds: float


class Loop:
    """One run of a group, from claim to release."""

    def __init__(
        self, job: Job, brokers: Brokers, destination: Destination, reader: Reader, on_step: OnStep = ignore
    ) -> None:
        self.job = job
        self._brokers = brokers
        self._store = destination.rows
        self._ledger = destination.ledger
        self._committer = Committer(job.group, destination, job.budget, self._letters, job.patience)
        self._reader = reader
        self._on_step = on_step
        self._stop = threading.Event()
        self._claims: dict[Partition, Claim] = {}
        self._topics: dict[str, Topic] = {}
        self._cursor: dict[Partition, int] = {}
        most = min(job.limits.records, self._store.most_records or job.limits.records)
        self._most = replace(job.limits, records=most)
        self._limit = most
        self._batches = count(1)

    def stop(self) -> None:
        """Finish the batch that is being committed, and leave."""
        self._stop.set()

    def run(self, until: Until = "stopped") -> Tally:
        """Run until stopped, or until all that was in the topics at the start is in the tables."""
        logs = self._check()
        goals = [Span(log.partition, 0, log.stop) for log in logs.values()] if until == "caught-up" else None
        if not self._running(goals):
            return Tally()
        with self._claimed(logs):
            return self._batches_until(goals)

    def _check(self) -> dict[Partition, Log]:
        """Everything that can be wrong, before the claim fences whoever runs now."""
        self._topics = self._brokers.topics(self.job.topics)
        logs = self._brokers.logs(self._topics)
        schemas = self._reader.schemas()
        self._store.check_tables(self.job.tables, schemas)
        self._ledger.create_ledger()
        self._store.create_tables(self.job.tables, schemas)
        return logs

    def _running(self, goals: Sequence[Span] | None) -> bool:
        """Whether to go on: at once, when a paused group is resumed, or not at all because somebody wants to leave.

        Who waits for an end can't wait for a pause to be over.
        """
        told = False
        while not self._stop.is_set():
            state = patiently(lambda: self._ledger.state(self.job.group), self._stop, self.job.patience)
            if state is None or not state.paused:
                return True
            if goals is not None:
                raise _paused(self.job.group, state)
            if not told:
                log.warning("paused group=%s by=%s reason=%s", self.job.group, state.by, state.reason)
            told = True
            self._stop.wait(PAUSE_SECONDS)
        return False

    @contextmanager
    def _claimed(self, logs: Mapping[Partition, Log]) -> Iterator[None]:
        self._claim(logs, first_look=True)
        self._ledger.prune(self.job.group, _now() - KEEP_BATCHES)
        self._store.clear_stages(self.job.group, self.job.owner.run, own=False)
        try:
            yield
        finally:
            # A claim that can't be given back is only a name: the next owner takes it anyway, and clears the stage.
            with suppress(TallymarkError):
                self._ledger.release(self.job.group, self._claims.values())
                self._store.clear_stages(self.job.group, self.job.owner.run, own=True)

    def _claim(self, logs: Mapping[Partition, Log], *, first_look: bool) -> None:
        """Take the partitions of these logs: where the ledger has no position, by the first-poll strategy."""
        start, cluster = self.job.start, self._brokers.cluster_id()
        at = self._brokers.offsets_at(logs, start.timestamp) if start.timestamp else {}

        def decide(saved: Sequence[Position]) -> Wish:
            for position in saved:
                if position.partition.topic in self._topics:
                    check_identity(position, self._topics[position.partition.topic].id, cluster)
            known = {position.partition.topic for position in saved}
            old = {position.partition for position in saved} & logs.keys()
            first = {
                partition: FirstClaim(
                    starting_offset(start, found, at.get(partition), topic_is_known=partition.topic in known),
                    found.topic_id,
                    found.cluster_id,
                )
                for partition, found in logs.items()
                if partition not in old
            }
            wanted = {partition: overridden_offset(start, logs[partition], at.get(partition)) for partition in old}
            reason = f"start={start.kind} overrides the saved position"
            restarts = {partition: Restart(to, reason) for partition, to in wanted.items() if to is not None}
            return Wish(first, restarts if first_look else {})

        claims = self._ledger.claim(self.job.group, self.job.owner, logs.keys(), decide, self._claims)
        self._claims |= claims
        self._cursor |= {partition: held.position.next_offset for partition, held in claims.items()}
        log.info("claimed group=%s partitions=%d owner=%s", self.job.group, len(claims), self.job.owner.run)

    def _batches_until(self, goals: Sequence[Span] | None) -> Tally:
        background = Background("tallymark-read")
        try:
            return self._pump(background, goals)
        finally:
            # A read that nobody wants any more is given up, not waited for.
            self._stop.set()
            self._reader.cancel()
            background.close()

    def _pump(self, background: Background, goals: Sequence[Span] | None) -> Tally:
        """Commit batch after batch, each while the next one is being read."""
        total, looked = Tally(), time.monotonic()
        ahead = background.submit(self._prepare)
        while True:
            prepared = self._wait(ahead)
            if prepared is not None:
                self._cursor |= {move.partition: move.stop for move in prepared.batch.plan.moves}
            elif not self._finished(goals):
                self._stop.wait(POLL_SECONDS)
            finished = self._finished(goals)
            if not finished and time.monotonic() - looked > DISCOVERY_SECONDS:
                self._discover()
                looked = time.monotonic()
            if not finished:
                ahead = background.submit(self._prepare)
            if prepared is not None and self._running(goals):
                total += self._commit(prepared)
            if finished:
                self._running(goals)
                return total

    def _wait(self, ahead: Future[Prepared | None]) -> Prepared | None:
        """The batch that is being read, unless somebody wants to leave before it is there."""
        while not self._stop.is_set():
            if wait([ahead], timeout=0.2).done:
                return ahead.result()
        return None

    def _finished(self, goals: Sequence[Span] | None) -> bool:
        return self._stop.is_set() or (goals is not None and caught_up(self._cursor, goals))

    def _discover(self) -> None:
        """Claim partitions that were added since the last look; they start at the earliest."""
        try:
            self._claim_new()
        except Unreachable as error:
            # Whoever needs the brokers or the store now is patient itself: this can wait for the next look.
            log.warning("could not look for new partitions group=%s error=%s", self.job.group, error)

    def _claim_new(self) -> None:
        self._topics = self._brokers.topics(self.job.topics)
        self._check_identity(self._topics)
        new = {
            topic.name: Topic(topic.name, topic.id, tuple(p for p in topic.partitions if p not in self._claims))
            for topic in self._topics.values()
        }
        logs = self._brokers.logs(new)
        if logs:
            self._claim(logs, first_look=False)

    def _prepare(self) -> Prepared | None:
        """Plan, read and stage the next batch. Runs in the reading thread."""
        return patiently(self._prepare_once, self._stop, self.job.patience)

    def _prepare_once(self) -> Prepared | None:
        began = time.monotonic()
        logs, cursor = self._brokers.logs(self._topics), dict(self._cursor)
        planned = self._plan(cursor, logs)
        if not planned:
            return None
        lag = sum(max(0, logs[partition].stop - position) for partition, position in cursor.items())
        batch = self._shaped(planned, lag)
        return Prepared(batch, lag - batch.plan.offsets, time.monotonic() - began)

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
        self._check_identity(self._brokers.topics(self.job.topics))
        self._on_step(Step.READ, progress)
        check_letters(reading)
        nameless = [refusal for spec in self.job.tables for refusal in null_keys(spec, reading.rows[spec.name])]
        refusals = {refusal.record: refusal for refusal in [*nameless, *reading.refusals]}
        letters = [*reading.dead_letters, *self._letters(list(refusals.values()))]
        batch = Batch.shaped(name, started, planned, reading, self.job.tables, letters)
        self._on_step(Step.STAGED, progress)
        return batch

    def _letters(self, refusals: Sequence[Refusal]) -> list[DeadLetter]:
        """What is kept of records that were decoded and refused: fetched again, as they are in Kafka."""
        wanted: dict[Partition, list[int]] = {}
        for refusal in refusals:
            wanted.setdefault(refusal.partition, []).append(refusal.offset)
        found = patiently(lambda: self._brokers.records(wanted), self._stop, self.job.patience) if wanted else {}
        return [DeadLetter.of(refusal, found.get(refusal.record)) for refusal in refusals]

    def _plan(self, cursor: Mapping[Partition, int], logs: Mapping[Partition, Log]) -> Plan:
        try:
            return plan(cursor, logs, self._limit, self.job.on_loss)
        except PositionRefused:
            # That the topic was replaced meanwhile would be the better explanation.
            self._check_identity(self._brokers.topics(self.job.topics))
            raise

    def _check_identity(self, topics: Mapping[str, Topic]) -> None:
        for held in list(self._claims.values()):
            check_identity(held.position, topics[held.partition.topic].id, self._brokers.cluster_id())

    def _no_rows(self) -> dict[str, pa.Table]:
        return {name: schema.empty_table() for name, schema in self._reader.schemas().items()}

    def _commit(self, prepared: Prepared) -> Tally:
        began, batch = time.monotonic(), prepared.batch
        progress = Progress(batch.name, batch.plan.offsets, prepared.behind)
        try:
            self._claims, entry = self._committer.commit(
                batch, self._claims, lambda step: self._on_step(step, progress)
            )
        except BatchTooLarge as error:
            log.info("committing in parts: %s group=%s batch=%s", error, self.job.group, batch.name)
            return self._commit_in_parts(batch.plan, prepared.behind)
        finally:
            self._reader.forget(batch.reading)
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
            total += self._commit(Prepared(batch, behind, time.monotonic() - began))
            planned = planned.after(batch.plan)
        return total


def _paused(group: str, state: GroupState) -> GroupPaused:
    return GroupPaused(
        f"group {group} is paused since {state.since:%Y-%m-%d %H:%M:%S} UTC by {state.by}: {state.reason}; "
        f"tallymark resume {shlex.quote(group)} lets it go on"
    )


def _now() -> datetime:
    return datetime.now(timezone.utc)
