"""The records of a batch for a handler: decoded, as Python objects or Arrow."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, cached_property
from typing import Any, NamedTuple, overload

import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE

from tallymark.core import raw
from tallymark.core.records import DeadLetter
from tallymark.core.spans import Partition
from tallymark.core.times import EPOCH, headers, timestamp
from tallymark.formats.debezium.changes import changes
from tallymark.formats.decoders import Decoders
from tallymark.formats.unnamed import Unnamed as RowsByName


class Record(NamedTuple):
    """One record. Key and value are decoded: a dict for Json and most Avro schemas, bytes for Bytes.

    The value of a tombstone is None.
    """

    topic: str
    partition: int
    offset: int
    timestamp: datetime | None
    key: Any
    value: Any
    headers: Sequence[tuple[str, bytes | None]]

    @property
    def place(self) -> tuple[Partition, int]:
        return Partition(self.topic, self.partition), self.offset


class Records(Sequence[Record]):
    """The decoded records of a batch, in order within each partition. Without ``keys``, keys are bytes.

    Python objects are created on first access only; ``to_arrow`` creates none for the values.
    """

    def __init__(self, messages: Sequence[Any], values: pa.Array, keys: pa.Array | None = None) -> None:
        self._messages = messages
        self._values = values
        self._keys = keys
        self.as_objects = False
        """Whether Python objects were made of the values."""

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
            raise ValueError("records can be sliced only without a step")
        keys = self._keys[start:stop] if self._keys is not None else None
        return Records(self._messages[start:stop], self._values[start:stop], keys)

    def without(self, places: Collection[tuple[Partition, int]]) -> Records:
        """Return the records that are not at these places."""
        return self._some([at for at, record in enumerate(self) if record.place not in places]) if places else self

    def _some(self, numbers: list[int]) -> Records:
        chosen = pa.array(numbers, pa.int64())
        keys = self._keys.take(chosen) if self._keys is not None else None
        return Records([self._messages[at] for at in numbers], self._values.take(chosen), keys)

    def to_arrow(self) -> pa.Table:
        """Return topic, partition, offset, timestamp, key, value and headers, as in a pipeline's DataFrame."""
        table = raw.of_messages(self._messages, ["topic", "partition", "offset", "timestamp", "key", "headers"])
        if self._keys is not None:
            table = table.set_column(table.schema.get_field_index("key"), "key", self._keys)
        return table.add_column(table.num_columns - 1, "value", self._values)

    def values_to_arrow(self) -> pa.Table:
        """Return only the values, with one column for each field: usually the rows to write to a table."""
        return pa.Table.from_struct_array(self._values)

    def changes(self) -> pa.Table:
        """Return the rows of change events, to write with ``db.write(..., write="replica")`` (docs/howto/debezium.md).

        The columns are those of the source's table and ``source_version``. Events without a row, such as tombstones,
        are left out.
        """
        return changes(self._values, self._keys)

    def values(self) -> list[Any]:
        """Return only the decoded values, as Python objects: a dict or bytes for each record."""
        self.as_objects = True
        return _python_values(self._values)

    @cached_property
    def _listed(self) -> list[Record]:
        keys = [message.key() for message in self._messages] if self._keys is None else _python_values(self._keys)
        return [
            Record(
                message.topic(),
                message.partition(),
                message.offset(),
                timestamp(message),
                key,
                value,
                headers(message),
            )
            for message, key, value in zip(self._messages, keys, self.values(), strict=True)
        ]


@dataclass(frozen=True)
class Message:
    """A dead letter's record with the interface of confluent_kafka's ``Message``."""

    letter: DeadLetter

    def topic(self) -> str:
        return self.letter.partition.topic

    def partition(self) -> int:
        return self.letter.partition.number

    def offset(self) -> int:
        return self.letter.offset

    def timestamp(self) -> tuple[int, int]:
        when = self.letter.record_time
        if when is None:
            return TIMESTAMP_NOT_AVAILABLE, -1
        return TIMESTAMP_CREATE_TIME, round(when.timestamp() * 1000)

    def leader_epoch(self) -> None:
        """Dead letters do not store it."""

    def key(self) -> bytes | None:
        return self.letter.key

    def value(self) -> bytes | None:
        return self.letter.value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return list(self.letter.headers) or None


Unnamed = Mapping[str, Sequence[tuple[Partition, int]]]
"""The records that have each of the fields that the schema does not name."""


def decoded(decoders: Decoders, messages: Sequence[Any]) -> tuple[Records, list[DeadLetter], Unnamed]:
    """Return the messages that can be decoded, dead letters for the others, and the unnamed fields of the former."""
    values, errors, rows = decoders.messages(messages)
    unnamed = _places(messages, rows, errors) if rows else {}
    records = Records(messages, values["value"], values.get("key"))
    if not errors:
        return records, [], unnamed
    alive = records._some([at for at in range(len(messages)) if at not in errors])
    return alive, [letter(messages[at], error) for at, error in sorted(errors.items())], unnamed


def _places(messages: Sequence[Any], unnamed: RowsByName, dead: Container[int]) -> Unnamed:
    partition = cache(Partition)
    places = [(partition(message.topic(), message.partition()), message.offset()) for message in messages]
    return {name: [places[at] for at in rows.tolist() if at not in dead] for name, rows in unnamed.items()}


def letter(message: Any, error: str, table: str | None = None) -> DeadLetter:
    """Return the dead letter of a message."""
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
    """Return the same as ``to_pylist``, which spends most of its time on looking up each timestamp's time zone."""
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
