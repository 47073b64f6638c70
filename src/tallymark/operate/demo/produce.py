"""Produces the orders of the demo, with undecodable records and aborted transactions among them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta

from tallymark.kafka.brokers import Brokers
from tallymark.kafka.cluster import Cluster
from tallymark.produce.producer import Producer

PARTITIONS = 4
ABORTED = 500
"""Number of records in each of the two aborted transactions."""
STATUSES = ("paid", "shipped", "delivered", "returned")
BROKEN = [b"", b"not json", b'{"id": 17', b'{"id": "seventeen"}', b'[{"id": 1}, {"id": 2}]', b"\xff\xfe{}"]

Tell = Callable[[int], None]


class _TakenBack(Exception):
    """Aborts a transaction."""


def create_topic(brokers: str, topic: str) -> None:
    Brokers(Cluster(brokers, tls=False)).create(topic, PARTITIONS)


def produce_orders(brokers: str, topic: str, records: int, tell: Tell) -> None:
    """Write the orders, 1% of them undecodable, and among them two aborted transactions."""
    with Producer(brokers, tls=False, settings={"linger.ms": 20}) as producer:
        for number, value in enumerate(_orders(records)):
            if number == records // 3:
                _take_back(brokers, topic, producer)
            producer.send(topic, value, partition=number % PARTITIONS)
            if number % 1000 == 0:
                tell(number)
    tell(records)


def _orders(records: int) -> Iterator[bytes]:
    chance = random.Random(records)
    day = datetime(2026, 1, 31, tzinfo=UTC)
    for number in range(records):
        if number % 100 == number // 100 % 100:
            yield BROKEN[number // 100 % len(BROKEN)]
            continue
        order = {
            "id": number,
            "customer": f"customer-{chance.randrange(5000)}",
            "amount": round(chance.uniform(1, 500), 2),
            "status": chance.choice(STATUSES),
            "at": (day + timedelta(seconds=number)).isoformat(),
        }
        yield json.dumps(order).encode()


def _take_back(brokers: str, topic: str, beside: Producer) -> None:
    """Write two transactions to all partitions, among the other records, and abort them."""
    names = [f"{topic}-taken-back-{number}" for number in range(2)]
    with ExitStack() as stack:
        producers = [stack.enter_context(Producer(brokers, tls=False, transactional_id=name)) for name in names]
        stack.enter_context(suppress(_TakenBack))
        for transaction, producer in enumerate(producers):
            stack.enter_context(producer.transaction())
            for number in range(ABORTED):
                order = {"id": -1 - number, "customer": f"nobody-{transaction}", "amount": 0.0}
                producer.send(topic, order, partition=number % PARTITIONS)
            producer.flush()
        beside.flush()
        raise _TakenBack
