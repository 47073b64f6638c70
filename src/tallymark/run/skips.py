"""The work of a backfill: the open skips of a group, which are filled while the group continues to run.

Every chunk is one transaction that writes its rows and removes the chunk from the open skip. A backfill claims nothing
and moves no position, so it does not disturb the partition's owner. If two backfills fill the same chunk, the second is
refused and looks up the open skips again. The reader must not stage anything, because a member that starts removes the
staging tables of runs without claims.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence

from tallymark.core.batch import fetched
from tallymark.core.claims import Entry, Skip, explain_loss
from tallymark.core.merging import BY_VERSION
from tallymark.core.plan import Move, Plan, check_identity, readable_from
from tallymark.core.progress import OnStep, ignore
from tallymark.core.records import DeadLetter
from tallymark.core.spans import Log, Partition, Position, Span, Tally
from tallymark.core.tables import Refusal, TableSpec
from tallymark.errors import BadInput, PositionMoved
from tallymark.kafka.brokers import Brokers
from tallymark.run.commit import Destination
from tallymark.run.loop import Loop
from tallymark.run.prepare import Rereader
from tallymark.run.setup import Job
from tallymark.run.until import Retrying
from tallymark.run.work import Task, Work

log = logging.getLogger(__name__)


class OpenSkips(Work[Task]):
    """The open skips of a group, optionally limited to one topic or partition."""

    verb, left, prefix = "filled", "left", "fill-"
    finished = False

    def __init__(
        self,
        job: Job,
        destination: Destination,
        brokers: Brokers,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        if destination.delivery != "exactly-once":
            raise BadInput(f"backfill requires exactly-once delivery; leave out delivery={destination.delivery!r}")
        self._group, self._on_loss, self._ledger, self._brokers = job.group, job.on_loss, destination.ledger, brokers
        self._topic, self._partition = topic, partition
        self._retrying = Retrying(brokers.stop, job.patience)
        self._unreadable: set[Span] = set()
        self._filling: Partition | None = None

    def next(self, most: int) -> Task | None:
        """The first chunk of the first skip of which anything can be read now."""
        skips = self._listed()
        for skip in skips:
            move = self._first_move(skip.span, most)
            if move.stop > move.start:
                left = sum(len(other.span) for other in skips if other.span not in self._unreadable)
                self._filling = move.partition
                return Task(Plan((move,)), left - move.read, skip)
            log.warning("skip left open, none of it can be read yet group=%s span=%s", self._group, skip.span)
            self._unreadable.add(skip.span)
        self.finished = True
        return None

    def check(self) -> None:
        if self._filling is not None:
            self.log(self._filling)

    def letters(self, refusals: Sequence[Refusal]) -> list[DeadLetter]:
        """The original records are fetched from Kafka."""
        return fetched(refusals, lambda offsets: self._retrying(lambda: self._brokers.records(offsets)))

    def done(self, entry: Entry) -> None:
        """The ledger has removed the chunk from the skip, and ``next`` reads the skips again."""

    def refused(self, error: BaseException) -> bool:
        if not isinstance(error, PositionMoved):
            return False
        log.warning("chunk refused, looking up the open skips again group=%s error=%s", self._group, error)
        return True

    def log(self, partition: Partition) -> Log:
        """The brokers' log of the partition; raises if the topic was recreated since the ledger recorded it."""
        topic = self._brokers.topics([partition.topic])[partition.topic]
        log = self._brokers.logs({topic.name: topic.only([partition])})[partition]
        for position in self._ledger.positions(self._group).get(self._group, []):
            if position.partition == partition:
                check_identity(position, log.topic_id, log.cluster_id)
                return log
        raise explain_loss(partition, 0, None)

    def _listed(self) -> list[Skip]:
        return [
            skip
            for skip in self._ledger.skips(self._group)
            if self._topic in (None, skip.span.partition.topic)
            and self._partition in (None, skip.span.partition.number)
            and skip.span not in self._unreadable
        ]

    def _first_move(self, span: Span, most: int) -> Move:
        log = self.log(span.partition)
        start = min(readable_from(span.start, log, self._on_loss), span.stop)
        read = max(0, min(most, span.stop - start, log.stop - start))
        return Move(span.partition, span.start, lost=start - span.start, read=read)


def held(span: Span, log: Log | None) -> str:
    """How much of a span is still in Kafka: all, part, or gone. ``log`` is None for a deleted or recreated topic."""
    left = max(0, span.stop - max(span.start, log.start)) if log else 0
    return "all" if left == len(span) else "part" if left else "gone"


def held_logs(
    positions: Sequence[Position], partitions: Collection[Partition], brokers: Brokers
) -> dict[Partition, Log]:
    """The brokers' logs of these partitions, except those whose topic or cluster id differs from the position's."""
    topics = brokers.topics(sorted({partition.topic for partition in partitions}), existing_only=True)
    logs = brokers.logs({name: topic.only(partitions) for name, topic in topics.items()})
    ids = {position.partition: (position.topic_id, position.cluster_id) for position in positions}
    return {partition: log for partition, log in logs.items() if ids.get(partition) == (log.topic_id, log.cluster_id)}


def backfill(
    job: Job,
    brokers: Brokers,
    destination: Destination,
    reader: Rereader,
    on_step: OnStep = ignore,
    stop: threading.Event | None = None,
    *,
    topic: str | None = None,
    partition: int | None = None,
    overwrite: bool = False,
) -> Tally:
    """Fill all open skips of the group, or those of one topic or partition; returns the tally of their offsets.

    ``overwrite`` allows tables in which the older records that are filled in can replace rows of newer records.
    """
    skips = OpenSkips(job, destination, brokers, topic, partition)
    check_order(job.tables, overwrite=overwrite)
    return Loop(job, skips, reader, destination, stop or threading.Event(), on_step).run()


def check_order(tables: Sequence[TableSpec], *, overwrite: bool, allow: str = "pass overwrite=True") -> None:
    """Refuse tables whose rows depend on the order of records. ``allow`` tells the user how to override the check."""
    for spec in tables:
        in_order = spec.write == "merge" and any(name in BY_VERSION for name in spec.functions.values())
        if overwrite or not (spec.write == "upsert" or in_order):
            continue
        if spec.version is None:
            raise BadInput(f"table {spec.name}: older records would overwrite newer rows; set version=, or {allow}")
        # Every deletion of a replica has a version, and is remembered.
        if spec.delete is not None and not spec.is_replica:
            raise BadInput(
                f"table {spec.name}: older records could restore rows that newer records have deleted; "
                f"{allow} to accept that"
            )
