"""How long unread records will still be there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from tallymark.brokers import Brokers
from tallymark.doctor.topics import Shell
from tallymark.doctor.verdict import Finding, judge
from tallymark.errors import PositionRefused
from tallymark.lag import unread_times
from tallymark.plan import check_identity, readable_from
from tallymark.retention import Retention
from tallymark.spans import Log, Partition, Position

CHECK = "unread records expire"
DAY = timedelta(days=1)


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
    """How much time is left for the next unread record, at the least."""
    where, about, topic = str(position.partition), f"group {group}", position.partition.topic
    also = f"; retention.bytes={retention.bytes} may come first" if retention.bytes is not None else ""
    if retention.age is None:
        return timedelta.max, judge(about, CHECK, f"{where}: never{also}", "in good time")
    left, least = retention.left(unread, now), min(DAY, retention.age / 10)
    if left is None:
        return timedelta.max, judge(about, CHECK, f"{where}: the record has no time{also}", "in good time")
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
        yield from shortened(_expiries(brokers, group, behind, logs, retention, shell))


def _expiries(
    brokers: Brokers,
    group: str,
    behind: Sequence[Position],
    logs: Mapping[Partition, Log],
    retention: Retention,
    shell: Shell,
) -> list[tuple[timedelta, Finding]]:
    times = unread_times(brokers, {one.partition: one.next_offset for one in behind}, logs)
    now = datetime.now(timezone.utc)
    # Where Kafka has only markers to come, the last record that was read is older than whatever will follow.
    return [expiry(group, one, times.get(one.partition, one.record_time), retention, shell, now) for one in behind]


def _words(time: timedelta) -> str:
    hours = time.total_seconds() / 3600
    return (
        f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.0f} minutes"
    )
