"""The status of groups for operators, from the ledger and from Kafka, at one moment."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from tallymark.core.claims import BACK
from tallymark.core.drift import Seen, total
from tallymark.core.journal import DEAD, Journal
from tallymark.core.spans import GroupState, Position, Tally
from tallymark.errors import BadInput, TableChanged, TallymarkError, Unreachable
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.lag import Lag, measure, rates_in
from tallymark.operate.health import HISTORY, Facts, Health, applied_rates, drain, judge
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_existing


@dataclass(frozen=True)
class Pace:
    """A partition of a group: its position, its lag, and the rates at which the lag changes."""

    position: Position
    lag: Lag | None
    rate_in: float | None
    rate_applied: float
    drain: float | None

    @property
    def growing(self) -> bool:
        return self.lag is not None and bool(self.lag.records) and (self.rate_in or 0.0) > self.rate_applied

    def as_json(self) -> dict[str, Any]:
        position, owner, lag = self.position, self.position.owner, self.lag
        log = lag.log if lag else None
        finite = self.drain is not None and math.isfinite(self.drain)
        return {
            "topic": position.partition.topic,
            "partition": position.partition.number,
            "current_offset": position.next_offset,
            "log_end_offset": log.end if log else None,
            "lag": lag.records if lag and log else None,
            "lag_seconds": lag.seconds if lag and log else None,
            "unread_since": lag.unread if lag else None,
            "expires_seconds": _seconds(lag.expires if lag else None),
            "rate_in": self.rate_in,
            "rate_applied": self.rate_applied,
            "drain_seconds": self.drain if finite else None,
            "growing": self.growing,
            **asdict(position.tally),
            "first_offset": position.first_offset,
            "balanced": position.balanced,
            "record_time": position.record_time,
            "updated_at": position.updated_at,
            "epoch": position.epoch,
            "owner": {"run": owner.run, "host": owner.host, "since": owner.since} if owner else None,
        }


@dataclass(frozen=True)
class Survey:
    """One group, with the number of its open dead letters. ``trouble`` is the error if Kafka did not answer."""

    group: str
    facts: Facts
    letters: int
    trouble: str | None = None

    @cached_property
    def verdict(self) -> Health:
        return judge(self.facts)

    @property
    def tally(self) -> Tally:
        return Tally.sum(position.tally for position in self.facts.positions)

    @property
    def drift(self) -> dict[str, Seen]:
        """The fields that the schema does not name, over all partitions."""
        return total(position.drift for position in self.facts.positions)

    @property
    def open_skips(self) -> int:
        return sum(line.note.kind == "skip" for line in self.facts.notes)

    @property
    def paces(self) -> list[Pace]:
        applied = applied_rates(self.facts)
        return [self._pace(position, applied.get(position.partition, 0.0)) for position in self.facts.positions]

    def _pace(self, position: Position, applied: float) -> Pace:
        lag = (self.facts.lags or {}).get(position.partition)
        came = self.facts.rates_in.get(position.partition) if lag and lag.log else None
        left = drain(lag.records, came, applied) if lag and self.facts.alive else None
        return Pace(position, lag, came, applied, left)

    def as_json(self) -> dict[str, Any]:
        facts, state = self.facts, self.facts.state
        return {
            "group": self.group,
            "state": self.verdict.state,
            "reason": self.verdict.reason,
            "desired_state": state.desired,
            "changed_by": state.by,
            "changed_at": state.since,
            "runs": [
                {"run": run.name, "host": run.host, "since": run.started, "seen": run.seen} for run in facts.alive
            ],
            "last_commit": facts.last_commit,
            "lag": facts.unread,
            "lag_seconds": facts.waited,
            "trouble": self.trouble,
            **asdict(self.tally),
            "open_dead_letters": self.letters,
            "open_skips": self.open_skips,
            "drift": [{"field": name, **asdict(seen)} for name, seen in self.drift.items()],
        }


@dataclass(frozen=True)
class Sight:
    """The status of all requested groups."""

    store: str
    groups: list[Survey]

    @property
    def trouble(self) -> str | None:
        """The errors of Kafka, over all groups."""
        return "; ".join(dict.fromkeys(one.trouble for one in self.groups if one.trouble)) or None

    def as_json(self) -> dict[str, Any]:
        groups = [one.as_json() | {"partitions": [pace.as_json() for pace in one.paces]} for one in self.groups]
        return {"store": self.store, "groups": groups, "trouble": self.trouble}


@contextmanager
def ledger(url: str, *groups: str) -> Iterator[Store]:
    """Open the store of a URL. Raises if it has no ledger, or if the ledger knows none of the groups."""
    store = open_existing(url)
    try:
        with up_to_date(store.name):
            if not store.has_ledger():
                raise BadInput(f"{store.name} has no ledger: no pipeline has run into it yet")
            if groups and all(store.state(group) is None for group in groups):
                names = ", ".join(groups)
                raise BadInput(f"{store.name} has no group {names}; list the groups with tallymark groups")
            yield store
    finally:
        store.close()


@contextmanager
def up_to_date(name: str) -> Iterator[None]:
    """Report missing tables and columns as a ledger of an older version."""
    try:
        yield
    except TableChanged as error:
        raise BadInput(
            f"the ledger in {name} is older ({error}); the next run upgrades it, or tallymark ledger upgrade"
        ) from None


def look(store: Store, groups: Collection[str] | None, brokers: Brokers | None) -> Sight:
    """Return the present status of these groups, or of all. If Kafka does not answer, it is what the ledger knows."""
    found = _from_ledger(store, groups)
    return Sight(store.name, found if brokers is None else _with_lags(found, brokers))


def _from_ledger(store: Store, groups: Collection[str] | None) -> list[Survey]:
    journal, positions = store.journal(), store.positions(next(iter(groups)) if groups and len(groups) == 1 else None)
    states = {name: state for name, state in journal.groups().items() if groups is None or name in groups}
    return [_survey(journal, name, state, positions.get(name, [])) for name, state in states.items()]


def _survey(journal: Journal, group: str, state: GroupState, positions: list[Position]) -> Survey:
    runs, history = journal.runs(group), journal.history(group, most=HISTORY)
    notes = journal.notes(group, [*BACK, "skip"])
    letters = journal.letter_counts(group).get(DEAD, 0)
    return Survey(group, Facts(datetime.now(UTC), state, positions, runs, history, notes), letters)


def _with_lags(groups: list[Survey], brokers: Brokers) -> list[Survey]:
    """Add lags. A topic without access affects only its own group; unreachable brokers affect all groups."""
    found, silent = [], None
    for one in groups:
        try:
            if silent:
                raise silent
            found.append(replace(one, facts=_measured(one.facts, brokers)))
        except TallymarkError as error:
            silent = error if isinstance(error, Unreachable) else None
            found.append(replace(one, trouble=str(error)))
    return found


def _measured(facts: Facts, brokers: Brokers) -> Facts:
    lags = measure(brokers, facts.positions)
    logs = {one: lag.log for one, lag in lags.items() if lag.log is not None}
    return replace(facts, lags=lags, rates_in=rates_in(brokers, logs))


def _seconds(time: timedelta | None) -> float | None:
    return time.total_seconds() if time is not None else None
