"""Measures the lag of positions: in records, in seconds, and as the time until Kafka deletes unread records.

The lag in seconds is the age of the first unread record by its timestamp in Kafka; nothing is interpolated. Each query
covers all partitions at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from confluent_kafka.admin import ConfigResource

from tallymark.core.plan import check_identity
from tallymark.core.spans import Log, Partition, Position
from tallymark.errors import PositionRefused, TallymarkError
from tallymark.kafka.brokers import TIMEOUT, Brokers

FOR_EVER = 100 * 366 * 86_400_000
"""Milliseconds."""


@dataclass(frozen=True)
class TopicRetention:
    """The retention of a topic. ``age`` is None if records are not deleted by age."""

    age: timedelta | None
    bytes: int | None

    @classmethod
    def of(cls, config: Mapping[str, str | None]) -> TopicRetention | None:
        """Return the retention of a topic's configuration; None if the brokers do not return it."""
        age, size = config.get("retention.ms"), config.get("retention.bytes")
        if age is None:
            return None
        kept = not 0 <= int(age) < FOR_EVER or "delete" not in (config.get("cleanup.policy") or "delete")
        return cls(None if kept else timedelta(milliseconds=int(age)), int(size) if size and int(size) >= 0 else None)

    def left(self, unread: datetime | None, now: datetime) -> timedelta | None:
        """Return the minimum time until a record with this timestamp is deleted.

        It may be kept longer, because Kafka deletes whole segments by their newest record. None if it is kept forever
        or has no timestamp.
        """
        return None if self.age is None or unread is None else self.age - (now - unread)


WINDOW = timedelta(minutes=5)


@dataclass(frozen=True)
class Lag:
    """The lag of a position.

    ``log`` is None if the position does not belong to a log of these brokers: the topic was deleted or recreated, or
    the cluster is different. ``records`` counts offsets up to the end of the log. ``seconds`` is the age of the first
    unread record, 0 if there is none, None if it has no timestamp. ``unread`` is the timestamp of that record, and
    ``expires`` the minimum time until it is deleted; None if it is kept forever or the brokers do not return the
    retention.
    """

    log: Log | None
    records: int = 0
    seconds: float | None = None
    unread: datetime | None = None
    expires: timedelta | None = None


def measure(brokers: Brokers, positions: Sequence[Position]) -> dict[Partition, Lag]:
    """Return the current lag of each position."""
    cluster = brokers.cluster_id()
    # Topic names of another cluster or of a streaming query may be invalid for these brokers.
    found = _logs(brokers, [position.partition for position in positions if position.cluster_id == cluster])
    logs = {
        position.partition: found[position.partition]
        for position in positions
        if _belongs(position, found.get(position.partition))
    }
    behind = {
        position.partition: max(position.next_offset, logs[position.partition].start)
        for position in positions
        if position.partition in logs and position.next_offset < logs[position.partition].end
    }
    times = unread_times(brokers, behind, logs)
    retentions = _retentions(brokers, {partition.topic for partition in times})
    now = datetime.now(UTC)
    return {
        position.partition: _lag(position, logs.get(position.partition), times, retentions, now)
        for position in positions
    }


def unread_times(
    brokers: Brokers, offsets: Mapping[Partition, int], logs: Mapping[Partition, Log]
) -> dict[Partition, datetime | None]:
    """Return the timestamp of the first record at or after each offset, without partitions that have no such record.

    Offsets of aborted transactions, transaction markers and compacted records hold no record. If nothing can be read
    because a transaction is open, the first record of this transaction counts.
    """
    times = brokers.first_times(offsets, "read_committed")
    unstable = {partition: logs[partition] for partition in offsets if partition not in times}
    waiting = {partition: log.stop for partition, log in unstable.items() if log.stop < log.end}
    return times | brokers.first_times(waiting, "read_uncommitted")


def rates_in(brokers: Brokers, logs: Mapping[Partition, Log], window: timedelta = WINDOW) -> dict[Partition, float]:
    """Return the records per second produced during the last ``window``, by the timestamps of the records.

    Kafka returns the first record with a given timestamp or a later one. A partition is left out if this record has a
    timestamp in the future: all records after it would count, however old.
    """
    now = datetime.now(UTC)
    since, ahead = brokers.offsets_at(logs, now - window), brokers.offsets_at(logs, now + window)
    known = {partition: first for partition, first in since.items() if first is None or first != ahead[partition]}
    counts = {
        partition: 0 if first is None else max(0, logs[partition].end - first) for partition, first in known.items()
    }
    return {partition: count / window.total_seconds() for partition, count in counts.items()}


def _logs(brokers: Brokers, partitions: Iterable[Partition]) -> dict[Partition, Log]:
    wanted = set(partitions)
    topics = brokers.topics(sorted({partition.topic for partition in wanted}), existing_only=True)
    return brokers.logs({name: topic.only(wanted) for name, topic in topics.items()})


def _belongs(position: Position, log: Log | None) -> bool:
    """Whether the position was saved for this topic and cluster."""
    if log is None:
        return False
    try:
        check_identity(position, log.topic_id, log.cluster_id)
    except PositionRefused:
        return False
    return True


def _lag(
    position: Position,
    log: Log | None,
    times: Mapping[Partition, datetime | None],
    retentions: Mapping[str, TopicRetention],
    now: datetime,
) -> Lag:
    if log is None:
        return Lag(None)
    records, partition = max(0, log.end - position.next_offset), position.partition
    if partition not in times:
        return Lag(log, records, 0.0)
    unread, retention = times[partition], retentions.get(partition.topic)
    age = None if unread is None else max(0.0, (now - unread).total_seconds())
    return Lag(log, records, age, unread, retention.left(unread, now) if retention else None)


def _retentions(brokers: Brokers, topics: Iterable[str]) -> dict[str, TopicRetention]:
    wanted = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in sorted(topics)]
    if not wanted:
        return {}
    try:
        found = brokers.ask(lambda admin: admin.describe_configs(wanted, request_timeout=TIMEOUT))
    except TallymarkError:
        # A client that may read a topic may lack the ACL to describe its configuration.
        return {}
    configs = {topic.name: {entry.name: entry.value for entry in entries.values()} for topic, entries in found.items()}
    known = {topic: TopicRetention.of(config) for topic, config in configs.items()}
    return {topic: retention for topic, retention in known.items() if retention is not None}
