"""Undecoded Kafka records as Arrow tables, with the columns of Spark's Kafka source for every reader."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import methodcaller
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from tallymark.core.records import DeadLetter, PartitionCounts
from tallymark.core.spans import Partition, Span
from tallymark.core.times import LAST_MILLIS, headers

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMESTAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("headers", HEADERS),
    ]
)
"""The columns of Spark's Kafka source that readers use."""
ANY = pc.ScalarAggregateOptions(skip_nulls=False)


def of_letters(letters: Sequence[DeadLetter]) -> pa.Table:
    """Return the original records of dead letters."""
    return pa.Table.from_pylist([_record(letter) for letter in letters], SCHEMA)


def of_messages(messages: Sequence[Any], names: Sequence[str] = SCHEMA.names) -> pa.Table:
    """Convert messages of librdkafka: all columns, or these."""
    return pa.table(
        {name: pa.array([_PARTS[name](message) for message in messages], SCHEMA.field(name).type) for name in names}
    )


def without(records: pa.Table, gone: Collection[tuple[Partition, int]]) -> pa.Table:
    """Return all records except these."""
    for span in hulls(gone):
        offsets = pa.array([offset for partition, offset in gone if partition == span.partition], pa.int64())
        of_topic = pc.equal(records["topic"], span.partition.topic)
        here = pc.and_(of_topic, pc.equal(records["partition"], span.partition.number))
        records = records.filter(pc.invert(pc.and_(here, pc.is_in(records["offset"], value_set=offsets))))
    return records


def leave_out(records: pa.Table, rows: Collection[int]) -> pa.Table:
    """Return all rows except these."""
    return records.filter(pc.invert(_among(records, rows))) if rows else records


def only(records: pa.Table, rows: Collection[int]) -> pa.Table:
    """Return these rows in table order. Uses a filter, because Arrow's ``take`` combines all chunks first."""
    return records.filter(_among(records, rows)) if rows else records.slice(0, 0)


def _among(records: pa.Table, rows: Collection[int]) -> pa.Array:
    return pc.is_in(pa.arange(0, records.num_rows), value_set=pa.array(rows, pa.int64()))


def size(records: pa.Table) -> int:
    """Return the total bytes of keys and values."""
    return sum(pc.sum(pc.binary_length(records[name])).as_py() or 0 for name in ("key", "value"))


def seen(records: pa.Table, dead: Collection[int]) -> dict[Partition, PartitionCounts]:
    """Count the records of each partition; ``dead`` rows are dead. Records of a partition are in offset order."""
    places = pa.table({name: records[name] for name in ("topic", "partition", "timestamp")})
    # Grouping keeps the order only with a single thread.
    grouped = places.group_by(["topic", "partition"], use_threads=False)
    counts = grouped.aggregate([([], "count_all"), ("timestamp", "last", ANY)]).to_pylist()
    died: dict[Partition, int] = {}
    for row in only(places, dead).to_pylist():
        partition = Partition(row["topic"], row["partition"])
        died[partition] = died.get(partition, 0) + 1
    found = {}
    for row in counts:
        partition = Partition(row["topic"], row["partition"])
        found[partition] = PartitionCounts(row["count_all"], died.get(partition, 0), row["timestamp_last"])
    return found


def letters(records: pa.Table, errors: Mapping[int, str]) -> list[DeadLetter]:
    """Return the dead letters of the rows that could not be decoded."""
    rows = only(records, errors.keys()).to_pylist()
    return [_letter(row, errors[at]) for at, row in zip(sorted(errors), rows, strict=True)]


def hulls(records: Iterable[tuple[Partition, int]]) -> list[Span]:
    """Return the smallest span of each partition that contains all of its records."""
    offsets: dict[Partition, list[int]] = {}
    for partition, offset in records:
        offsets.setdefault(partition, []).append(offset)
    return [Span(partition, min(found), max(found) + 1) for partition, found in sorted(offsets.items())]


def _letter(row: Mapping[str, Any], error: str) -> DeadLetter:
    return DeadLetter(
        partition=Partition(row["topic"], row["partition"]),
        offset=row["offset"],
        record_time=row["timestamp"],
        key=row["key"],
        value=row["value"],
        headers=[(header["key"], header["value"]) for header in row["headers"] or ()],
        table=None,
        error=error,
    )


def _record(letter: DeadLetter) -> dict[str, object]:
    return {
        "key": letter.key,
        "value": letter.value,
        "topic": letter.partition.topic,
        "partition": letter.partition.number,
        "offset": letter.offset,
        "timestamp": letter.record_time,
        "headers": [{"key": name, "value": value} for name, value in letter.headers] or None,
    }


def _micros(message: Any) -> int | None:
    kind, millis = message.timestamp()
    return millis * 1000 if kind != TIMESTAMP_NOT_AVAILABLE and 0 <= millis <= LAST_MILLIS else None


_PARTS: dict[str, Callable[[Any], Any]] = {
    "key": methodcaller("key"),
    "value": methodcaller("value"),
    "topic": methodcaller("topic"),
    "partition": methodcaller("partition"),
    "offset": methodcaller("offset"),
    "timestamp": _micros,
    "headers": lambda message: headers(message) or None,
}
