"""The records that a handler gets: one by one, or as Arrow, decoded once for the whole batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple, overload

import pyarrow as pa

from tallymark import raw
from tallymark.formats import Decoder
from tallymark.read import DeadLetter
from tallymark.spans import Partition
from tallymark.times import EPOCH, headers, timestamp


class Record(NamedTuple):
    """One record. ``value`` is decoded: a dict for Json, bytes for Bytes, None for a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime | None
    key: bytes | None
    value: Any
    headers: Sequence[tuple[str, bytes | None]]

    @property
    def place(self) -> tuple[Partition, int]:
        return Partition(self.topic, self.partition), self.offset


class Records(Sequence[Record]):
    """The decoded records of a batch, in order within each partition.

    They are as they came from Kafka until somebody asks: ``to_arrow`` makes no Python object of a record's value.
    """

    def __init__(self, messages: Sequence[Any], values: pa.Array) -> None:
        self._messages = messages
        self._values = values

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._listed)

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> Records: ...
    def __getitem__(self, at: int | slice) -> Record | Records:
        if isinstance(at, int):
            return self._listed[at]
        start, stop, step = at.indices(len(self))
        if step != 1:
            raise ValueError("records can be sliced without a step only")
        return Records(self._messages[start:stop], self._values[start:stop])

    def to_arrow(self) -> pa.Table:
        """topic, partition, offset, timestamp, key, value and headers, as a pipeline's DataFrame has them."""
        found = raw.of_messages(self._messages, ["topic", "partition", "offset", "timestamp", "key", "headers"])
        return found.add_column(found.num_columns - 1, "value", self._values)

    def values_to_arrow(self) -> pa.Table:
        """The fields of the values alone, each a column: what is written to a table most of the time."""
        return pa.Table.from_struct_array(self._values)

    def values(self) -> list[Any]:
        """The decoded values alone, as Python has them: a dict for each record, or its bytes."""
        return _python_values(self._values)

    @cached_property
    def _listed(self) -> list[Record]:
        return [
            Record(
                message.topic(),
                message.partition(),
                message.offset(),
                timestamp(message),
                message.key(),
                value,
                headers(message),
            )
            for message, value in zip(self._messages, _python_values(self._values), strict=True)
        ]


def decoded(decode: Decoder, messages: Sequence[Any]) -> tuple[Records, list[DeadLetter]]:
    """The messages that could be decoded, and the letters of the others."""
    found = decode([message.value() for message in messages])
    if not found.errors:
        return Records(messages, found.values), []
    good = [at for at in range(len(messages)) if at not in found.errors]
    records = Records([messages[at] for at in good], found.values.take(pa.array(good, pa.int64())))
    return records, [letter(messages[at], error) for at, error in found.errors.items()]


def letter(message: Any, error: str, table: str | None = None) -> DeadLetter:
    """What is kept of a message that is dead."""
    return DeadLetter(
        Partition(message.topic(), message.partition()),
        message.offset(),
        timestamp(message),
        message.key(),
        message.value(),
        headers(message),
        table,
        error,
    )


def _python_values(values: pa.Array) -> list[Any]:
    """As ``to_pylist`` has them, which takes most of its time to look up the zone of every single timestamp."""
    zoned = (
        [field.name for field in values.type if field.type == raw.TIMESTAMP] if pa.types.is_struct(values.type) else []
    )
    if not zoned:
        return list(values.to_pylist())
    plain = pa.struct([field.with_type(pa.int64()) if field.name in zoned else field for field in values.type])
    rows: list[Any] = values.cast(plain).to_pylist()
    for name in zoned:
        for row in rows:
            if row is not None and (micros := row[name]) is not None:
                row[name] = EPOCH + timedelta(0, 0, micros)
    return rows
