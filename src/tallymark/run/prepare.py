"""Prepares the next batch of a pipeline for its commit: plans, reads, shapes and stages it.

``prepare`` runs in the reading thread while the previous batch commits. It uses Kafka and the reader, but not the
ledger.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count

from tallymark.core.batch import BatchToCommit, check_letters, fetched, refused, without_refused
from tallymark.core.plan import Move, Plan, adapt, plan
from tallymark.core.progress import OnStep, Progress, Step
from tallymark.core.records import DeadLetter, Reader, Reading
from tallymark.core.skip_ahead import Every, jumps
from tallymark.core.spans import Log, Mark, Partition, Span
from tallymark.core.tables import Refusal
from tallymark.errors import BatchTooLarge, PositionRefused, TallymarkError, UnknownTopic
from tallymark.kafka.brokers import Brokers
from tallymark.run.ownership import Ownership
from tallymark.run.setup import Job
from tallymark.run.until import Retrying

log = logging.getLogger(__name__)

CAREFUL = 20
"""Number of batches after a batch that was too large before the batch size may grow again."""


@dataclass
class Cursor:
    """Where the next batch begins in every claimed partition.

    ``turn`` changes when partitions are removed: a batch that was read before that is void.
    """

    marks: dict[Partition, Mark] = field(default_factory=dict)
    turn: int = 0

    @property
    def offsets(self) -> dict[Partition, int]:
        return {partition: mark.offset for partition, mark in self.marks.items()}

    def add(self, marks: Mapping[Partition, Mark]) -> None:
        self.marks |= marks

    def remove(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self.marks.pop(partition, None)

    def pass_by(self, moves: Iterable[Move]) -> None:
        """Advance past the moves of a batch."""
        for move in moves:
            before = self.marks.get(move.partition, Mark(0))
            epoch = before.leader_epoch if move.leader_epoch is None else move.leader_epoch
            self.marks[move.partition] = Mark(move.stop, epoch)

    def go_back(self, marks: Mapping[Partition, Mark]) -> None:
        """Set those of these partitions that are still claimed back to these marks; batches read before are void."""
        self.marks |= {partition: mark for partition, mark in marks.items() if partition in self.marks}
        self.turn += 1


@dataclass(frozen=True)
class Prepared:
    """A batch that is ready to commit, with its lag, preparation time and the cursor's turn."""

    batch: BatchToCommit
    behind: int
    seconds: float
    turn: int


def empty_reading(reader: Reader) -> Reading:
    """The reading of a batch that has no records to read, only offsets to pass over."""
    return Reading({}, {name: schema.empty_table() for name, schema in reader.schemas().items()}, [])


class Preparation:
    """Prepares batch after batch, each beginning at the cursor."""

    def __init__(
        self,
        job: Job,
        brokers: Brokers,
        reader: Reader,
        ownership: Ownership,
        cursor: Cursor,
        most: int | None,
        stop: threading.Event,
        on_step: OnStep,
    ) -> None:
        self._job, self._brokers, self._reader, self._ownership = job, brokers, reader, ownership
        self._cursor, self._on_step = cursor, on_step
        self._retrying = Retrying(stop, job.patience)
        self._skip_interval = Every(job.catch_up) if job.catch_up else None
        self._most = replace(job.limits, records=min(job.limits.records, most or job.limits.records))
        self._limit = self._most.records
        self._careful = 0  # batches until the size may grow again
        self._batches = count(1)
        self._expected = Plan()
        """The batch after the batch that is being read: the reader may be fetching it already."""

    def prepare(self) -> Prepared | None:
        """The next batch; None if there is nothing to read."""
        return self._retrying(self._prepare)

    def prepare_part(self, planned: Plan, behind: int) -> Prepared:
        """The first half of an earlier plan, read and staged again."""
        return self._retrying(lambda: self._prepared(planned.half(), behind))

    def discard(self, batch: BatchToCommit) -> None:
        """Discard a batch that will not be committed; a skip in it becomes due again."""
        self._reader.discard(batch.reading)
        self._look_again(batch.plan)

    def learn(self, batch: BatchToCommit, seconds: float) -> None:
        """Adapt the size of the next batches to the time and memory that this batch took."""
        # Rows staged by executors were never in the driver's memory.
        size = 0 if batch.reading.staged else batch.reading.size
        adapted = adapt(self._limit, batch.plan.offsets, seconds, size, self._most)
        self._careful = max(0, self._careful - 1)
        self._limit = min(adapted, self._limit) if self._careful else adapted

    def letters(self, refusals: Sequence[Refusal]) -> list[DeadLetter]:
        """Dead letters of records that were decoded and refused, with the original records fetched from Kafka."""
        return fetched(refusals, lambda offsets: self._retrying(lambda: self._brokers.records(offsets)))

    def _prepare(self) -> Prepared | None:
        began, turn, marks = time.monotonic(), self._cursor.turn, dict(self._cursor.marks)
        try:
            logs = self._brokers.logs(self._ownership.held_topics())
        except UnknownTopic:
            if self._ownership.tolerant:
                # The group will revoke the partitions of this topic.
                return None
            raise
        marks = {partition: mark for partition, mark in marks.items() if partition in logs}
        self._validate(marks, logs)
        cursor = {partition: mark.offset for partition, mark in marks.items()}
        planned = self._expected_or(self._plan(cursor, logs), cursor, logs)
        if not planned:
            return None
        self._expected = self._following(planned, cursor, logs)
        starts = cursor | {move.partition: move.read_span.start for move in planned.moves}
        lag = sum(max(0, logs[partition].stop - start) for partition, start in starts.items())
        try:
            batch = self._shaped(planned, lag, began, self._expected.spans)
        except TallymarkError as error:
            self._look_again(planned)
            if isinstance(error, UnknownTopic) and self._ownership.tolerant:
                return None
            raise
        return Prepared(batch, lag - batch.plan.offsets, time.monotonic() - began, turn)

    def _validate(self, marks: Mapping[Partition, Mark], logs: Mapping[Partition, Log]) -> None:
        """Check that logs with a new leader still hold the records read so far, and discard what was fetched ahead."""
        validation = self._ownership.validation
        if elected := validation.elected(marks, logs):
            self._expected = Plan()
            self._reader.renew(elected)
            try:
                validation.check(marks, logs)
            except PositionRefused:
                # If the topic was recreated, that is the better explanation.
                self._ownership.check_identity()
                raise

    def _prepared(self, planned: Plan, behind: int) -> Prepared:
        began = time.monotonic()
        return Prepared(self._shaped(planned, behind, began), behind, time.monotonic() - began, self._cursor.turn)

    def _plan(self, cursor: Mapping[Partition, int], logs: Mapping[Partition, Log]) -> Plan:
        skips = {}
        # ``due`` would count a check without partitions, before they are assigned, as a check.
        if cursor and self._job.catch_up and self._skip_interval and self._skip_interval.due(time.monotonic()):
            now = datetime.now(UTC)
            skips = jumps(self._job.catch_up, cursor, logs, self._brokers.offsets_at, now)
        try:
            return plan(cursor, logs, self._limit, self._job.on_loss, skips)
        except PositionRefused:
            # If the topic was recreated, that is the better explanation.
            self._ownership.check_identity()
            raise

    def _expected_or(self, planned: Plan, cursor: Mapping[Partition, int], logs: Mapping[Partition, Log]) -> Plan:
        """The expected batch if it begins at the cursor, is complete, and ``planned`` passes over no offsets."""
        expected, passing = self._expected, any(move.read < move.stop - move.start for move in planned.moves)
        fits = all(
            cursor.get(move.partition) == move.start and move.stop <= logs[move.partition].stop
            for move in expected.moves
        )
        return expected if expected and fits and not passing else planned

    def _following(self, planned: Plan, cursor: Mapping[Partition, int], logs: Mapping[Partition, Log]) -> Plan:
        """The batch after this one, if more than half a batch is available now. The next plan may still differ."""
        behind = dict(cursor) | {move.partition: move.stop for move in planned.moves}
        following = plan(behind, logs, self._limit, self._job.on_loss)
        return following if 2 * following.offsets > self._limit else Plan()

    def _shaped(self, planned: Plan, lag: int, began: float, then: Sequence[Span] | None = None) -> BatchToCommit:
        """Read and shape the plan, or the part of it that fits in memory."""
        name = f"{self._job.owner.run}-{next(self._batches)}"
        progress = Progress(name, planned.offsets, lag - planned.offsets, since=began)
        try:
            self._on_step(Step.PLANNED, progress)
            return self._read(name, planned, progress, then)
        except BatchTooLarge as error:
            self._on_step(Step.DROPPED, replace(progress, error=error))
            half = planned.half()
            if half == planned:
                raise
            log.info("reading half group=%s batch=%s offsets=%d error=%s", self._job.group, name, half.offsets, error)
            self._limit, self._careful = max(1, half.offsets), CAREFUL
        except Exception as error:
            self._on_step(Step.DROPPED, replace(progress, error=error))
            raise
        return self._shaped(half, lag, time.monotonic())

    def _read(self, name: str, planned: Plan, progress: Progress, then: Sequence[Span] | None) -> BatchToCommit:
        started, tables = datetime.now(UTC), self._job.tables
        again = partial(self._reading, planned, name)
        reading = again(then=then)
        self._on_step(Step.READ, progress)
        reading, refusals = without_refused(reading, refused(reading, tables), tables, again)
        letters = [*reading.dead_letters, *self.letters(refusals)]
        batch = BatchToCommit.shaped(name, started, planned, reading, tables, letters, again=again)
        self._on_step(Step.STAGED, progress)
        return batch

    def _reading(
        self,
        planned: Plan,
        name: str,
        without: Collection[tuple[Partition, int]] = (),
        then: Sequence[Span] | None = None,
    ) -> Reading:
        spans = planned.spans
        reading = self._reader.read(spans, name, without, then) if spans else empty_reading(self._reader)
        # Checked after the read: a topic that is the same now was the same during the read.
        self._ownership.check_identity()
        check_letters(reading)
        return reading

    def _look_again(self, planned: Plan) -> None:
        """Make a skip that was not committed due again."""
        if self._skip_interval and any(move.skipped for move in planned.moves):
            self._skip_interval.again()
