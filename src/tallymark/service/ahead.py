"""Fetches and decodes the next batch in a separate thread while the handler works, on request.

A change to the fetched partitions first waits for that thread, and discards what it fetched from the changed
partitions; those records are fetched again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from confluent_kafka import KafkaException

from tallymark.core.records import DeadLetter
from tallymark.core.retry import Background
from tallymark.core.spans import Partition
from tallymark.errors import TallymarkError
from tallymark.formats.decoders import Decoders
from tallymark.kafka.fetch import Fetched, Fetcher
from tallymark.service.records import Records, Unnamed, decoded

Answer = Callable[[], None]


@dataclass(frozen=True)
class Taken:
    """Fetched messages, with their decoded records.

    ``same_topics`` raises if a topic was recreated; it is None if this was not requested yet.
    """

    fetched: Mapping[Partition, Fetched]
    same_topics: Answer | None
    records: Records
    letters: list[DeadLetter]
    unnamed: Unnamed


class Ahead:
    """A fetcher that can fetch one batch ahead.

    ``ask`` is called after each fetch to request the identity of the topics; the function that it returns waits for the
    answer.
    """

    def __init__(self, fetcher: Fetcher, decoders: Decoders, ask: Callable[[], Answer]) -> None:
        self._fetcher = fetcher
        self._decoders = decoders
        self._ask = ask
        self._thread = Background("tallymark-fetch")
        self._pending: Future[Taken] | None = None
        self._undecoded: Mapping[Partition, Fetched] = {}
        """What was fetched and not delivered: a registry that does not answer must not lose records."""
        self.current: dict[Partition, int] = {}
        """The next offset of each partition to be delivered."""

    def start(self, most: int, wait: float) -> None:
        """Start to fetch up to ``most`` records, unless a fetch is in progress."""
        if self._pending is None:
            self._pending = self._thread.submit(lambda: self._taken(most, wait))

    def take(self, most: int, wait: float) -> Taken:
        """Return the next records and the offsets reached: those fetched ahead, or else from a fetch now."""
        pending, self._pending = self._pending, None
        taken = pending.result() if pending else self._taken(most, wait)
        self.current |= {partition: part.stop for partition, part in taken.fetched.items()}
        return taken

    def add(self, offsets: Mapping[Partition, int], epochs: Mapping[Partition, int | None] | None = None) -> None:
        """Start to fetch these partitions, or continue at other offsets in them."""
        self._drop(offsets)
        self._fetcher.add(offsets, epochs)
        self.current |= offsets

    def remove(self, partitions: Iterable[Partition]) -> None:
        gone = list(partitions)
        self._drop(gone)
        self._fetcher.remove(gone)
        for partition in gone:
            self.current.pop(partition, None)

    def close(self) -> None:
        self._drop(())
        self._fetcher.close()
        self._thread.close()

    def _drop(self, partitions: Iterable[Partition]) -> None:
        """Wait for the fetch in progress, and discard what was fetched from these partitions."""
        fetched, gone = self._undecoded, set(partitions)
        if self._pending is not None:
            # The next take() raises the error.
            with suppress(TallymarkError):
                fetched = self._pending.result().fetched
            fetched = fetched or self._undecoded
        if gone & fetched.keys():
            self._undecoded = {partition: part for partition, part in fetched.items() if partition not in gone}
            # The next take() decodes the rest again.
            self._pending = None

    def _taken(self, most: int, wait: float) -> Taken:
        """Fetch and decode. What could not be decoded because of an error is decoded by the next call."""
        self._undecoded = self._undecoded or self._fetcher.fetch(most, wait)
        fetched = self._undecoded
        same_topics = None
        # A failed request must not lose the fetched records.
        with suppress(TallymarkError, KafkaException):
            same_topics = self._ask() if fetched else None
        messages = list(chain.from_iterable(part.messages for part in fetched.values()))
        taken = Taken(fetched, same_topics, *decoded(self._decoders, messages))
        self._undecoded = {}
        return taken
