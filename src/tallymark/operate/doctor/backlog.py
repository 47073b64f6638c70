"""Judges how soon unread records expire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tallymark.core.plan import check_identity, readable_from
from tallymark.core.spans import Log, Partition, Position
from tallymark.errors import PositionRefused
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.lag import TopicRetention, unread_times
from tallymark.operate.doctor.topics import Shell
from tallymark.operate.findings import Finding, judge

CHECK = "unread records expire"
DAY = timedelta(days=1)


def lost(group: str, position: Position, log: Log) -> Finding | None:
    """Return a failure if the position can't be read, else None."""
    try:
        check_identity(position, log.topic_id, log.cluster_id)
        readable_from(position.next_offset, log, "fail")
    except PositionRefused as error:
        found = f"{log.partition}: position {position.next_offset}, the log holds {log.start}..{log.end}"
        return judge(f"group {group}", "position can be read", found, "yes", fail=str(error))
    return None


def expiry(
    group: str, position: Position, unread: datetime | None, retention: TopicRetention, shell: Shell, now: datetime
) -> tuple[timedelta, Finding]:
    """Return the minimum time until the next unread record expires, with its finding."""
    where, about, topic = str(position.partition), f"group {group}", position.partition.topic
    also = f"; retention.bytes={retention.bytes} may apply first" if retention.bytes is not None else ""
    if retention.age is None:
        return timedelta.max, judge(about, CHECK, f"{where}: never{also}", "with reserve")
    left, least = retention.left(unread, now), min(DAY, retention.age / 10)
    if left is None:
        return timedelta.max, judge(about, CHECK, f"{where}: the record has no timestamp{also}", "with reserve")
    longer = shell.alter(topic, f"retention.ms={int(2 * retention.age.total_seconds() * 1000)}")
    found = f"{where}: in {_words(left)}{also}" if left > timedelta() else f"{where}: now{also}"
    advice = f"start the group or increase its throughput; to extend the retention: {longer}" if left < least else None
    return left, judge(about, CHECK, found, f"in more than {_words(least)}", warn=advice)


def shortened(found: Sequence[tuple[timedelta, Finding]]) -> list[Finding]:
    """Return all findings that are not ok, and of those that are ok the partition that expires first."""
    ordered = [finding for _, finding in sorted(found, key=lambda one: one[0])]
    well = [finding for finding in ordered if finding.verdict == "ok"]
    first = [replace(well[0], found=f"{well[0].found}, the first of {len(well)} partitions")] if well[1:] else well
    return [finding for finding in ordered if finding.verdict != "ok"] + first


def backlog(
    brokers: Brokers, group: str, positions: Sequence[Position], retention: TopicRetention | None, shell: Shell
) -> Iterator[Finding]:
    """Yield the findings about a group's positions in one topic."""
    topic, behind = positions[0].partition.topic, []
    logs = brokers.logs(brokers.topics([topic]))
    for position in positions:
        log = logs.get(position.partition)
        if log is not None and (finding := lost(group, position, log)) is not None:
            yield finding
        elif log is not None and position.next_offset < log.end:
            behind.append(position)
    if not behind:
        yield judge(f"group {group}", CHECK, f"{topic}: no unread records", "with reserve")
    elif retention is None:
        yield judge(
            f"group {group}", CHECK, f"{topic}: not known", warn="ask the administrator of the brokers for retention.ms"
        )
    else:
        yield from shortened(_expiries(brokers, group, behind, logs, retention, shell))


def _expiries(
    brokers: Brokers,
    group: str,
    behind: Sequence[Position],
    logs: Mapping[Partition, Log],
    retention: TopicRetention,
    shell: Shell,
) -> list[tuple[timedelta, Finding]]:
    times = unread_times(brokers, {one.partition: one.next_offset for one in behind}, logs)
    now = datetime.now(UTC)
    # If only transaction markers are unread, use the time of the last record read: later records are newer.
    return [expiry(group, one, times.get(one.partition, one.record_time), retention, shell, now) for one in behind]


def _words(time: timedelta) -> str:
    hours = time.total_seconds() / 3600
    return (
        f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.0f} minutes"
    )
