"""How a group is doing, and why: judged by its runs, its history and what is unread. Pure.

Nobody sets these states, but for the pause: they follow from facts, so that no group counts as running that is dead.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING

from tallymark.books import ALIVE, BatchLine, NoteLine, Run
from tallymark.fence import Note
from tallymark.spans import STREAMING, GroupState, Owner, Partition, Position

if TYPE_CHECKING:
    from tallymark.lag import Lag

PAUSED, FAILED, STOPPED, STALLED, REWOUND, RUNNING, UNKNOWN = STATES = (
    *("paused", "failed", "stopped", "stalled", "rewound", "running", "unknown"),
)
TROUBLE = (FAILED, STALLED)
"""States that somebody should look at."""

WINDOW = timedelta(minutes=5)
"""What rates are measured over, at the most."""
HISTORY = 1000
"""How many commits of the history are looked at, at the most."""
QUIET = timedelta(seconds=60)
BATCHES = 5
"""A partition with unread records may go without a commit for so long, or for so many batches of the usual length."""
BEHIND = timedelta(seconds=30)
"""How long records must wait, and how long rates must be measured, before a group is said to fall behind."""


@dataclass(frozen=True)
class Facts:
    """What is known of a group at one moment: runs and history with the newest first; no ``lags`` without Kafka."""

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
        return [run for run in self.runs if run.alive(self.now)]

    @property
    def last_commit(self) -> datetime | None:
        return self.history[0].committed if self.history else None

    @property
    def unread(self) -> int | None:
        """None if Kafka was not asked, or does not know one of the partitions."""
        if self.lags is None or self.unknown:
            return None
        return sum(lag.records for lag in self.lags.values())

    @property
    def waited(self) -> float | None:
        """Seconds that the oldest unread record waits; None if that of a partition is not known."""
        waits = [lag.seconds for lag in (self.lags or {}).values() if lag.seconds is not None]
        return max(waits, default=0.0) if self.lags is not None and len(waits) == len(self.lags) else None

    @property
    def unknown(self) -> list[Partition]:
        """Partitions that mean nothing to the brokers that were asked: another cluster, a topic that is gone."""
        return sorted(one for one, lag in (self.lags or {}).items() if lag.log is None)

    @property
    def measured(self) -> timedelta:
        """How long the rate of what is applied was measured: not over a time in which nobody could apply."""
        begins = [self.now - WINDOW]
        if self.alive:
            begins += [self.state.since, min(run.started for run in self.alive)]
        if len(self.history) >= HISTORY:
            begins.append(self.history[-1].committed)
        return max(self.now - max(begins), timedelta(seconds=1))


@dataclass(frozen=True)
class Verdict:
    """One of ``STATES``, and why."""

    state: str
    reason: str


def judge(facts: Facts) -> Verdict:
    """The state of a group."""
    state = facts.state
    if state.paused:
        return Verdict(PAUSED, f"by {state.by} since {moment(state.since)}: {state.reason}")
    if not facts.alive:
        return _unheard(facts) or _ended(facts)
    return _stalled(facts) or _rewound(facts) or Verdict(RUNNING, "; ".join([_pace(facts), *_ownerless(facts)]))


def applied_rates(facts: Facts) -> dict[Partition, float]:
    """Records per second that each partition went ahead; not what was skipped or lost, nor what was filled in later.

    The history has the tally of a whole batch. What it skipped and is open still, the notes have by partition; what was
    lost or is filled in by now is taken off all its partitions alike.
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
    """Seconds until nothing is unread if it goes on like this: infinite if it never will be, None if nobody knows.

    Nothing comes in and nothing is applied: whoever would go on has not shown how fast.
    """
    if rate_in is None or (unread and rate_in == rate_applied == 0):
        return None
    if unread == 0:
        return 0.0
    return unread / (rate_applied - rate_in) if rate_applied > rate_in else math.inf


def patience(history: Sequence[BatchLine]) -> timedelta:
    """How long a partition with unread records may go without a commit."""
    lengths = [(line.committed - line.started).total_seconds() for line in history]
    return max(QUIET, timedelta(seconds=BATCHES * median(lengths))) if lengths else QUIET


def moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def duration(seconds: float) -> str:
    """In two units at the most, such as 42s, 3m20s, 2h05m, 4d03h."""
    whole = int(seconds)
    for size, part, names in ((86_400, 3_600, "dh"), (3_600, 60, "hm"), (60, 1, "ms")):
        if whole >= size:
            return f"{whole // size}{names[0]}{whole % size // part:02}{names[1]}"
    return f"{whole}s"


def _end(run: Run) -> datetime:
    return run.ended or run.seen


def _named(run: Run | Owner) -> str:
    return f"run {run.name if isinstance(run, Run) else run.run} on {run.host}"


def _unheard(facts: Facts) -> Verdict | None:
    """A partition is claimed by somebody who does not report, as sinks of streaming queries do not."""
    known, last = {run.name for run in facts.runs}, max(map(_end, facts.runs), default=None)
    owners = [one.owner for one in facts.positions if one.owner and one.owner.run not in known]
    silent = [owner for owner in owners if last is None or owner.since > last]
    if not silent:
        return None
    owner = max(silent, key=lambda one: one.since)
    words = f"{_named(owner)} has it since {moment(owner.since)} and does not report; {_last_commit(facts)}"
    recent = facts.last_commit is not None and facts.now - facts.last_commit < patience(facts.history)
    return Verdict(RUNNING if recent else UNKNOWN, words)


def _ended(facts: Facts) -> Verdict:
    if not facts.runs:
        return Verdict(STOPPED, "; ".join(["no run of it is known", *_moved(facts, None)]))
    last = max(facts.runs, key=_end)
    # Of several that ran together, one fails and the others are told to end: the failure is the story.
    together = [run for run in facts.runs if _end(run) >= max(last.started, _end(last) - ALIVE)]
    failed = next((run for run in together if run.ended is None or run.error is not None), None)
    run = failed or last
    if run.ended is None:
        words = f"{_named(run)} vanished without a word, last seen {moment(run.seen)}"
    else:
        words = f"{_named(run)} ended {moment(run.ended)}" + (f": {run.error}" if run.error else "")
    return Verdict(FAILED if failed else STOPPED, "; ".join([words, *_moved(facts, _end(last))]))


def _moved(facts: Facts, since: datetime | None) -> list[str]:
    """Where the group was sent since its last run."""
    found = []
    for kind, where in (("reset", "back"), ("truncation", "back"), ("skip", "ahead")):
        notes = [line for line in facts.notes if line.note.kind == kind and (since is None or line.recorded_at > since)]
        if notes:
            offsets = sum(len(line.note.span) for line in notes)
            found.append(f"sent {where} over {offsets:,} offsets since then: {notes[-1].note.reason}")
    return found


def _stalled(facts: Facts) -> Verdict | None:
    limit = patience(facts.history)
    since = {one.partition: _waiting_since(facts, one) for one in facts.positions}
    late = sorted((time, one) for one, time in since.items() if time is not None and facts.now - time > limit)
    if not late or facts.lags is None:
        return None
    time, partition = late[0]
    others = f"; {len(late)} partitions wait" if len(late) > 1 else ""
    unread = facts.lags[partition].records
    return Verdict(STALLED, f"{partition} has {unread:,} unread records and no commit since {moment(time)}{others}")


def _waiting_since(facts: Facts, position: Position) -> datetime | None:
    """Since when its owner could have committed something; None if there is no owner, or nothing to read.

    How long a record is there is known by its own time alone. One without a time proves nothing; one from the future
    came just now, as far as we know. One that is older than the last commit may have been there, or it came just now
    with an old time, as in a mirrored topic: then an owner who goes on elsewhere will come to it.
    """
    owner, lag = position.owner, (facts.lags or {}).get(position.partition)
    if owner is None or lag is None or lag.unread is None or lag.log is None or lag.log.stop <= position.next_offset:
        return None
    moved = [position.updated_at]
    if lag.unread <= position.updated_at:
        moved += [one.updated_at for one in facts.positions if one.owner is not None and one.owner.run == owner.run]
    return max([*moved, owner.since, facts.state.since, min(lag.unread, facts.now)])


def _rewound(facts: Facts) -> Verdict | None:
    notes: dict[Partition, Note] = {}
    for note in (line.note for line in facts.notes if line.note.kind == "reset"):
        # Who is sent back once more on the way has still to come to where the first time began.
        if note.span.partition not in notes or note.span.stop >= notes[note.span.partition].span.stop:
            notes[note.span.partition] = note
    at = {one.partition: one.next_offset for one in facts.positions}
    left = {one: note.span.stop - at[one] for one, note in notes.items() if at.get(one, math.inf) < note.span.stop}
    if not left:
        return None
    most = max(left, key=lambda one: left[one])
    words = f"{sum(left.values()):,} offsets are applied once more, {most} up to {notes[most].span.stop}"
    return Verdict(REWOUND, f"{words}: {notes[most].reason}")


def _pace(facts: Facts) -> str:
    if not facts.positions:
        return "it waits for partitions"
    if facts.lags is None or all(one.cluster_id == STREAMING for one in facts.positions):
        return _last_commit(facts)
    if facts.unread is None:
        return f"lag is not known, since these brokers do not have {facts.unknown[0]}; {_last_commit(facts)}"
    if (unread := facts.unread) == 0:
        idle = len(facts.rates_in) == len(facts.lags) and not any(facts.rates_in.values())
        return f"idle: nothing came in for {WINDOW // timedelta(minutes=1)} minutes" if idle else "caught up"
    if held := _held_up(facts):
        return f"{min(held)} waits for the end of a transaction of its producer"
    came = sum(facts.rates_in.values()) if len(facts.rates_in) == len(facts.lags) else None
    went, waited = sum(applied_rates(facts).values()), math.inf if facts.waited is None else facts.waited
    late = facts.measured >= BEHIND and waited >= BEHIND.total_seconds()
    if late and came is not None and came > went:
        return f"falling behind: {came:,.1f}/s in, {went:,.1f}/s applied, {unread:,} unread"
    seconds = drain(unread, came, went)
    left = f", {duration(seconds)} to go" if seconds is not None and math.isfinite(seconds) else ""
    return f"catching up: {unread:,} unread{left}"


def _held_up(facts: Facts) -> list[Partition]:
    """Partitions with unread records of which none can be read, if there is nothing else to do."""
    at = {one.partition: one.next_offset for one in facts.positions}
    behind = {one: lag.log for one, lag in (facts.lags or {}).items() if lag.records}
    held = [one for one, log in behind.items() if log is not None and log.stop <= at[one]]
    return held if len(held) == len(behind) else []


def _ownerless(facts: Facts) -> list[str]:
    free = sorted(one.partition for one in facts.positions if one.owner is None)
    if not free or facts.now - min(run.started for run in facts.alive) <= QUIET:
        return []
    return [f"nobody has {free[0]}" if len(free) == 1 else f"nobody has {len(free)} partitions, such as {free[0]}"]


def _last_commit(facts: Facts) -> str:
    return f"last commit {moment(facts.last_commit)}" if facts.last_commit else "nothing was committed yet"
