"""A reader without Spark: reads explicit spans with a plain consumer, by the loop's contract.

It fills a table for each write mode, with rows of JSON objects that have an ``id`` and optionally a ``version`` and an
``op``, which is "d" for a deletion.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tallymark.core.drift import Fields, Found
from tallymark.core.records import DeadLetter, PartitionCounts, Reading
from tallymark.core.spans import Partition, Span
from tallymark.core.tables import DELETED, OFFSET, PARTITION, TIMESTAMP, TOPIC, TableSpec
from tallymark.errors import Unreachable
from tallymark.kafka.diagnosis import judged
from tallymark.service.records import Message

TIMEOUT = 30.0
CHANGED = {KafkaError._AUTO_OFFSET_RESET, KafkaError.UNKNOWN_TOPIC_OR_PART}
"""The topic was cut, deleted or recreated since the plan: as with the product's readers, the next plan finds out."""
HIDDEN = pa.schema(
    [
        (TOPIC, pa.string()),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (TIMESTAMP, pa.timestamp("us", "UTC")),
        (DELETED, pa.bool_()),
    ]
)
Value = Mapping[str, Any]


@dataclass(frozen=True)
class Filled:
    """A table, its columns, and a function that makes a row from partition, offset and value of a record."""

    spec: TableSpec
    columns: Mapping[str, pa.DataType]
    row: Callable[[int, int, Value], Sequence[Any]]
    merges: bool = False
    """Whether the rows of a batch are merged into one row without known records."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(self.columns.items()))


NUMBER = pa.int64()
PLACE = {"id": NUMBER, "record_offset": NUMBER}
EVENTS = Filled(
    TableSpec("events"),
    {"partition_id": NUMBER, "record_offset": NUMBER, "id": NUMBER},
    lambda partition, offset, value: (partition, offset, value["id"]),
)
LATEST = Filled(TableSpec("latest", ("id",), "upsert"), PLACE, lambda _, offset, value: (value["id"], offset))
FIRST = Filled(TableSpec("first_seen", ("id",), "ignore"), PLACE, LATEST.row)
ALIVE = Filled(TableSpec("alive", ("id",), "upsert", delete="value.op = 'd'"), PLACE, LATEST.row)
VERSIONS = Filled(
    TableSpec("versions", ("id",), "upsert", version="version"),
    {**PLACE, "version": NUMBER},
    lambda _, offset, value: (value["id"], offset, value.get("version")),
)
TRACED = Filled(TableSpec("traced", provenance=True), {"id": NUMBER}, lambda _, __, value: (value["id"],))
SUMS = Filled(
    TableSpec(
        "sums",
        ("bucket",),
        "merge",
        merge=(("records", "count"), ("total", "sum"), ("lowest", "min"), ("highest", "max")),
    ),
    {"bucket": NUMBER, "records": NUMBER, "total": NUMBER, "lowest": NUMBER, "highest": NUMBER},
    lambda partition, offset, _: ((partition + offset) % 5, 1, offset - partition, offset, offset),
)
"""Every bucket has records of all partitions, so that several owners add to one row."""
TOTALS = Filled(TableSpec("totals"), {"records": NUMBER}, lambda *_: (1,), merges=True)
EVERY_WAY = (EVENTS, LATEST, FIRST, ALIVE, VERSIONS, TRACED, SUMS)


NAMED = {"id", "op", "version"}
"""The fields that the reader's schema names."""


@dataclass
class _Found:
    records: int = 0
    last: datetime | None = None
    taken: list[tuple[Any, Value]] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)


class PlainReader:
    """Reads JSON objects with an ``id``; everything else is dead."""

    def __init__(self, brokers: str, tables: Sequence[Filled] = EVERY_WAY) -> None:
        self._filled = tables
        self._brokers = brokers
        self._reading = threading.Lock()
        self._consumer: Consumer | None = None

    @property
    def tables(self) -> Sequence[TableSpec]:
        return [table.spec for table in self._filled]

    def schemas(self) -> Mapping[str, pa.Schema]:
        return {table.spec.name: table.schema for table in self._filled}

    def read(
        self,
        spans: Sequence[Span],
        batch: str,
        without: Collection[tuple[Partition, int]] = (),
        then: Sequence[Span] | None = None,
    ) -> Reading:
        with self._reading:
            return self._read(spans, without)

    def _read(self, spans: Sequence[Span], without: Collection[tuple[Partition, int]]) -> Reading:
        wanted = {(span.partition.topic, span.partition.number): span for span in spans}
        found = {span.partition: _Found() for span in spans}
        consumer = self._client()
        consumer.assign([TopicPartition(topic, number, span.start) for (topic, number), span in wanted.items()])
        missing, deadline = set(wanted), time.monotonic() + TIMEOUT
        while missing:
            assert time.monotonic() < deadline, f"no end of {missing} in sight"
            for message in consumer.consume(500, 0.02):
                at, offset = (str(message.topic()), int(message.partition() or 0)), int(message.offset() or 0)
                if error := message.error():
                    if judged(error).error.transient:
                        continue
                    if error.code() in CHANGED:
                        raise Unreachable(f"the log of {wanted[at].partition} has changed: {error.str()}")
                    # The log ends after every span, also if the last offsets hold no record.
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    missing.discard(at)
                    continue
                if offset < wanted[at].stop and (wanted[at].partition, offset) not in without:
                    _take(found[wanted[at].partition], wanted[at].partition, message)
                if offset >= wanted[at].stop - 1:
                    missing.discard(at)
        return self._shaped(found)

    def _client(self) -> Consumer:
        # Made when it is needed: a client that has been idle takes up to a second until it fetches.
        if self._consumer is None:
            self._consumer = Consumer(
                {
                    "bootstrap.servers": self._brokers,
                    "group.id": f"plain-{uuid.uuid4().hex}",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "isolation.level": "read_committed",
                    "fetch.wait.max.ms": 20,
                    "auto.offset.reset": "error",
                    "log_level": 0,
                }
            )
        return self._consumer

    def reread(self, letters: Sequence[DeadLetter], batch: str) -> Reading:
        found: dict[Partition, _Found] = {}
        for letter in letters:
            _take(found.setdefault(letter.partition, _Found()), letter.partition, Message(letter))
        return self._shaped(found)

    def _shaped(self, found: Mapping[Partition, _Found]) -> Reading:
        taken = [record for one in found.values() for record in one.taken]
        return Reading(
            {partition: PartitionCounts(one.records, len(one.letters), one.last) for partition, one in found.items()},
            {table.spec.name: _rows(table, taken) for table in self._filled},
            [letter for one in found.values() for letter in one.letters],
            drift={partition: fields for partition, one in found.items() if (fields := _unnamed(one.taken))},
        )

    def drift(self, letters: Sequence[DeadLetter]) -> Mapping[Partition, Fields]:
        found: dict[Partition, _Found] = {}
        for letter in letters:
            _take(found.setdefault(letter.partition, _Found()), letter.partition, Message(letter))
        return {partition: _unnamed(one.taken) for partition, one in found.items()}

    def discard(self, reading: Reading) -> None:
        pass

    def release(self, partitions: Collection[Partition]) -> None:
        pass

    def renew(self, partitions: Collection[Partition]) -> None:
        pass

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        """Also waits for an abandoned read: a consumer must not be closed while a thread reads from it."""
        with self._reading:
            if self._consumer is not None:
                self._consumer.close()


def _take(found: _Found, partition: Partition, message: Any) -> None:
    found.records += 1
    found.last = _time(message)
    try:
        value = json.loads(message.value() or b"")
        value["id"]
    except (ValueError, KeyError, TypeError) as error:
        kept = (found.last, message.key(), message.value(), message.headers() or ())
        reason = f"not an object with an id: {error}"
        found.letters.append(DeadLetter(partition, message.offset(), *kept, None, reason))
    else:
        found.taken.append((message, value))


def _unnamed(taken: Sequence[tuple[Any, Value]]) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for message, value in taken:
        for name in value.keys() - NAMED:
            one = Found(1, message.offset())
            found[name] = found[name] + one if name in found else one
    return found


def _time(message: Any) -> datetime:
    return datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)


def _rows(table: Filled, taken: Sequence[tuple[Any, Value]]) -> pa.Table:
    if table.merges:
        made = [table.row(message.partition(), message.offset(), value) for message, value in taken]
        return pa.table([[sum(column)] for column in zip(*made, strict=True)] or [[]], schema=table.schema)
    rows = []
    for message, value in taken:
        gone = table.spec.delete is not None and value.get("op") == "d"
        origin = (message.topic(), message.partition(), message.offset(), _time(message), gone)
        rows.append((*table.row(message.partition(), message.offset(), value), *origin))
    schema = pa.schema([*table.schema, *HIDDEN])
    return pa.table([[row[at] for row in rows] for at in range(len(schema))], schema=schema)
