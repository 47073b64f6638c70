"""The rules for moving positions: claims, advances, fills, and the reasons for which a commit is refused. Pure.

A claim raises the epoch of a partition and sets its owner; the previous owner is fenced from then on. An advance is a
compare-and-set: it moves a position only if its offset and epoch still match what the owner knows.

A skip stays open until it is filled. A fill is a compare-and-set of the skip. It needs no claim: it moves counts
between outcomes of offsets before the position, and does not disturb the owner of the partition. For every partition,
the open skips at or after its first offset add up to ``skipped`` in its tally.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from tallymark.core.drift import Fields
from tallymark.core.records import DeadLetter
from tallymark.core.spans import Partition, Position, Span, Tally
from tallymark.core.tables import WrittenTable
from tallymark.errors import CommitRefused, Fenced, PositionMoved


@dataclass(frozen=True)
class FirstClaim:
    """The first position of a partition, with the ids of its topic and cluster.

    ``reason`` is written to the journal if an operator creates the position by hand.
    """

    offset: int
    topic_id: str
    cluster_id: str
    reason: str | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True)
class Restart:
    """Moves a partition away from its saved position, for a reason.

    ``only_ahead`` is for an offset that was the end of the log when it was requested: a later position is kept.
    ``truncated_from`` is the position for which the log was found truncated at ``offset``; any other is refused.
    ``emptied``: the tables of the group are emptied in the same transaction.
    """

    offset: int
    reason: str
    only_ahead: bool = False
    leader_epoch: int | None = None
    truncated_from: int | None = None
    emptied: bool = False


@dataclass(frozen=True)
class PositionChanges:
    """The first positions and restarts that a claim asks for, decided from the saved positions.

    ``empties`` names the tables to empty in the same transaction, which only a move by an operator can ask for.
    """

    first: Mapping[Partition, FirstClaim]
    restarts: Mapping[Partition, Restart] = field(default_factory=dict)
    empties: Sequence[str] = ()


Decide = Callable[[Sequence[Position]], PositionChanges]


@dataclass(frozen=True)
class Claim:
    """The right to move the position of one partition until its epoch is raised, and the position when claimed."""

    partition: Partition
    epoch: int
    position: Position

    @classmethod
    def after(cls, position: Position) -> Claim:
        """Return the claim that raises the epoch of this position."""
        epoch = position.epoch + 1
        return cls(position.partition, epoch, replace(position, epoch=epoch))

    def held_in(self, position: Position) -> bool:
        """Whether the position still has the owner of this claim.

        Its epoch may be higher: the response to a later claim by the same owner may have been lost.
        """
        owner, current = self.position.owner, position.owner
        return owner is not None and current is not None and owner.run == current.run


@dataclass(frozen=True)
class Advance:
    """The step of one partition in a commit: compares start and epoch, sets stop, adds the tally."""

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
    """A journal note about a span whose records are missing from the tables or are applied again.

    ``kind`` is skip, loss, reset, emptying, truncation, backfill, replay or begin.
    """

    kind: str
    span: Span
    reason: str


EMPTYING = "emptying"
"""The kind of the note that a position started over with empty tables."""
BACK = ("reset", "truncation", EMPTYING)
"""Kinds of notes that record that a position went back and started a new tally."""


def begun(first: Mapping[Partition, FirstClaim]) -> list[Note]:
    """Return the journal notes for positions that were created by hand."""
    return [
        Note("begin", Span(partition, start.offset, start.offset), start.reason)
        for partition, start in sorted(first.items())
        if start.reason is not None
    ]


@dataclass(frozen=True)
class Skip:
    """A skipped span that is open: not filled yet."""

    span: Span
    reason: str
    recorded_at: datetime


@dataclass(frozen=True)
class Fill:
    """Fills the first part of an open skip, or all of it: compares the skip, and leaves the rest of it open.

    ``reason`` is written to the journal.
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
        """The part of the skip that stays open."""
        return replace(self.skip, start=self.done.stop)

    @property
    def change(self) -> Tally:
        """The change to the tally of the partition."""
        return self.tally + Tally(skipped=-len(self.done))


@dataclass(frozen=True)
class Replay:
    """A dead letter that was retried: now applied, or still dead with a new ``error``.

    It is a compare-and-set of the letter, which must be open. If applied, it moves one record before the position from
    dead to applied in the tally.
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
class Entry:
    """What one commit writes to the ledger: advances, fills, replays, dead letters and notes.

    ``pause`` is set if this commit exceeds the budget of the group: the same commit pauses the group for this reason.
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
    tables: Sequence[WrittenTable] = ()
    """Tables that the ledger may not know yet."""
    drift: Mapping[Partition, Fields] = field(default_factory=dict)
    """Fields that the schema does not name, in the records that this commit applies."""

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
        """The change to the tallies. Fills reduce ``skipped``, replays reduce ``dead``."""
        filled, replayed = (fill.change for fill in self.fills), (replay.change for replay in self.replays)
        return Tally.sum([*(step.tally for step in self.advances), *filled, *replayed])

    @property
    def outcome(self) -> Tally:
        """What became of the records of this commit, including those that were skipped or dead before."""
        died = [replay.error is not None for replay in self.replays]
        replayed = Tally(applied=died.count(False), dead=died.count(True))
        return Tally.sum([*(step.tally for step in self.advances), *(fill.tally for fill in self.fills), replayed])

    @property
    def journal(self) -> list[Note]:
        fills = (Note("backfill", fill.done, fill.reason) for fill in self.fills)
        applied = [replay for replay in self.replays if replay.error is None]
        replays = (Note("replay", replay.span, f"dead letter {replay.letter}") for replay in applied)
        return [*self.notes, *fills, *replays]

    @property
    def spans(self) -> list[Span]:
        """All spans that the commit accounts for: advances, fills, replays, in this order."""
        moved = [Span(step.partition, step.start, step.stop) for step in self.advances]
        return [*moved, *(fill.done for fill in self.fills), *(replay.span for replay in self.replays)]


def restarted(position: Position, to: Restart, now: datetime) -> tuple[Position, Note | None]:
    """Return the moved position and its note: moving ahead is a skip, moving back starts a new tally."""
    if to.truncated_from not in (None, position.next_offset):
        raise PositionMoved(f"{position.partition}: the position has moved since its log was found truncated")
    offset = max(to.offset, position.next_offset) if to.only_ahead else to.offset
    if to.emptied:
        # Also for a position that stays: its earlier notes explain no row any more.
        note = Note(EMPTYING, Span(position.partition, offset, max(offset, position.next_offset)), to.reason)
        moved = replace(position, next_offset=offset, first_offset=offset, tally=Tally(), updated_at=now, drift={})
        return replace(moved, leader_epoch=to.leader_epoch), note
    if offset >= position.next_offset:
        span, kind = Span(position.partition, position.next_offset, offset), "skip"
        tally, first, drift = position.tally + Tally(skipped=len(span)), position.first_offset, position.drift
    else:
        span = Span(position.partition, offset, position.next_offset)
        kind = "reset" if to.truncated_from is None else "truncation"
        tally, first, drift = Tally(), offset, {}
    moved = replace(position, next_offset=offset, first_offset=first, tally=tally, updated_at=now, drift=drift)
    return (replace(moved, leader_epoch=to.leader_epoch), Note(kind, span, to.reason)) if len(span) else (moved, None)


def advanced(claim: Claim, step: Advance, now: datetime) -> Claim:
    """Return the claim after its step was committed."""
    old = claim.position
    if old.next_offset != step.start:
        # The claim was already refreshed from the ledger.
        return claim
    leader_epoch = old.leader_epoch if step.leader_epoch is None else step.leader_epoch
    moved = replace(old, next_offset=step.stop, tally=old.tally + step.tally, leader_epoch=leader_epoch)
    return replace(claim, position=replace(moved, record_time=step.record_time or old.record_time, updated_at=now))


def check_held(claims: Mapping[Partition, Claim], found: Mapping[Partition, Position]) -> None:
    """Raise an error that names the new owner if another owner has claimed any of these partitions."""
    for partition, held in sorted(claims.items()):
        position = found.get(partition)
        if position is None or not held.held_in(position):
            raise explain_loss(partition, held.epoch, position)


def explain_refusal(found: Mapping[Partition, Position], advances: Sequence[Advance]) -> CommitRefused | None:
    """Return the error for steps that these positions refuse (fenced, ahead or behind), or None."""
    for step in advances:
        position = found.get(step.partition)
        if position is None or position.epoch != step.epoch:
            return explain_loss(step.partition, step.epoch, position)
        if position.next_offset > step.start:
            return PositionMoved(
                f"{step.partition}: the ledger is ahead of this batch, at {position.next_offset} "
                f"instead of {step.start}: the span is already committed; restart to continue from there"
            )
        if position.next_offset < step.start:
            return PositionMoved(
                f"{step.partition}: the ledger is behind this batch, at {position.next_offset} "
                f"instead of {step.start}: the position was reset; restart to continue from there"
            )
    return None


def explain_unfillable(skips: Iterable[Skip], fills: Sequence[Fill]) -> CommitRefused | None:
    """Return the error for fills whose skip is not open, or None."""
    still_open = {skip.span for skip in skips}
    for fill in fills:
        if fill.skip not in still_open:
            return PositionMoved(
                f"{fill.skip} is no longer an open skip: another run has filled it, or the group was reset; "
                "nothing was written: read the open skips again"
            )
    return None


def explain_settled(states: Mapping[str, str], letters: Iterable[str]) -> CommitRefused | None:
    """Return the error for dead letters that can't be settled, or None if all of them are open."""
    for letter in letters:
        if letter not in states:
            return PositionMoved(
                f"dead letter {letter} does not exist; nothing was changed: see tallymark dead-letters list"
            )
        if states[letter] != "dead":
            return PositionMoved(f"dead letter {letter} is already {states[letter]}; nothing was changed")
    return None


def explain_loss(partition: Partition, epoch: int, position: Position | None) -> CommitRefused:
    """Return the error for a claim that is no longer valid; it names the current owner of the partition."""
    if position is None:
        return PositionMoved(f"{partition}: the ledger has no position any more; check whether the group was deleted")
    holder = f"{position.owner}" if position.owner else "another owner, which has released it since"
    return Fenced(
        f"{partition} was claimed by {holder} (epoch {position.epoch}, this run had {epoch}): this run is fenced, and "
        "has written nothing since"
    )
