"""What the loop knows of whoever reads Kafka: a small contract, kept by Spark and by anything else that can count.

For every batch the driver calls ``read`` with spans that do not overlap. The answer accounts for each of them: how many
records the span really holds (offsets of transaction markers, aborted and compacted records hold none), which of them
could not be decoded, and the rows of every table as Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from tallymark.shape import Refusal, Staged
from tallymark.spans import Partition, Span

LONGEST = 20_000
"""Characters of an error or a reason that are kept in the ledger."""


@dataclass(frozen=True)
class Seen:
    """What a span of one partition held."""

    records: int = 0
    dead: int = 0
    last_timestamp: datetime | None = None
    leader_epoch: int | None = None
    """That of the last record, where the reader knows it."""


@dataclass(frozen=True)
class Record:
    """A record as it is in Kafka."""

    offset: int
    time: datetime | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class DeadLetter:
    """A record that could not be applied, as it came from Kafka, and why."""

    partition: Partition
    offset: int
    record_time: datetime | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    table: str | None
    error: str

    @classmethod
    def of(cls, refusal: Refusal, record: Record | None) -> DeadLetter:
        """The letter of a record that was refused; Kafka may have deleted it meanwhile."""
        if record is None:
            error = f"{refusal.error}; Kafka has deleted the record meanwhile"
            return cls(refusal.partition, refusal.offset, None, None, None, (), refusal.table, error)
        kept = (record.time, record.key, record.value, record.headers)
        return cls(refusal.partition, refusal.offset, *kept, refusal.table, refusal.error)

    def headers_as_json(self) -> str | None:
        """Header values may be any bytes: hexadecimal in the ledger."""
        pairs = [[name, value.hex() if value is not None else None] for name, value in self.headers]
        return json.dumps(pairs) if pairs else None


def storable(text: str) -> str:
    """The text as every database can hold it: PostgreSQL knows no NUL, and UTF-8 no half of a character.

    Of one that is very long, as of an error that quotes a whole record, the beginning and the end are kept: MySQL takes
    no statement that is larger than its packets.
    """
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def headers_from_json(text: str | None) -> list[tuple[str, bytes | None]]:
    """What ``headers_as_json`` made."""
    return [(name, None if value is None else bytes.fromhex(value)) for name, value in json.loads(text or "[]")]


@dataclass(frozen=True)
class Reading:
    """One batch as it was read and shaped. A partition that is missing from ``seen`` held no record.

    ``refusals`` are records that were decoded and then refused: nothing of them is in any row.
    """

    seen: Mapping[Partition, Seen]
    rows: Mapping[str, pa.Table]
    dead_letters: Sequence[DeadLetter]
    refusals: Sequence[Refusal] = ()
    size: int = 0
    """Bytes of keys and values."""
    staged: Mapping[str, Staged] = field(default_factory=dict)
    """Tables whose rows are in the store already, staged by executors; they have no ``rows`` here."""


class Reader(Protocol):
    """Reads spans and shapes them into tables."""

    def schemas(self) -> Mapping[str, pa.Schema]:
        """The columns of every table, known before the first record is read."""

    def read(
        self,
        spans: Sequence[Span],
        batch: str,
        without: Collection[tuple[Partition, int]] = (),
        then: Sequence[Span] | None = None,
    ) -> Reading:
        """Read these spans, all of them, or raise. Called from more than one thread.

        Records ``without`` which the batch is wanted are neither counted nor shaped, as if they were not there.
        ``then`` is what is likely to be read next, so that its records may be on their way meanwhile; None says nothing
        about it. ``BatchTooLarge`` asks for fewer.
        """

    def forget(self, reading: Reading) -> None:
        """The reading was committed, or will never be: what was staged for it can go."""

    def let_go(self, partitions: Collection[Partition]) -> None:
        """These partitions are not ours any more: what was fetched of them ahead is void."""

    def renew(self, partitions: Collection[Partition]) -> None:
        """These partitions have other leaders: what was fetched of them ahead is void."""

    def cancel(self) -> None:
        """Give up a read that is under way; its answer is not wanted any more."""
