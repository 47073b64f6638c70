"""A reader without Spark: explicit spans, read with a plain consumer, as the loop's contract asks for.

It fills two tables: ``events`` gets a row for every record, ``latest`` the last offset of every id.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tallymark.read import DeadLetter, Reading, Seen
from tallymark.shape import OFFSET, PARTITION, TIMESTAMP, TOPIC, TableSpec
from tallymark.spans import Partition, Span

TIMEOUT = 30.0
TABLES = (TableSpec("events"), TableSpec("latest", key=("id",), write="upsert"))
EVENTS = pa.schema([("partition_id", pa.int64()), ("record_offset", pa.int64()), ("id", pa.int64())])
LATEST = pa.schema([("id", pa.int64()), ("record_offset", pa.int64())])
HIDDEN = pa.schema(
    [(TOPIC, pa.string()), (PARTITION, pa.int32()), (OFFSET, pa.int64()), (TIMESTAMP, pa.timestamp("us", "UTC"))]
)


@dataclass
class _Found:
    records: int = 0
    last: datetime | None = None
    events: list[tuple[Any, ...]] = field(default_factory=list)
    latest: list[tuple[Any, ...]] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)


class PlainReader:
    """Reads JSON objects with an ``id``."""

    def __init__(self, brokers: str) -> None:
        self._reading = threading.Lock()
        self._consumer = Consumer(
            {
                "bootstrap.servers": brokers,
                "group.id": f"plain-{uuid.uuid4().hex}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )

    def schemas(self) -> Mapping[str, pa.Schema]:
        return {"events": EVENTS, "latest": LATEST}

    def read(self, spans: Sequence[Span]) -> Reading:
        with self._reading:
            return self._read(spans)

    def _read(self, spans: Sequence[Span]) -> Reading:
        wanted = {(span.partition.topic, span.partition.number): span for span in spans}
        found = {span.partition: _Found() for span in spans}
        self._consumer.assign([TopicPartition(topic, number, span.start) for (topic, number), span in wanted.items()])
        missing, deadline = set(wanted), time.monotonic() + TIMEOUT
        while missing:
            assert time.monotonic() < deadline, f"no end of {missing} in sight"
            for message in self._consumer.consume(500, 0.02):
                at, offset = (str(message.topic()), int(message.partition() or 0)), int(message.offset() or 0)
                if error := message.error():
                    # The end of the log is behind the end of every span, also when the last offsets hold no record.
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    missing.discard(at)
                    continue
                if offset < wanted[at].stop:
                    _take(found[wanted[at].partition], wanted[at].partition, message)
                if offset >= wanted[at].stop - 1:
                    missing.discard(at)
        return Reading(
            {partition: Seen(one.records, len(one.letters), one.last) for partition, one in found.items()},
            {
                "events": _table(EVENTS, [row for one in found.values() for row in one.events]),
                "latest": _table(pa.schema([*LATEST, *HIDDEN]), [row for one in found.values() for row in one.latest]),
            },
            [letter for one in found.values() for letter in one.letters],
        )

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        """Wait for a read that was given up, too: a consumer is not closed under its reader's feet."""
        with self._reading:
            self._consumer.close()


def _take(found: _Found, partition: Partition, message: Any) -> None:
    when = datetime.fromtimestamp(message.timestamp()[1] / 1000, timezone.utc)
    found.records += 1
    found.last = when
    try:
        number = json.loads(message.value() or b"")["id"]
    except (ValueError, KeyError, TypeError) as error:
        found.letters.append(
            DeadLetter(
                partition,
                message.offset(),
                when,
                message.key(),
                message.value(),
                message.headers() or (),
                None,
                f"not an object with an id: {error}",
            )
        )
        return
    found.events.append((partition.number, message.offset(), number))
    found.latest.append((number, message.offset(), partition.topic, partition.number, message.offset(), when))


def _table(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    return pa.table([[row[at] for row in rows] for at in range(len(schema))], schema=schema)
