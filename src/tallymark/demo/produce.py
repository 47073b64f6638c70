"""Orders for the demonstration, with everything in them that makes counting hard."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 4
ABORTED = 500
"""Records of each of the two transactions that are taken back."""
BROKEN = [b"", b"not json", b'{"id": 17', b'{"id": "seventeen"}', b'[{"id": 1}, {"id": 2}]', b"\xff\xfe{}"]

Tell = Callable[[int], None]


def create_topic(brokers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)


def produce_orders(brokers: str, topic: str, records: int, tell: Tell) -> None:
    """Write the orders, one in a hundred undecodable, and in the middle two transactions that are aborted."""
    producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 20, "log_level": 3})
    begun = [_begin(brokers, f"{topic}-taken-back-{number}") for number in range(2)]
    for number, value in enumerate(_orders(records)):
        if number == records // 3:
            _take_back(begun, topic, producer)
        _send(producer, topic, value, number % PARTITIONS)
        if number % 1000 == 0:
            tell(number)
    producer.flush(60)
    tell(records)


def _orders(records: int) -> Iterator[bytes]:
    chance = random.Random(records)
    day = datetime(2026, 1, 31, tzinfo=timezone.utc)
    for number in range(records):
        if number % 100 == number // 100 % 100:
            yield BROKEN[number // 100 % len(BROKEN)]
            continue
        order = {
            "id": number,
            "customer": f"customer-{chance.randrange(5000)}",
            "amount": round(chance.uniform(1, 500), 2),
            "at": (day + timedelta(seconds=number)).isoformat(),
        }
        yield json.dumps(order).encode()


def _begin(brokers: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": brokers, "transactional.id": name, "log_level": 3})
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def _take_back(begun: list[Producer], topic: str, beside: Producer) -> None:
    """Both transactions write to all partitions, among the other records, and then abort."""
    for transaction, producer in enumerate(begun):
        for number in range(ABORTED):
            order = {"id": -1 - number, "customer": f"nobody-{transaction}", "amount": 0.0}
            _send(producer, topic, json.dumps(order).encode(), number % PARTITIONS)
        producer.flush(30)
    beside.flush(30)
    for producer in begun:
        producer.abort_transaction(30)


def _send(producer: Producer, topic: str, value: bytes, partition: int) -> None:
    while True:
        try:
            producer.produce(topic, value=value, partition=partition)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)
