"""What the next batch reads: positions and logs in, moves out. Pure, so that every rule can be tested alone.

A move takes one partition from its position to a later one and says what happens to every offset in between:
first those that are lost, then those that are skipped, then those that are read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tallymark.errors import BadInput, BeyondEnd, ForeignCluster, RecordsLost, TopicRecreated
from tallymark.spans import Log, Partition, Position, Span

OnLoss = Literal["fail", "record"]


@dataclass(frozen=True)
class Limits:
    """How large a batch may get.

    ``records`` is the most that one batch reads over all partitions, but at least one of each that lags. Batches that
    take longer than ``seconds`` make the next ones smaller, and they grow again when there is time to spare.
    ``memory`` is the most bytes of keys and values of a batch that goes through the driver: what is larger is staged by
    the executors, or read in smaller batches where the store can't be staged to. The driver holds up to three batches
    at a time: one commits, one is decoded, one arrives. Where a table's function computes, a sixteenth of Java's heap
    is the most, however large ``memory`` is.
    """

    records: int = 250_000
    seconds: float = 30.0
    memory: int = 128 << 20

    def __post_init__(self) -> None:
        if self.records < 1 or self.seconds <= 0 or self.memory < 1:
            raise BadInput(f"limits must be positive, not {self}")


@dataclass(frozen=True)
class Jump:
    """Where a partition is to go on instead, and why: a sentence for operators."""

    to: int
    reason: str


@dataclass(frozen=True)
class Move:
    """One partition's part of a batch: from ``start`` over what is lost and skipped to the end of what is read.

    ``reason`` says why records are skipped. ``leader_epoch`` is that of the leader which said that the log reaches to
    its end.
    """

    partition: Partition
    start: int
    lost: int
    read: int
    skipped: int = 0
    reason: str = ""
    leader_epoch: int | None = None

    @property
    def stop(self) -> int:
        return self.start + self.lost + self.skipped + self.read

    @property
    def lost_span(self) -> Span:
        return Span(self.partition, self.start, self.start + self.lost)

    @property
    def skipped_span(self) -> Span:
        return Span(self.partition, self.start + self.lost, self.stop - self.read)

    @property
    def read_span(self) -> Span:
        return Span(self.partition, self.stop - self.read, self.stop)


@dataclass(frozen=True)
class Plan:
    """One batch: a move for every partition that has something to do. Empty when all are caught up."""

    moves: tuple[Move, ...] = ()
    spans: tuple[Span, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", tuple(move.read_span for move in self.moves if move.read))

    def __bool__(self) -> bool:
        return bool(self.moves)

    @property
    def offsets(self) -> int:
        return sum(move.read for move in self.moves)

    def half(self) -> Plan:
        """The first half of each move, at least one offset of it."""
        return Plan(tuple(replace(move, read=(move.read + 1) // 2) for move in self.moves))

    def after(self, done: Plan) -> Plan:
        """What is left when a first part of each move is done."""
        stops = {move.partition: move.stop for move in done.moves}
        left = (
            replace(move, start=at, lost=0, skipped=0, read=move.stop - at, reason="")
            for move, at in ((move, stops[move.partition]) for move in self.moves)
        )
        return Plan(tuple(move for move in left if move.read))


def plan(
    next_offsets: Mapping[Partition, int],
    logs: Mapping[Partition, Log],
    limit: int,
    on_loss: OnLoss = "fail",
    skips: Mapping[Partition, Jump] | None = None,
) -> Plan:
    """The moves of the next batch, at most ``limit`` offsets of reading, shared in proportion to the lag.

    A jump goes neither back nor past what can be read; what is lost on the way is lost, not skipped.
    """
    kept = {
        partition: readable_from(position, logs[partition], on_loss) for partition, position in next_offsets.items()
    }
    jumps = {partition: (skips or {}).get(partition, Jump(0, "")) for partition in kept}
    starts = {
        partition: max(start, min(jumps[partition].to, logs[partition].stop)) for partition, start in kept.items()
    }
    lags = {partition: max(0, logs[partition].stop - start) for partition, start in starts.items()}
    shares = share(lags, limit)
    moves = (
        Move(
            partition,
            position,
            lost=kept[partition] - position,
            read=shares[partition],
            skipped=starts[partition] - kept[partition],
            reason=jumps[partition].reason if starts[partition] > kept[partition] else "",
            leader_epoch=logs[partition].leader_epoch,
        )
        for partition, position in sorted(next_offsets.items())
    )
    return Plan(tuple(move for move in moves if move.stop > move.start))


def readable_from(position: int, log: Log, on_loss: OnLoss) -> int:
    """Where reading can go on: the position, or the start of the log when the records before it are lost."""
    if position > log.end:
        raise BeyondEnd(
            f"{log.partition}: the saved position {position} is past the end of the log at {log.end}; "
            "the log was truncated or replaced: check the cluster, then set the position by hand"
        )
    if position >= log.start:
        return position
    if on_loss == "fail":
        raise RecordsLost(
            f"{log.partition}: offsets {position}..{log.start} were deleted before they were read "
            f"({log.start - position} offsets); on_loss='record' writes them down as lost and goes on"
        )
    return log.start


def check_identity(position: Position, topic_id: str, cluster_id: str) -> None:
    """Refuse a position that was saved for another topic of the same name, or for another cluster."""
    if position.cluster_id != cluster_id:
        raise ForeignCluster(
            f"{position.partition}: the saved position belongs to cluster {position.cluster_id}, these brokers are "
            f"cluster {cluster_id}; use the right brokers, or a new group for the new cluster"
        )
    if position.topic_id != topic_id:
        raise TopicRecreated(
            f"topic {position.partition.topic} was deleted and created again (id {position.topic_id}, now {topic_id}), "
            f"so position {position.next_offset} of {position.partition} means nothing in it; use a new group, "
            "or forget this one: tallymark delete-group"
        )


def share(lags: Mapping[Partition, int], limit: int) -> dict[Partition, int]:
    """Split ``limit`` in proportion to the lags: never more than the lag, and at least one for whoever lags.

    Whole numbers by largest remainder; among equal remainders the longer lag goes first.
    """
    total, lagging = sum(lags.values()), sum(1 for lag in lags.values() if lag)
    if total <= limit:
        return dict(lags)
    spare, rest = max(0, limit - lagging), max(1, total - lagging)
    shares = {partition: 1 + (lag - 1) * spare // rest if lag else 0 for partition, lag in lags.items()}
    by_need = sorted(lags, key=lambda partition: (-((lags[partition] - 1) * spare % rest), -lags[partition], partition))
    left = max(limit, lagging) - sum(shares.values())
    for partition in [partition for partition in by_need if shares[partition] < lags[partition]][:left]:
        shares[partition] += 1
    return shares


def adapt(limit: int, offsets: int, seconds: float, size: int, limits: Limits) -> int:
    """The limit for the next batch, after one of ``offsets`` and ``size`` bytes took ``seconds``.

    It is at most halved or doubled at a time.
    """
    if offsets < limit // 2 or seconds <= 0:
        return limit
    for_time = offsets * limits.seconds / seconds
    for_memory = offsets * limits.memory / size if size else math.inf
    wanted = int(min(limit * 2, for_time, for_memory))
    return max(1, min(limits.records, max(limit // 2, wanted)))


def caught_up(next_offsets: Mapping[Partition, int], goals: Sequence[Span]) -> bool:
    """Whether every partition has reached the end of its goal."""
    return all(next_offsets.get(goal.partition, 0) >= goal.stop for goal in goals)
