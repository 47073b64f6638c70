"""Jumping ahead when a partition is too far behind: when it is, and where to. Pure.

What is skipped is counted and written down by the commit that moves the position, and can be filled in later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tallymark.errors import BadInput
from tallymark.plan import Jump
from tallymark.spans import Log, Partition

Jumps = dict[Partition, Jump]
OffsetsAt = Callable[[Iterable[Partition], datetime], Mapping[Partition, int | None]]
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True)
class SkipAhead:
    """Jump ahead when a partition is too far behind. Off unless asked for.

    >>> SkipAhead(when_behind=10_000, keep=500)                # records
    >>> SkipAhead(when_behind="1h", keep="5m", every="1m")     # time, by the timestamps of the records

    A partition that has more than ``when_behind`` to read goes on with the last ``keep``. Both are numbers of records,
    or both are times: a timedelta, or text such as "30s", "15m", "2h", "1d". It is looked at when a run starts, and
    then ``every`` so often.
    """

    when_behind: int | timedelta | str = 500
    keep: int | timedelta | str = 500
    every: timedelta | str = "15m"

    def __post_init__(self) -> None:
        behind, keep = _amount("when_behind", self.when_behind), _amount("keep", self.keep)
        if isinstance(behind, int) != isinstance(keep, int):
            raise BadInput(f"SkipAhead: when_behind={behind} and keep={keep} must both be records, or both be times")
        if _size(keep) > _size(behind):
            raise BadInput(f"SkipAhead: keep={keep} is more than when_behind={behind}; keep at most as much")
        if not isinstance(self.every, timedelta | str):
            raise BadInput(f"SkipAhead: every={self.every!r} is no time; write a timedelta, or text such as '15m'")
        for name, value in (("when_behind", behind), ("keep", keep), ("every", _amount("every", self.every))):
            object.__setattr__(self, name, value)

    def moments(self, now: datetime) -> tuple[datetime, datetime] | None:
        """The two moments to ask the brokers for; None where it goes by records and they need not be asked."""
        if isinstance(self.when_behind, timedelta) and isinstance(self.keep, timedelta):
            return now - self.when_behind, now - self.keep
        return None


class Lookout:
    """When to look: at the first call, and then as often as ``every`` says. Times are those of a monotonic clock."""

    def __init__(self, ahead: SkipAhead) -> None:
        assert isinstance(ahead.every, timedelta)
        self._every = ahead.every.total_seconds()
        self._next: float | None = None

    def due(self, now: float) -> bool:
        if self._next is not None and now < self._next:
            return False
        self._next = now + self._every
        return True

    def again(self) -> None:
        """What was found at the last look came to nothing."""
        self._next = None


def jumps(
    ahead: SkipAhead, positions: Mapping[Partition, int], logs: Mapping[Partition, Log], ask: OffsetsAt, now: datetime
) -> Jumps:
    """Which partitions jump where. ``ask`` tells the first offset of each that is not older than a moment."""
    moments = ahead.moments(now)
    if moments is None:
        return by_records(ahead, positions, logs)
    old, kept = (ask(positions, moment) for moment in moments)
    return by_time(ahead, positions, logs, old, kept)


def by_records(ahead: SkipAhead, positions: Mapping[Partition, int], logs: Mapping[Partition, Log]) -> Jumps:
    """Which partitions jump where, when it goes by records."""
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
    """Which partitions jump where, when it goes by time.

    ``old`` and ``kept`` are the brokers' answers for the two ``moments``: the first record that is not too old, and the
    first that is to be kept. None means that all records are older: if any of them is unread, it is too old.
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
    amount = _parsed(value) if isinstance(value, str) else value
    if isinstance(amount, bool) or not isinstance(amount, int | timedelta):
        raise BadInput(f"SkipAhead: {name}={value!r} is not known; write a number, a timedelta, or text such as '15m'")
    if _size(amount) <= 0:
        raise BadInput(f"SkipAhead: {name}={value} must be positive")
    return amount


def _size(amount: int | timedelta) -> float:
    return amount.total_seconds() if isinstance(amount, timedelta) else amount


def _parsed(text: str) -> timedelta | None:
    found = re.fullmatch(r"(\d{1,5})([smhd])", text)
    return timedelta(**{UNITS[found[2]]: int(found[1])}) if found else None
