"""Positions written back to the Kafka group, for tools that look for lag there. Nothing ever reads them again.

They go out by the member's own client, so that the brokers refuse them from a member that was replaced. Only the latest
position of a partition matters, and nobody waits for an answer: while one is awaited, others gather.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tallymark.complaints import HANDOVER, judged
from tallymark.spans import Partition

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""How long to wait before what failed is sent again."""


class Mirror:
    """Positions on their way to the group. ``note`` is called by whoever works, the rest by the member's thread."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._waiting: dict[Partition, int] = {}
        self._under_way = 0
        self._not_before = 0.0
        self._complained = False

    def note(self, positions: Mapping[Partition, int]) -> None:
        with self._lock:
            self._waiting.update(positions)

    def serve(self, client: Consumer, ours: Collection[Partition]) -> None:
        """Send what waits, if nothing is under way. What is not ours is another one's to tell."""
        with self._lock:
            if self._under_way or not self._waiting or time.monotonic() < self._not_before:
                return
        self.send(client, ours)

    def send(self, client: Consumer, ours: Collection[Partition]) -> None:
        """Send at once what waits for these partitions, and forget the others."""
        with self._lock:
            going, self._waiting = self._waiting, {}
            offsets = [TopicPartition(one.topic, one.number, at) for one, at in going.items() if one in ours]
            self._under_way += bool(offsets)
        if offsets:
            try:
                client.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:
                self.answered(error.args[0], offsets)

    def forget(self, partitions: Iterable[Partition]) -> None:
        with self._lock:
            for partition in partitions:
                self._waiting.pop(partition, None)

    def answered(self, error: Any, offsets: Iterable[TopicPartition]) -> None:
        """What failed goes again, unless there is news of the partition meanwhile."""
        listed = list(offsets)
        error = error or next((one.error for one in listed if one.error), None)
        with self._lock:
            self._under_way = max(0, self._under_way - 1)
            if error is None:
                self._complained = False
                return
            failed = {Partition(one.topic, one.partition): one.offset for one in listed}
            self._waiting = {**failed, **self._waiting}
            self._not_before = time.monotonic() + AGAIN_SECONDS
            complained, self._complained = self._complained, judged(error) is not HANDOVER or self._complained
        if not complained and self._complained:
            log.warning("positions are not mirrored to Kafka for now group=%s error=%s", self._group, error.str())
