"""Reads a topic without a group: from any start, up to its present end or without end."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import datetime
from typing import Any

from tallymark.core.spans import Log, Partition
from tallymark.core.start import Start
from tallymark.core.times import headers, timestamp
from tallymark.errors import BadInput
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.cluster import Cluster
from tallymark.kafka.fetch import Fetcher
from tallymark.kafka.source import Kafka
from tallymark.service.records import Record

AT_ONCE, WAIT_SECONDS = 1_000, 0.2
SILENT_SECONDS = 10.0
"""How long to wait without records before checking that the brokers still answer."""
FORMS = "earliest, latest, an offset, -N for the last N of each partition, or a time such as 2026-01-31T12:00:00Z"


class Look:
    """The records of a topic or of a partition, without those of aborted or open transactions."""

    def __init__(self, cluster: Cluster, topic: str, start: str, partition: int | None = None) -> None:
        self._brokers = Brokers(cluster)
        self._source = Kafka(cluster.brokers, topic, security=cluster.security, tls=cluster.tls)
        logs = self._brokers.logs(self._brokers.topics([topic]))
        self._logs = {one: log for one, log in logs.items() if partition in (None, one.number)}
        if not self._logs:
            raise BadInput(f"topic {topic} has no partition {partition}; its partitions are 0..{len(logs) - 1}")
        self._offsets = self._starting_offsets(start)

    @property
    def offsets(self) -> int:
        """The number of offsets between the start and the end."""
        return sum(max(0, self._logs[partition].stop - offset) for partition, offset in self._offsets.items())

    def records(self, *, follow: bool) -> Iterator[Record]:
        """Yield records, in order within each partition, up to the end of the log at creation, or without end."""
        left = {
            partition: log.stop
            for partition, log in self._logs.items()
            if follow or self._offsets[partition] < log.stop
        }
        with closing(Fetcher(self._source, self._brokers)) as fetcher:
            fetcher.add({partition: self._offsets[partition] for partition in left})
            heard = time.monotonic()
            while left:
                came = fetcher.fetch(AT_ONCE, WAIT_SECONDS)
                if came:
                    heard = time.monotonic()
                elif not follow and time.monotonic() - heard > SILENT_SECONDS:
                    self._brokers.topics(self._source.topic_names)
                for partition, fetched in came.items():
                    for message in fetched.messages:
                        if follow or message.offset() < left.get(partition, 0):
                            yield _record(message)
                    if not follow and fetched.stop >= left.get(partition, 0):
                        left.pop(partition, None)
                        fetcher.remove([partition])

    def _starting_offsets(self, start: str) -> Mapping[Partition, int]:
        if re.fullmatch(r"-?\d+", start):
            return {partition: _clamped(log, int(start)) for partition, log in self._logs.items()}
        if start in ("earliest", "latest"):
            return {partition: log.start if start == "earliest" else log.stop for partition, log in self._logs.items()}
        try:
            moment = Start.at(datetime.fromisoformat(start.replace("Z", "+00:00"))).timestamp
        except ValueError:
            raise BadInput(f"--from {start} is not known; write {FORMS}") from None
        assert moment is not None
        offsets = self._brokers.offsets_at(self._logs, moment)
        return {
            partition: log.stop if offsets[partition] is None else offsets[partition] or 0
            for partition, log in self._logs.items()
        }


def _clamped(log: Log, offset: int) -> int:
    return min(log.stop, max(log.start, offset if offset >= 0 else log.stop + offset))


def _record(message: Any) -> Record:
    place = message.topic(), message.partition(), message.offset()
    return Record(*place, timestamp(message), message.key(), message.value(), headers(message))
