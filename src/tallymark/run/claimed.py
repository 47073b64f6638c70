"""The work of a run: the partitions that it has claimed, from their positions on.

``next`` runs in the reading thread. It uses the brokers, the cursor and the claims, but not the ledger.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from tallymark.core.batch import fetched
from tallymark.core.claims import Claim, Entry
from tallymark.core.plan import Move, Plan, plan
from tallymark.core.progress import OnStep, ignore
from tallymark.core.records import DeadLetter, Reader
from tallymark.core.skip_ahead import Every, jumps
from tallymark.core.spans import Log, Mark, Partition
from tallymark.core.tables import Refusal
from tallymark.errors import Fenced, LogTruncated, PositionRefused, TallymarkError, TopicRecreated, UnknownTopic
from tallymark.kafka.brokers import Brokers, Topic
from tallymark.kafka.membership import Alone, Membership
from tallymark.run.commit import Destination
from tallymark.run.loop import Loop
from tallymark.run.ownership import Ownership, OwnershipChange
from tallymark.run.prepare import Rereader
from tallymark.run.setup import Job
from tallymark.run.until import Goals, Retrying, Until
from tallymark.run.work import T, Task, Work
from tallymark.stores.contract import Store


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


class Claimed(Work[T]):
    """The partitions that one run has claimed, from joining the group to leaving it.

    Each engine adds where it is in them (``_offsets``), and how it begins to read partitions and forgets them.
    """

    def __init__(self, job: Job, brokers: Brokers, ledger: Store, membership: Membership) -> None:
        self._job, self._brokers, self._ledger = job, brokers, ledger
        self._retrying = Retrying(brokers.stop, job.patience)
        self.ownership = Ownership(job, membership, brokers, ledger)
        self._skip_interval = Every(job.catch_up) if job.catch_up else None
        self._topics: Mapping[str, Topic] | None = None
        self._goals: Goals | None = None

    @property
    @abstractmethod
    def _offsets(self) -> dict[Partition, int]: ...
    @abstractmethod
    def _start(self, marks: Mapping[Partition, Mark]) -> None:
        """Begin to read these partitions. The marks are where their logs can be read from."""

    @abstractmethod
    def _forget(self, partitions: Collection[Partition]) -> None: ...

    @property
    def claims(self) -> dict[Partition, Claim]:
        return self.ownership.claims

    @property
    def has_end(self) -> bool:
        return self._goals is not None

    @property
    def finished(self) -> bool:
        """Whether this run and the other members have reached the ends that the topics had at the start."""
        return self._goals is not None and self.ownership.assigned and self._goals.reached(self._offsets)

    def begin(self, until: Until) -> None:
        self._topics = self._retrying(lambda: self._brokers.find(self._job.topics))
        self._goals = self.ownership.goals(self._topics) if until == "caught-up" else None

    def refresh(self) -> None:
        """Claim assigned partitions and release revoked partitions."""
        if self._topics is not None:
            self.ownership.join(self._topics)
            self._topics = None
        self._follow(self.ownership.reconcile())

    def done(self, entry: Entry) -> None:
        self.ownership.committed(entry)

    def refused(self, error: BaseException) -> bool:
        if isinstance(error, Fenced):
            self._follow(self.ownership.recover(error))
        return isinstance(error, Fenced)

    def leave(self) -> None:
        self.ownership.leave()

    def _follow(self, change: OwnershipChange) -> None:
        self._forget(change.gone)
        if not change.gained:
            return
        try:
            marks = self.ownership.readable(change.gained, self._job.on_loss)
        except LogTruncated as cut:
            if not self._cut_back(cut, change.gained):
                raise
        except UnknownTopic:
            if not self.ownership.tolerant:
                raise
            self.ownership.drop(change.gained)
        else:
            self._start(marks)

    def _cut_back(self, cut: LogTruncated, gained: frozenset[Partition] = frozenset()) -> bool:
        """Continue where these logs were truncated, if ``on_loss`` allows it."""
        # Only committed positions count: an abandoned batch may have been read past the truncation.
        at = {partition: claim.position.next_offset for partition, claim in self.claims.items()}
        truncations = [one for one in cut.found if at.get(one.partition) == one.position]
        if truncations and self._job.on_loss == "fail":
            return False
        change = self.ownership.cut_back(truncations)
        self._follow(replace(change, gained=change.gained.union(gained) & self.claims.keys()))
        return True


class ClaimedPartitions(Claimed[Task]):
    """Plans batch after batch, each beginning at the cursor."""

    reads_ahead = True

    def __init__(
        self, job: Job, brokers: Brokers, destination: Destination, reader: Reader, membership: Membership | None = None
    ) -> None:
        super().__init__(job, brokers, destination.ledger, membership or Alone(brokers, job.topics))
        self._reader, self._store = reader, destination.rows
        self.cursor = Cursor()
        self._planned = Plan()
        self._expected = Plan()
        """The batch after the planned batch: the reader may be fetching it already."""

    def refresh(self) -> None:
        super().refresh()
        if self._goals is not None and not self._planned:
            self._goals.lower(self._offsets)

    def next(self, most: int) -> Task | None:
        turn, marks = self.cursor.turn, dict(self.cursor.marks)
        logs = self._brokers.logs(self.ownership.held_topics())
        marks = {partition: mark for partition, mark in marks.items() if partition in logs}
        self._validate(marks, logs)
        cursor = {partition: mark.offset for partition, mark in marks.items()}
        planned = self._planned = self._expected_or(self._plan(cursor, logs, most), cursor, logs)
        if not planned:
            return None
        self._expected = self._following(planned, cursor, logs, most)
        starts = cursor | {move.partition: move.read_span.start for move in planned.moves}
        lag = sum(max(0, logs[partition].stop - start) for partition, start in starts.items())
        return Task(planned, lag - planned.offsets, then=self._expected.spans, turn=turn)

    def taken(self, task: Task) -> None:
        self.cursor.pass_by(task.plan.moves)

    def is_valid(self, task: Task) -> bool:
        return task.turn == self.cursor.turn

    def abandon(self, task: Task) -> None:
        moved = {move.partition for move in task.plan.moves}
        self.cursor.go_back(
            {partition: claim.position.mark for partition, claim in self.claims.items() if partition in moved}
        )

    def check(self) -> None:
        self.ownership.check_identity()

    def letters(self, refusals: Sequence[Refusal]) -> list[DeadLetter]:
        """The original records are fetched from Kafka."""
        return fetched(refusals, lambda offsets: self._retrying(lambda: self._brokers.records(offsets)))

    def refused(self, error: BaseException) -> bool:
        if isinstance(error, LogTruncated):
            return self._cut_back(error)
        if isinstance(error, TopicRecreated):
            # Check again: earlier batches have been committed since, and the error must name the current position.
            self.ownership.check_identity()
        # If the topic was deleted, the group will revoke its partitions.
        return super().refused(error) or (isinstance(error, UnknownTopic) and self.ownership.tolerant)

    def leave(self) -> None:
        if self.ownership.leave():
            with suppress(TallymarkError):
                self._store.clear_stages(self._job.group, of=self._job.owner.run)

    @property
    def _offsets(self) -> dict[Partition, int]:
        return self.cursor.offsets

    def _start(self, marks: Mapping[Partition, Mark]) -> None:
        # Where the ledger is: the plan finds out what is lost between that and the first readable offset.
        self.cursor.add({partition: self.claims[partition].position.mark for partition in marks})
        self._retrying(self._clear_stages)

    def _forget(self, partitions: Collection[Partition]) -> None:
        self.cursor.remove(partitions)
        if partitions:
            self.cursor.turn += 1
            self._reader.release(partitions)

    def _clear_stages(self) -> None:
        """Remove the staging tables of runs that hold no partition any more."""
        positions = self._ledger.positions(self._job.group).get(self._job.group, [])
        alive = {position.owner.run for position in positions if position.owner}
        self._store.clear_stages(self._job.group, keep=alive | {self._job.owner.run})

    def _validate(self, marks: Mapping[Partition, Mark], logs: Mapping[Partition, Log]) -> None:
        """Check that logs with a new leader still hold the records read so far, and discard what was fetched ahead."""
        validation = self.ownership.validation
        if elected := validation.elected(marks, logs):
            self._expected = Plan()
            self._reader.renew(elected)
            try:
                validation.check(marks, logs)
            except PositionRefused:
                # If the topic was recreated, that is the better explanation.
                self.ownership.check_identity()
                raise

    def _plan(self, cursor: Mapping[Partition, int], logs: Mapping[Partition, Log], most: int) -> Plan:
        ahead, interval, skips = self._job.catch_up, self._skip_interval, {}
        if ahead is not None and interval is not None:
            if any(move.skipped and cursor.get(move.partition) == move.start for move in self._planned.moves):
                # The last jump was planned, but not committed.
                interval.again()
            # ``due`` would count a check without partitions, before they are assigned, as a check.
            if cursor and interval.due(time.monotonic()):
                skips = jumps(ahead, cursor, logs, self._brokers.offsets_at, datetime.now(UTC))
        try:
            return plan(cursor, logs, most, self._job.on_loss, skips)
        except PositionRefused:
            # If the topic was recreated, that is the better explanation.
            self.ownership.check_identity()
            raise

    def _expected_or(self, planned: Plan, cursor: Mapping[Partition, int], logs: Mapping[Partition, Log]) -> Plan:
        """The expected batch if it begins at the cursor, is complete, and ``planned`` passes over no offsets."""
        expected, passing = self._expected, any(move.read < move.stop - move.start for move in planned.moves)
        fits = all(
            cursor.get(move.partition) == move.start and move.stop <= logs[move.partition].stop
            for move in expected.moves
        )
        return expected if expected and fits and not passing else planned

    def _following(
        self, planned: Plan, cursor: Mapping[Partition, int], logs: Mapping[Partition, Log], most: int
    ) -> Plan:
        """The batch after this one, if more than half a batch is available now. The next plan may still differ."""
        behind = dict(cursor) | {move.partition: move.stop for move in planned.moves}
        following = plan(behind, logs, most, self._job.on_loss)
        return following if 2 * following.offsets > most else Plan()


def run_loop(
    job: Job,
    brokers: Brokers,
    destination: Destination,
    reader: Rereader,
    on_step: OnStep = ignore,
    membership: Membership | None = None,
) -> Loop:
    """The loop of a run, which claims partitions and applies their records. ``brokers.stop`` ends it."""
    work = ClaimedPartitions(job, brokers, destination, reader, membership)
    return Loop(job, work, reader, destination, brokers.stop, on_step)
