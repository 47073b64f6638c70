"""Topics for tests: created, written to (also with transactions), grown, deleted, and read back independently."""

from __future__ import annotations

import ctypes
import json
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from tests.support.background import wait_for

TIMEOUT = 30.0
RD_KAFKA_PRODUCER = 0
V_END, V_TOPIC, V_PARTITION, V_VALUE, V_HEADER = 0, 1, 3, 4, 9
"""Values of librdkafka's rd_kafka_vtype_t, which name the next arguments of rd_kafka_producev."""


class Topics:
    """Operations of the tests on Kafka."""

    def __init__(self, brokers: str) -> None:
        self.brokers = brokers
        self._admin = AdminClient({"bootstrap.servers": brokers})
        # Records are resent while a new topic has no leader; only an idempotent producer keeps their order then.
        self._producer = Producer({"bootstrap.servers": brokers, "linger.ms": 5, "enable.idempotence": True})

    def create(self, partitions: int = 4, *, name: str | None = None, **config: str) -> str:
        topic = name or f"topic-{uuid.uuid4().hex[:8]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self._each(self._admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]))
        # Until a leader answers, what is sent has to be sent again, and may be taken for a repetition.
        wait_for(lambda: self._is_led(topic, partitions))
        return topic

    def _is_led(self, topic: str, partitions: int) -> bool:
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
        try:
            self._each(self._admin.list_offsets(asked, request_timeout=TIMEOUT))
        except KafkaException:
            # Only metadata brings a client that saw no leader to ask another time.
            self._admin.list_topics(topic, TIMEOUT)
            return False
        return True

    def grow(self, topic: str, partitions: int) -> None:
        """Returns when the brokers report the new partitions; the controller knows them earlier."""
        self._each(self._admin.create_partitions([NewPartitions(topic, partitions)]))
        wait_for(lambda: len(self._admin.list_topics(topic, TIMEOUT).topics[topic].partitions) >= partitions)

    def delete(self, topic: str) -> None:
        self._each(self._admin.delete_topics([topic]))

    def recreate(self, topic: str, partitions: int = 4) -> None:
        self.delete(topic)
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                self.create(partitions, name=topic)
                return
            except KafkaException:
                if time.monotonic() > deadline:
                    raise

    def send(self, topic: str, values: Iterable[Any], *, partitions: int | None = None, **options: Any) -> None:
        """Write values (bytes, str, None, or anything JSON can hold), in turn to each partition or by key."""
        self._send(
            topic, ((number % partitions if partitions else -1, value) for number, value in enumerate(values)), options
        )

    def send_to(self, topic: str, partition: int, values: Iterable[Any], **options: Any) -> None:
        self._send(topic, ((partition, value) for value in values), options)

    def _send(self, topic: str, placed: Iterable[tuple[int, Any]], options: Mapping[str, Any]) -> None:
        failures: list[Any] = []
        places: set[tuple[int, int]] = set()

        def seen(error: Any, message: Any) -> None:
            if error is None:
                places.add((message.partition(), message.offset()))
            else:
                failures.append(error)

        records = list(placed)
        for partition, value in records:
            self._producer.produce(topic, value=_encode(value), partition=partition, on_delivery=seen, **options)
            self._producer.poll(0)
        assert self._producer.flush(TIMEOUT) == 0, f"{topic} takes no records"
        assert not failures, f"{len(failures)} records did not get to {topic}: {failures[0]}"
        # A record that brokers take for a repetition of another one is reported as delivered, too.
        assert len(places) == len(records), f"{len(records)} records have {len(places)} places in {topic}"

    def send_with_headers(self, topic: str, value: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """One record with headers whose names are any bytes, which only librdkafka itself can write."""
        (path,) = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs").glob("librdkafka*")
        library, problem = ctypes.CDLL(str(path)), ctypes.create_string_buffer(512)
        library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
        conf = ctypes.c_void_p(library.rd_kafka_conf_new())
        assert not library.rd_kafka_conf_set(conf, b"bootstrap.servers", self.brokers.encode(), problem, 512)
        producer = ctypes.c_void_p(library.rd_kafka_new(RD_KAFKA_PRODUCER, conf, problem, 512))
        parts: list[Any] = [V_TOPIC, topic.encode(), V_PARTITION, 0, V_VALUE, value, ctypes.c_size_t(len(value))]
        for name, content in headers:
            parts += [V_HEADER, name, content, ctypes.c_ssize_t(len(content))]
        assert not library.rd_kafka_producev(producer, *parts, V_END)
        assert not library.rd_kafka_flush(producer, int(TIMEOUT * 1000))
        library.rd_kafka_destroy(producer)

    def send_in_transaction(
        self, topic: str, by_partition: Mapping[int, Iterable[Any]], *, commit: bool = True
    ) -> None:
        """One Kafka transaction; an aborted one leaves its records and a marker in the log."""
        producer = Producer({"bootstrap.servers": self.brokers, "transactional.id": f"tx-{uuid.uuid4().hex}"})
        producer.init_transactions(TIMEOUT)
        producer.begin_transaction()
        for partition, values in by_partition.items():
            for value in values:
                producer.produce(topic, value=_encode(value), partition=partition)
        producer.flush(TIMEOUT)
        if commit:
            producer.commit_transaction(TIMEOUT)
        else:
            producer.abort_transaction(TIMEOUT)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the first records, as retention does."""
        self._each(
            self._admin.delete_records(
                [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
            )
        )

    def committed(self, topic: str) -> dict[tuple[int, int], bytes | None]:
        """Every committed record by (partition, offset), read with a plain consumer."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.brokers,
                "group.id": f"check-{uuid.uuid4().hex}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        partitions = consumer.list_topics(topic, TIMEOUT).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found: dict[tuple[int, int], bytes | None] = {}
        ended: set[int] = set()
        while len(ended) < len(partitions):
            for message in consumer.consume(10_000, 0.05):
                place = int(message.partition() or 0), int(message.offset() or 0)
                if message.error():
                    ended.add(place[0])
                else:
                    found[place] = message.value()
        consumer.close()
        return found

    def ends(self, topic: str) -> dict[int, int]:
        """The end of each partition's log."""
        client = Consumer({"bootstrap.servers": self.brokers, "group.id": "ends"})
        try:
            partitions = client.list_topics(topic, TIMEOUT).topics[topic].partitions
            return {
                number: client.get_watermark_offsets(TopicPartition(topic, number), TIMEOUT)[1] for number in partitions
            }
        finally:
            client.close()

    def _each(self, futures: Mapping[Any, Any]) -> None:
        for future in futures.values():
            future.result(TIMEOUT)


def _encode(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()
