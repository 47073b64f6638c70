"""Records that are given to Spark instead of being asked for in Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from tallymark.read import DeadLetter
from tallymark.spans import Partition, Span

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""The columns of Spark's Kafka source that readers use."""


def as_arrow(letters: Sequence[DeadLetter]) -> pa.Table:
    """Their records, as Spark's Kafka source has them."""
    return pa.Table.from_pylist([_record(letter) for letter in letters], SCHEMA)


def hulls(records: Iterable[tuple[Partition, int]]) -> list[Span]:
    """For each partition one span with all of its records in it."""
    offsets: dict[Partition, list[int]] = {}
    for partition, offset in records:
        offsets.setdefault(partition, []).append(offset)
    return [Span(partition, min(found), max(found) + 1) for partition, found in sorted(offsets.items())]


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
