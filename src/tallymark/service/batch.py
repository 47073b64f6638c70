"""A batch as its handler sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from tallymark.batch import Batch as Accounts
from tallymark.batch import Tried
from tallymark.errors import BadInput, TallymarkError, described
from tallymark.fence import Skip
from tallymark.plan import Move, Plan
from tallymark.read import DeadLetter, Reading, Seen
from tallymark.records import Record, Records, letter
from tallymark.spans import Partition, Span
from tallymark.stores.transaction import Transaction
from tallymark.times import timestamp

log = logging.getLogger(__name__)

Commit = Callable[["Batch"], AbstractContextManager[Transaction]]


class Batch:
    """Records of claimed partitions, to be committed together with what their handler writes.

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
        commit: Commit,
        skip: Skip | None = None,
        tried: Tried | None = None,
    ) -> None:
        self.name = name
        self.records = records
        """The decoded records. Those that could not be decoded are dead letters already."""
        self.committed = False
        self.abandoned = False
        """Whether it can't be committed any more, because its partitions are gone."""
        self.moves = tuple(moves)
        self._messages = messages
        self._letters = {(one.partition, one.offset): one for one in letters}
        self._commit = commit
        self._skip = skip
        self.tried = tried or {}
        """The dead letters that are tried again, by their records. Those that die again keep their letters."""
        self._accounted = False
        self._started = datetime.now(timezone.utc)

    def __len__(self) -> int:
        return len(self.records)

    def to_arrow(self) -> pa.Table:
        """The decoded records as an Arrow table: topic, partition, offset, timestamp, key, value, headers."""
        return self.records.to_arrow()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """The open transaction: what is written in the block commits with the positions, or not at all.

        If the block raises, nothing has happened, and it may be tried again. ``Fenced`` means that partitions of this
        batch went to another member meanwhile: nothing was written, and the next batch is right.
        """
        if self.committed or self.abandoned:
            words = "committed already" if self.committed else "gone: its partitions went to others"
            raise BadInput(f"batch {self.name} is {words}; take the next one")
        before = self.moves, self._messages, dict(self._letters), self.tried
        try:
            with self._commit(self) as db:
                yield db
        except BaseException:
            self.moves, self._messages, self._letters, self.tried = before
            raise
        finally:
            self._accounted = False
        self.committed = True

    def dead(self, record: Record, error: BaseException | str, table: str | None = None) -> None:
        """Set a record aside: it is written to the dead letters in this transaction, and counts as dead.

        Where positions move first (``at-most-once``), that has to be known before the transaction: inside it the record
        is lost, which is only logged.
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
        return sum(move.stop - move.start for move in self.moves)

    @property
    def stops(self) -> dict[Partition, int]:
        """Where each partition goes on behind this batch."""
        return {move.partition: move.stop for move in self.moves}

    def shorten(self, unfinished: Mapping[Partition, int], error: TallymarkError | None) -> None:
        """Commit only what comes before these offsets; the rest is handed out again, unless the ledger is past it."""
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
        self._letters = {place: found for place, found in self._letters.items() if finished(*place)}
        self.tried = {place: found for place, found in self.tried.items() if finished(*place)}

    def accounts(self) -> Accounts:
        """What is to be written to the ledger for it. From then on it is too late for ``dead`` and ``shorten``."""
        self._accounted = True
        seen = {
            partition: Seen(len(messages), 0, timestamp(messages[-1]), messages[-1].leader_epoch())
            for partition, messages in self._messages.items()
            if messages
        }
        moves = Plan(tuple(move for move in self.moves if move.stop > move.start))
        letters = list(self._letters.values())
        return Accounts(self.name, self._started, moves, Reading(seen, {}, []), (), letters, (), self._skip, self.tried)

    def check_taken(self) -> None:
        if not self.committed and not self.abandoned:
            raise BadInput(
                f"batch {self.name} was left without a commit; work in 'with batch.transaction() as db:', "
                "and leave the loop when that fails"
            )

    def _lose(self, span: Span, error: TallymarkError | str | None) -> None:
        words = "lost, and counted as applied, as at-most-once allows batch=%s span=%s error=%s"
        log.error(words, self.name, span, error)

    def _find(self, record: Record) -> Any:
        partition, offset = record.place
        for message in self._messages.get(partition, ()):
            if message.offset() == offset:
                return message
        raise BadInput(f"{partition} offset {offset} is not in batch {self.name}")


def _until(move: Move, stop: int) -> Move:
    return replace(move, read=max(0, move.read - (move.stop - stop)))
