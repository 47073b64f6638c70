"""Moves positions by hand: performs the resets and the imports that ``reset`` and ``takeover`` plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from tallymark.core.claims import BACK
from tallymark.core.spans import Log, Partition, Position, Span
from tallymark.errors import BadInput, UnknownPartition
from tallymark.kafka.brokers import Brokers
from tallymark.operate.emptying import Consent, Written
from tallymark.operate.repeats import Repeated, repeated
from tallymark.operate.reset import Aim, Planned, Reset, busy, parse_scope, within
from tallymark.operate.survey import up_to_date
from tallymark.operate.takeover import adopt, adopting, check_stopped, committed, read_checkpoint
from tallymark.stores.contract import HISTORY, Store
from tallymark.stores.opening import open_store, sqlite_file


def positions_of(store: Store, group: str) -> dict[Partition, Position]:
    return {one.partition: one for one in store.positions(group).get(group, [])}


def logs_of(brokers: Brokers, partitions: Collection[Partition]) -> dict[Partition, Log]:
    """Return the logs of these partitions, all of which must exist."""
    topics = brokers.topics(sorted({one.topic for one in partitions}))
    there = {one for topic in topics.values() for one in topic.partitions}
    for missing in sorted(set(partitions) - there):
        raise UnknownPartition(f"topic {missing.topic} has no partition {missing.number}; correct --topic or the file")
    return brokers.logs({name: topic.only(partitions) for name, topic in topics.items()})


def _in_scope(brokers: Brokers, scope: Mapping[str, frozenset[int] | None]) -> list[Partition]:
    return within(scope, [one for topic in brokers.topics(sorted(scope)).values() for one in topic.partitions])


class Resetting:
    """A reset of a group, from the present state of its ledger and of the brokers."""

    def __init__(
        self, store: Store, group: str, brokers: Brokers, aim: Aim, topics: Sequence[str], *, all_topics: bool
    ) -> None:
        self.group, self.aim, self._store = group, aim, store
        self._positions = positions_of(store, group)
        logs = logs_of(brokers, _to_reset(aim, self._positions, brokers, topics, all_topics))
        self.now = datetime.now(UTC)
        self._reset = Reset(aim, logs, brokers.offsets_at(logs, aim.moment) if aim.moment else {})
        self.preview = self._reset.plan(self._positions)
        self.tables = store.journal().tables(group).get(group, [])

    @property
    def busy(self) -> list[Position]:
        """The positions that would change although their owner may be alive."""
        return busy(self.preview, self._store.journal().runs(self.group), self.now)

    def repeated(self) -> list[Repeated]:
        """Estimate what the preview repeats in each table that the ledger knows."""
        if not self.tables or not any(planned.repeats for planned in self.preview):
            return []
        history = self._store.journal().history(self.group, most=HISTORY)
        return repeated(self.preview, self.tables, history, [skip.span for skip in self._store.skips(self.group)])

    def row_counts(self) -> dict[str, int]:
        """Return how many rows each table of this store has now."""
        return self._store.journal().row_counts({table.name for table in self.tables if table.store is None})

    def refusal(self, consent: Consent) -> str | None:
        """The reason for which ``execute`` would be refused with this consent, apart from live owners."""
        try:
            self._check(self.preview, consent)
        except BadInput as refused:
            return str(refused)
        return None

    def _check(self, plan: Sequence[Planned], consent: Consent) -> list[str]:
        journal = self._store.journal()
        written = Written(self.group, journal.tables(), journal.notes(self.group, [*BACK, "begin"]))
        return consent.check(plan, self._positions, written)

    def execute(self, by: str, reason: str | None, *, take_over: bool, consent: Consent) -> list[Planned]:
        """Move the positions, and return the plan that was performed."""
        option = " --truncate" if consent.truncate else ""
        words = f"{self.aim.said}{option} by {by}" + (f": {reason}" if reason else "")
        plan = list(self.preview)

        def done(planned: Sequence[Planned]) -> None:
            plan[:] = planned

        # Tables and notes are read again while the positions are locked: no other reset can change them then.
        agreed = partial(self._check, consent=consent)
        decide = self._reset.decide(self.preview, self.now, words, done, take_over=take_over, consent=agreed)
        self._store.journal().move(self.group, self._reset.logs, decide, by, self.now)
        return plan


def _to_reset(
    aim: Aim, positions: Collection[Partition], brokers: Brokers, topics: Sequence[str], all_topics: bool
) -> list[Partition]:
    """Return the partitions that the options name, or else those of the file."""
    if (topics and all_topics) or not (topics or all_topics or aim.offsets):
        raise BadInput("reset: give --topic (several are fine) or --all-topics, and not both")
    if not topics and not all_topics:
        return sorted(aim.offsets)
    chosen = _in_scope(brokers, parse_scope(topics)) if topics else sorted(positions)
    return [one for one in chosen if not aim.offsets or one in aim.offsets]


@dataclass(frozen=True)
class Foreign:
    """The offsets of another consumer, and the spans that it may have processed beyond them."""

    source: str
    offsets: Mapping[Partition, int]
    unsure: Sequence[Span] = ()
    begun: int | None = None

    @classmethod
    def of_group(cls, brokers: Brokers, group: str, *, while_running: bool) -> Foreign:
        if not while_running:
            check_stopped(brokers, group)
        return cls(f"Kafka group {group}", committed(brokers, group))

    @classmethod
    def of_checkpoint(cls, place: str, source: int | None) -> Foreign:
        found = read_checkpoint(place)
        name = f"checkpoint {found.name}, batch {found.batch}"
        return cls(name, found.offsets(source), found.unsure(source), found.begun)

    def only(self, partitions: Collection[Partition]) -> Foreign:
        offsets = {one: offset for one, offset in self.offsets.items() if one in partitions}
        return replace(self, offsets=offsets, unsure=[span for span in self.unsure if span.partition in partitions])


class Import:
    """An import of the offsets of another consumer. ``topics`` as in a reset; none: all that it has offsets of."""

    def __init__(self, url: str, group: str, brokers: Brokers, foreign: Foreign, topics: Sequence[str]) -> None:
        names = {one.topic for one in foreign.offsets}
        scope = parse_scope(topics) if topics else dict.fromkeys(names)
        if not names & scope.keys():
            raise BadInput(f"{foreign.source} has no offsets to take over; check its name and --topic")
        self.group, self._url = group, url
        self._logs = logs_of(brokers, _in_scope(brokers, scope))
        self.foreign = foreign.only(self._logs)

    def preview(self) -> list[Planned]:
        file = sqlite_file(self._url)
        if file is not None and not file.exists():
            # Opening the store would create the file.
            return adopt(self.foreign.offsets, self._logs, {})
        return self._plan(None)

    def execute(self, by: str) -> list[Planned]:
        """Create the positions, and the ledger if there is none."""
        return self._plan(by)

    def _plan(self, by: str | None) -> list[Planned]:
        store = open_store(self._url)
        try:
            with up_to_date(store.name):
                known = positions_of(store, self.group) if store.has_ledger() else {}
                plan = adopt(self.foreign.offsets, self._logs, known)
                if by is not None:
                    store.create_ledger()
                    reason = f"taken over from {self.foreign.source} by {by}"
                    decision = adopting(plan, self.foreign.offsets, reason)
                    store.journal().move(self.group, self._logs, decision, by, datetime.now(UTC))
                return plan
        finally:
            store.close()
