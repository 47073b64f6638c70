"""Loops from Kafka to a database, written by hand: confluent-kafka, the driver, and offsets in the transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import text

from bench.harness import tables
from bench.harness.race import Course, Idle, Lap
from bench.harness.records import PARTITIONS, SCHEMA
from bench.harness.tables import NAMES, Mode
from tallymark.errors import TallymarkError
from tallymark.kafka.cluster import Cluster
from tallymark.stores.opening import open_sql

if TYPE_CHECKING:
    from typing import Self

TUNED = {
    "fetch.wait.max.ms": 100,
    "queued.min.messages": 100_000,
    "fetch.message.max.bytes": 8 << 20,
    "isolation.level": "read_committed",
    "log_level": 0,
}
"""The settings of our own consumers."""


@dataclass
class Clock:
    """When how many records were committed."""

    records: int
    commits: list[tuple[float, int]] = field(default_factory=list)

    def committed(self, records: int) -> None:
        before = self.commits[-1][1] if self.commits else 0
        self.commits.append((time.perf_counter(), before + records))

    @property
    def total(self) -> int:
        return self.commits[-1][1] if self.commits else 0

    @property
    def done(self) -> bool:
        return self.total >= self.records


class Place:
    """Where records of a course come from and rows go to, and the offsets that a loop keeps in the database."""

    def __init__(self, course: Course) -> None:
        self.course, self.store = course, open_sql(course.url)
        self.offsets = f"{course.table}_offsets"

    def __enter__(self) -> Self:
        """With offsets that begin at zero."""
        tables.drop(self.store, self.offsets)
        with self.store.transaction() as connection:
            connection.execute(
                text(
                    f"CREATE TABLE {self.offsets} (topic VARCHAR(100), partition_id INT, next_offset BIGINT, "
                    "PRIMARY KEY (topic, partition_id))"
                )
            )
            rows = [{"topic": self.course.topic, "number": number} for number in range(PARTITIONS)]
            connection.execute(text(f"INSERT INTO {self.offsets} VALUES (:topic, :number, 0)"), rows)
        return self

    def __exit__(self, *_: object) -> None:
        tables.drop(self.store, self.offsets)
        self.store.close()

    @contextmanager
    def by_hand(self) -> Iterator[tuple[Any, Any]]:
        """A consumer at the stored offsets and the driver's own connection."""
        own = {"group.id": f"{self.course.topic}-hand", "enable.auto.commit": False}
        consumer = Consumer({**Cluster(self.course.brokers).settings(), **TUNED, **own})
        with self.store.look() as connection:
            found = connection.execute(text(f"SELECT topic, partition_id, next_offset FROM {self.offsets}")).all()
        consumer.assign([TopicPartition(*one) for one in found])
        connection = self._connection()
        try:
            yield consumer, connection
        finally:
            connection.close()
            consumer.close()

    def _connection(self) -> Any:
        """A connection as the driver makes it. Ours have a pool, time limits and a faster pipeline."""
        if self.course.kind == "postgresql":
            return psycopg.connect(self.course.url)
        borrowed = self.store.engine.raw_connection()
        borrowed.detach()
        return borrowed.driver_connection

    def insert(self, mode: Mode = "append") -> str:
        return tables.insert(self.store, self.course.table, mode)

    def move(self) -> str:
        """The statement that moves an offset, if it is where the loop left it."""
        return tables.for_driver(
            self.store,
            f"UPDATE {self.offsets} SET next_offset = :stop "
            "WHERE topic = :topic AND partition_id = :number AND next_offset = :at",
        )


Run = Callable[[Place, Clock], None]


@dataclass
class Loop(Idle):
    """A loop from its start until it has committed its share of the records, or from its first commit on."""

    name: str
    run: Run
    mode: Mode = "append"
    share: float = 1.0
    from_first_commit: bool = False

    def lap(self, course: Course) -> Lap:
        tables.prepare(course, self.mode)
        clock = Clock(max(1, int(course.records * self.share)))
        with Place(course) as place:
            began = time.perf_counter()
            self.run(place, clock)
        lap = tables.lap(course, self.name, clock.total, clock.commits[-1][0] - began)
        if not self.from_first_commit or len(clock.commits) == 1:
            return lap
        first, records = clock.commits[0]
        return Lap(clock.total - records, clock.commits[-1][0] - first)


def textbook(place: Place, clock: Clock) -> None:
    """A transaction for every record: the row and its offset."""
    insert, move = place.insert(), place.move()
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


def hand_batches(most: int, mode: Mode = "append") -> Run:
    """What a good engineer writes: a batch, one executemany, and the offsets, in a transaction."""

    def run(place: Place, clock: Clock) -> None:
        insert = place.insert(mode)

        def write(connection: Any, messages: Sequence[Any]) -> None:
            connection.cursor().executemany(insert, [json.loads(message.value()) for message in messages])

        _hand_loop(place, clock, most, write)

    return run


def hand_statements(most: int) -> Run:
    """A statement for every record, as in a listener by record, and a transaction for a batch."""

    def run(place: Place, clock: Clock) -> None:
        insert = place.insert()

        def write(connection: Any, messages: Sequence[Any]) -> None:
            cursor = connection.cursor()
            for message in messages:
                cursor.execute(insert, json.loads(message.value()))

        _hand_loop(place, clock, most, write)

    return run


def hand_arrow(most: int) -> Run:
    """The same with Arrow's parser and COPY, for PostgreSQL."""
    plain = pa.schema([one if one.name != "at" else pa.field("at", pa.timestamp("us")) for one in SCHEMA])
    parsing = pa_json.ParseOptions(explicit_schema=plain)
    csv = pa_csv.WriteOptions(include_header=False)

    def run(place: Place, clock: Clock) -> None:
        def write(connection: Any, messages: Sequence[Any]) -> None:
            lines = pa.BufferReader(b"\n".join([message.value() for message in messages]))
            found = pa_json.read_json(lines, parse_options=parsing)
            sink = pa.BufferOutputStream()
            pa_csv.write_csv(found.select(SCHEMA.names), sink, csv)
            with connection.cursor().copy(f"COPY {place.course.table} ({NAMES}) FROM STDIN (FORMAT csv)") as copy:
                copy.write(memoryview(sink.getvalue()))

        _hand_loop(place, clock, most, write)

    return run


def _hand_loop(place: Place, clock: Clock, most: int, write: Callable[[Any, Sequence[Any]], None]) -> None:
    move = place.move()
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
                raise TallymarkError(f"another process moved the offsets in {place.offsets} during a lap")
            connection.commit()
            clock.committed(len(messages))


def _step(topic: str, number: int, at: int, stop: int) -> dict[str, Any]:
    return {"topic": topic, "number": number, "at": at, "stop": stop}
