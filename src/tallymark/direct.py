"""Small spans, read by a client of the driver's own: to start a Spark job takes longer than to read them.

The client goes on where the last span of a partition ended, and often has what comes next before anybody asks.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from tallymark.brokers import TIMEOUT, Brokers
from tallymark.errors import BatchTooLarge, Unreachable
from tallymark.fetch import Fetcher, OutOfRange
from tallymark.source import Kafka
from tallymark.spans import Partition, Span

AHEAD = {"queued.max.messages.kbytes": 16 << 10, "fetch.message.max.bytes": 256 << 10, "fetch.queue.backoff.ms": 10}
"""More than this would be fetched in vain when the next batch is a large one, which Spark reads.

A bound on queued.min.messages is none: with it, librdkafka fetches one partition to its end before the next.
"""
AT_A_TIME = 2000
"""Messages to take at least: those of one partition may stand before those of the others."""
MOST_WAITING = 20_000
"""Messages behind the end of its span that a partition may have; then it is fetched anew when it is asked for."""


class Direct:
    """Reads spans one set after the other, from any thread."""

    def __init__(self, source: Kafka, brokers: Brokers) -> None:
        self._brokers = brokers
        self._fetcher = Fetcher(source, brokers, AHEAD)
        self._waiting: dict[Partition, list[Any]] = {}
        self._next: dict[Partition, int] = {}
        self._gone: set[Partition] = set()
        self._lock = threading.Lock()
        self._cancelled = threading.Event()

    def read(self, spans: Sequence[Span], most_bytes: int = sys.maxsize) -> list[Any]:
        """The messages of these spans, all of them, in order within each partition."""
        with self._lock:
            try:
                self._go_to(spans)
                self._fetch_until({span.partition: span.stop for span in spans}, most_bytes)
                return [message for span in spans for message in self._taken(span)]
            except OutOfRange as error:
                self._drop()
                # The log moved under us: planning again tells whether records are lost.
                raise Unreachable(str(error)) from error
            except BaseException:
                self._drop()
                raise

    def let_go(self, partitions: Collection[Partition]) -> None:
        """These are not ours any more: nothing that was fetched of them is to be used."""
        self._gone.update(partitions)

    def close(self) -> None:
        """Give back the client; the next reading makes a new one."""
        with self._lock:
            self._drop()

    def cancel(self) -> None:
        """Give up a reading that is under way in another thread, and read no more."""
        self._cancelled.set()
        self.close()

    def _drop(self) -> None:
        self._fetcher.close()
        self._fetcher.cursor.clear()
        self._waiting.clear()
        self._next.clear()

    def _go_to(self, spans: Sequence[Span]) -> None:
        asked = {span.partition for span in spans}
        self._remove([one for one in self._waiting if one not in asked and len(self._waiting[one]) > MOST_WAITING])
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
    """The bytes of the messages before ``stop``: what was fetched ahead belongs to another batch."""
    return sum(len(message) for message in messages if message.offset() < stop)
