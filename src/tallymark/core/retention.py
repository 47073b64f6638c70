"""How long the ledger keeps the history of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta

from tallymark.core.durations import Duration, parse_duration
from tallymark.errors import BadInput

SHORTEST = timedelta(hours=1)
"""``status`` and the default budget look at the history of the last hour."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Cutoffs = Mapping[str, datetime]
"""The names of settings of ``Retention``, with the time before which history is removed."""


@dataclass(frozen=True)
class Retention:
    """How long the ledger keeps the history of a group: timedeltas, or text such as "12h" or "30d".

    >>> Retention(batches="7d", runs="90d", settled_letters="180d")

    None sets no limit by age. Of runs the newest 100 are kept at most, of rebalances the newest 1,000. The last commit
    of a group, its last run and runs that own a partition are always kept. ``settled_letters`` are dead letters that
    were replayed, or voided by a reset; other dead letters are part of the tally and are kept. ``deletions`` are those
    that a table with ``version=`` remembers: after that time, a record that is older brings the row back.
    """

    batches: timedelta | str = "7d"
    runs: timedelta | str | None = None
    rebalances: timedelta | str | None = None
    settled_letters: timedelta | str | None = None
    deletions: timedelta | str | None = "30d"

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if value is not None or name == "batches":
                object.__setattr__(self, name, parse_age(f"Retention: {name}", value))

    @classmethod
    def of(cls, age: timedelta) -> Retention:
        """Keep all history for the same time. Remembered deletions are not history, and stay."""
        return cls(age, age, age, age, None)

    def covers(self, window: Duration) -> bool:
        """Whether the commits of this window are kept."""
        return parse_duration(window, "Budget: window") <= parse_duration(self.batches, "Retention: batches")

    def cutoffs(self, now: datetime) -> Cutoffs:
        ages = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: now - min(age, now - EPOCH) for name, age in ages.items() if age is not None}


def parse_age(name: str, value: Duration) -> timedelta:
    """Parse the age of history that may be removed; ``name`` is for the error."""
    age = parse_duration(value, name)
    if age < SHORTEST:
        raise BadInput(f"{name}={value} is too short: status and budgets need at least the last hour (1h)")
    return age


DEFAULT_RETENTION = Retention()
