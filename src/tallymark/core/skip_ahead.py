"""Rules for skipping ahead in a partition that is too far behind. Pure.

The commit that moves the position counts and records the skip, which can be filled later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tallymark.core.durations import Duration, parse_duration, parse_positive
from tallymark.core.plan import Jump
from tallymark.core.spans import Log, Partition
from tallymark.errors import BadInput

Jumps = dict[Partition, Jump]
OffsetsAt = Callable[[Iterable[Partition], datetime], Mapping[Partition, int | None]]


@dataclass(frozen=True)
class SkipAhead:
    """Skip ahead when a partition is too far behind. Off by default.

    >>> SkipAhead(when_behind=10_000, keep=500)                # records
    >>> SkipAhead(when_behind="1h", keep="5m", every="1m")     # time, by the timestamps of the records

    A partition with more than ``when_behind`` to read continues with the last ``keep``. Both are numbers of records,
    or both are durations: a timedelta, or text such as "1h30m", "15m", "2d". The lag is checked when a run starts,
    and then at the interval ``every``.
    """

    when_behind: int | timedelta | str = 500
    keep: int | timedelta | str = 500
    every: Duration = "15m"

    def __post_init__(self) -> None:
        behind, keep = _amount("when_behind", self.when_behind), _amount("keep", self.keep)
        if isinstance(behind, int) != isinstance(keep, int):
            raise BadInput(f"SkipAhead: when_behind={behind} and keep={keep} must both be records, or both be times")
        if _size(keep) > _size(behind):
            raise BadInput(f"SkipAhead: keep={keep} is more than when_behind={behind}; keep at most as much")
        every = parse_positive(self.every, "SkipAhead: every")
        for name, value in (("when_behind", behind), ("keep", keep), ("every", every)):
            object.__setattr__(self, name, value)

    def moments(self, now: datetime) -> tuple[datetime, datetime] | None:
        """Return the two times to look up at the brokers; None if the limits are numbers of records."""
        if isinstance(self.when_behind, timedelta) and isinstance(self.keep, timedelta):
            return now - self.when_behind, now - self.keep
        return None


class Every:
    """Schedules the checks: at the first call, then at the interval ``every``. Times are from a monotonic clock."""

    def __init__(self, ahead: SkipAhead) -> None:
        self._every = parse_duration(ahead.every, "SkipAhead: every").total_seconds()
        self._next: float | None = None

    def due(self, now: float) -> bool:
        if self._next is not None and now < self._next:
            return False
        self._next = now + self._every
        return True

    def again(self) -> None:
        """Check again at the next call, because the jump of the last check was not committed."""
        self._next = None


def jumps(
    ahead: SkipAhead, positions: Mapping[Partition, int], logs: Mapping[Partition, Log], ask: OffsetsAt, now: datetime
) -> Jumps:
    """Return the jump of each partition that is too far behind.

    ``ask`` returns the first offset of each partition that is not older than a given time.
    """
    moments = ahead.moments(now)
    if moments is None:
        return by_records(ahead, positions, logs)
    old, kept = (ask(positions, moment) for moment in moments)
    return by_time(ahead, positions, logs, old, kept)


def by_records(ahead: SkipAhead, positions: Mapping[Partition, int], logs: Mapping[Partition, Log]) -> Jumps:
    """Return the jumps for limits that are numbers of records."""
    assert isinstance(ahead.when_behind, int)
    assert isinstance(ahead.keep, int)
    found = {}
    for partition, position in positions.items():
        log = logs[partition]
        behind = log.stop - max(position, log.start)
        if behind > ahead.when_behind:
            found[partition] = Jump(
                log.stop - ahead.keep,
                f"{behind:,} records behind, more than {ahead.when_behind:,}: skipped to {ahead.keep:,} before the end",
            )
    return found


def by_time(
    ahead: SkipAhead,
    positions: Mapping[Partition, int],
    logs: Mapping[Partition, Log],
    old: Mapping[Partition, int | None],
    kept: Mapping[Partition, int | None],
) -> Jumps:
    """Return the jumps for limits that are durations.

    ``old`` and ``kept`` are the offsets that the brokers return for the two ``moments``: the first record that is not
    too old, and the first record to keep. None means that all records are older: any unread record is too old.
    """
    found = {}
    for partition, position in positions.items():
        log = logs[partition]
        start, fresh, to = max(position, log.start), _within(log, old[partition]), _within(log, kept[partition])
        if start < fresh:
            place = "the end" if to == log.stop else f"the last {ahead.keep}"
            found[partition] = Jump(
                to, f"the next of {log.stop - start:,} records is older than {ahead.when_behind}: skipped to {place}"
            )
    return found


def _within(log: Log, offset: int | None) -> int:
    return log.stop if offset is None else min(offset, log.stop)


def _amount(name: str, value: int | timedelta | str) -> int | timedelta:
    # Text without a unit may be meant as a number of records.
    if isinstance(value, timedelta) or (isinstance(value, str) and not value.isdecimal()):
        return parse_positive(value, f"SkipAhead: {name}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"SkipAhead: {name}={value!r} is not known; write a number of records, or text such as 15m")
    if value <= 0:
        raise BadInput(f"SkipAhead: {name}={value} must be positive")
    return value


def _size(amount: int | timedelta) -> float:
    return amount.total_seconds() if isinstance(amount, timedelta) else amount
