"""A batch that was read and shaped: the rows that it brings, and what became of every offset that it passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from tallymark.books import Letter
from tallymark.errors import Fenced, TallymarkError
from tallymark.fence import Advance, Claim, Entry, Fill, Note, Replay, Skip
from tallymark.letters import Again, places, still_dead
from tallymark.plan import Move, Plan
from tallymark.read import DeadLetter, Reading, Seen
from tallymark.shape import Changes, TableSpec, finish, without
from tallymark.spans import Partition, Span, Tally

Tried = Mapping[tuple[Partition, int], Letter]
"""Dead letters that are tried again, by their records."""


@dataclass(frozen=True)
class Batch:
    """A batch that was read and shaped, and only has to be committed.

    Its moves take positions further; or, where it fills an open ``skip``, its only move is the first part of that.
    Where dead letters are ``tried`` again it has no move, and ``letters`` are those of them that are dead still.
    ``again`` reads it without records that are refused, which tables that merge records need.
    """

    name: str
    started: datetime
    plan: Plan
    reading: Reading
    tables: Sequence[TableSpec]
    letters: Sequence[DeadLetter]
    changes: Sequence[Changes]
    skip: Skip | None = None
    tried: Tried = field(default_factory=dict)
    again: Again | None = None

    @classmethod
    def shaped(
        cls,
        name: str,
        started: datetime,
        plan: Plan,
        reading: Reading,
        tables: Sequence[TableSpec],
        letters: Sequence[DeadLetter],
        skip: Skip | None = None,
        tried: Tried | None = None,
        again: Again | None = None,
    ) -> Batch:
        """The batch with every table's rows as they will be written, without those of dead records."""
        dead = places(letters)
        changes = [
            replace(finish(spec, without(reading.rows[spec.name], dead), name), staged=reading.staged.get(spec.name))
            for spec in tables
        ]
        return cls(name, started, plan, reading, tables, letters, changes, skip, tried or {}, again)

    def refusing(self, reading: Reading, letters: Sequence[DeadLetter]) -> Batch:
        """The same batch with more dead records. What they hid in an upsert comes to light again."""
        what = self.plan, reading, self.tables, [*self.letters, *letters]
        return self.shaped(self.name, self.started, *what, self.skip, self.tried, self.again)

    def advances(self, claims: Mapping[Partition, Claim]) -> list[Advance]:
        if self.skip is not None:
            return []
        for move in self.plan.moves:
            if move.partition not in claims:
                raise Fenced(f"{move.partition} was claimed by others, and is not ours again yet; it did not move")
        return [self._account(move, claims[move.partition].epoch) for move in self.plan.moves]

    def fills(self) -> list[Fill]:
        if self.skip is None:
            return []
        since = f"{self.skip.recorded_at:%Y-%m-%d %H:%M:%S} UTC"
        return [
            Fill(
                self.skip.span,
                Span(move.partition, move.start, move.stop),
                self._account(move, 0).tally,
                f"filled in what was skipped on {since}: {self.skip.reason}",
            )
            for move in self.plan.moves
        ]

    def replays(self) -> list[Replay]:
        dead = {(letter.partition, letter.offset): letter.error for letter in self.letters}
        return [
            Replay(one.id, *at, still_dead(one.record, dead[at]) if at in dead else None)
            for at, one in self.tried.items()
        ]

    def _account(self, move: Move, epoch: int) -> Advance:
        dead = Counter(letter.partition for letter in self.letters)[move.partition]
        return account(move, self.reading.seen.get(move.partition, Seen()), dead, epoch)

    def entry(self, group: str, claims: Mapping[Partition, Claim]) -> Entry:
        moves = self.plan.moves
        lost = [Note("loss", move.lost_span, "deleted before they were read") for move in moves if move.lost]
        skipped = [Note("skip", move.skipped_span, move.reason) for move in moves if move.skipped]
        return Entry(
            group=group,
            batch=self.name,
            started=self.started,
            now=datetime.now(timezone.utc),
            advances=self.advances(claims),
            rows={change.spec.name: len(change) for change in self.changes},
            dead_letters=() if self.tried else self.letters,
            notes=[*lost, *skipped],
            fills=self.fills(),
            replays=self.replays(),
        )


def account(move: Move, seen: Seen, dead: int, epoch: int) -> Advance:
    """What became of every offset of a move. A reader that counted wrong is stopped here."""
    tally = Tally(seen.records - dead, dead, move.skipped, move.lost, move.read - seen.records)
    if min(tally.applied, tally.absent) < 0:
        raise TallymarkError(f"{move.read_span}: the reader counted {seen.records} records, {dead} of them dead")
    leader_epoch = move.leader_epoch if seen.leader_epoch is None else seen.leader_epoch
    return Advance(move.partition, move.start, move.stop, epoch, tally, seen.last_timestamp, leader_epoch)
