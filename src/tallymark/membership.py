"""Which partitions there are to read, and what the brokers hold of each.

A driver reads every partition of its topics; one that is added later is found at the next look.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tallymark.errors import AccessDenied, TallymarkError, UnknownTopic, Unreachable
from tallymark.patience import patiently
from tallymark.read import Record
from tallymark.spans import Log, Partition

TIMEOUT = 10.0
_UNREACHABLE = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
}
_DENIED = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_UNKNOWN = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION}


@dataclass(frozen=True)
class Topic:
    """A topic as the cluster knows it now."""

    name: str
    id: str
    partitions: tuple[Partition, ...]


class Brokers:
    """Questions to the cluster: which partitions, from where to where. It never joins a group and commits nothing."""

    def __init__(self, brokers: str) -> None:
        self.address = brokers
        # librdkafka would write to stderr by itself; what matters comes back as an error.
        self._admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0, "socket.timeout.ms": 10_000})
        self._cluster_id: str | None = None

    def cluster_id(self) -> str:
        if self._cluster_id is None:
            description = self._wait(self._admin.describe_cluster(request_timeout=TIMEOUT))
            self._cluster_id = str(description.cluster_id)
        return self._cluster_id

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """The named topics, with their ids and partitions."""
        self.cluster_id()
        futures = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=TIMEOUT)
        found = {}
        for name, future in futures.items():
            description = self._wait(future, topic=name)
            partitions = tuple(Partition(name, info.id) for info in description.partitions)
            found[name] = Topic(name, str(description.topic_id), partitions)
        return found

    def logs(self, topics: Mapping[str, Topic]) -> dict[Partition, Log]:
        """Where each partition starts and ends now. A new partition may take a moment to find its leader."""
        return patiently(lambda: self._logs(topics), patience=TIMEOUT)

    def _logs(self, topics: Mapping[str, Topic]) -> dict[Partition, Log]:
        partitions = [partition for topic in topics.values() for partition in topic.partitions]
        starts = self._ask(partitions, OffsetSpec.earliest())
        stops = self._ask(partitions, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
        ends = self._ask(partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        cluster = self.cluster_id()
        return {
            partition: Log(
                partition,
                topics[partition.topic].id,
                cluster,
                start=self._offset(starts, partition),
                stop=self._offset(stops, partition),
                end=self._offset(ends, partition),
            )
            for partition in partitions
        }

    def offsets_at(self, partitions: Iterable[Partition], moment: datetime) -> dict[Partition, int | None]:
        """The first offset with this timestamp or a later one; None where there is none yet."""
        wanted = list(partitions)
        answers = self._ask(wanted, OffsetSpec.for_timestamp(int(moment.timestamp() * 1000)))
        offsets = {partition: self._offset(answers, partition) for partition in wanted}
        return {partition: None if offset < 0 else offset for partition, offset in offsets.items()}

    def records(self, wanted: Mapping[Partition, Collection[int]]) -> dict[tuple[Partition, int], Record]:
        """Single records by their offsets, as they are in Kafka. Those that are gone are missing from the answer."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "tallymark",  # required, and never joined
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 20,
                "log_level": 0,
            }
        )
        try:
            return {
                (partition, record.offset): record
                for partition, offsets in wanted.items()
                for record in self._fetch(consumer, partition, sorted(offsets))
            }
        finally:
            consumer.close()

    def _fetch(self, consumer: Consumer, partition: Partition, offsets: Sequence[int]) -> Iterator[Record]:
        consumer.assign([TopicPartition(partition.topic, partition.number, offsets[0])])
        left, deadline = set(offsets), time.monotonic() + TIMEOUT
        while left:
            messages = consumer.consume(min(10_000, max(left) - min(left) + 1), 0.1)
            if messages:
                deadline = time.monotonic() + TIMEOUT
            elif time.monotonic() > deadline:
                raise Unreachable(f"the brokers at {self.address} do not deliver {partition} offset {min(left)}")
            for message in messages:
                if error := message.error():
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise self._explain(error, partition.topic)
                    return
                found = _record(message)
                if found.offset in left:
                    yield found
                left = {offset for offset in left if offset > found.offset}

    def _ask(
        self, partitions: Iterable[Partition], spec: Any, isolation: Any = IsolationLevel.READ_COMMITTED
    ) -> dict[tuple[str, int], Future[Any]]:
        request = {TopicPartition(partition.topic, partition.number): spec for partition in partitions}
        if not request:
            return {}
        answers = self._admin.list_offsets(request, isolation_level=isolation, request_timeout=TIMEOUT)
        return {(asked.topic, asked.partition): future for asked, future in answers.items()}

    def _offset(self, answers: Mapping[tuple[str, int], Future[Any]], partition: Partition) -> int:
        answer = self._wait(answers[partition.topic, partition.number], topic=partition.topic)
        return int(answer.offset)

    def _wait(self, future: Future[Any], topic: str | None = None) -> Any:
        try:
            return future.result(TIMEOUT + 5)
        except KafkaException as error:
            raise self._explain(error.args[0], topic) from error

    def _explain(self, error: Any, topic: str | None) -> TallymarkError:
        if error.code() in _UNREACHABLE:
            return Unreachable(
                f"the brokers at {self.address} can't be reached ({error.str()}); check address and port"
            )
        if error.code() in _DENIED:
            return AccessDenied(f"the brokers at {self.address} refused: {error.str()}; check the credentials and ACLs")
        if error.code() in _UNKNOWN and topic is not None:
            return UnknownTopic(f"topic {topic} does not exist on {self.address}; {self._suggestion(topic)}")
        return TallymarkError(f"the brokers at {self.address} answered: {error.str()}")

    def _suggestion(self, topic: str) -> str:
        existing = [name for name in self._admin.list_topics(timeout=TIMEOUT).topics if not name.startswith("__")]
        close = difflib.get_close_matches(topic, existing, n=3)
        return f"did you mean {' or '.join(close)}?" if close else "create it or correct the name"


def _record(message: Any) -> Record:
    kind, millis = message.timestamp()
    when = datetime.fromtimestamp(millis / 1000, timezone.utc) if kind != TIMESTAMP_NOT_AVAILABLE else None
    return Record(message.offset(), when, message.key(), message.value(), message.headers() or ())
