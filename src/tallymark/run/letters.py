"""Replays the open dead letters of a group: applies the current code to their original records.

Every batch is one transaction that writes the rows and settles their letters; a record that fails again stays dead,
with its new error. A replay claims nothing and moves no position, so it does not disturb the group. If two replays try
the same letter, the second is refused and looks up the open letters again. The reader must not stage anything.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count, islice
from typing import Protocol

from tallymark.core.batch import NOT_KEPT, BatchToCommit, check_letters, is_kept, refused, without_refused
from tallymark.core.budget import Budget
from tallymark.core.claims import Replay
from tallymark.core.journal import DEAD, Journal, Letter, LetterQuery
from tallymark.core.plan import Plan
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.core.records import DeadLetter, RawRecord, Reader, Reading
from tallymark.core.spans import Partition, Position, Tally
from tallymark.core.tables import Refusal
from tallymark.errors import BadInput, BatchTooLarge, CommitRefused, TallymarkError
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.source import is_pattern
from tallymark.run.commit import Committer, Destination
from tallymark.run.prepare import empty_reading
from tallymark.run.setup import Job
from tallymark.run.skips import check_order
from tallymark.run.until import Retrying
from tallymark.stores.contract import Store

log = logging.getLogger(__name__)

MOST = 1_000
"""Maximum number of letters in one transaction."""
MOST_REFUSALS = 5
"""How often the same letters may be refused in a row although none of them has been settled."""
UNLIMITED = Budget(max_dead_per_batch=None, max_dead_ratio_per_batch=None)
"""Replays have no budget: a record that fails again was dead before."""


class OpenLetters:
    """The selected open letters of a group, processed in order.

    Other processes may settle letters concurrently, so ``take`` looks letters up again and returns only open letters.
    """

    def __init__(self, group: str, ledger: Store, topics: Collection[str], query: LetterQuery) -> None:
        if query.group not in (None, group):
            raise BadInput(f"LetterQuery(group={query.group!r}) does not match group {group}; leave out group=")
        self._group = group
        self._ledger = ledger
        # A dict keeps the order and deletes in constant time.
        self._left = dict.fromkeys(letter.id for letter in chosen(ledger, replace(query, group=group), topics))
        self._last: list[str] = []
        self._refusals = 0

    def __len__(self) -> int:
        """Number of letters not tried yet."""
        return len(self._left)

    def take(self, most: int) -> list[Letter]:
        """The next open letters, at most one for each record; empty if all were tried."""
        while self._left:
            ids = list(islice(self._left, most))
            letters = self._ledger.journal().letters(LetterQuery(self._group, ids=ids))
            self.drop(set(ids) - {letter.id for letter in letters})
            if letters:
                distinct = list({coordinates(letter): letter for letter in reversed(letters)}.values())
                self._notice([letter.id for letter in distinct])
                return sorted(distinct, key=coordinates)
        return []

    def drop(self, ids: Iterable[str]) -> None:
        """Remove letters that were tried, or settled by other processes."""
        for letter in ids:
            self._left.pop(letter, None)

    def refused(self, error: CommitRefused) -> None:
        """Count a refusal; raise ``error`` if the same letters are refused too often."""
        self._refusals += 1
        if self._refusals > MOST_REFUSALS:
            raise error

    def _notice(self, ids: list[str]) -> None:
        if ids != self._last:
            self._last, self._refusals = ids, 0


def chosen(ledger: Store, query: LetterQuery, topics: Collection[str]) -> list[Letter]:
    """The open letters that a query finds in the given topics, which may be patterns."""
    journal, query = _journal(ledger), replace(query, states=(DEAD,))
    # The number of parameters in a statement is limited.
    queries = [query] if query.ids is None else [replace(query, ids=part) for part in _parts(query.ids)]
    letters = (letter for query in queries for letter in journal.letters(query))
    return [letter for letter in letters if _reads(topics, letter.record.partition.topic)]


def _parts(ids: Collection[str]) -> Iterator[list[str]]:
    """The ids in chunks, oldest first; ids are increasing numbers."""
    ordered = sorted(ids, key=lambda letter: (len(letter), letter))
    return (ordered[at : at + MOST] for at in range(0, len(ordered), MOST))


def _journal(ledger: Store) -> Journal:
    """Access to the ledger's letters. ``create_ledger`` upgrades a ledger of an older version."""
    if not ledger.has_ledger():
        raise BadInput(f"{ledger.name} has no ledger, because no group has run with it yet; check the URL of the store")
    ledger.create_ledger()
    return ledger.journal()


def outcome(replays: Iterable[Replay]) -> Tally:
    """How many letters were applied, and how many failed again."""
    died = [attempt.error is not None for attempt in replays]
    return Tally(applied=died.count(False), dead=died.count(True))


def coordinates(letter: Letter) -> tuple[Partition, int]:
    """Partition and offset of the letter's record."""
    return letter.record.partition, letter.record.offset


def completed(letters: Sequence[Letter], ledger: Store, brokers: Brokers) -> tuple[list[DeadLetter], list[DeadLetter]]:
    """The letters with their records, fetched from Kafka if not in the ledger; and those that Kafka has deleted."""
    missing = [letter for letter in letters if not is_kept(letter.record)]
    records = _fetched(missing, ledger, brokers)
    whole = [letter.record for letter in letters if is_kept(letter.record)]
    whole += [
        _with(letter.record, records[coordinates(letter)]) for letter in missing if coordinates(letter) in records
    ]
    gone = [_gone(letter.record) for letter in missing if coordinates(letter) not in records]
    return whole, gone


def _fetched(letters: Sequence[Letter], ledger: Store, brokers: Brokers) -> dict[tuple[Partition, int], RawRecord]:
    """The records that Kafka still holds, for topics that have not been recreated since."""
    offsets: dict[Partition, list[int]] = {}
    for group in {letter.group for letter in letters}:
        records = [letter.record for letter in letters if letter.group == group]
        same = _same({record.partition for record in records}, ledger.positions(group).get(group, []), brokers)
        for record in records:
            if record.partition in same:
                offsets.setdefault(record.partition, []).append(record.offset)
    return brokers.records(offsets) if offsets else {}


def _same(partitions: Collection[Partition], saved: Iterable[Position], brokers: Brokers) -> set[Partition]:
    """The partitions whose topic id and cluster id are still those in the ledger."""
    topics = (
        brokers.topics(sorted({partition.topic for partition in partitions}), existing_only=True) if partitions else {}
    )
    ids = {(name, topic.id, brokers.cluster_id()) for name, topic in topics.items()}
    same = {
        position.partition
        for position in saved
        if (position.partition.topic, position.topic_id, position.cluster_id) in ids
    }
    return same.intersection(partitions)


def _with(letter: DeadLetter, record: RawRecord) -> DeadLetter:
    return replace(letter, record_time=record.time, key=record.key, value=record.value, headers=record.headers)


def _gone(letter: DeadLetter) -> DeadLetter:
    error = letter.error if letter.error.endswith(NOT_KEPT[1]) else f"{letter.error}; {NOT_KEPT[1]}"
    return replace(letter, error=error)


def _reads(topics: Collection[str], topic: str) -> bool:
    return any(re.match(name, topic) if is_pattern(name) else name == topic for name in topics)


class Rereader(Reader, Protocol):
    """A reader that also accepts records instead of spans."""

    def reread(self, letters: Sequence[DeadLetter], batch: str) -> Reading:
        """Shape the records of these letters as if they had been read in one batch."""


def check_delivery(delivery: str) -> None:
    if delivery != "exactly-once":
        raise BadInput(
            f"replay requires exactly-once delivery; leave out delivery={delivery!r}, "
            "or send the dead letters to a topic: tallymark dead-letters replay --to-topic"
        )


def replay(
    job: Job,
    brokers: Brokers,
    destination: Destination,
    reader: Rereader,
    letters: OpenLetters,
    on_step: OnStep = ignore,
    stop: threading.Event | None = None,
    *,
    overwrite: bool = False,
) -> Tally:
    """Replay these letters of the group; returns how many were applied, and how many failed again.

    ``overwrite`` allows tables in which these older records can replace rows of newer records.
    """
    check_delivery(destination.delivery)
    check_order(job.tables, overwrite=overwrite)
    return Replayer(job, brokers, destination, reader, on_step, stop or threading.Event()).run(letters)


class Replayer:
    """Runs one replay, batch after batch."""

    def __init__(
        self,
        job: Job,
        brokers: Brokers,
        destination: Destination,
        reader: Rereader,
        on_step: OnStep,
        stop: threading.Event,
    ) -> None:
        self._job, self._brokers, self._reader, self._on_step, self._stop = job, brokers, reader, on_step, stop
        self._retrying = Retrying(stop, job.patience)
        self._store = destination.rows
        self._records: dict[tuple[object, int], DeadLetter] = {}
        self._committer = Committer(job.group, destination, UNLIMITED, self._letters, job.patience, stop)
        self._limit = min(MOST, job.limits.records, self._store.most_records or MOST)
        self._batches = count(1)

    def run(self, left: OpenLetters) -> Tally:
        self._retrying(self._check)
        total = Tally()
        while not self._stop.is_set():
            letters = self._retrying(lambda: left.take(self._limit))
            if not letters:
                break
            try:
                total += self._try(letters, len(left) - len(letters))
            except CommitRefused as error:
                log.warning("letters refused, looking them up again group=%s error=%s", self._job.group, error)
                left.refused(error)
            except BatchTooLarge as error:
                self._try_fewer(len(letters), error)
            else:
                left.drop(letter.id for letter in letters)
        return total

    def _check(self) -> None:
        schemas = self._reader.schemas()
        self._store.check_tables(self._job.tables, schemas)
        self._store.create_tables(self._job.tables, schemas)

    def _try(self, letters: Sequence[Letter], left: int) -> Tally:
        name = f"{self._job.owner.run}-replay-{next(self._batches)}"
        progress = Progress(name, len(letters), left)
        self._on_step(Step.PLANNED, progress)
        batch = self._retrying(partial(self._prepared, name, letters, progress))
        try:
            _, entry = self._committer.commit(batch, {}, lambda step: self._on_step(step, progress))
        finally:
            self._reader.discard(batch.reading)
        tally = outcome(entry.replays)
        done = replace(progress, tally=tally, rows=entry.rows)
        self._on_step(Step.COMMITTED, done)
        log.info("replayed group=%s batch=%s tally=%s left=%d", entry.group, name, tally, left)
        self._on_step(Step.DONE, done)
        return tally

    def _prepared(self, name: str, letters: Sequence[Letter], progress: Progress) -> BatchToCommit:
        started = datetime.now(UTC)
        records, gone = completed(letters, self._store, self._brokers)
        self._records = {(record.partition, record.offset): record for record in records}
        again, tables = partial(self._reading, records, name), self._job.tables
        reading = again()
        self._on_step(Step.READ, progress)
        reading, refusals = without_refused(reading, refused(reading, tables), tables, again)
        dead = [*gone, *reading.dead_letters, *self._letters(refusals)]
        tried = {coordinates(letter): letter for letter in letters}
        batch = BatchToCommit.shaped(name, started, Plan(()), reading, tables, dead, tried=tried, again=again)
        self._on_step(Step.STAGED, progress)
        return batch

    def _reading(
        self, records: Sequence[DeadLetter], name: str, without: Collection[tuple[Partition, int]] = ()
    ) -> Reading:
        records = [record for record in records if (record.partition, record.offset) not in without]
        reading = self._reader.reread(records, name) if records else empty_reading(self._reader)
        _check_count(reading, len(records))
        return reading

    def _try_fewer(self, letters: int, error: BatchTooLarge) -> None:
        if letters <= 1:
            raise error
        self._limit = letters // 2
        log.info("replaying in smaller batches group=%s letters=%d error=%s", self._job.group, self._limit, error)

    def _letters(self, refusals: Sequence[Refusal]) -> list[DeadLetter]:
        return [
            replace(self._records[refusal.record], table=refusal.table, error=refusal.error) for refusal in refusals
        ]


def _check_count(reading: Reading, expected: int) -> None:
    """Settling a letter whose record was not read would lose the record."""
    check_letters(reading)
    counted = sum(seen.records for seen in reading.seen.values())
    if counted != expected:
        raise TallymarkError(
            f"the reader counted {counted} records for {expected} dead letters; none of them was settled"
        )
