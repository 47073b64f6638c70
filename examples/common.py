"""Shared by the examples: the addresses of the servers, a new topic with records, and queries to the store."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import text

import tallymark as tm
from tallymark.stores.opening import open_sql

BROKERS = os.environ.get("TALLYMARK_BROKERS", "localhost:9092")
STORE = os.environ.get("TALLYMARK_STORE", "sqlite:///example.db")
QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
"""Settings with which a group notices joining and leaving members sooner."""
ADMIN = AdminClient({"bootstrap.servers": BROKERS, "log_level": 0})


def new_name(kind: str) -> str:
    """A new name, so that every run of an example starts without data."""
    return f"{kind}_{uuid.uuid4().hex[:6]}"


def make_topic(partitions: int = 1, name: str | None = None) -> str:
    """A new topic. Examples write its records to a table of the same name."""
    topic = name or new_name("orders")
    ADMIN.create_topics([NewTopic(topic, partitions, 1)], request_timeout=10)[topic].result()
    return topic


def send(topic: str, ids: Iterable[int], partitions: int = 1) -> None:
    """Send orders with these ids to the partitions in turn. Ids with the same last digit have the same key."""
    producer = Producer({"bootstrap.servers": BROKERS})
    for n in ids:
        producer.produce(topic, json.dumps({"id": n}).encode(), key=str(n % 10).encode(), partition=n % partitions)
    producer.flush()


def send_values(topic: str, values: Iterable[object]) -> None:
    """Send these values as JSON."""
    producer = Producer({"bootstrap.servers": BROKERS})
    for value in values:
        producer.produce(topic, json.dumps(value).encode())
    producer.flush()


def orders(topic: str | list[str], **settings: Any) -> tm.Kafka:
    """The source of a consumer: these topics, with JSON values."""
    return tm.Kafka(BROKERS, topic, value=tm.Json("id BIGINT"), settings={**QUICK, **settings})


def ask(sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """The result of a SQL query to the store."""
    store = open_sql(STORE)
    with closing(store), store.look() as connection:
        return [tuple(row) for row in connection.execute(text(sql), parameters)]


def execute(sql: str) -> None:
    """Execute a statement in the store, outside of any pipeline."""
    store = open_sql(STORE)
    with closing(store), store.transaction() as connection:
        connection.execute(text(sql))


@contextmanager
def at_work(consumer: tm.Consumer, table: str) -> Iterator[None]:
    """Run the consumer in a separate thread during the block."""

    def work() -> None:
        for batch in consumer.batches():
            with batch.transaction() as db:
                db.write(table, batch.records.values_to_arrow())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        consumer.stop()
        thread.join()


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
