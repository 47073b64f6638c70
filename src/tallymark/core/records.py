"""The interface between the batch loop and the readers of Kafka, such as Spark.

For every batch the driver calls ``read`` with spans that do not overlap. The reading accounts for each of them: the
number of records in the span (offsets of transaction markers, aborted and compacted records hold none), the records
that could not be decoded, and the rows of every table as Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from tallymark.core.drift import Fields
from tallymark.core.spans import Partition, Span
from tallymark.core.tables import Refusal, Staged, TableSpec

LONGEST = 20_000
"""Maximum number of characters of an error or a reason in the ledger."""


@dataclass(frozen=True)
class PartitionCounts:
    """Counts of the records in a span of one partition."""

    records: int = 0
    dead: int = 0
    last_timestamp: datetime | None = None


def merged(
    seen: Mapping[Partition, PartitionCounts], later: Mapping[Partition, PartitionCounts]
) -> dict[Partition, PartitionCounts]:
    """The sums of both counts, with the last timestamps of ``later``."""
    sums = dict(seen)
    for partition, counts in later.items():
        before = sums.get(partition, PartitionCounts())
        sums[partition] = PartitionCounts(
            before.records + counts.records, before.dead + counts.dead, counts.last_timestamp
        )
    return sums


@dataclass(frozen=True)
class RawRecord:
    """A record as it is in Kafka."""

    offset: int
    time: datetime | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class DeadLetter:
    """A record that could not be applied, as it is in Kafka, with the error."""

    partition: Partition
    offset: int
    record_time: datetime | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    table: str | None
    error: str

    @classmethod
    def of(cls, refusal: Refusal, record: RawRecord | None) -> DeadLetter:
        """Create the letter of a refused record; ``record`` is None if Kafka has deleted it since."""
        if record is None:
            error = f"{refusal.error}; Kafka has deleted the record meanwhile"
            return cls(refusal.partition, refusal.offset, None, None, None, (), refusal.table, error)
        kept = (record.time, record.key, record.value, record.headers)
        return cls(refusal.partition, refusal.offset, *kept, refusal.table, refusal.error)

    def headers_as_json(self) -> str | None:
        """Return the headers as stored in the ledger: values are hexadecimal, because they may be any bytes."""
        pairs = [[name, value.hex() if value is not None else None] for name, value in self.headers]
        return json.dumps(pairs) if pairs else None


def storable(text: str) -> str:
    """Return the text in a form that every database can store: without NUL (PostgreSQL) and lone surrogates (UTF-8).

    Long text, such as an error that quotes a whole record, is cut to its beginning and end, because MySQL refuses
    statements that are larger than its maximum packet size.
    """
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def headers_from_json(text: str | None) -> list[tuple[str, bytes | None]]:
    """Parse the result of ``headers_as_json``."""
    return [(name, None if value is None else bytes.fromhex(value)) for name, value in json.loads(text or "[]")]


@dataclass(frozen=True)
class Reading:
    """The result of reading one batch. A partition that is missing from ``seen`` held no record.

    ``refusals`` are records that were decoded and then refused: no row contains data from them.
    """

    seen: Mapping[Partition, PartitionCounts]
    rows: Mapping[str, pa.Table]
    dead_letters: Sequence[DeadLetter]
    refusals: Sequence[Refusal] = ()
    size: int = 0
    """Bytes of keys and values."""
    staged: Mapping[str, Staged] = field(default_factory=dict)
    """Tables whose rows the executors have already staged in the store; they have no ``rows`` here."""
    drift: Mapping[Partition, Fields] = field(default_factory=dict)
    """Fields of decoded records that the schema does not name."""
    left_out: Collection[tuple[Partition, int]] = frozenset()
    """Dead records that are counted in ``seen``, but were not read again with the others."""


class Reader(Protocol):
    """Reads spans and converts their records to rows of tables."""

    @property
    def tables(self) -> Sequence[TableSpec]:
        """The tables. More may follow when records of other topics are read."""

    def schemas(self) -> Mapping[str, pa.Schema]:
        """Return the columns of every table. Does not need any record to be read."""

    def read(
        self,
        spans: Sequence[Span],
        batch: str,
        without: Collection[tuple[Partition, int]] = (),
        then: Sequence[Span] | None = None,
    ) -> Reading:
        """Read these spans completely, or raise. Called from more than one thread.

        The records in ``without`` are ignored: neither counted nor converted. ``then`` are the spans that are likely to
        be read next, so that the reader may fetch them ahead; None if unknown. ``BatchTooLarge`` asks the caller for
        smaller spans.
        """

    def drift(self, letters: Sequence[DeadLetter]) -> Mapping[Partition, Fields]:
        """Return the fields that the schema does not name in these records, as far as they can be decoded."""

    def discard(self, reading: Reading) -> None:
        """Release what was staged for this reading: it was committed, or never will be."""

    def release(self, partitions: Collection[Partition]) -> None:
        """Discard what was fetched ahead of these partitions: they are no longer assigned to this member."""

    def renew(self, partitions: Collection[Partition]) -> None:
        """Discard what was fetched ahead of these partitions: their leaders have changed."""

    def cancel(self) -> None:
        """Abort a read in progress; its result is no longer needed."""
