"""The batch that a handler receives: its records, as Python objects or Arrow, and the transaction that commits them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple, overload

import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE

from tallymark.core import raw
from tallymark.core.batch import BatchToCommit, Tried
from tallymark.core.claims import Skip
from tallymark.core.plan import Move, Plan
from tallymark.core.records import DeadLetter, PartitionCounts, Reading
from tallymark.core.spans import Partition, Span
from tallymark.core.times import EPOCH, headers, timestamp
from tallymark.errors import BadInput, TallymarkError, described
from tallymark.formats.json import JsonDecoder
from tallymark.stores.transaction import Transaction


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

    Python objects are created on first access only; ``to_arrow`` creates none for the values.
    """

    def __init__(self, messages: Sequence[Any], values: pa.Array) -> None:
        self._messages = messages
        self._values = values
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
        return Records(self._messages[start:stop], self._values[start:stop])

    def without(self, places: Collection[tuple[Partition, int]]) -> Records:
        """Return the records that are not at these places."""
        return self._some([at for at, record in enumerate(self) if record.place not in places]) if places else self

    def _some(self, numbers: list[int]) -> Records:
        return Records([self._messages[at] for at in numbers], self._values.take(pa.array(numbers, pa.int64())))

    def to_arrow(self) -> pa.Table:
        """Return topic, partition, offset, timestamp, key, value and headers, as in a pipeline's DataFrame."""
        table = raw.of_messages(self._messages, ["topic", "partition", "offset", "timestamp", "key", "headers"])
        return table.add_column(table.num_columns - 1, "value", self._values)

    def values_to_arrow(self) -> pa.Table:
        """Return only the values, with one column for each field: usually the rows to write to a table."""
        return pa.Table.from_struct_array(self._values)

    def values(self) -> list[Any]:
        """Return only the decoded values, as Python objects: a dict or bytes for each record."""
        self.as_objects = True
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
            for message, value in zip(self._messages, self.values(), strict=True)
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


def decoded(decode: JsonDecoder, messages: Sequence[Any]) -> tuple[Records, list[DeadLetter]]:
    """Return the messages that can be decoded, and dead letters for the others."""
    result = decode([message.value() for message in messages])
    if not result.errors:
        return Records(messages, result.values), []
    records = Records(messages, result.values)._some([at for at in range(len(messages)) if at not in result.errors])
    return records, [letter(messages[at], error) for at, error in result.errors.items()]


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


log = logging.getLogger(__name__)

Commit = Callable[["Batch"], AbstractContextManager[Transaction]]
State = tuple[tuple[Move, ...], Mapping[Partition, Sequence[Any]], dict[tuple[Partition, int], DeadLetter], Tried]


class Batch:
    """Records of claimed partitions, committed together with the rows that their handler writes.

    >>> with batch.transaction() as db:
    ...     db.write("orders", batch.records.values_to_arrow(), key="id", write="upsert")
    """

    def __init__(
        self,
        name: str,
        moves: Sequence[Move],
        messages: Mapping[Partition, Sequence[Any]],
        records: Records,
        letters: Sequence[DeadLetter],
        skip: Skip | None = None,
        tried: Tried | None = None,
        behind: int = 0,
    ) -> None:
        self.name = name
        self.records = records
        """The decoded records. Records that could not be decoded are already dead letters."""
        self.committed = False
        self.abandoned = False
        """Whether the batch can no longer be committed, for example because its partitions moved to another member."""
        self.moves = tuple(moves)
        self._messages = messages
        self._letters = {(letter.partition, letter.offset): letter for letter in letters}
        self._skip = skip
        self.tried = tried or {}
        """In a replay, the dead letters by partition and offset. A record that dies again keeps its dead letter."""
        self.behind = behind
        """In a backfill or replay, the number of offsets or letters that are left after this batch."""
        self.commit: Commit | None = None
        """Opens the transaction of this batch; set by the loop that delivers it."""
        self._before = self._state
        self._accounted = False
        self._started = datetime.now(UTC)

    def __len__(self) -> int:
        return len(self.records)

    def to_arrow(self) -> pa.Table:
        """Return the decoded records as an Arrow table: topic, partition, offset, timestamp, key, value, headers."""
        return self.records.to_arrow()

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open a transaction that commits the writes of the block and the positions together.

        If the block raises, everything is rolled back, and the batch can be tried again. ``Fenced`` means that another
        member has claimed partitions of this batch: nothing was written; continue with the next batch.
        """
        if self.committed or self.abandoned:
            words = "is already committed" if self.committed else "was abandoned, because its partitions were revoked"
            raise BadInput(f"batch {self.name} {words}; continue with the next batch")
        assert self.commit is not None
        return self.commit(self)

    def begin(self) -> None:
        """A transaction begins: remember what its block may change."""
        self._before = self._state

    def end(self, *, committed: bool) -> None:
        """The transaction has ended. If nothing was committed, all records can be tried again."""
        self.committed, self._accounted = committed, False
        if not committed:
            self.moves, self._messages, self._letters, self.tried = self._before

    @property
    def _state(self) -> State:
        return self.moves, self._messages, dict(self._letters), self.tried

    def dead(self, record: Record, error: BaseException | str, table: str | None = None) -> None:
        """Write a record to the dead letters in this batch's transaction, and count it as dead.

        With ``at-most-once``, positions move first, so this must be called before the transaction begins. Inside the
        transaction the record is lost, and the loss is only logged.
        """
        if record.place in self._letters:
            return
        message = self._find(record)
        words = error if isinstance(error, str) else described(error)
        if self._accounted:
            self._lose(Span(record.place[0], record.offset, record.offset + 1), words)
        else:
            self._letters[record.place] = letter(message, words, table)

    @property
    def offsets(self) -> int:
        """Number of offsets that this batch settles; in a replay, of dead letters."""
        return len(self.tried) or sum(move.stop - move.start for move in self.moves)

    @property
    def stops(self) -> dict[Partition, int]:
        """The position of each partition after this batch."""
        return {move.partition: move.stop for move in self.moves}

    def shorten(self, unfinished: Mapping[Partition, int], error: TallymarkError | None) -> None:
        """Commit only the records before these offsets.

        The other records are delivered again. If the ledger has already moved past them (``at-most-once``), they are
        lost.
        """
        if self._accounted:
            for partition, offset in unfinished.items():
                self._lose(Span(partition, offset, self.stops[partition]), error)
            return
        self.moves = tuple(_until(move, unfinished.get(move.partition, move.stop)) for move in self.moves)

        def finished(partition: Partition, offset: int) -> bool:
            return partition not in unfinished or offset < unfinished[partition]

        self._messages = {
            partition: [message for message in messages if finished(partition, message.offset())]
            for partition, messages in self._messages.items()
        }
        self._letters = {place: known for place, known in self._letters.items() if finished(*place)}
        self.tried = {place: known for place, known in self.tried.items() if finished(*place)}

    def accounts(self) -> BatchToCommit:
        """Return the ledger entry to write for this batch. Afterwards, ``dead`` and ``shorten`` only log losses."""
        self._accounted = True
        seen = {
            partition: PartitionCounts(len(messages), 0, timestamp(messages[-1]))
            for partition, messages in self._messages.items()
            if messages
        }
        moves = Plan(tuple(move for move in self.moves if move.stop > move.start))
        letters = list(self._letters.values())
        return BatchToCommit(
            self.name, self._started, moves, Reading(seen, {}, []), (), letters, (), self._skip, self.tried
        )

    def check_taken(self) -> None:
        if not self.committed and not self.abandoned:
            raise BadInput(
                f"batch {self.name} was not committed; process it in 'with batch.transaction() as db:', "
                "and leave the loop if that raises"
            )

    def _lose(self, span: Span, error: TallymarkError | str | None) -> None:
        words = "records lost, counted as applied delivery=at-most-once batch=%s span=%s error=%s"
        log.error(words, self.name, span, error)

    def _find(self, record: Record) -> Any:
        partition, offset = record.place
        for message in self._messages.get(partition, ()):
            if message.offset() == offset:
                return message
        raise BadInput(f"{partition} offset {offset} is not in batch {self.name}")


def _until(move: Move, stop: int) -> Move:
    return replace(move, read=max(0, move.read - (move.stop - stop)))
