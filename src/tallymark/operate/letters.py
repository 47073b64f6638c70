"""Groups dead letters by their errors, discards them, and replays them or sends them to another topic."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tallymark.core.batch import alike
from tallymark.core.journal import DEAD, DISCARDED, Letter, LetterQuery
from tallymark.core.progress import OnStep
from tallymark.core.spans import Tally
from tallymark.errors import BadInput, CommitRefused, TallymarkError
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.cluster import Cluster
from tallymark.operate.resend import resend
from tallymark.operate.survey import ledger
from tallymark.produce.producer import Producer
from tallymark.run.letters import MOST, OpenLetters, check_delivery, chosen
from tallymark.run.setup import Setup
from tallymark.run.skips import check_order
from tallymark.run.until import may_go_on
from tallymark.service.app import App
from tallymark.spark.pipeline import Pipeline
from tallymark.stores.contract import Store

CHANGED_BY = 255
"""Maximum length of the name and the reason in the ledger."""


@dataclass
class Kind:
    """Letters whose errors differ only in numbers, such as offsets and lines, or in the value of a field."""

    error: str
    count: int
    first: datetime
    last: datetime


def kinds(letters: Iterable[Letter]) -> list[Kind]:
    """Return the kinds, the most frequent first, each with the error of its first letter."""
    found: dict[str, Kind] = {}
    for letter in letters:
        at, error = letter.recorded_at, letter.record.error
        kind = found.setdefault(alike(error), Kind(error, 0, at, at))
        kind.count += 1
        kind.first, kind.last = min(kind.first, at), max(kind.last, at)
    return sorted(found.values(), key=lambda kind: -kind.count)


def check_named(store: Store, ids: Sequence[str], found: Sequence[Letter]) -> None:
    """Raise if a named letter is not among those that were found."""
    missing = set(ids) - {letter.id for letter in found}
    if missing:
        others = {one.id: one.state for one in store.journal().letters(LetterQuery(states=None, ids=list(missing)))}
        first = min(missing)
        words = f"dead letter {first} is {others.get(first, 'unknown')}"
        words += ", and the filters leave it out" if others.get(first) == DEAD else ""
        raise BadInput(f"{words}; nothing was changed: tallymark dead-letters list")


def discard(store: Store, letters: Sequence[Letter], by: str) -> None:
    for at in range(0, len(letters), MOST):
        try:
            store.journal().settle(letters[at : at + MOST], DISCARDED, by[:CHANGED_BY], datetime.now(UTC))
        except CommitRefused as error:
            raise type(error)(f"{error}; {at} of {len(letters)} were discarded before: look again") from error


@dataclass(frozen=True)
class Outcome:
    """The outcome of a replay; the last four numbers add up to ``chosen``.

    ``settled`` were settled by another process, ``left`` were not tried because the replay was stopped.
    """

    chosen: int
    applied: int
    dead: int
    settled: int
    left: int


class LetterReplay:
    """A replay of the chosen letters of a file, into its tables or to ``topic``.

    Letters that die after the choice are not part of it.
    """

    def __init__(
        self, found: Pipeline | App, setups: Sequence[Setup], query: LetterQuery, *, overwrite: bool, allow: str
    ) -> None:
        self._found, self._setups, self._overwrite, self._allow = found, setups, overwrite, allow
        self.letters = self._chosen(query)
        self._check_ids(list(query.ids or ()))
        self._query = replace(query, ids=frozenset(letter.id for letter in self.letters))

    def refusal(self, topic: str | None, cluster: Cluster | None) -> str | None:
        """The reason for which the replay would fail now."""
        try:
            if topic is None:
                self._check()
            for setup in self._setups if topic else ():
                Brokers(cluster or setup.source.cluster).find([topic or ""])
        except TallymarkError as error:
            return str(error)
        return None

    def run(self, on_step: OnStep) -> Outcome:
        self._check()
        if isinstance(self._found, App):
            return self._outcome(self._found.replay(self._query, on_step=on_step))
        return self._outcome(self._found.replay(self._query, overwrite=self._overwrite, on_step=on_step))

    def send(self, topic: str, cluster: Cluster | None, by: str) -> Outcome:
        """Send the letters to a topic of their own cluster, or of another."""
        total = Tally()
        for setup in self._setups:
            source = setup.source.cluster
            to = cluster or source
            Brokers(to).find([topic])
            with ExitStack() as stack:
                store = stack.enter_context(ledger(setup.ledger_url))
                producer = stack.enter_context(Producer(to.brokers, security=to.security, tls=to.tls))
                topics = setup.source.topic_names
                letters = OpenLetters(setup.group, store, topics, self._query, Brokers(source))
                total += resend(letters, store, producer, topic, by)
        return self._outcome(total)

    def _check(self) -> None:
        for setup in self._setups:
            check_delivery(setup.delivery)
            with ledger(setup.ledger_url) as store:
                may_go_on(store, setup.group, threading.Event(), setup.patience_seconds, has_end=True)
        if isinstance(self._found, Pipeline):
            check_order(self._found.specs, overwrite=self._overwrite, allow=self._allow)

    def _chosen(self, query: LetterQuery) -> list[Letter]:
        found: list[Letter] = []
        for setup in self._setups:
            with ledger(setup.ledger_url) as store:
                found += chosen(store, replace(query, group=setup.group), setup.source.topic_names)
        return found

    def _check_ids(self, ids: Sequence[str]) -> None:
        unknown = set(ids)
        for setup in self._setups if ids else ():
            with ledger(setup.ledger_url) as store:
                there = store.journal().letters(LetterQuery(setup.group, states=None, ids=list(ids)))
                unknown -= {letter.id for letter in there}
        if unknown:
            raise BadInput(f"the groups of the file have no dead letter {min(unknown)}: tallymark dead-letters list")

    def _outcome(self, tally: Tally) -> Outcome:
        """What is open and was not tried is left; the rest was settled by another process."""
        count = len(self.letters)
        still = len(self._chosen(LetterQuery(ids=self._query.ids)))
        left = min(max(0, still - tally.dead), count - tally.applied - tally.dead)
        return Outcome(count, tally.applied, tally.dead, count - tally.applied - tally.dead - left, left)
