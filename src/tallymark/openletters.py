"""The open dead letters of a group, for whoever tries them again: which there are, and their records as they came."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from tallymark.books import DEAD, Books, Letter, LetterQuery
from tallymark.brokers import Brokers
from tallymark.errors import BadInput, CommitRefused
from tallymark.fence import Replay
from tallymark.letters import NOT_KEPT, is_kept
from tallymark.read import DeadLetter, Record
from tallymark.source import is_pattern
from tallymark.spans import Partition, Position, Tally
from tallymark.stores.store import Store

MOST = 1_000
"""Letters that are tried in one transaction."""
MOST_REFUSALS = 5
"""How often the same letters may be refused in a row, although nobody has settled one of them."""


class OpenLetters:
    """What was chosen of a group's open letters, to be worked through from the front.

    Others may settle letters meanwhile. What is in hand is looked up again each time, and counts only if it is open.
    """

    def __init__(self, group: str, ledger: Store, topics: Collection[str], query: LetterQuery) -> None:
        if query.group not in (None, group):
            raise BadInput(f"these are the dead letters of group {group}, and not of {query.group}")
        self._group = group
        self._ledger = ledger
        # A dict keeps their order, and forgets any of them at once.
        self._left = dict.fromkeys(letter.id for letter in chosen(ledger, replace(query, group=group), topics))
        self._last: list[str] = []
        self._refusals = 0

    def __len__(self) -> int:
        """How many are left to be tried."""
        return len(self._left)

    def take(self, most: int) -> list[Letter]:
        """The next ones that are open, no two of the same record; none if all were tried."""
        while self._left:
            wanted = list(islice(self._left, most))
            found = self._ledger.books().letters(LetterQuery(self._group, ids=wanted))
            self.drop(set(wanted) - {letter.id for letter in found})
            if found:
                distinct = list({place(letter): letter for letter in reversed(found)}.values())
                self._notice([letter.id for letter in distinct])
                return sorted(distinct, key=place)
        return []

    def drop(self, ids: Iterable[str]) -> None:
        """These were tried, or settled by others."""
        for letter in ids:
            self._left.pop(letter, None)

    def refused(self, error: CommitRefused) -> None:
        """Look again, unless nothing seems to change."""
        self._refusals += 1
        if self._refusals > MOST_REFUSALS:
            raise error

    def _notice(self, ids: list[str]) -> None:
        if ids != self._last:
            self._last, self._refusals = ids, 0


def chosen(ledger: Store, query: LetterQuery, topics: Collection[str]) -> list[Letter]:
    """The open letters that a query finds, as far as their topics are read by whoever asks."""
    books, query = _books(ledger), replace(query, states=(DEAD,))
    # A statement takes only so many parameters.
    asked = [query] if query.ids is None else [replace(query, ids=part) for part in _parts(query.ids)]
    found = (letter for one in asked for letter in books.letters(one))
    return [letter for letter in found if _reads(topics, letter.record.partition.topic)]


def _parts(ids: Collection[str]) -> Iterator[list[str]]:
    """The oldest first, as a ledger numbers them."""
    ordered = sorted(ids, key=lambda one: (len(one), one))
    return (ordered[at : at + MOST] for at in range(0, len(ordered), MOST))


def _books(ledger: Store) -> Books:
    """The books, with all that they need: an older ledger lacks some of it."""
    if not ledger.has_ledger():
        raise BadInput(f"{ledger.name} has no ledger: nothing has run into it yet")
    ledger.create_ledger()
    return ledger.books()


def outcome(replays: Iterable[Replay]) -> Tally:
    """How many were applied, and how many died again."""
    died = [one.error is not None for one in replays]
    return Tally(applied=died.count(False), dead=died.count(True))


def place(letter: Letter) -> tuple[Partition, int]:
    """The record that it is about."""
    return letter.record.partition, letter.record.offset


def completed(letters: Sequence[Letter], ledger: Store, brokers: Brokers) -> tuple[list[DeadLetter], list[DeadLetter]]:
    """Their records, from Kafka where the ledger does not hold them, and the letters of those that are gone there."""
    missing = [letter for letter in letters if not is_kept(letter.record)]
    found = _fetched(missing, ledger, brokers)
    whole = [letter.record for letter in letters if is_kept(letter.record)]
    whole += [_with(letter.record, found[place(letter)]) for letter in missing if place(letter) in found]
    gone = [_gone(letter.record) for letter in missing if place(letter) not in found]
    return whole, gone


def _fetched(letters: Sequence[Letter], ledger: Store, brokers: Brokers) -> dict[tuple[Partition, int], Record]:
    """What the topics still hold, if they are still those that the ledger means."""
    wanted: dict[Partition, list[int]] = {}
    for group in {letter.group for letter in letters}:
        mine = [letter.record for letter in letters if letter.group == group]
        same = _same({record.partition for record in mine}, ledger.positions(group).get(group, []), brokers)
        for record in mine:
            if record.partition in same:
                wanted.setdefault(record.partition, []).append(record.offset)
    return brokers.records(wanted) if wanted else {}


def _same(partitions: Collection[Partition], saved: Iterable[Position], brokers: Brokers) -> set[Partition]:
    """Those that are still what the ledger means."""
    topics = brokers.topics(sorted({one.topic for one in partitions}), existing_only=True) if partitions else {}
    ids = {(name, topic.id, brokers.cluster_id()) for name, topic in topics.items()}
    found = {one.partition for one in saved if (one.partition.topic, one.topic_id, one.cluster_id) in ids}
    return found.intersection(partitions)


def _with(letter: DeadLetter, record: Record) -> DeadLetter:
    return replace(letter, record_time=record.time, key=record.key, value=record.value, headers=record.headers)


def _gone(letter: DeadLetter) -> DeadLetter:
    error = letter.error if letter.error.endswith(NOT_KEPT[1]) else f"{letter.error}; {NOT_KEPT[1]}"
    return replace(letter, error=error)


def _reads(topics: Collection[str], topic: str) -> bool:
    return any(re.match(one, topic) if is_pattern(one) else one == topic for one in topics)
