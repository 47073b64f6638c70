"""The next records, fetched and decoded in a thread of their own while the handler works on the last ones, if asked to.

Whoever changes what is fetched waits for that thread first, and what it has brought of the partitions in question is
thrown away: it is fetched again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from confluent_kafka import KafkaException

from tallymark.background import Background
from tallymark.errors import TallymarkError
from tallymark.fetch import Fetched, Fetcher
from tallymark.formats import Decoder
from tallymark.read import DeadLetter
from tallymark.records import Records, decoded
from tallymark.spans import Partition

Answer = Callable[[], None]


@dataclass(frozen=True)
class Taken:
    """What was fetched, and its records decoded.

    ``same_topics`` raises if they are of topics that others have replaced; None if that was not asked yet.
    """

    fetched: Mapping[Partition, Fetched]
    same_topics: Answer | None
    records: Records
    letters: list[DeadLetter]


class Ahead:
    """A fetcher that works ahead by one batch. ``ask`` is called after each fetch, and answers when it is needed."""

    def __init__(self, fetcher: Fetcher, decode: Decoder, ask: Callable[[], Answer]) -> None:
        self._fetcher = fetcher
        self._decode = decode
        self._ask = ask
        self._thread = Background("tallymark-fetch")
        self._pending: Future[Taken] | None = None
        self.current: dict[Partition, int] = {}
        """The next offset of each partition to be handed out."""

    def start(self, most: int, wait: float) -> None:
        """Fetch up to so many records, unless that is being done."""
        if self._pending is None:
            self._pending = self._thread.submit(lambda: self._taken(self._fetcher.fetch(most, wait)))

    def take(self, most: int, wait: float) -> Taken:
        """The next records, and the ends of partitions that were reached: those fetched ahead, or else fetched now."""
        pending, self._pending = self._pending, None
        taken = pending.result() if pending else self._taken(self._fetcher.fetch(most, wait))
        self.current |= {partition: got.stop for partition, got in taken.fetched.items()}
        return taken

    def add(self, offsets: Mapping[Partition, int], epochs: Mapping[Partition, int | None] | None = None) -> None:
        """Fetch these too, or go on elsewhere in them."""
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
        """Wait for what is being fetched, and keep what is not of these partitions."""
        if self._pending is None:
            return
        wait_for, gone = self._pending, set(partitions)
        # Whoever takes next is told.
        with suppress(TallymarkError):
            taken = wait_for.result()
            kept = {partition: got for partition, got in taken.fetched.items() if partition not in gone}
            if len(kept) < len(taken.fetched):
                self._pending = Future()
                self._pending.set_result(self._taken(kept))

    def _taken(self, fetched: Mapping[Partition, Fetched]) -> Taken:
        same_topics = None
        # What was fetched must not be lost with the question.
        with suppress(TallymarkError, KafkaException):
            same_topics = self._ask() if fetched else None
        messages = list(chain.from_iterable(got.messages for got in fetched.values()))
        return Taken(fetched, same_topics, *decoded(self._decode, messages))
