"""Derives the state of a group, with the reason, from its runs, its history and its lag. Pure.

Except for the pause, no state is stored: states are derived from facts, so that a dead group never counts as running.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING

from tallymark.core.claims import EMPTYING, Note
from tallymark.core.journal import ALIVE, BEAT_SECONDS, BatchLine, NoteLine, Run
from tallymark.core.spans import STREAMING, GroupState, Owner, Partition, Position

if TYPE_CHECKING:
    from tallymark.kafka.lag import Lag

PAUSED, FAILED, STOPPED, STALLED, REWOUND, RUNNING, UNKNOWN = STATES = (
    *("paused", "failed", "stopped", "stalled", "rewound", "running", "unknown"),
)
TROUBLE = (FAILED, STALLED)
"""States that need attention."""

WINDOW = timedelta(minutes=5)
"""Maximum time over which rates are measured."""
HISTORY = 1000
"""Maximum number of commits read from the history."""
MISSED = timedelta(seconds=1.2 * BEAT_SECONDS)
"""How long after its last heartbeat a run has missed the next one."""
QUIET = timedelta(seconds=60)
BATCHES = 5
"""A partition with unread records may go without a commit for ``QUIET`` or ``BATCHES`` median batches, if longer."""
BEHIND = timedelta(seconds=30)
"""How long records must wait, and how long rates must be measured, before a group is said to fall behind."""


@dataclass(frozen=True)
class Facts:
    """The facts about a group at one moment. Runs and history are newest first; ``lags`` is None without Kafka."""

    now: datetime
    state: GroupState
    positions: Sequence[Position]
    runs: Sequence[Run]
    history: Sequence[BatchLine] = ()
    notes: Sequence[NoteLine] = ()
    lags: Mapping[Partition, Lag] | None = None
    rates_in: Mapping[Partition, float] = field(default_factory=dict)

    @property
    def alive(self) -> list[Run]:
        return [run for run in self.runs if run.alive(self.now) and not self._is_succeeded(run)]

    def _is_succeeded(self, run: Run) -> bool:
        """Whether a run owns nothing, has missed a heartbeat, and another run has started since: it was killed."""
        owns = any(position.owner is not None and position.owner.run == run.name for position in self.positions)
        started = any(other.started > run.seen for other in self.runs)
        return started and not owns and self.now - run.seen > MISSED

    @property
    def last_commit(self) -> datetime | None:
        return self.history[0].committed if self.history else None

    @property
    def unread(self) -> int | None:
        """The total lag; None if Kafka was not asked, or does not know all partitions."""
        if self.lags is None or self.unknown:
            return None
        return sum(lag.records for lag in self.lags.values())

    @property
    def waited(self) -> float | None:
        """The age of the oldest unread record in seconds; None if it is unknown for any partition."""
        waits = [lag.seconds for lag in (self.lags or {}).values() if lag.seconds is not None]
        return max(waits, default=0.0) if self.lags is not None and len(waits) == len(self.lags) else None

    @property
    def unknown(self) -> list[Partition]:
        """Partitions that the brokers do not know: the cluster is another, or the topic was deleted."""
        return sorted(partition for partition, lag in (self.lags or {}).items() if lag.log is None)

    @property
    def measured(self) -> timedelta:
        """The time over which the applied rate is measured. It excludes times when the group did not run."""
        begins = [self.now - WINDOW]
        if self.alive:
            begins += [self.state.since, min(run.started for run in self.alive)]
        if len(self.history) >= HISTORY:
            begins.append(self.history[-1].committed)
        return max(self.now - max(begins), timedelta(seconds=1))


@dataclass(frozen=True)
class Health:
    """One of ``STATES``, and why."""

    state: str
    reason: str


def judge(facts: Facts) -> Health:
    """Return the state of a group."""
    state = facts.state
    if state.paused:
        return Health(PAUSED, f"by {state.by} since {moment(state.since)}: {state.reason}")
    if not facts.alive:
        return _without_heartbeats(facts) or _ended(facts)
    return _stalled(facts) or _rewound(facts) or Health(RUNNING, "; ".join([_pace(facts), *_ownerless(facts)]))


def applied_rates(facts: Facts) -> dict[Partition, float]:
    """Return the records per second that each partition advanced, without skips, losses and later backfills.

    The history has only the tally of a whole batch. The notes have its open skips by partition; losses and skips filled
    since are deducted from all partitions of the batch proportionally.
    """
    rates: dict[Partition, float] = defaultdict(float)
    seconds, skipped = facts.measured.total_seconds(), Counter[tuple[str | None, Partition]]()
    for line in facts.notes:
        skipped[line.batch, line.note.span.partition] += len(line.note.span) if line.note.kind == "skip" else 0
    for batch in facts.history:
        if batch.committed < facts.now - facts.measured or batch.tally.total <= 0:
            continue
        read = {span.partition: len(span) - skipped[batch.name, span.partition] for span in batch.spans}
        worked = batch.tally.total - batch.tally.skipped - batch.tally.lost
        for partition, offsets in read.items():
            rates[partition] += worked * offsets / max(1, sum(read.values())) / seconds
    return dict(rates)


def drain(unread: int, rate_in: float | None, rate_applied: float) -> float | None:
    """Return the seconds until the lag is zero at these rates: infinite if it never is, None if unknown.

    It is unknown if both rates are zero, because then the speed of the group was not measured.
    """
    if rate_in is None or (unread and rate_in == rate_applied == 0):
        return None
    if unread == 0:
        return 0.0
    return unread / (rate_applied - rate_in) if rate_applied > rate_in else math.inf


def patience(history: Sequence[BatchLine]) -> timedelta:
    """Return how long a partition with unread records may go without a commit."""
    lengths = [(line.committed - line.started).total_seconds() for line in history]
    return max(QUIET, timedelta(seconds=BATCHES * median(lengths))) if lengths else QUIET


def moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def duration(seconds: float) -> str:
    """Format in at most two units, such as 42s, 3m20s, 2h05m, 4d03h."""
    whole = int(seconds)
    for size, part, names in ((86_400, 3_600, "dh"), (3_600, 60, "hm"), (60, 1, "ms")):
        if whole >= size:
            return f"{whole // size}{names[0]}{whole % size // part:02}{names[1]}"
    return f"{whole}s"


def _end(run: Run) -> datetime:
    return run.ended or run.seen


def _named(run: Run | Owner) -> str:
    return f"run {run.name if isinstance(run, Run) else run.run} on {run.host}"


def _without_heartbeats(facts: Facts) -> Health | None:
    """Judge a group with owners that do not report runs, such as sinks of streaming queries."""
    known, last = {run.name for run in facts.runs}, max(map(_end, facts.runs), default=None)
    owners = [position.owner for position in facts.positions if position.owner and position.owner.run not in known]
    silent = [owner for owner in owners if last is None or owner.since > last]
    if not silent:
        return None
    owner = max(silent, key=lambda owner: owner.since)
    words = f"{_named(owner)} has owned it since {moment(owner.since)} without heartbeats; {_last_commit(facts)}"
    recent = facts.last_commit is not None and facts.now - facts.last_commit < patience(facts.history)
    return Health(RUNNING if recent else UNKNOWN, words)


def _ended(facts: Facts) -> Health:
    if not facts.runs:
        return Health(STOPPED, "; ".join(["no run is recorded", *_moved(facts, None)]))
    last = max(facts.runs, key=_end)
    # If a run fails, the runs beside it are stopped, too: report the failure.
    together = [run for run in facts.runs if _end(run) >= max(last.started, _end(last) - ALIVE)]
    failed = next((run for run in together if run.ended is None or run.error is not None), None)
    run = failed or last
    if run.ended is None:
        words = f"{_named(run)} ended without a final heartbeat, last seen {moment(run.seen)}"
    else:
        words = f"{_named(run)} ended {moment(run.ended)}" + (f": {run.error}" if run.error else "")
    return Health(FAILED if failed else STOPPED, "; ".join([words, *_moved(facts, _end(last))]))


def _moved(facts: Facts, since: datetime | None) -> list[str]:
    """Describe the resets and skips of the group since its last run."""
    sentences = []
    for kind, where in (("reset", "back"), (EMPTYING, "back"), ("truncation", "back"), ("skip", "ahead")):
        notes = [line for line in facts.notes if line.note.kind == kind and (since is None or line.recorded_at > since)]
        if notes:
            offsets = sum(len(line.note.span) for line in notes)
            sentences.append(f"moved {where} by {offsets:,} offsets since then: {notes[-1].note.reason}")
    return sentences


def _stalled(facts: Facts) -> Health | None:
    limit = patience(facts.history)
    since = {position.partition: _waiting_since(facts, position) for position in facts.positions}
    late = sorted(
        (time, partition) for partition, time in since.items() if time is not None and facts.now - time > limit
    )
    if not late or facts.lags is None:
        return None
    time, partition = late[0]
    others = f"; {len(late)} partitions are stalled" if len(late) > 1 else ""
    unread = facts.lags[partition].records
    return Health(STALLED, f"{partition} has {unread:,} unread records and no commit since {moment(time)}{others}")


def _waiting_since(facts: Facts, position: Position) -> datetime | None:
    """Return since when its owner could have committed; None if there is no owner, or nothing to read.

    Only its own timestamp shows how long a record has been in the log. A record without a timestamp proves nothing; a
    timestamp in the future counts as now. A timestamp before the last commit may be right, or the record has just
    arrived with an old timestamp, as in a mirrored topic. In that case, commits of the same owner in other partitions
    count, too: an owner that commits elsewhere will reach the record.
    """
    owner, lag = position.owner, (facts.lags or {}).get(position.partition)
    if owner is None or lag is None or lag.unread is None or lag.log is None or lag.log.stop <= position.next_offset:
        return None
    moved = [position.updated_at]
    if lag.unread <= position.updated_at:
        moved += [
            other.updated_at for other in facts.positions if other.owner is not None and other.owner.run == owner.run
        ]
    return max([*moved, owner.since, facts.state.since, min(lag.unread, facts.now)])


def _rewound(facts: Facts) -> Health | None:
    notes: dict[Partition, Note] = {}
    for note in (line.note for line in facts.notes if line.note.kind in ("reset", EMPTYING)):
        # A second reset on the way does not change the end: the position where the first reset began.
        if note.span.partition not in notes or note.span.stop >= notes[note.span.partition].span.stop:
            notes[note.span.partition] = note
    at = {position.partition: position.next_offset for position in facts.positions}
    left = {
        partition: note.span.stop - at[partition]
        for partition, note in notes.items()
        if at.get(partition, math.inf) < note.span.stop
    }
    if not left:
        return None
    most = max(left, key=lambda partition: left[partition])
    words = f"{sum(left.values()):,} offsets are applied again, {most} up to {notes[most].span.stop}"
    return Health(REWOUND, f"{words}: {notes[most].reason}")


def _pace(facts: Facts) -> str:
    if not facts.positions:
        return "waiting for an assignment"
    if facts.lags is None or all(position.cluster_id == STREAMING for position in facts.positions):
        return _last_commit(facts)
    if facts.unread is None:
        return f"lag is unknown, because these brokers do not have {facts.unknown[0]}; {_last_commit(facts)}"
    if (unread := facts.unread) == 0:
        idle = len(facts.rates_in) == len(facts.lags) and not any(facts.rates_in.values())
        return f"idle: no new records for {WINDOW // timedelta(minutes=1)} minutes" if idle else "caught up"
    if held := _held_up(facts):
        return f"{min(held)} waits for an open transaction of its producer"
    came = sum(facts.rates_in.values()) if len(facts.rates_in) == len(facts.lags) else None
    went, waited = sum(applied_rates(facts).values()), math.inf if facts.waited is None else facts.waited
    late = facts.measured >= BEHIND and waited >= BEHIND.total_seconds()
    if late and came is not None and came > went:
        return f"falling behind: {came:,.1f}/s in, {went:,.1f}/s applied, {unread:,} unread"
    seconds = drain(unread, came, went)
    left = f", {duration(seconds)} left" if seconds is not None and math.isfinite(seconds) else ""
    return f"catching up: {unread:,} unread{left}"


def _held_up(facts: Facts) -> list[Partition]:
    """Return the partitions with unread but unreadable records, if no partition has readable records."""
    at = {position.partition: position.next_offset for position in facts.positions}
    behind = {partition: lag.log for partition, lag in (facts.lags or {}).items() if lag.records}
    held = [partition for partition, log in behind.items() if log is not None and log.stop <= at[partition]]
    return held if len(held) == len(behind) else []


def _ownerless(facts: Facts) -> list[str]:
    free = sorted(position.partition for position in facts.positions if position.owner is None)
    if not free or facts.now - min(run.started for run in facts.alive) <= QUIET:
        return []
    return [f"{free[0]} has no owner" if len(free) == 1 else f"{len(free)} partitions have no owner, such as {free[0]}"]


def _last_commit(facts: Facts) -> str:
    return f"last commit {moment(facts.last_commit)}" if facts.last_commit else "no commit yet"
