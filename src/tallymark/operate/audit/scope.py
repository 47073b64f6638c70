"""What a deep audit compares: partitions, what Kafka still holds of them, and where the rows of tables come from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallymark.audit.accounts import Account
from tallymark.spans import Log, Partition, Span
from tallymark.stores.still import ORIGIN

RECORDS = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("undecoded", pa.bool_())]
)
"""What Kafka holds."""
MADE = pa.schema(
    [
        *list(RECORDS)[:3],
        pa.field("key", pa.int64()),
        pa.field("deleted", pa.bool_()),
        pa.field("final", pa.bool_()),
        pa.field("rows", pa.int64()),
    ]
)
"""What a function makes of it. Of rows without a key all have the same one. ``final``: it deletes every version.

Where the table has a version, there is a column ``version`` besides, of its type.
"""


@dataclass(frozen=True)
class Scope:
    """One partition: what the ledger says of it, what Kafka holds of it, and why offsets may hold no record."""

    account: Account
    log: Log
    compacts: bool = False

    @property
    def partition(self) -> Partition:
        return self.account.position.partition

    @property
    def empty(self) -> str:
        """What an offset without a record is."""
        return "compacted" if self.compacts else "marker"

    def pieces(self) -> list[Span]:
        """What Kafka still holds of the tally's range, between the open skips."""
        whole, found = self.account.span, list[Span]()
        at = max(whole.start, self.log.start)
        for skip in [*self.account.skips, Span(self.partition, whole.stop, whole.stop)]:
            found += [Span(self.partition, at, skip.start)] if skip.start > at else []
            at = max(at, skip.stop)
        return found


@dataclass(frozen=True)
class Difference:
    """An offset that is wrong: how many rows of it there are, and how many there should be; None: nobody knows."""

    partition: Partition
    offset: int
    kind: str
    rows: int
    wanted: int | None


@dataclass
class Origins:
    """Where the rows of a table come from: sorted offsets, with repetitions. ``unknown`` ones have no provenance."""

    offsets: dict[Partition, pa.Array]
    unknown: int
    others: int

    @classmethod
    def of(cls, pieces: Iterable[pa.Table], partitions: Iterable[Partition]) -> Origins:
        rows = pa.concat_tables([ORIGIN.empty_table(), *pieces])
        topic, number, offset = rows.columns
        offsets = {
            one: offset.filter(pc.and_(pc.equal(topic, one.topic), pc.equal(number, one.number)))
            .combine_chunks()
            .sort()
            for one in partitions
        }
        unknown = rows.num_rows - pc.count(offset).as_py()
        return cls(offsets, unknown, rows.num_rows - unknown - sum(map(len, offsets.values())))

    def within(self, span: Span) -> pa.Array:
        found = self.offsets[span.partition]
        start, stop = (bisect_left(found, end, key=lambda one: one.as_py()) for end in (span.start, span.stop))
        return found[start:stop]


def in_spans(offsets: Any, spans: Iterable[Span]) -> Any:
    """In how many of these spans each offset is."""
    found = pa.repeat(0, len(offsets))
    for span in spans:
        here = pc.and_(pc.greater_equal(offsets, span.start), pc.less(offsets, span.stop))
        found = pc.add(found, here.cast(pa.int64()))
    return found


def chunks(spans: Iterable[Span], most: int) -> Iterator[list[Span]]:
    """Spans of at most so many offsets together, and no partition twice among them."""
    chunk: list[Span] = []
    for span in spans:
        for start in range(span.start, span.stop, most):
            part = Span(span.partition, start, min(start + most, span.stop))
            taken = {one.partition for one in chunk}
            if chunk and (part.partition in taken or sum(map(len, chunk)) + len(part) > most):
                yield chunk
                chunk = []
            chunk.append(part)
    if chunk:
        yield chunk
