"""The input of a deep audit: partitions, the records that Kafka still holds, and the origins of table rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallymark.core.spans import Log, Partition, Span
from tallymark.operate.audit.accounts import Account
from tallymark.stores.contract import ORIGIN

RECORDS = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("undecoded", pa.bool_())]
)
"""The records in Kafka."""
MADE = pa.schema(
    [
        *list(RECORDS)[:3],
        pa.field("key", pa.int64()),
        pa.field("deleted", pa.bool_()),
        pa.field("final", pa.bool_()),
        pa.field("rows", pa.int64()),
    ]
)
"""The rows that a function makes of records. In tables without a key, all rows have the same ``key``.

``final``: the row deletes every version. If the table has a version, a column ``version`` of its type follows.
"""


@dataclass(frozen=True)
class Scope:
    """One partition: its ledger data, its log, and whether compaction may have removed records."""

    account: Account
    log: Log
    compacts: bool = False

    @property
    def partition(self) -> Partition:
        return self.account.position.partition

    @property
    def empty(self) -> str:
        """The kind of an offset without a record."""
        return "compacted" if self.compacts else "marker"

    def pieces(self) -> list[Span]:
        """Return the spans of the tally that Kafka still holds, without open skips."""
        whole, spans = self.account.span, list[Span]()
        at = max(whole.start, self.log.start)
        for skip in [*self.account.skips, Span(self.partition, whole.stop, whole.stop)]:
            spans += [Span(self.partition, at, skip.start)] if skip.start > at else []
            at = max(at, skip.stop)
        return spans


@dataclass(frozen=True)
class Difference:
    """A wrong offset. ``rows``: number of its rows in the table; ``wanted``: the right number, None if unknown."""

    partition: Partition
    offset: int
    kind: str
    rows: int
    wanted: int | None


@dataclass
class Origins:
    """The offsets that a table's rows come from, sorted, with repetitions.

    ``unknown``: number of rows without provenance. ``others``: number of rows from other partitions.
    """

    offsets: dict[Partition, pa.Array]
    unknown: int
    others: int

    @classmethod
    def of(cls, pieces: Iterable[pa.Table], partitions: Iterable[Partition]) -> Origins:
        rows = pa.concat_tables([ORIGIN.empty_table(), *pieces])
        topic, number, offset = rows.columns
        offsets = {
            partition: offset.filter(pc.and_(pc.equal(topic, partition.topic), pc.equal(number, partition.number)))
            .combine_chunks()
            .sort()
            for partition in partitions
        }
        unknown = rows.num_rows - pc.count(offset).as_py()
        return cls(offsets, unknown, rows.num_rows - unknown - sum(map(len, offsets.values())))

    def within(self, span: Span) -> pa.Array:
        offsets = self.offsets[span.partition]
        start, stop = (bisect_left(offsets, end, key=lambda offset: offset.as_py()) for end in (span.start, span.stop))
        return offsets[start:stop]


def in_spans(offsets: Any, spans: Iterable[Span]) -> Any:
    """Return for each offset the number of spans that contain it."""
    counts = pa.repeat(0, len(offsets))
    for span in spans:
        in_span = pc.and_(pc.greater_equal(offsets, span.start), pc.less(offsets, span.stop))
        counts = pc.add(counts, in_span.cast(pa.int64()))
    return counts


def chunks(spans: Iterable[Span], most: int) -> Iterator[list[Span]]:
    """Split spans into lists of at most ``most`` offsets in total, each with at most one span of a partition."""
    chunk: list[Span] = []
    for span in spans:
        for start in range(span.start, span.stop, most):
            part = Span(span.partition, start, min(start + most, span.stop))
            taken = {kept.partition for kept in chunk}
            if chunk and (part.partition in taken or sum(map(len, chunk)) + len(part) > most):
                yield chunk
                chunk = []
            chunk.append(part)
    if chunk:
        yield chunk
