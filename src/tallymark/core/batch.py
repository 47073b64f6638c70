"""A batch that is ready to commit: its rows, its dead letters, and the outcome of each of its offsets.

If a record is refused, rows that come from this record alone are removed. A record can't be removed from rows that were
merged from several records: the batch is read again without it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from tallymark.core.claims import Advance, Claim, Entry, Fill, Note, Replay, Skip
from tallymark.core.drift import Fields, reduced
from tallymark.core.journal import Letter
from tallymark.core.newest import finish
from tallymark.core.plan import Move, Plan
from tallymark.core.records import DeadLetter, PartitionCounts, RawRecord, Reading
from tallymark.core.spans import Partition, Span, Tally
from tallymark.core.tables import Changes, Refusal, TableSpec, has_origin, unusable_rows, without
from tallymark.errors import Fenced, TallymarkError

NUMBER = re.compile(r"\d+")
MISFIT = re.compile(r"\A([^:]*): .* does not fit ([A-Z_]+(?:\([0-9,]+\))?)\Z", re.DOTALL)
NOT_KEPT = ("only in Kafka", "Kafka has deleted the record meanwhile")
"""Endings of the error of a dead letter whose value is not in the ledger."""
Letters = Callable[[Sequence[Refusal]], list[DeadLetter]]
Again = Callable[[Collection[tuple[Partition, int]]], Reading]
"""Reads a batch without these records."""
DriftOf = Callable[[Sequence[DeadLetter]], Mapping[Partition, Fields]]
Records = Callable[[Mapping[Partition, list[int]]], Mapping[tuple[Partition, int], RawRecord]]


def refused(reading: Reading, tables: Sequence[TableSpec]) -> list[Refusal]:
    """Return the records that are refused before anything is written, without duplicates."""
    nameless = [refusal for spec in tables for refusal in unusable_rows(spec, reading.rows[spec.name])]
    return list({refusal.record: refusal for refusal in [*nameless, *reading.refusals]}.values())


def without_refused(
    reading: Reading, refusals: Sequence[Refusal], tables: Sequence[TableSpec], again: Again | None
) -> tuple[Reading, Sequence[Refusal]]:
    """Read the batch again until merged rows hold nothing of refused records.

    Also returns all refusals, because reading again may add some.
    """
    while merged := [name for name, rows in reading.rows.items() if rows.num_rows and not has_origin(rows)]:
        out = {refusal.record for refusal in reading.refusals}
        mixed = [refusal for refusal in refusals if refusal.record not in out]
        if not mixed:
            break
        if again is None:
            raise TallymarkError(
                f"table {merged[0]}: its function merges records, so {mixed[0].partition} offset {mixed[0].offset}, "
                f"which table {mixed[0].table} refused, can't be removed from its rows; move it to another pipeline"
            )
        reading = _read_again(reading, refusals, again)
        refusals = refused(reading, tables)
    return reading, refusals


def _read_again(reading: Reading, refusals: Sequence[Refusal], again: Again) -> Reading:
    """Read again without dead records. They keep their counts, because Kafka may have deleted some since."""
    dead = records_of(reading.dead_letters) | {refusal.record for refusal in refusals}
    rest, left = again(dead), Counter(partition for partition, _ in dead)

    def seen(partition: Partition) -> PartitionCounts:
        first, others = (part.seen.get(partition, PartitionCounts()) for part in (reading, rest))
        time = first.last_timestamp or others.last_timestamp
        return PartitionCounts(others.records + left[partition], first.dead + others.dead, time)

    # The refused records may be all that the batch has of a topic, and so of its tables.
    none = {name: rows.slice(0, 0) for name, rows in reading.rows.items()}
    return replace(
        rest,
        rows={**none, **rest.rows},
        seen={partition: seen(partition) for partition in reading.seen.keys() | rest.seen.keys()},
        dead_letters=[*reading.dead_letters, *rest.dead_letters],
        refusals=[*refusals, *rest.refusals],
        left_out=dead,
    )


def records_of(letters: Iterable[DeadLetter]) -> set[tuple[Partition, int]]:
    """Return the records of these dead letters."""
    return {(letter.partition, letter.offset) for letter in letters}


def check_letters(reading: Reading) -> None:
    """Raise unless every dead record has its dead letter: otherwise it would be counted, but not kept."""
    counted = sum(seen.dead for seen in reading.seen.values())
    if counted != len(reading.dead_letters):
        raise TallymarkError(
            f"the reader counted {counted} dead records, but returned {len(reading.dead_letters)} dead letters"
        )


def fetched(refusals: Sequence[Refusal], records: Records) -> list[DeadLetter]:
    """Return the dead letters of these refusals, with the records that Kafka still has."""
    wanted: dict[Partition, list[int]] = {}
    for refusal in refusals:
        wanted.setdefault(refusal.partition, []).append(refusal.offset)
    found = records(wanted) if wanted else {}
    return [DeadLetter.of(refusal, found.get(refusal.record)) for refusal in refusals]


def alike(error: str) -> str:
    """Return the error without its numbers and field values, to group similar errors."""
    return NUMBER.sub("N", MISFIT.sub(r"\1: does not fit \2", error))


def most_frequent(letters: Sequence[DeadLetter]) -> str:
    """Return the first error of the largest group of similar errors."""
    found: dict[str, list[str]] = {}
    for letter in letters:
        found.setdefault(alike(letter.error), []).append(letter.error)
    return max(found.values(), key=len)[0]


def is_kept(letter: DeadLetter) -> bool:
    """Whether the letter holds its record. A letter without a value may also be a dead tombstone."""
    return letter.value is not None or not letter.error.endswith(NOT_KEPT)


def still_dead(stored: DeadLetter, error: str) -> str:
    """Return the error of a letter that is dead again; it keeps saying where the value is."""
    return error if is_kept(stored) or error.endswith(NOT_KEPT) else f"{error}; its value is {NOT_KEPT[0]}"


Tried = Mapping[tuple[Partition, int], Letter]
"""Dead letters that are retried, by partition and offset."""


@dataclass(frozen=True)
class BatchToCommit:
    """A batch that is ready to commit.

    Its moves advance positions. If it fills an open ``skip``, its only move is the first part of that skip. If it
    retries dead letters (``tried``), it has no moves, and ``letters`` are those that are still dead.
    ``again`` reads the batch without refused records, for tables that merge records. ``drift_of`` finds the fields that
    the schema does not name in records that were refused after they had been read.
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
    drift_of: DriftOf | None = None

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
        drift_of: DriftOf | None = None,
    ) -> BatchToCommit:
        """Create the batch with the rows of each table as they are written, without rows of dead records."""
        dead = records_of(letters)
        changes = [
            replace(finish(spec, without(reading.rows[spec.name], dead), name), staged=reading.staged.get(spec.name))
            for spec in tables
        ]
        return cls(name, started, plan, reading, tables, letters, changes, skip, tried or {}, again, drift_of)

    def refusing(self, reading: Reading, letters: Sequence[DeadLetter]) -> BatchToCommit:
        """Return the batch with more dead records. Their rows are replaced by older rows of the same keys."""
        letters = [*self.letters, *letters]
        more = self.skip, self.tried, self.again, self.drift_of
        return self.shaped(self.name, self.started, self.plan, reading, self.tables, letters, *more)

    def advances(self, claims: Mapping[Partition, Claim]) -> list[Advance]:
        if self.skip is not None:
            return []
        for move in self.plan.moves:
            if move.partition not in claims:
                raise Fenced(
                    f"{move.partition} is not claimed by this run: fenced by another owner; the position did not move"
                )
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
                f"fills the span skipped on {since}: {self.skip.reason}",
            )
            for move in self.plan.moves
        ]

    def replays(self) -> list[Replay]:
        dead = {(letter.partition, letter.offset): letter.error for letter in self.letters}
        return [
            Replay(letter.id, *record, still_dead(letter.record, dead[record]) if record in dead else None)
            for record, letter in self.tried.items()
        ]

    def drift(self) -> Mapping[Partition, Fields]:
        """Return the fields that the schema does not name, in applied records."""
        found = self.reading.drift
        uncounted = records_of(self.reading.dead_letters).union(self.reading.left_out)
        refused = [letter for letter in self.letters if (letter.partition, letter.offset) not in uncounted]
        return reduced(found, self.drift_of(refused)) if found and refused and self.drift_of else found

    def _account(self, move: Move, epoch: int) -> Advance:
        dead = Counter(letter.partition for letter in self.letters)[move.partition]
        return account(move, self.reading.seen.get(move.partition, PartitionCounts()), dead, epoch)

    def entry(self, group: str, claims: Mapping[Partition, Claim]) -> Entry:
        moves = self.plan.moves
        lost = [Note("loss", move.lost_span, "deleted before they were read") for move in moves if move.lost]
        skipped = [Note("skip", move.skipped_span, move.reason) for move in moves if move.skipped]
        return Entry(
            group=group,
            batch=self.name,
            started=self.started,
            now=datetime.now(UTC),
            advances=self.advances(claims),
            rows={change.spec.name: len(change) for change in self.changes},
            dead_letters=() if self.tried else self.letters,
            notes=[*lost, *skipped],
            fills=self.fills(),
            replays=self.replays(),
            drift=self.drift(),
        )


def account(move: Move, seen: PartitionCounts, dead: int, epoch: int) -> Advance:
    """Account for every offset of a move. Raises if the counts of the reader are impossible."""
    tally = Tally(seen.records - dead, dead, move.skipped, move.lost, move.read - seen.records)
    if min(tally.applied, tally.absent) < 0:
        raise TallymarkError(
            f"{move.read_span}: the reader counted {seen.records} records, {dead} of them dead, which is impossible"
        )
    return Advance(move.partition, move.start, move.stop, epoch, tally, seen.last_timestamp, move.leader_epoch)
