"""The books of a database with SQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from datetime import datetime

from sqlalchemy import Connection

from tallymark.books import BatchLine, Books, Consent, Decision, Letter, LetterQuery, NoteLine, Run
from tallymark.ledger.history import read_groups, read_history, read_notes
from tallymark.ledger.letters import count_letters, read_letters, settle
from tallymark.ledger.move import delete_group, move
from tallymark.ledger.read import lock_positions
from tallymark.ledger.runs import read_runs
from tallymark.patience import patiently
from tallymark.spans import GroupState, Partition

GIVES_WAY = 10.0
"""Seconds for which a change by hand is tried again."""
Opened = Callable[[], AbstractContextManager[Connection]]


class SqlBooks(Books):
    """Reads by ``look``, writes by ``transaction``."""

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
                lock_positions(connection, group, {one.record.partition for one in letters if one.group == group})
            settle(connection, [letter.id for letter in letters], state, by, now)

    def move(self, group: str, partitions: Collection[Partition], decide: Decision, by: str, now: datetime) -> None:
        def attempt() -> None:
            with self._transaction() as connection:
                move(connection, group, partitions, decide, by, now)

        # Under the hands of a group that works, a database may choose us to give way.
        patiently(attempt, patience=GIVES_WAY)

    def delete(self, group: str, consent: Consent) -> None:
        def attempt() -> None:
            with self._transaction() as connection:
                delete_group(connection, group, consent)

        patiently(attempt, patience=GIVES_WAY)
