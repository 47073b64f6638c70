"""Reads single records and their timestamps, and detects truncated logs, with a client that fetches little."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tallymark.core.records import RawRecord
from tallymark.core.spans import Partition
from tallymark.core.times import headers, timestamp
from tallymark.errors import TallymarkError, Unreachable
from tallymark.kafka.cluster import Cluster
from tallymark.kafka.diagnosis import judged

TIMEOUT = 10.0
NEAR = 100
"""Maximum distance of two offsets for which reading on is faster than a new request."""
ENDS = {KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET}


class Probe:
    """Reads partitions without joining a group. ``explain`` converts the errors of the client."""

    def __init__(self, cluster: Cluster, explain: Callable[[Any, str | None], TallymarkError]) -> None:
        self._cluster = cluster
        self._explain = explain

    def records(self, wanted: Mapping[Partition, Collection[int]]) -> dict[tuple[Partition, int], RawRecord]:
        """Return the records at these offsets. Records that no longer exist are left out."""
        left = {partition: runs(offsets) for partition, offsets in wanted.items() if offsets}
        found: dict[tuple[Partition, int], RawRecord] = {}
        with self._client("error", "read_committed") as client:
            while left:
                self._read(client, {partition: each.popleft() for partition, each in left.items()}, found)
                left = {partition: each for partition, each in left.items() if each}
        return found

    def truncated(self, positions: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
        """Return the positions (offset and leader epoch) whose logs were truncated before them, and at which offset.

        A client that starts with an epoch asks the current leader for the end offset of that epoch. If it is before the
        position, the client starts there instead, and its first record has replaced another record at the same offset.
        If there is no record before the position, no readable record has changed. Reads uncommitted records: otherwise
        the client would read on to the next committed record.
        """
        left, found = dict(positions), {}
        with self._client("earliest", "read_uncommitted") as client:
            client.assign([placed(partition, *at) for partition, at in left.items()])
            for partition, message in self._arriving(client, left):
                if message.offset() < left.pop(partition)[0]:
                    found[partition] = int(message.offset())
        return found

    def first_times(self, offsets: Mapping[Partition, int], isolation: str) -> dict[Partition, datetime | None]:
        """Return the timestamp of the first record at or after each offset; a partition without one is left out."""
        left, times = dict(offsets), {}
        with self._client("earliest", isolation) as client:
            client.assign([placed(partition, offset) for partition, offset in offsets.items()])
            for partition, message in self._arriving(client, left):
                del left[partition]
                client.incremental_unassign([placed(partition, 0)])
                if message.error() is None:
                    times[partition] = timestamp(message)
        return times

    def _read(
        self, client: Consumer, wanted: dict[Partition, deque[int]], found: dict[tuple[Partition, int], RawRecord]
    ) -> None:
        """Read one run of offsets of each partition."""
        client.assign([placed(partition, run[0]) for partition, run in wanted.items()])
        for partition, message in self._arriving(client, wanted):
            error, run = message.error(), wanted[partition]
            if error is None:
                while run and run[0] <= message.offset():
                    if run.popleft() == message.offset():
                        found[partition, message.offset()] = _record(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                run.clear()
            else:
                self._go_into(client, partition, run)
            if not run:
                # Otherwise the client would continue to deliver its records.
                client.incremental_unassign([placed(partition, 0)])
                del wanted[partition]

    def _go_into(self, client: Consumer, partition: Partition, run: deque[int]) -> None:
        """Continue with the first of these offsets that the log holds, and drop those that it does not hold."""
        try:
            start, end = client.get_watermark_offsets(placed(partition, 0), TIMEOUT)
        except KafkaException as error:
            raise self._explain(error.args[0], partition.topic) from error
        held = [offset for offset in run if start <= offset < end]
        if len(held) == len(run):
            raise Unreachable(
                f"{partition}: the brokers reported offset {run[0]} out of range, and hold it now; try again"
            )
        run.clear()
        run.extend(held)
        if run:
            client.incremental_unassign([placed(partition, 0)])
            client.incremental_assign([placed(partition, run[0])])

    def _arriving(self, client: Consumer, left: Mapping[Partition, Any]) -> Iterator[tuple[Partition, Any]]:
        """Yield the messages, EOF events and out-of-range errors of the partitions in ``left``."""
        deadline = time.monotonic() + TIMEOUT
        while left:
            for message in client.consume(1_000, 0.1):
                error, partition = message.error(), Partition(str(message.topic()), int(message.partition() or 0))
                if partition not in left:
                    # Includes errors without a partition, such as those about the coordinator of the unused group.
                    continue
                # librdkafka retries transient errors.
                if error is not None and error.code() not in ENDS and not judged(error).error.transient:
                    raise self._explain(error, partition.topic)
                if error is None or error.code() in ENDS:
                    deadline = time.monotonic() + TIMEOUT
                    yield partition, message
            if left and time.monotonic() > deadline:
                raise Unreachable(
                    f"the brokers at {self._cluster.brokers} do not deliver records of {min(left)}; try again"
                )

    @contextmanager
    def _client(self, reset: str, isolation: str) -> Iterator[Consumer]:
        client = Consumer(
            {
                **self._cluster.settings(),
                "group.id": "tallymark",  # required, and never joined
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": reset,
                "isolation.level": isolation,
                "fetch.wait.max.ms": 20,
                "fetch.message.max.bytes": 256 << 10,
                "queued.min.messages": 1,
                # A transaction marker fills such a queue, and by default delays the next fetch by a second.
                "fetch.queue.backoff.ms": 10,
                "log_level": 0,
            }
        )
        try:
            yield client
        finally:
            client.close()


def runs(offsets: Collection[int]) -> deque[deque[int]]:
    """Return the offsets sorted, grouped in runs of nearby offsets."""
    found: deque[deque[int]] = deque()
    for offset in sorted(set(offsets)):
        if found and offset - found[-1][-1] <= NEAR:
            found[-1].append(offset)
        else:
            found.append(deque([offset]))
    return found


def placed(partition: Partition, offset: int, leader_epoch: int | None = None) -> TopicPartition:
    """Return an offset of a partition, with the leader epoch that the client validates, if known."""
    if leader_epoch is None:
        return TopicPartition(partition.topic, partition.number, offset)
    return TopicPartition(partition.topic, partition.number, offset, leader_epoch=leader_epoch)


def _record(message: Any) -> RawRecord:
    return RawRecord(message.offset(), timestamp(message), message.key(), message.value(), headers(message))
