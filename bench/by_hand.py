"""Kafka to a database as one writes it by hand: confluent-kafka, the driver, and the offsets in the transaction."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import text

from tallymark.shape import TableSpec
from tallymark.stores.opening import open_sql

TOPIC = "orders"
PARTITIONS = 4
SCHEMA = pa.schema(
    [("id", pa.int64()), ("customer", pa.string()), ("amount", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
)
NAMES = ", ".join(SCHEMA.names)
INSERT = f"INSERT INTO orders ({NAMES}) VALUES ({', '.join(f':{name}' for name in SCHEMA.names)})"
MOVE = (
    "UPDATE hand_offsets SET next_offset = :stop WHERE topic = :topic AND partition_id = :number AND next_offset = :at"
)


@dataclass
class Clock:
    """When how many records were committed."""

    records: int
    commits: list[tuple[float, int]] = field(default_factory=list)

    def committed(self, records: int) -> None:
        before = self.commits[-1][1] if self.commits else 0
        self.commits.append((time.perf_counter(), before + records))

    @property
    def done(self) -> bool:
        return bool(self.commits) and self.commits[-1][1] >= self.records

    @property
    def rate(self) -> float:
        """Records per second between the first commit and the one that had them all."""
        (began, first), (ended, last) = self.commits[0], next(one for one in self.commits if one[1] >= self.records)
        return (last - first) / (ended - began)


@dataclass
class Place:
    """Where records come from and rows go to."""

    brokers: str
    url: str
    topic: str = TOPIC

    def __post_init__(self) -> None:
        self.store = open_sql(self.url)

    def clear(self) -> None:
        with self.store.transaction() as connection:
            connection.execute(text("DROP TABLE IF EXISTS orders"))
            connection.execute(text("DROP TABLE IF EXISTS hand_offsets"))
            connection.execute(
                text(
                    "CREATE TABLE hand_offsets (topic VARCHAR(100), partition_id INT, next_offset BIGINT, "
                    "PRIMARY KEY (topic, partition_id))"
                )
            )
            rows = [{"topic": self.topic, "number": number} for number in range(PARTITIONS)]
            connection.execute(text("INSERT INTO hand_offsets VALUES (:topic, :number, 0)"), rows)
        self.store.create_tables([TableSpec("orders")], {"orders": SCHEMA})

    def rows(self) -> int:
        with self.store.look() as connection:
            return int(connection.execute(text("SELECT COUNT(*) FROM orders")).scalar_one())

    @contextmanager
    def by_hand(self) -> Iterator[tuple[Any, Any]]:
        """A consumer at the stored offsets and the driver's own connection."""
        consumer = Consumer({"bootstrap.servers": self.brokers, "group.id": "hand", "enable.auto.commit": False})
        with self.store.look() as connection:
            found = connection.execute(text("SELECT topic, partition_id, next_offset FROM hand_offsets")).all()
        consumer.assign([TopicPartition(*one) for one in found])
        borrowed = self.store.engine.raw_connection()
        try:
            yield consumer, borrowed.driver_connection
        finally:
            borrowed.close()
            consumer.close()

    def sql(self, statement: str) -> str:
        """With parameters as this driver has them."""
        return statement if self.url.startswith("sqlite") else re.sub(r":(\w+)", r"%(\1)s", statement)


Run = Callable[[Place, Clock], None]


def textbook(place: Place, clock: Clock) -> None:
    """A transaction for every record: the row and its offset."""
    insert, move = place.sql(INSERT), place.sql(MOVE)
    with place.by_hand() as (consumer, connection):
        while not clock.done:
            message = consumer.poll(0.1)
            if message is None:
                continue
            cursor = connection.cursor()
            cursor.execute(insert, json.loads(message.value()))
            cursor.execute(move, _step(message.topic(), message.partition(), message.offset(), message.offset() + 1))
            connection.commit()
            clock.committed(1)


def hand_batches(most: int) -> Run:
    """What a good engineer writes: a batch, one executemany, and the offsets, in a transaction."""

    def run(place: Place, clock: Clock) -> None:
        insert = place.sql(INSERT)

        def write(connection: Any, messages: Sequence[Any]) -> None:
            connection.cursor().executemany(insert, [json.loads(message.value()) for message in messages])

        _hand_loop(place, clock, most, write)

    return run


def hand_arrow(most: int) -> Run:
    """The same with Arrow's parser and COPY."""
    plain = pa.schema([field if field.name != "at" else pa.field("at", pa.timestamp("us")) for field in SCHEMA])
    parsing = pyarrow.json.ParseOptions(explicit_schema=plain)
    csv = pyarrow.csv.WriteOptions(include_header=False)

    def write(connection: Any, messages: Sequence[Any]) -> None:
        lines = pa.BufferReader(b"\n".join([message.value() for message in messages]))
        found = pyarrow.json.read_json(lines, parse_options=parsing)
        sink = pa.BufferOutputStream()
        pyarrow.csv.write_csv(found.select(SCHEMA.names), sink, csv)
        with connection.cursor().copy(f"COPY orders ({NAMES}) FROM STDIN (FORMAT csv)") as copy:
            copy.write(memoryview(sink.getvalue()))

    return lambda place, clock: _hand_loop(place, clock, most, write)


def _hand_loop(place: Place, clock: Clock, most: int, write: Callable[[Any, Sequence[Any]], None]) -> None:
    move = place.sql(MOVE)
    with place.by_hand() as (consumer, connection):
        while not clock.done:
            messages = [message for message in consumer.consume(most, 0.1) if not message.error()]
            if not messages:
                continue
            write(connection, messages)
            spans: dict[tuple[str, int], list[int]] = {}
            for message in messages:
                spans.setdefault((message.topic(), message.partition()), []).append(message.offset())
            cursor = connection.cursor()
            cursor.executemany(move, [_step(*one, found[0], found[-1] + 1) for one, found in spans.items()])
            if cursor.rowcount != len(spans):
                raise RuntimeError("an offset had moved")
            connection.commit()
            clock.committed(len(messages))


def _step(topic: str, number: int, at: int, stop: int) -> dict[str, Any]:
    return {"topic": topic, "number": number, "at": at, "stop": stop}
