"""The batch loop: plan, read, stage, commit. It knows Spark only as a Reader.

The next batch is planned, read and staged in a thread of its own while this one commits. All dealings with the ledger
stay on the caller's thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Literal

import pyarrow as pa

from tallymark.background import Background
from tallymark.commit import Commit, account, check_letters, commit
from tallymark.errors import PositionRefused, TallymarkError, Unreachable
from tallymark.ledger.claim import Claim, FirstClaim, check_claims, claim, release, restart
from tallymark.ledger.commit import prune_batches
from tallymark.ledger.read import read_group
from tallymark.membership import Brokers, Topic
from tallymark.patience import patiently
from tallymark.plan import Limits, OnLoss, Plan, adapt, caught_up, check_identity, plan
from tallymark.positions import Start, overridden_offset, starting_offset
from tallymark.read import Reader, Reading, Seen
from tallymark.shape import TableSpec, finish
from tallymark.spans import Log, Owner, Partition, Span, Tally
from tallymark.steps import OnStep, Progress, Step, ignore
from tallymark.stores.store import Store

log = logging.getLogger(__name__)

Until = Literal["stopped", "caught-up"]

POLL_SECONDS = 0.1
"""How long an idle loop waits before it looks for new records."""
DISCOVERY_SECONDS = 1.0
"""How often it looks for new partitions and replaced topics."""
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


@dataclass(frozen=True)
class Prepared:
    """A batch that only has to be committed."""

    batch: str
    started: datetime
    plan: Plan
    reading: Reading
    rows: Mapping[str, pa.Table]
    behind: int
    seconds: float


class Loop:
    """One run of a group, from claim to release."""

    def __init__(self, job: Job, brokers: Brokers, store: Store, reader: Reader, on_step: OnStep = ignore) -> None:
        self.job = job
        self._brokers = brokers
        self._store = store
        self._reader = reader
        self._on_step = on_step
        self._stop = threading.Event()
        self._claims: dict[Partition, Claim] = {}
        self._topics: dict[str, Topic] = {}
        self._cursor: dict[Partition, int] = {}
        self._limit = job.limits.records
        self._batches = 0

    def stop(self) -> None:
        """Finish the batch that is being committed, and leave."""
        self._stop.set()

    def run(self, until: Until = "stopped") -> Tally:
        """Run until stopped, or until all that was in the topics at the start is in the tables."""
        logs = self._check()
        goals = [Span(log.partition, 0, log.stop) for log in logs.values()] if until == "caught-up" else None
        with self._claimed(logs):
            return self._batches_until(goals)

    def _check(self) -> dict[Partition, Log]:
        """Everything that can be wrong, before the claim fences whoever runs now."""
        self._topics = self._brokers.topics(self.job.topics)
        logs = self._brokers.logs(self._topics)
        schemas = self._reader.schemas()
        self._store.check_tables(self.job.tables, schemas)
        self._store.create_ledger()
        self._store.create_tables(self.job.tables, schemas)
        return logs

    @contextmanager
    def _claimed(self, logs: Mapping[Partition, Log]) -> Iterator[None]:
        self._claim(logs, first_look=True)
        with self._store.transaction() as connection:
            prune_batches(connection, self.job.group, _now(), KEEP_BATCHES)
        try:
            yield
        finally:
            # A claim that can't be given back is only a name: the next owner takes it anyway.
            with suppress(TallymarkError), self._store.transaction() as connection:
                release(connection, self.job.group, self._claims.values())

    def _claim(self, logs: Mapping[Partition, Log], *, first_look: bool) -> None:
        """Take the partitions of these logs: where the ledger has no position, by the first-poll strategy."""
        group, start = self.job.group, self.job.start
        at = self._brokers.offsets_at(logs, start.timestamp) if start.timestamp else {}
        with self._store.transaction() as connection:
            saved = {position.partition: position for position in read_group(connection, group).get(group, [])}
            for partition, position in saved.items():
                if partition.topic in self._topics:
                    check_identity(position, self._topics[partition.topic].id, self._brokers.cluster_id())
            known = {partition.topic for partition in saved}
            first = {
                partition: FirstClaim(
                    starting_offset(start, found, at.get(partition), topic_is_known=partition.topic in known),
                    found.topic_id,
                    found.cluster_id,
                )
                for partition, found in logs.items()
                if partition not in saved
            }
            claims = claim(connection, group, self.job.owner, logs, first)
            # After the new ones are locked: who was fenced must not take a new partition from who fenced him.
            check_claims(connection, group, self._claims.values())
            for partition in saved.keys() & claims.keys() if first_look else ():
                offset = overridden_offset(start, logs[partition], at.get(partition))
                if offset is not None:
                    reason = f"start={start.kind} overrides the saved position"
                    claims[partition] = restart(connection, group, claims[partition], offset, reason, _now())
        self._claims |= claims
        self._cursor |= {partition: held.position.next_offset for partition, held in claims.items()}
        log.info("claimed group=%s partitions=%d owner=%s", group, len(claims), self.job.owner.run)

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
                self._cursor |= {move.partition: move.stop for move in prepared.plan.moves}
            elif not self._finished(goals):
                self._stop.wait(POLL_SECONDS)
            finished = self._finished(goals)
            if not finished and time.monotonic() - looked > DISCOVERY_SECONDS:
                self._discover()
                looked = time.monotonic()
            if not finished:
                ahead = background.submit(self._prepare)
            if prepared is not None:
                total += self._commit(prepared)
            if finished:
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
        return patiently(self._prepare_once, self._stop)

    def _prepare_once(self) -> Prepared | None:
        began = time.monotonic()
        logs, cursor = self._brokers.logs(self._topics), dict(self._cursor)
        planned = self._plan(cursor, logs)
        if not planned:
            return None
        self._batches += 1
        batch, started = f"{self.job.owner.run}-{self._batches}", _now()
        lag = sum(max(0, logs[partition].stop - position) for partition, position in cursor.items())
        progress = Progress(batch, planned.offsets, lag - planned.offsets)
        self._on_step(Step.PLANNED, progress)
        reading = self._reader.read(planned.spans) if planned.spans else Reading({}, self._no_rows(), [])
        # Asked after the reading: if it is the same topic still, it was the same topic then.
        self._check_identity(self._brokers.topics(self.job.topics))
        self._on_step(Step.READ, progress)
        check_letters(reading)
        rows = {spec.name: finish(spec, reading.rows[spec.name]) for spec in self.job.tables}
        self._on_step(Step.STAGED, progress)
        return Prepared(batch, started, planned, reading, rows, progress.behind, time.monotonic() - began)

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
        began = time.monotonic()
        moves, seen = prepared.plan.moves, prepared.reading.seen
        advances = [
            account(move, seen.get(move.partition, Seen()), self._claims[move.partition].epoch) for move in moves
        ]
        tally = Tally.sum(step.tally for step in advances)
        progress = Progress(prepared.batch, prepared.plan.offsets, prepared.behind, tally)
        work = Commit(
            group=self.job.group,
            batch=prepared.batch,
            started=prepared.started,
            advances=advances,
            tables=self.job.tables,
            rows=prepared.rows,
            dead_letters=prepared.reading.dead_letters,
            losses=[move.lost_span for move in moves if move.lost],
        )
        self._claims = commit(self._store, work, self._claims, lambda step: self._on_step(step, progress))
        seconds = max(prepared.seconds, time.monotonic() - began)
        self._limit = adapt(self._limit, prepared.plan.offsets, seconds, self.job.limits)
        log.info("committed group=%s batch=%s tally=%s behind=%d", work.group, work.batch, tally, prepared.behind)
        self._on_step(Step.DONE, progress)
        return tally


def _now() -> datetime:
    return datetime.now(timezone.utc)
