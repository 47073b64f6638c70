"""Who may move a position, and how far: claims, advances, fills, and why a commit is refused. Pure.

A claim raises the epoch of a partition and names its owner; whoever held it before is fenced from then on. An advance
is compare-and-set: it moves a position only if the offset and the epoch are still those that its owner knows.

What was skipped stays open until it is filled. A fill is compare-and-set too, but of the skip: it needs no claim, and
moves counts from one outcome to others behind the position, so that the owner of the partition goes on undisturbed.
For every partition the open skips from its first offset on add up to the ``skipped`` of its tally.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from tallymark.errors import CommitRefused, Fenced, PositionMoved
from tallymark.read import DeadLetter
from tallymark.spans import Partition, Position, Span, Tally


@dataclass(frozen=True)
class FirstClaim:
    """Where a partition that has no position yet starts, and which topic of which cluster it is.

    ``reason`` is for the journal, where somebody has made the position by hand.
    """

    offset: int
    topic_id: str
    cluster_id: str
    reason: str | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True)
class Restart:
    """A partition that is sent somewhere else than its saved position, and why.

    ``only_ahead`` is for an offset that was the end of the log when it was asked: a position beyond it stays.
    ``truncated_from`` is the position at which the log was found to be truncated at ``offset``; any other is refused.
    """

    offset: int
    reason: str
    only_ahead: bool = False
    leader_epoch: int | None = None
    truncated_from: int | None = None


@dataclass(frozen=True)
class Wish:
    """What whoever claims wants, having seen the saved positions."""

    first: Mapping[Partition, FirstClaim]
    restarts: Mapping[Partition, Restart] = field(default_factory=dict)


Decide = Callable[[Sequence[Position]], Wish]


@dataclass(frozen=True)
class Claim:
    """The right to move one partition, until somebody raises the epoch. The position is as it was when claimed."""

    partition: Partition
    epoch: int
    position: Position

    @classmethod
    def after(cls, position: Position) -> Claim:
        """The claim that raises this position's epoch."""
        epoch = position.epoch + 1
        return cls(position.partition, epoch, replace(position, epoch=epoch))

    def held_in(self, position: Position) -> bool:
        """Whether it still names our owner. Its epoch may be higher, by a reclaim whose answer never reached us."""
        owner, found = self.position.owner, position.owner
        return owner is not None and found is not None and owner.run == found.run


@dataclass(frozen=True)
class Advance:
    """One partition's step within a commit: compare with start and epoch, set stop and add the tally."""

    partition: Partition
    start: int
    stop: int
    epoch: int
    tally: Tally
    record_time: datetime | None
    leader_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.tally.total != self.stop - self.start:
            raise ValueError(f"{self.partition}: {self.tally} does not account for {self.start}..{self.stop}")


@dataclass(frozen=True)
class Note:
    """A span that is not in the tables, or will be there again.

    ``kind`` is skip, loss, reset, truncation, backfill, replay or begin.
    """

    kind: str
    span: Span
    reason: str


BACK = ("reset", "truncation")
"""The kinds of notes with which a position has gone back and begun a new tally."""


def begun(first: Mapping[Partition, FirstClaim]) -> list[Note]:
    """What the journal says of positions that were made by hand: where each begins."""
    return [
        Note("begin", Span(partition, start.offset, start.offset), start.reason)
        for partition, start in sorted(first.items())
        if start.reason is not None
    ]


@dataclass(frozen=True)
class Skip:
    """A span that was skipped and is open: nobody has filled it yet."""

    span: Span
    reason: str
    recorded_at: datetime


@dataclass(frozen=True)
class Fill:
    """The first part of an open skip, or all of it, read after all: compare with the skip, leave the rest of it open.

    ``reason`` is what the journal says about it.
    """

    skip: Span
    done: Span
    tally: Tally
    reason: str = "filled in later"

    def __post_init__(self) -> None:
        begins = (self.done.partition, self.done.start) == (self.skip.partition, self.skip.start)
        if not begins or not self.done.start < self.done.stop <= self.skip.stop:
            raise ValueError(f"{self.done} is not the first part of {self.skip}")
        if self.tally.total != len(self.done) or self.tally.skipped:
            raise ValueError(f"{self.tally} does not account for {self.done}")

    @property
    def rest(self) -> Span:
        """What stays open."""
        return replace(self.skip, start=self.done.stop)

    @property
    def change(self) -> Tally:
        """What it adds to the tally of its partition."""
        return self.tally + Tally(skipped=-len(self.done))


@dataclass(frozen=True)
class Replay:
    """A dead letter that was tried again: applied now, or dead still, with the ``error`` that it has now.

    It is compare-and-set of the letter, which must be open, and moves one from dead to applied behind the position.
    """

    letter: str
    partition: Partition
    offset: int
    error: str | None = None

    @property
    def span(self) -> Span:
        return Span(self.partition, self.offset, self.offset + 1)

    @property
    def change(self) -> Tally:
        return Tally(applied=1, dead=-1) if self.error is None else Tally()


@dataclass(frozen=True)
class Rebalance:
    """How the partitions of a group were handed out anew, as one member saw it: assigned, revoked or lost."""

    at: datetime
    run: str
    host: str
    seconds: float
    gained: tuple[Partition, ...]
    lost: tuple[Partition, ...]
    kind: str


@dataclass(frozen=True)
class Entry:
    """What one commit writes to the ledger: the steps of its positions, what it fills, and all that explains them.

    ``pause`` is set when this commit has used up the group's budget: the group pauses with it, for this reason.
    """

    group: str
    batch: str
    started: datetime
    now: datetime
    advances: Sequence[Advance]
    rows: Mapping[str, int] = field(default_factory=dict)
    dead_letters: Sequence[DeadLetter] = ()
    notes: Sequence[Note] = ()
    pause: str | None = None
    fills: Sequence[Fill] = ()
    replays: Sequence[Replay] = ()

    def __post_init__(self) -> None:
        skipped, noted = Counter[Partition](), Counter[Partition]()
        for step in self.advances:
            skipped[step.partition] += step.tally.skipped
        for note in self.notes:
            noted[note.span.partition] += len(note.span) if note.kind == "skip" else 0
        if +skipped != +noted:
            raise ValueError(f"batch {self.batch} skips {dict(+skipped)} offsets and notes {dict(+noted)}")

    @property
    def tally(self) -> Tally:
        """What it adds to the tallies; of what it fills ``skipped`` is taken away, and of what it replays ``dead``."""
        filled, replayed = (fill.change for fill in self.fills), (one.change for one in self.replays)
        return Tally.sum([*(step.tally for step in self.advances), *filled, *replayed])

    @property
    def journal(self) -> list[Note]:
        fills = (Note("backfill", fill.done, fill.reason) for fill in self.fills)
        replays = (Note("replay", one.span, f"dead letter {one.letter}") for one in self.replays if one.error is None)
        return [*self.notes, *fills, *replays]

    @property
    def spans(self) -> list[Span]:
        """All that is accounted for, in the order of its steps."""
        moved = [Span(step.partition, step.start, step.stop) for step in self.advances]
        return [*moved, *(fill.done for fill in self.fills), *(one.span for one in self.replays)]


def restarted(position: Position, to: Restart, now: datetime) -> tuple[Position, Note | None]:
    """The position somewhere else, and the note that says so: ahead is a skip, back begins a new tally."""
    if to.truncated_from not in (None, position.next_offset):
        raise PositionMoved(f"{position.partition}: the position has moved while its log was found to be truncated")
    offset = max(to.offset, position.next_offset) if to.only_ahead else to.offset
    if offset >= position.next_offset:
        span, kind = Span(position.partition, position.next_offset, offset), "skip"
        tally, first = position.tally + Tally(skipped=len(span)), position.first_offset
    else:
        span = Span(position.partition, offset, position.next_offset)
        kind = "reset" if to.truncated_from is None else "truncation"
        tally, first = Tally(), offset
    moved = replace(position, next_offset=offset, first_offset=first, tally=tally, updated_at=now)
    if not len(span):
        return moved, None
    return replace(moved, leader_epoch=to.leader_epoch), Note(kind, span, to.reason)


def advanced(claim: Claim, step: Advance, now: datetime) -> Claim:
    """The claim after its step was committed."""
    old = claim.position
    if old.next_offset != step.start:
        # It was read from the ledger since.
        return claim
    leader_epoch = old.leader_epoch if step.leader_epoch is None else step.leader_epoch
    moved = replace(old, next_offset=step.stop, tally=old.tally + step.tally, leader_epoch=leader_epoch)
    return replace(claim, position=replace(moved, record_time=step.record_time or old.record_time, updated_at=now))


def check_held(claims: Mapping[Partition, Claim], found: Mapping[Partition, Position]) -> None:
    """Raise, naming the new owner, if another one has claimed any of these partitions."""
    for partition, held in sorted(claims.items()):
        position = found.get(partition)
        if position is None or not held.held_in(position):
            raise explain_loss(partition, held.epoch, position)


def explain_refusal(found: Mapping[Partition, Position], advances: Sequence[Advance]) -> CommitRefused | None:
    """Why the positions found would refuse these steps: fenced by whom, ahead or behind. None if they would not."""
    for step in advances:
        position = found.get(step.partition)
        if position is None or position.epoch != step.epoch:
            return explain_loss(step.partition, step.epoch, position)
        if position.next_offset > step.start:
            return PositionMoved(
                f"{step.partition}: the ledger is ahead of this batch, at {position.next_offset} "
                f"instead of {step.start}; the span was committed already: start again to go on from there"
            )
        if position.next_offset < step.start:
            return PositionMoved(
                f"{step.partition}: the ledger is behind this batch, at {position.next_offset} "
                f"instead of {step.start}; the position was set back meanwhile: start again to go on from there"
            )
    return None


def explain_unfillable(skips: Iterable[Skip], fills: Sequence[Fill]) -> CommitRefused | None:
    """Why these open skips can't be filled so. None if they can."""
    found = {skip.span for skip in skips}
    for fill in fills:
        if fill.skip not in found:
            return PositionMoved(
                f"{fill.skip} is no open skip any more: somebody else has filled it, or the group was sent back; "
                "nothing was written: look at the open skips again"
            )
    return None


def explain_settled(states: Mapping[str, str], letters: Iterable[str]) -> CommitRefused | None:
    """Why these dead letters can't be settled. None if all of them are open."""
    for letter in letters:
        if letter not in states:
            return PositionMoved(f"there is no dead letter {letter}; nothing was changed: tallymark dead-letters list")
        if states[letter] != "dead":
            return PositionMoved(f"dead letter {letter} is {states[letter]} already; nothing was changed")
    return None


def explain_loss(partition: Partition, epoch: int, position: Position | None) -> CommitRefused:
    """Why a claim of this epoch holds no more: who has the partition now."""
    if position is None:
        return PositionMoved(f"{partition}: the position is gone from the ledger; was the group deleted?")
    holder = f"{position.owner}" if position.owner else "another owner, which has left since"
    return Fenced(
        f"{partition} was claimed by {holder} (epoch {position.epoch}, ours was {epoch}); nothing was written since"
    )
