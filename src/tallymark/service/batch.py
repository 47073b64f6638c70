"""The batch that a handler receives: its records, and the transaction that commits them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from tallymark.core.batch import BatchToCommit, Tried
from tallymark.core.claims import Skip
from tallymark.core.drift import Found
from tallymark.core.plan import Move, Plan
from tallymark.core.records import DeadLetter, PartitionCounts, Reading
from tallymark.core.spans import Partition, Span
from tallymark.core.times import timestamp
from tallymark.errors import BadInput, TallymarkError, described
from tallymark.service.records import Record, Records, Unnamed, letter
from tallymark.stores.transaction import Transaction

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
        unnamed: Unnamed | None = None,
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
        self._unnamed = unnamed or {}
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
        reading = Reading(seen, {}, [], drift=self.drift)
        return BatchToCommit(self.name, self._started, moves, reading, (), letters, (), self._skip, self.tried)

    @property
    def drift(self) -> dict[Partition, dict[str, Found]]:
        """The fields that the schema does not name, in records that this batch applies."""
        found: dict[Partition, dict[str, Found]] = {}
        stops = self.stops
        for name, places in self._unnamed.items():
            for partition, offset in places:
                there = (partition, offset) in self.tried if self.tried else offset < stops.get(partition, 0)
                if there and (partition, offset) not in self._letters:
                    fields, one = found.setdefault(partition, {}), Found(1, offset)
                    fields[name] = fields[name] + one if name in fields else one
        return found

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
