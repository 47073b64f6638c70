"""The work of a replay: the open dead letters of a group, whose original records are applied by the current code.

Every batch is one transaction that writes the rows and settles their letters; a record that fails again stays dead,
with its new error. A replay claims nothing and moves no position, so it does not disturb the group. If two replays try
the same letter, the second is refused and looks up the open letters again. The reader must not stage anything.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from tallymark.core.batch import NOT_KEPT, is_kept
from tallymark.core.budget import Budget
from tallymark.core.claims import Entry
from tallymark.core.journal import DEAD, Journal, Letter, LetterQuery
from tallymark.core.progress import OnStep, ignore
from tallymark.core.records import DeadLetter, RawRecord
from tallymark.core.spans import Partition, Position, Tally
from tallymark.core.tables import Refusal
from tallymark.core.topics import matches
from tallymark.errors import BadInput, CommitRefused
from tallymark.kafka.brokers import Brokers
from tallymark.run.commit import Destination
from tallymark.run.loop import Loop
from tallymark.run.prepare import Rereader
from tallymark.run.setup import Job
from tallymark.run.skips import check_order
from tallymark.run.work import Task, Work
from tallymark.stores.contract import Store

log = logging.getLogger(__name__)

MOST = 1_000
"""Maximum number of letters in one transaction."""
MOST_REFUSALS = 5
"""How often the same letters may be refused in a row although none of them has been settled."""
UNLIMITED = Budget(max_dead_per_batch=None, max_dead_ratio_per_batch=None)
"""Replays have no budget: a record that fails again was dead before."""


class OpenLetters(Work[Task]):
    """The selected open letters of a group, processed in order.

    Other processes may settle letters concurrently, so ``take`` looks letters up again and returns only open letters.
    With ``in_runs``, letters of a partition are taken together only if their offsets follow each other: a change event
    may lack a value that an event between two letters has, which was applied before.
    """

    verb, left, prefix, most = "replayed", "left", "replay-", MOST

    def __init__(
        self,
        group: str,
        ledger: Store,
        topics: Collection[str],
        query: LetterQuery,
        brokers: Brokers,
        *,
        in_runs: bool = False,
    ) -> None:
        if query.group not in (None, group):
            raise BadInput(f"LetterQuery(group={query.group!r}) does not match group {group}; leave out group=")
        self._group, self._ledger, self._brokers = group, ledger, brokers
        # A dict keeps the order and deletes in constant time.
        self._left = {letter.id: coordinates(letter) for letter in chosen(ledger, replace(query, group=group), topics)}
        self._in_runs = in_runs
        self._last: list[str] = []
        self._refusals = 0
        self._records: dict[tuple[Partition, int], DeadLetter] = {}

    def __len__(self) -> int:
        """Number of letters not tried yet."""
        return len(self._left)

    @property
    def finished(self) -> bool:
        return not self._left

    def next(self, most: int) -> Task | None:
        letters = self.take(most)
        if not letters:
            return None
        records, gone = _completed(letters, self._ledger, self._brokers)
        self._records = {(record.partition, record.offset): record for record in records}
        tried = {coordinates(letter): letter for letter in letters}
        return Task(behind=len(self) - len(letters), tried=tried, records=records, gone=gone)

    def take(self, most: int) -> list[Letter]:
        """The next open letters, at most one for each record; empty if all were tried."""
        while self._left:
            ids = self._following(most)
            letters = self._ledger.journal().letters(LetterQuery(self._group, ids=ids))
            self.drop(set(ids) - {letter.id for letter in letters})
            if letters:
                distinct = list({coordinates(letter): letter for letter in reversed(letters)}.values())
                self._notice([letter.id for letter in distinct])
                return sorted(distinct, key=coordinates)
        return []

    def _following(self, most: int) -> list[str]:
        """The next letters; with ``in_runs`` up to the first that does not follow the one before in its partition."""
        ids: list[str] = []
        last: dict[Partition, int] = {}
        for letter, (partition, offset) in islice(self._left.items(), most):
            before = last.get(partition, offset)
            if self._in_runs and not before <= offset <= before + 1:
                break
            ids.append(letter)
            last[partition] = offset
        return ids

    def letters(self, refusals: Sequence[Refusal]) -> list[DeadLetter]:
        return [
            replace(self._records[refusal.record], table=refusal.table, error=refusal.error) for refusal in refusals
        ]

    def done(self, entry: Entry) -> None:
        self.drop(attempt.letter for attempt in entry.replays)

    def drop(self, ids: Iterable[str]) -> None:
        """Remove letters that were tried, or settled by other processes."""
        for letter in ids:
            self._left.pop(letter, None)

    def refused(self, error: BaseException) -> bool:
        """Continue with the letters that are still open, unless the same letters are refused too often."""
        if not isinstance(error, CommitRefused):
            return False
        log.warning("letters refused, looking them up again group=%s error=%s", self._group, error)
        self._refusals += 1
        return self._refusals <= MOST_REFUSALS

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


def coordinates(letter: Letter) -> tuple[Partition, int]:
    """Partition and offset of the letter's record."""
    return letter.record.partition, letter.record.offset


def _completed(letters: Sequence[Letter], ledger: Store, brokers: Brokers) -> tuple[list[DeadLetter], list[DeadLetter]]:
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
    return any(matches(name, topic) for name in topics)


def check_delivery(delivery: str) -> None:
    if delivery != "exactly-once":
        raise BadInput(
            f"replay requires exactly-once delivery; leave out delivery={delivery!r}, "
            "or send the dead letters to a topic: tallymark dead-letters replay --to-topic"
        )


def replay(
    job: Job,
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
    job = replace(job, budget=UNLIMITED)
    return Loop(job, letters, reader, destination, stop or threading.Event(), on_step).run()
