"""Single records by their offsets, and whether a log still holds what it held: by a client that fetches little else."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tallymark.cluster import Cluster
from tallymark.complaints import judged
from tallymark.errors import TallymarkError, Unreachable
from tallymark.read import Record
from tallymark.spans import Partition
from tallymark.times import headers, timestamp

TIMEOUT = 10.0
NEAR = 100
"""Offsets between two records that are read sooner than the second is asked for by itself."""
ENDS = {KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET}


class Probe:
    """Looks into partitions without being a member of any group. ``explain`` translates the errors of the client."""

    def __init__(self, cluster: Cluster, explain: Callable[[Any, str | None], TallymarkError]) -> None:
        self._cluster = cluster
        self._explain = explain

    def records(self, wanted: Mapping[Partition, Collection[int]]) -> dict[tuple[Partition, int], Record]:
        """Single records by their offsets, as they are in Kafka. Those that are gone are missing from the answer."""
        left = {partition: runs(offsets) for partition, offsets in wanted.items() if offsets}
        found: dict[tuple[Partition, int], Record] = {}
        with self._client("error") as client:
            while left:
                self._read(client, {partition: each.popleft() for partition, each in left.items()}, found)
                left = {partition: each for partition, each in left.items() if each}
        return found

    def truncated(self, positions: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
        """Of these positions with their leader epochs, those whose logs were cut before them, and the offset of that.

        A client that starts with an epoch asks where that epoch ends in the log of the present leader. If that is
        before the position it starts there instead, and the first record that it delivers has taken the offset of
        another one. If it delivers none before the position, nothing that can be read has changed.
        """
        left, found = dict(positions), {}
        with self._client("earliest") as client:
            client.assign([placed(partition, *at) for partition, at in left.items()])
            for partition, message in self._arriving(client, left):
                if message.offset() < left.pop(partition)[0]:
                    found[partition] = int(message.offset())
        return found

    def _read(
        self, client: Consumer, wanted: dict[Partition, deque[int]], found: dict[tuple[Partition, int], Record]
    ) -> None:
        """One run of offsets of each of these partitions."""
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
                # Or it would go on delivering what nobody wants.
                client.incremental_unassign([placed(partition, 0)])
                del wanted[partition]

    def _go_into(self, client: Consumer, partition: Partition, run: deque[int]) -> None:
        """Go on with the first of these offsets that the log holds; the others are gone."""
        try:
            start, end = client.get_watermark_offsets(placed(partition, 0), TIMEOUT)
        except KafkaException as error:
            raise self._explain(error.args[0], partition.topic) from error
        held = [offset for offset in run if start <= offset < end]
        if len(held) == len(run):
            raise Unreachable(f"{partition}: the brokers had offset {run[0]} out of range and hold it now")
        run.clear()
        run.extend(held)
        if run:
            client.incremental_unassign([placed(partition, 0)])
            client.incremental_assign([placed(partition, run[0])])

    def _arriving(self, client: Consumer, left: Mapping[Partition, Any]) -> Iterator[tuple[Partition, Any]]:
        """Messages of those partitions that are left, ends of them, and that an offset is out of their range."""
        deadline = time.monotonic() + TIMEOUT
        while left:
            for message in client.consume(1_000, 0.1):
                error, partition = message.error(), Partition(str(message.topic()), int(message.partition() or 0))
                # librdkafka goes on trying by itself.
                if partition not in left:
                    # Also an error that is about no partition, such as the coordinator of a group that nobody joins.
                    continue
                if error is not None and error.code() not in ENDS and not judged(error).error.transient:
                    raise self._explain(error, partition.topic)
                if error is None or error.code() in ENDS:
                    deadline = time.monotonic() + TIMEOUT
                    yield partition, message
            if left and time.monotonic() > deadline:
                raise Unreachable(f"the brokers at {self._cluster.brokers} do not deliver {min(left)}")

    @contextmanager
    def _client(self, reset: str) -> Iterator[Consumer]:
        client = Consumer(
            {
                **self._cluster.settings(),
                "group.id": "tallymark",  # required, and never joined
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": reset,
                "fetch.wait.max.ms": 20,
                "fetch.message.max.bytes": 256 << 10,
                "queued.min.messages": 1,
                "log_level": 0,
            }
        )
        try:
            yield client
        finally:
            client.close()


def runs(offsets: Collection[int]) -> deque[deque[int]]:
    """Offsets in their order, in runs of those that are near each other."""
    found: deque[deque[int]] = deque()
    for offset in sorted(set(offsets)):
        if found and offset - found[-1][-1] <= NEAR:
            found[-1].append(offset)
        else:
            found.append(deque([offset]))
    return found


def placed(partition: Partition, offset: int, leader_epoch: int | None = None) -> TopicPartition:
    """An offset of a partition, with the leader epoch by which a client validates it, if that is known."""
    if leader_epoch is None:
        return TopicPartition(partition.topic, partition.number, offset)
    return TopicPartition(partition.topic, partition.number, offset, leader_epoch=leader_epoch)


def _record(message: Any) -> Record:
    return Record(message.offset(), timestamp(message), message.key(), message.value(), headers(message))
