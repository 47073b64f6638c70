"""Plans manual resets of positions, for each partition. Pure.

``Aim`` is the target, ``Reset.plan`` previews the effect on given positions, and ``Reset.decide`` repeats the plan with
the locked positions, in the transaction that performs the reset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from tallymark.core.claims import FirstClaim, PositionChanges, Restart
from tallymark.core.durations import parse_duration
from tallymark.core.journal import Decision, Run, owners_alive
from tallymark.core.plan import check_identity
from tallymark.core.spans import Log, Partition, Position, Span
from tallymark.errors import BadInput, CommitRefused, PositionMoved, UnknownPartition

Scope = Mapping[str, frozenset[int] | None]
"""Partition numbers by topic; None means all partitions of the topic."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Aim:
    """The target of a reset. ``said`` is the option as the user wrote it, for the journal."""

    kind: Literal["earliest", "latest", "offset", "shift", "time", "current", "file"]
    said: str
    number: int = 0
    moment: datetime | None = None
    offsets: Mapping[Partition, int] = field(default_factory=dict)

    def wanted(self, log: Log, current: int | None, at_moment: int | None) -> int | None:
        """Return the target offset, which may be outside of the log; None if the partition stays without a position."""
        match self.kind:
            case "earliest":
                return log.start
            case "latest":
                return log.stop
            case "offset":
                return self.number
            case "time":
                return log.stop if at_moment is None else at_moment
            case "file":
                return self.offsets[log.partition]
            case "shift" if current is None:
                raise BadInput(f"{log.partition} has no position to shift; use --to-offset for it")
            case "shift":
                return (current or 0) + self.number
        return current


@dataclass(frozen=True)
class Planned:
    """The reset of one partition. ``new`` is the wanted offset, clamped to the log."""

    log: Log
    old: Position | None
    wanted: int | None
    new: int | None

    @property
    def partition(self) -> Partition:
        return self.log.partition

    @property
    def current(self) -> int | None:
        return self.old.next_offset if self.old else None

    @property
    def repeats(self) -> int:
        return 0 if self.current is None or self.new is None else max(0, self.current - self.new)

    @property
    def read_again(self) -> Span | None:
        """The offsets that are repeated and still in the log: where it was truncated, other records will follow."""
        start, stop = self.new or 0, min(self.current or 0, self.log.end)
        return Span(self.partition, start, stop) if self.repeats and start < stop else None

    @property
    def skips(self) -> int:
        return 0 if self.current is None or self.new is None else max(0, self.new - self.current)

    @property
    def gone(self) -> int:
        """How many of the skipped offsets the log no longer holds."""
        return max(0, min(self.new or 0, self.log.start) - (self.current or 0)) if self.skips else 0

    @property
    def clamped(self) -> bool:
        return self.new != self.wanted

    @property
    def changes(self) -> bool:
        return self.new != self.current

    @property
    def words(self) -> str:
        if self.new is None:
            return "no position: stays without one"
        if self.old is None:
            return "no position: gets this one"
        if self.repeats:
            return f"repeats {self.repeats:,} offsets"
        gone = f", {self.gone:,} of them deleted from the log" if self.gone else ""
        return f"skips {self.skips:,} offsets{gone}: backfill can fill them later" if self.skips else "unchanged"

    @property
    def warning(self) -> str | None:
        if not self.clamped:
            return None
        held = f"{self.log.start}..{self.log.end}"
        return f"{self.partition}: clamped from {self.wanted} to {self.new}, the log holds {held}"


@dataclass(frozen=True)
class Reset:
    """A reset of a group's partitions, with the brokers' data about them."""

    aim: Aim
    logs: Mapping[Partition, Log]
    at_moment: Mapping[Partition, int | None] = field(default_factory=dict)

    def plan(self, positions: Mapping[Partition, Position]) -> list[Planned]:
        """Plan the reset of these positions. Raises if a position belongs to another topic or cluster."""
        return [self._planned(log, positions.get(partition)) for partition, log in sorted(self.logs.items())]

    def _planned(self, log: Log, position: Position | None) -> Planned:
        if position is not None:
            check_identity(position, log.topic_id, log.cluster_id)
        current = position.next_offset if position else None
        wanted = self.aim.wanted(log, current, self.at_moment.get(log.partition))
        return Planned(log, position, wanted, None if wanted is None else min(max(wanted, log.start), log.end))

    def decide(
        self,
        seen: Sequence[Planned],
        now: datetime,
        reason: str,
        done: Callable[[Sequence[Planned]], None],
        *,
        take_over: bool = False,
        consent: Callable[[Sequence[Planned]], Sequence[str]] = lambda _: (),
    ) -> Decision:
        """Return a decision that performs the plan ``seen`` if the positions are unchanged and have no live owner.

        With ``take_over``, neither is checked, and the plan is made again from the locked positions. ``consent`` is
        called with the final plan and returns the tables to empty, or raises. ``done`` is called with the plan, too.
        """

        def decide(positions: Mapping[Partition, Position], runs: Sequence[Run]) -> PositionChanges:
            plan = self._reaching(seen, positions).plan(positions)
            if not take_over:
                check_idle(plan, runs, now)
                check_unmoved(seen, plan)
            empties = consent(plan)
            if empties and not take_over:
                check_idle(plan, runs, now, everyone=True)
            done(plan)
            return changes(plan, reason, empties)

        return decide

    def _reaching(self, seen: Sequence[Planned], positions: Mapping[Partition, Position]) -> Reset:
        """Return the same reset with logs that reach at least to the positions that have moved since the preview.

        A position that has not moved proves nothing about the end of its log, which may have been truncated.
        """
        before = {planned.partition: planned.current for planned in seen}
        logs = {
            partition: log.reaching(positions[partition].next_offset)
            if partition in positions and positions[partition].next_offset != before.get(partition)
            else log
            for partition, log in self.logs.items()
        }
        return replace(self, logs=logs)


def changes(plan: Sequence[Planned], reason: str, empties: Sequence[str] = ()) -> PositionChanges:
    """Return the changes to request from the ledger.

    Unchanged positions keep their owners, unless tables are emptied: then all positions start over.
    """
    first, restarts, words = {}, {}, reason
    if empties:
        words = f"{reason}; emptied {', '.join(empties)}"
    for planned in plan:
        if planned.new is None or not (planned.changes or empties):
            continue
        epoch = planned.log.leader_epoch
        if planned.old is None:
            ids = planned.log.topic_id, planned.log.cluster_id
            first[planned.partition] = FirstClaim(planned.new, *ids, words, epoch)
        else:
            restarts[planned.partition] = Restart(planned.new, words, leader_epoch=epoch, emptied=bool(empties))
    return PositionChanges(first, restarts, empties)


def busy(plan: Sequence[Planned], runs: Sequence[Run], now: datetime, *, everyone: bool = False) -> list[Position]:
    """Return the positions that would change although their owner may be alive; or with ``everyone`` all of those."""
    return owners_alive([planned.old for planned in plan if planned.old and (planned.changes or everyone)], runs, now)


def check_idle(plan: Sequence[Planned], runs: Sequence[Run], now: datetime, *, everyone: bool = False) -> None:
    for position in busy(plan, runs, now, everyone=everyone):
        raise CommitRefused(
            f"{position.partition} is owned by {position.owner}, which may be running; nothing was changed: "
            "stop it (a killed run counts as dead after 30 seconds), or use --take-over"
        )


def check_unmoved(seen: Sequence[Planned], locked: Sequence[Planned]) -> None:
    """Compare positions with the preview. First offsets are compared, too, because a new tally may have begun."""
    for before, now in zip(seen, locked, strict=True):
        if _place(before) != _place(now):
            raise PositionMoved(
                f"{now.partition}: the position has moved from {_words(before)} to {_words(now)} since the preview; "
                "nothing was changed: preview the reset again"
            )


def _place(planned: Planned) -> tuple[int, int] | None:
    return (planned.old.next_offset, planned.old.first_offset) if planned.old else None


def _words(planned: Planned) -> str:
    return "none" if planned.current is None else str(planned.current)


def parse_scope(texts: Collection[str]) -> dict[str, frozenset[int] | None]:
    """Parse ``orders`` or ``orders:0,3``, as in kafka-consumer-groups. Repeated topics are combined."""
    scope: dict[str, frozenset[int] | None] = {}
    for text in texts:
        topic, some, numbers = text.partition(":")
        if not topic or (some and not re.fullmatch(r"\d+(,\d+)*", numbers)):
            raise BadInput(f"--topic {text} is not valid; write --topic orders or --topic orders:0,3")
        chosen = frozenset(map(int, numbers.split(","))) if some else None
        before = scope.get(topic, frozenset())
        scope[topic] = None if chosen is None or before is None else before | chosen
    return scope


def within(scope: Scope, partitions: Collection[Partition]) -> list[Partition]:
    """Return the partitions of the scope, all of which must exist."""
    for topic, numbers in scope.items():
        held = sorted(partition.number for partition in partitions if partition.topic == topic)
        for missing in sorted((numbers or frozenset()) - set(held)):
            last = f"0..{held[-1]}" if held else "none"
            raise UnknownPartition(f"topic {topic} has no partition {missing}; its partitions are {last}")
    return sorted(
        partition
        for partition in partitions
        if partition.topic in scope and _chosen(scope[partition.topic], partition.number)
    )


def _chosen(numbers: frozenset[int] | None, number: int) -> bool:
    return numbers is None or number in numbers


def parse_moment(text: str) -> datetime:
    """Parse an ISO 8601 time. Without a time zone it is UTC, as in Kafka's own tool."""
    try:
        moment = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    except ValueError:
        raise BadInput(f"{text!r} is not a time; write 2026-01-31T12:00:00+01:00, or 2026-01-31T12:00:00Z") from None
    return max(EPOCH, moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def before_now(duration: timedelta) -> datetime:
    """Return the time this long ago, but not before 1970, where Kafka's timestamps begin."""
    now = datetime.now(UTC)
    return EPOCH if duration > now - EPOCH else now - duration


def moment_or_ago(text: str | None, option: str) -> datetime | None:
    """Parse a time, or a duration before now, such as ``2h``."""
    if text is None:
        return None
    # A plain number is the date 20260131 rather than a number of seconds.
    if not text.isdecimal():
        with suppress(BadInput):
            return before_now(parse_duration(text, option))
    try:
        return parse_moment(text)
    except BadInput as error:
        raise BadInput(f"{option}: {error}, or 2h for two hours ago") from None
