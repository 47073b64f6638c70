"""Records of claimed partitions, fetched by librdkafka from exactly where each is to go on.

The client that fetches is not the one that is a member of the group: it joins nothing, commits nothing, and is told
every offset. librdkafka fetches ahead in the background, up to a bound, whatever the handler does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tallymark.brokers import Brokers, connect
from tallymark.complaints import judged
from tallymark.errors import TallymarkError
from tallymark.probe import placed
from tallymark.source import Kafka
from tallymark.spans import Partition

FETCH = {
    "group.id": "tallymark",  # required, and never joined
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    # Where a partition ends is told, too: behind its last record there may be markers of transactions.
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    "queued.min.messages": 100_000,
    "fetch.message.max.bytes": 8 << 20,
    "log_level": 0,
}
MOST_AT_ONCE = 1_000_000
"""Messages that librdkafka hands over in one call."""


class OutOfRange(TallymarkError):
    """The log does not hold the offset that was asked for."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(f"{partition}: the brokers do not have the offset that is next")
        self.partition = partition


@dataclass
class Fetched:
    """What came of one partition: messages in order, and the offset at which it goes on."""

    stop: int
    messages: list[Any] = field(default_factory=list)


class Fetcher:
    """Fetches partitions from given offsets on."""

    def __init__(self, source: Kafka, brokers: Brokers, settings: Mapping[str, Any] | None = None) -> None:
        self._settings = {**FETCH, **(settings or {}), **source.settings, **source.cluster.settings()}
        self._brokers = brokers
        self.cursor: dict[Partition, int] = {}
        self._epochs: dict[Partition, int | None] = {}
        """Of the leader in which the log held what is before the cursor: with it the client notices a truncation."""
        self._ever: set[Partition] = set()
        self._client: Consumer | None = None

    def add(self, offsets: Mapping[Partition, int], epochs: Mapping[Partition, int | None] | None = None) -> None:
        """Fetch these too, from there on; with the leader epochs that the positions have, as far as they are known.

        A partition that this client had before gets a new client. What the old one may still have queued for it must
        not be taken for what comes next: offsets that seem to be missing count as absent.
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
            self._client.incremental_assign([placed(one, at, self._epochs.get(one)) for one, at in offsets.items()])

    def remove(self, partitions: Iterable[Partition]) -> None:
        gone = [partition for partition in partitions if self.cursor.pop(partition, None) is not None]
        if gone and self._client is not None:
            self._client.incremental_unassign([TopicPartition(one.topic, one.number) for one in gone])

    def fetch(self, most: int, wait: float) -> dict[Partition, Fetched]:
        """Up to so many records, as soon as there are any, and the ends of partitions that were reached."""
        if self._client is None or not self.cursor:
            return {}
        messages = self._client.consume(1, wait)
        if messages and most > 1:
            messages += self._client.consume(min(most - 1, MOST_AT_ONCE), 0)
        try:
            fetched = self._sorted(messages)
        except TallymarkError:
            # What came together with the error is not handed out: it has to come again, or it would seem absent.
            self.close()
            self.add({})
            raise
        moved = {partition: got for partition, got in fetched.items() if got.stop > self.cursor[partition]}
        self.cursor |= {partition: got.stop for partition, got in moved.items()}
        self._epochs |= {one: got.messages[-1].leader_epoch() for one, got in moved.items() if got.messages}
        return moved

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
            self._take(places[place], message)
        return fetched

    def _take(self, fetched: Fetched | None, message: Any) -> None:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            self._failed(error, message, mine=fetched is not None)
        elif fetched is not None and error is not None:
            fetched.stop = max(fetched.stop, message.offset())
        elif fetched is not None and message.offset() >= fetched.stop:
            fetched.messages.append(message)
            fetched.stop = message.offset() + 1

    def _failed(self, error: Any, message: Any, *, mine: bool) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET and mine:
            raise OutOfRange(Partition(message.topic(), message.partition()))
        # librdkafka goes on trying by itself, and asks for fresh metadata where it needs that.
        if mine and not judged(error).error.transient:
            raise self._brokers.explain(error, message.topic())
