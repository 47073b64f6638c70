"""Small spans, read by a client of the driver's own: to start a Spark job takes longer than to read them.

The client goes on where the last span of a partition ended, and often has what comes next before anybody asks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from tallymark.brokers import TIMEOUT, Brokers
from tallymark.errors import Unreachable
from tallymark.fetch import Fetcher, OutOfRange
from tallymark.source import Kafka
from tallymark.spans import Partition, Span

AHEAD = {"queued.max.messages.kbytes": 16 << 10, "fetch.message.max.bytes": 256 << 10, "fetch.queue.backoff.ms": 10}
"""More than this would be fetched in vain when the next batch is a large one, which Spark reads.

A bound on queued.min.messages is none: with it, librdkafka fetches one partition to its end before the next.
"""
AT_A_TIME = 2000
"""Messages to take at least: those of one partition may stand before those of the others."""


class Direct:
    """Reads spans one set after the other, from any thread."""

    def __init__(self, source: Kafka, brokers: Brokers) -> None:
        self._brokers = brokers
        self._fetcher = Fetcher(source, brokers, AHEAD)
        self._waiting: dict[Partition, list[Any]] = {}
        self._next: dict[Partition, int] = {}
        self._lock = threading.Lock()
        self._cancelled = threading.Event()

    def read(self, spans: Sequence[Span]) -> list[Any]:
        """The messages of these spans, all of them, in order within each partition."""
        with self._lock:
            try:
                self._go_to(spans)
                self._fetch_until({span.partition: span.stop for span in spans})
                return [message for span in spans for message in self._taken(span)]
            except OutOfRange as error:
                self._drop()
                # The log moved under us: planning again tells whether records are lost.
                raise Unreachable(str(error)) from error
            except BaseException:
                self._drop()
                raise

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

    def _go_to(self, spans: Iterable[Span]) -> None:
        elsewhere = [span for span in spans if self._next.get(span.partition) != span.start]
        self._fetcher.remove(span.partition for span in elsewhere)
        for span in elsewhere:
            self._waiting[span.partition] = []
        if elsewhere:
            self._fetcher.add({span.partition: span.start for span in elsewhere})

    def _fetch_until(self, stops: dict[Partition, int]) -> None:
        deadline, cursor = time.monotonic() + TIMEOUT, self._fetcher.cursor
        while left := sum(max(0, stop - cursor[partition]) for partition, stop in stops.items()):
            fetched = self._fetcher.fetch(max(AT_A_TIME, left), 0.1)
            if fetched:
                deadline = time.monotonic() + TIMEOUT
            elif self._cancelled.is_set() or time.monotonic() > deadline:
                raise Unreachable(f"the brokers at {self._brokers.address} do not deliver records")
            for partition, got in fetched.items():
                self._waiting[partition] += got.messages

    def _taken(self, span: Span) -> list[Any]:
        waiting = self._waiting[span.partition]
        count = next((at for at, message in enumerate(waiting) if message.offset() >= span.stop), len(waiting))
        self._waiting[span.partition], self._next[span.partition] = waiting[count:], span.stop
        return waiting[:count]
