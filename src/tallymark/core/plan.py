"""Plans the next batch: computes moves from positions and logs. Pure, so that every rule can be tested alone.

A move takes one partition from its position to a later one and defines the outcome of every offset in between:
first lost, then skipped, then read offsets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tallymark.core.spans import Log, Partition, Position, Span
from tallymark.errors import BadInput, BeyondEnd, ForeignCluster, RecordsLost, TopicRecreated

OnLoss = Literal["fail", "record"]


@dataclass(frozen=True)
class Limits:
    """The maximum size of a batch.

    ``records`` is the maximum number of offsets of a batch over all partitions; each partition that lags gets at least
    one. If a batch takes longer than ``seconds``, the next batches are smaller; they grow again when batches are
    faster. ``memory`` is the maximum number of bytes of keys and values of a batch that passes through the driver.
    Larger batches are staged by the executors of a cluster, or are read in smaller batches. The driver holds up to
    three batches at a time: one commits, one is decoded, one is fetched.
    """

    records: int = 250_000
    seconds: float = 30.0
    memory: int = 128 << 20

    def __post_init__(self) -> None:
        if self.records < 1 or self.seconds <= 0 or self.memory < 1:
            raise BadInput(f"limits must be positive, not {self}")


@dataclass(frozen=True)
class Jump:
    """The offset to skip to, and the reason as a sentence for operators."""

    to: int
    reason: str


@dataclass(frozen=True)
class Move:
    """The part of a batch in one partition: from ``start`` over lost and skipped offsets to the end of those to read.

    ``reason`` says why records are skipped. ``leader_epoch`` is the epoch of a leader whose log held all offsets before
    ``stop``: the leader that returned the end of the log, or the leader that wrote the last fetched record
    or transaction marker.
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
    """One batch: a move for each partition that is not caught up. Empty if all are."""

    moves: tuple[Move, ...] = ()
    spans: tuple[Span, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", tuple(move.read_span for move in self.moves if move.read))

    def __bool__(self) -> bool:
        return bool(self.moves)

    @property
    def offsets(self) -> int:
        return sum(move.read for move in self.moves)

    def part(self, share: float = 0.5) -> Plan:
        """Return the first part of each move: at least one offset, and less than all."""
        parts = (min(max(1, math.ceil(move.read * share)), max(1, move.read - 1), move.read) for move in self.moves)
        return Plan(tuple(replace(move, read=read) for move, read in zip(self.moves, parts, strict=True)))

    def after(self, done: Plan) -> Plan:
        """Return the rest of each move after ``done``, which is a first part of each."""
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
    """Return the moves of the next batch: at most ``limit`` offsets to read, shared in proportion to the lag.

    A jump never goes back, nor past the last stable offset. Lost offsets before its target count as lost, not as
    skipped.
    """
    kept = {
        partition: readable_from(position, logs[partition], on_loss) for partition, position in next_offsets.items()
    }
    jumps = {partition: (skips or {}).get(partition, Jump(0, "")) for partition in kept}
    starts = {
        partition: max(start, min(jumps[partition].to, logs[partition].stop)) for partition, start in kept.items()
    }
    lags = {partition: max(0, logs[partition].stop - start) for partition, start in starts.items()}
    shares = apportion(lags, limit)
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
    """Return the first offset to read: the position, or the start of the log if records before it are lost."""
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
            f"({log.start - position} offsets); on_loss='record' records them as lost and continues"
        )
    return log.start


def check_identity(position: Position, topic_id: str, cluster_id: str) -> None:
    """Raise if the position was saved for another topic of the same name, or for another cluster."""
    if position.cluster_id != cluster_id:
        raise ForeignCluster(
            f"{position.partition}: the saved position belongs to cluster {position.cluster_id}, but these brokers "
            f"are cluster {cluster_id}; use the right brokers, or a new group for the new cluster"
        )
    if position.topic_id != topic_id:
        raise TopicRecreated(
            f"topic {position.partition.topic} was deleted and created again (id {position.topic_id}, now {topic_id}): "
            f"position {position.next_offset} of {position.partition} is not valid in the new topic; use a new group, "
            "or delete this one with tallymark delete-group"
        )


def apportion(lags: Mapping[Partition, int], limit: int) -> dict[Partition, int]:
    """Split ``limit`` in proportion to the lags: at most the lag, and at least 1 for each partition that lags.

    Rounds by the largest remainder method; of equal remainders the larger lag wins.
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
    """Return the limit for the next batch, after a batch of ``offsets`` and ``size`` bytes took ``seconds``.

    A single call at most halves or doubles the limit.
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


def lowered(goals: Sequence[Span], next_offsets: Mapping[Partition, int], logs: Mapping[Partition, Log]) -> list[Span]:
    """Lower the goals to what these logs can reach: a truncated log may end before its goal.

    A deleted log has no goal. A position past the end of its log keeps its goal, because the truncation has to be
    detected first.
    """
    return [
        Span(goal.partition, 0, min(goal.stop, log.stop)) if next_offsets.get(goal.partition, 0) <= log.end else goal
        for goal, log in ((goal, logs[goal.partition]) for goal in goals if goal.partition in logs)
    ]
