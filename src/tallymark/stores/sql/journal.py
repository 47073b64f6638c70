"""What operators read and change in the ledger of an SQL database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from datetime import datetime

from sqlalchemy import Connection

from tallymark.core.journal import BatchLine, Consent, Decision, Journal, Letter, LetterQuery, NoteLine, Run
from tallymark.core.retry import retrying
from tallymark.core.spans import GroupState, Partition
from tallymark.stores.sql.ledger.claim import delete_group, move
from tallymark.stores.sql.ledger.letters import count_letters, read_letters, settle
from tallymark.stores.sql.ledger.read import lock_positions
from tallymark.stores.sql.ledger.runs import read_groups, read_history, read_notes, read_runs

GIVES_WAY = 10.0
"""Seconds for which an operator's change is retried."""
Opened = Callable[[], AbstractContextManager[Connection]]


class SqlJournal(Journal):
    """Reads with ``look``, writes with ``transaction``."""

    def __init__(self, look: Opened, transaction: Opened) -> None:
        self._look, self._transaction = look, transaction

    def groups(self) -> dict[str, GroupState]:
        with self._look() as connection:
            return read_groups(connection)

    def runs(self, group: str) -> list[Run]:
        with self._look() as connection:
            return read_runs(connection, group)

    def history(self, group: str, since: datetime | None = None, most: int = 1000) -> list[BatchLine]:
        with self._look() as connection:
            return read_history(connection, group, since, most)

    def notes(self, group: str, kinds: Collection[str]) -> list[NoteLine]:
        with self._look() as connection:
            return read_notes(connection, group, kinds)

    def letters(self, query: LetterQuery) -> list[Letter]:
        with self._look() as connection:
            return read_letters(connection, query)

    def letter_counts(self, group: str) -> dict[str, int]:
        with self._look() as connection:
            return count_letters(connection, group)

    def settle(self, letters: Sequence[Letter], state: str, by: str, now: datetime) -> None:
        with self._transaction() as connection:
            for group in sorted({letter.group for letter in letters}):
                lock_positions(
                    connection, group, {letter.record.partition for letter in letters if letter.group == group}
                )
            settle(connection, [letter.id for letter in letters], state, by, now)

    def move(self, group: str, partitions: Collection[Partition], decide: Decision, by: str, now: datetime) -> None:
        def attempt() -> None:
            with self._transaction() as connection:
                move(connection, group, partitions, decide, by, now)

        # While the group runs, the database may abort this transaction as the victim of a deadlock.
        retrying(attempt, patience=GIVES_WAY)

    def delete(self, group: str, consent: Consent) -> None:
        def attempt() -> None:
            with self._transaction() as connection:
                delete_group(connection, group, consent)

        retrying(attempt, patience=GIVES_WAY)
