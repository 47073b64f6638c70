"""One batch of a consumer into the store: its handler's own statements, and the ledger, in the chosen order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from tallymark.batch import Batch
from tallymark.commit import Claims, Committer, OnStep
from tallymark.errors import CommitRefused, Unreachable
from tallymark.fence import Entry
from tallymark.steps import Step
from tallymark.stores.transaction import Transaction

log = logging.getLogger(__name__)

Accounts = Callable[[], Batch]


@dataclass
class Handled:
    """A batch in the hands of its handler: the claims to go on with, its entry, and whether that is in the ledger."""

    claims: Claims
    entry: Entry | None = None
    moved: bool = False


class HandledCommitter:
    """Commits what handlers do. ``accounts`` is asked for the batch when the handler is done with it."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._handle = {
            "exactly-once": self._together,
            "at-least-once": self._rows_first,
            "at-most-once": self._ledger_first,
        }[committer.destination.delivery]

    def transaction(self, accounts: Accounts, handled: Handled, on_step: OnStep) -> AbstractContextManager[Transaction]:
        """The open transaction. Whatever happens, ``handled.claims`` are the ones to go on with."""
        return contextmanager(self._handle)(accounts, handled, on_step)

    def _together(self, accounts: Accounts, handled: Handled, on_step: OnStep) -> Iterator[Transaction]:
        committer = self._committer
        db: Transaction | None = None

        def entry() -> Entry:
            made = self._entry(accounts, handled)
            handled.entry = replace(made, rows=dict(db.written) if db is not None else {})
            return handled.entry

        try:
            with committer.destination.rows.begin(entry, on_step) as db:
                yield db
        except (Unreachable, CommitRefused) as error:
            sent = handled.entry
            if sent is None:
                raise
            if isinstance(error, CommitRefused):
                landed = committer.has_fills(sent)
            else:
                log.warning("commit outcome unknown batch=%s error=%s", sent.batch, error)
                on_step(Step.UNKNOWN)
                handled.claims, landed = committer.patiently(lambda: committer.settled(sent, handled.claims))
            if not landed:
                raise
        handled.moved = True

    def _rows_first(self, accounts: Accounts, handled: Handled, on_step: OnStep) -> Iterator[Transaction]:
        def budget() -> None:
            """Before the rows are there: too many dead must not leave any."""
            self._committer.check_budget(accounts())

        with self._committer.destination.rows.begin(budget, on_step) as db:
            yield db
        on_step(Step.HALFWAY)
        self._write_ledger(replace(self._entry(accounts, handled), rows=dict(db.written)), handled, on_step)

    def _ledger_first(self, accounts: Accounts, handled: Handled, on_step: OnStep) -> Iterator[Transaction]:
        self._write_ledger(self._entry(accounts, handled), handled, on_step)
        on_step(Step.HALFWAY)
        with self._committer.destination.rows.begin(lambda: None, on_step) as db:
            yield db

    def ledger_only(self, accounts: Accounts, handled: Handled, on_step: OnStep) -> None:
        """Move positions over what holds no record for a handler."""
        self._write_ledger(self._entry(accounts, handled), handled, on_step)

    def _write_ledger(self, entry: Entry, handled: Handled, on_step: OnStep) -> None:
        handled.claims = self._committer.write_ledger((), entry, handled.claims, on_step)
        handled.entry, handled.moved = entry, True

    def _entry(self, accounts: Accounts, handled: Handled) -> Entry:
        batch = accounts()
        self._committer.check_budget(batch)
        return self._committer.budgeted(batch.entry(self._committer.group, handled.claims))
