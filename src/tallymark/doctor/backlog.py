"""How long unread records will still be there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from tallymark.brokers import Brokers
from tallymark.doctor.topics import Shell
from tallymark.doctor.verdict import Finding, judge
from tallymark.errors import PositionRefused
from tallymark.plan import check_identity, readable_from
from tallymark.spans import Log, Position

CHECK = "unread records expire"
DAY = timedelta(days=1)
FOR_EVER = 100 * 366 * 86_400_000
"""Milliseconds."""


@dataclass(frozen=True)
class Retention:
    """When a topic's records are deleted. ``age`` is None where their age does not matter."""

    age: timedelta | None
    bytes: int | None

    @classmethod
    def of(cls, config: Mapping[str, str | None]) -> Retention | None:
        """None if the brokers do not tell."""
        age, size = config.get("retention.ms"), config.get("retention.bytes")
        if age is None:
            return None
        kept = not 0 <= int(age) < FOR_EVER or "delete" not in (config.get("cleanup.policy") or "delete")
        return cls(None if kept else timedelta(milliseconds=int(age)), int(size) if size and int(size) >= 0 else None)


def lost(group: str, position: Position, log: Log) -> Finding | None:
    """Whether reading can't go on from the position."""
    try:
        check_identity(position, log.topic_id, log.cluster_id)
        readable_from(position.next_offset, log, "fail")
    except PositionRefused as error:
        found = f"{log.partition}: position {position.next_offset}, the log holds {log.start}..{log.end}"
        return judge(f"group {group}", "position can be read", found, "yes", fail=str(error))
    return None


def expiry(
    group: str, position: Position, unread: datetime | None, retention: Retention, shell: Shell, now: datetime
) -> tuple[timedelta, Finding]:
    """How much time is left for the next unread record, at the least: whole segments go, and by their newest record."""
    where, about, topic = str(position.partition), f"group {group}", position.partition.topic
    also = f"; retention.bytes={retention.bytes} may come first" if retention.bytes is not None else ""
    if retention.age is None:
        return timedelta.max, judge(about, CHECK, f"{where}: never{also}", "in good time")
    if unread is None:
        return timedelta.max, judge(about, CHECK, f"{where}: the record has no time{also}", "in good time")
    left, least = unread + retention.age - now, min(DAY, retention.age / 10)
    longer = shell.alter(topic, f"retention.ms={int(2 * retention.age.total_seconds() * 1000)}")
    found = f"{where}: in {_words(left)}{also}" if left > timedelta() else f"{where}: any moment now{also}"
    advice = f"start the group or speed it up; for more time: {longer}" if left < least else None
    return left, judge(about, CHECK, found, f"in more than {_words(least)}", warn=advice)


def shortened(found: Sequence[tuple[timedelta, Finding]]) -> list[Finding]:
    """What needs care, and of all that is well the partition that has the least time."""
    ordered = [finding for _, finding in sorted(found, key=lambda one: one[0])]
    well = [finding for finding in ordered if finding.verdict == "ok"]
    first = [replace(well[0], found=f"{well[0].found}, as the first of {len(well)} partitions")] if well[1:] else well
    return [finding for finding in ordered if finding.verdict != "ok"] + first


def backlog(
    brokers: Brokers, group: str, positions: Sequence[Position], retention: Retention | None, shell: Shell
) -> Iterator[Finding]:
    """The findings about a group's positions in one topic."""
    topic, behind = positions[0].partition.topic, []
    logs = brokers.logs(brokers.topics([topic]))
    for position in positions:
        log = logs.get(position.partition)
        if log is not None and (finding := lost(group, position, log)) is not None:
            yield finding
        elif log is not None and position.next_offset < log.end:
            behind.append(position)
    if not behind:
        yield judge(f"group {group}", CHECK, f"{topic}: nothing is left to read", "in good time")
    elif retention is None:
        yield judge(f"group {group}", CHECK, f"{topic}: not told", warn="ask who runs the brokers for retention.ms")
    else:
        yield from shortened(_expiries(brokers, group, behind, retention, shell))


def _expiries(
    brokers: Brokers, group: str, behind: Sequence[Position], retention: Retention, shell: Shell
) -> list[tuple[timedelta, Finding]]:
    records = brokers.records({one.partition: [one.next_offset] for one in behind})
    now, found = datetime.now(timezone.utc), []
    for one in behind:
        record = records.get((one.partition, one.next_offset))
        # Where the next offset holds no record, the last one that was read is older than what comes.
        found.append(expiry(group, one, record.time if record else one.record_time, retention, shell, now))
    return found


def _words(time: timedelta) -> str:
    hours = time.total_seconds() / 3600
    return (
        f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.0f} minutes"
    )
