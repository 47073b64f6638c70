"""Fetches records with librdkafka: claimed partitions for services, and small spans for the Spark driver.

The fetching client is not the group member: it joins no group, commits nothing, and is assigned explicit offsets.
librdkafka fetches ahead in the background, up to a limit, independently of the handler.

The client of a driver continues where the last span of a partition ended, and often has the next records in its queue.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tallymark.core.spans import Partition, Span
from tallymark.errors import BatchTooLarge, TallymarkError, Unreachable
from tallymark.kafka.brokers import TIMEOUT, Brokers, connect
from tallymark.kafka.diagnosis import judged
from tallymark.kafka.probe import placed
from tallymark.kafka.source import Kafka

FETCH = {
    "group.id": "tallymark",  # required, and never joined
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    # Transaction markers may follow the last record of a partition; the EOF event returns the offset after them.
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    "queued.min.messages": 100_000,
    "fetch.message.max.bytes": 8 << 20,
    "log_level": 0,
}
MOST_AT_ONCE = 1_000_000
"""Maximum number of messages that librdkafka returns in one call."""


class OutOfRange(TallymarkError):
    """The log does not hold the requested offset."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(f"{partition}: the next offset is out of range at the brokers")
        self.partition = partition


@dataclass
class Fetched:
    """The fetched messages of one partition, in order, and the next offset.

    ``leader_epoch`` is the epoch of the leader that wrote the last record or transaction marker.
    """

    stop: int
    messages: list[Any] = field(default_factory=list)
    leader_epoch: int | None = None


class Fetcher:
    """Fetches partitions from given offsets on."""

    def __init__(self, source: Kafka, brokers: Brokers, settings: Mapping[str, Any] | None = None) -> None:
        self._settings = {**FETCH, **(settings or {}), **source.settings, **source.cluster.settings()}
        self._brokers = brokers
        self.cursor: dict[Partition, int] = {}
        self._epochs: dict[Partition, int | None] = {}
        """Leader epochs in which the log held all offsets before the cursor, for the client to detect truncations."""
        self._ever: set[Partition] = set()
        self._client: Consumer | None = None

    def add(self, offsets: Mapping[Partition, int], epochs: Mapping[Partition, int | None] | None = None) -> None:
        """Also fetch these partitions from these offsets, with the leader epochs of the positions, if known.

        If this client has fetched one of the partitions before, it is replaced by a new client. Messages that the old
        client has queued must not be returned as the next records: offsets that seem to be missing count as absent.
        """
        again = bool(self._ever & offsets.keys())
        self.cursor |= offsets
        self._epochs |= {partition: (epochs or {}).get(partition) for partition in offsets}
        if again:
            self.close()
        if self._client is None:
            self._client, self._ever, offsets = connect(Consumer, self._settings), set(), self.cursor
        self._ever |= offsets.keys()
        if offsets:
            self._client.incremental_assign(
                [placed(partition, offset, self._epochs.get(partition)) for partition, offset in offsets.items()]
            )

    def remove(self, partitions: Iterable[Partition]) -> None:
        gone = [partition for partition in partitions if self.cursor.pop(partition, None) is not None]
        if gone and self._client is not None:
            self._client.incremental_unassign([TopicPartition(old.topic, old.number) for old in gone])

    def fetch(self, most: int, wait: float) -> dict[Partition, Fetched]:
        """Return up to ``most`` records as soon as any are available, and the ends of partitions that were reached."""
        if self._client is None or not self.cursor:
            return {}
        messages = self._client.consume(1, wait)
        if messages and most > 1:
            messages += self._client.consume(min(most - 1, MOST_AT_ONCE), 0)
        try:
            fetched = self._sorted(messages)
        except TallymarkError:
            # Messages that came with the error are not returned. They must be fetched again: otherwise they would count
            # as absent.
            self.close()
            self.add({})
            raise
        moved = {partition: got for partition, got in fetched.items() if got.stop > self.cursor[partition]}
        self.cursor |= {partition: got.stop for partition, got in moved.items()}
        for partition, got in moved.items():
            got.leader_epoch = self._epochs[partition] = self._epoch(partition, got)
        return moved

    def _epoch(self, partition: Partition, got: Fetched) -> int | None:
        """Return the leader epoch at the end of what was fetched.

        The epoch of the last record is not enough: aborted records after it would look like a truncation.
        """
        if got.messages and got.messages[-1].offset() + 1 == got.stop:
            return cast("int | None", got.messages[-1].leader_epoch())
        assert self._client is not None
        (reached,) = self._client.position([TopicPartition(partition.topic, partition.number)])
        return self._epochs[partition] if reached.leader_epoch is None else int(reached.leader_epoch)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _sorted(self, messages: Iterable[Any]) -> dict[Partition, Fetched]:
        fetched: dict[Partition, Fetched] = {}
        places: dict[tuple[Any, Any], Fetched | None] = {}
        for message in messages:
            place = message.topic(), message.partition()
            if place not in places:
                partition = Partition(str(place[0]), int(place[1] or 0))
                if partition in self.cursor:
                    fetched[partition] = Fetched(self.cursor[partition])
                places[place] = fetched.get(partition)
            got, error, offset = places[place], message.error(), message.offset()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                self._failed(error, message, mine=got is not None)
            elif got is not None and error is not None:
                got.stop = max(got.stop, offset)
            elif got is not None and offset >= got.stop:
                got.messages.append(message)
                got.stop = offset + 1
        return fetched

    def _failed(self, error: Any, message: Any, *, mine: bool) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET and mine:
            raise OutOfRange(Partition(message.topic(), message.partition()))
        # librdkafka retries transient errors, and refreshes its metadata if necessary.
        if mine and not judged(error).error.transient:
            raise self._brokers.explain(error, message.topic())


AHEAD = {"queued.max.messages.kbytes": 16 << 10, "fetch.message.max.bytes": 256 << 10, "fetch.queue.backoff.ms": 10}
"""Limits on fetching ahead: records fetched ahead are wasted if the next batch is large, because Spark reads it.

queued.min.messages is no suitable limit: with it, librdkafka fetches one partition to its end before the next.
"""
AT_A_TIME = 2000
"""Minimum number of messages to take: those of one partition may be queued before those of the others."""
MOST_WAITING = 20_000
"""Maximum number of messages kept for a partition that is not being read; beyond it, they are fetched again later."""


class Direct:
    """Reads sets of spans, one set at a time, from any thread."""

    def __init__(self, source: Kafka, brokers: Brokers) -> None:
        self._brokers = brokers
        self._fetcher = Fetcher(source, brokers, AHEAD)
        self._waiting: dict[Partition, list[Any]] = {}
        self._next: dict[Partition, int] = {}
        self._gone: set[Partition] = set()
        self._lock = threading.Lock()
        self._cancelled = threading.Event()

    def read(self, spans: Sequence[Span], most_bytes: int = sys.maxsize) -> list[Any]:
        """Return all messages of these spans, in order within each partition."""
        with self._lock:
            try:
                self._go_to(spans)
                self._fetch_until({span.partition: span.stop for span in spans}, most_bytes)
                return [message for span in spans for message in self._taken(span)]
            except OutOfRange as error:
                self._drop()
                # The log has changed since planning: the next plan determines whether records are lost.
                raise Unreachable(str(error)) from error
            except BaseException:
                self._drop()
                raise

    def release(self, partitions: Collection[Partition]) -> None:
        """Discard what was fetched of these partitions: they are no longer assigned to this member."""
        self._gone.update(partitions)

    def close(self) -> None:
        """Close the client; the next read creates a new one."""
        with self._lock:
            self._drop()

    def cancel(self) -> None:
        """Abort a read in another thread, and refuse further reads."""
        self._cancelled.set()
        self.close()

    def _drop(self) -> None:
        self._fetcher.close()
        self._fetcher.cursor.clear()
        self._waiting.clear()
        self._next.clear()

    def _go_to(self, spans: Sequence[Span]) -> None:
        read = {span.partition for span in spans}
        self._remove([other for other in self._waiting.keys() - read if len(self._waiting[other]) > MOST_WAITING])
        while self._gone:
            self._remove([self._gone.pop()])
        elsewhere = {span.partition: span.start for span in spans if self._next.get(span.partition) != span.start}
        self._remove(elsewhere)
        if elsewhere:
            self._waiting |= {partition: [] for partition in elsewhere}
            self._fetcher.add(elsewhere)

    def _remove(self, partitions: Iterable[Partition]) -> None:
        gone = list(partitions)
        self._fetcher.remove(gone)
        for partition in gone:
            self._waiting.pop(partition, None)
            self._next.pop(partition, None)

    def _fetch_until(self, stops: dict[Partition, int], most_bytes: int) -> None:
        reached = {partition: self._fetcher.cursor[partition] for partition in stops}
        size = sum(_size(self._waiting[partition], stop) for partition, stop in stops.items())
        least, deadline = sys.maxsize, 0.0
        while left := sum(max(0, stop - reached[partition]) for partition, stop in stops.items()):
            if left < least:
                least, deadline = left, time.monotonic() + TIMEOUT
            if self._cancelled.is_set() or time.monotonic() > deadline:
                raise Unreachable(f"the brokers at {self._brokers.address} do not deliver records")
            for partition, got in self._fetcher.fetch(max(AT_A_TIME, left), 0.1).items():
                reached[partition] = got.stop
                self._waiting[partition] += got.messages
                size += _size(got.messages, stops.get(partition, 0))
            if size > most_bytes:
                raise BatchTooLarge(f"records of {size:,} bytes are more than limits.memory={most_bytes:,}")

    def _taken(self, span: Span) -> list[Any]:
        waiting = self._waiting[span.partition]
        count = next((at for at, message in enumerate(waiting) if message.offset() >= span.stop), len(waiting))
        self._waiting[span.partition], self._next[span.partition] = waiting[count:], span.stop
        return waiting[:count]


def _size(messages: Iterable[Any], stop: int) -> int:
    """Return the bytes of the messages before ``stop``: later messages belong to another batch."""
    return sum(len(message) for message in messages if message.offset() < stop)
