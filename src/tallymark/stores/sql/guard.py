"""Protect a handler's transaction: refuse statements that end it, and detect when a statement has ended it.

Statements that are known to end a transaction are refused before they are sent. For all others, the driver knows after
each statement, without a round trip, whether the server is still in the transaction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from sqlalchemy import Connection, Engine, NestedTransaction, event
from sqlalchemy.engine.interfaces import ExceptionContext
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tallymark.errors import BadInput, DataRefused, TallymarkError, TransactionUndone, Unreachable
from tallymark.stores.sql.dialect import Dialect
from tallymark.stores.sql.errors import ABORTED, translate
from tallymark.stores.transaction import ENDS_ITSELF

GUARD = "tallymark_guard"
"""Execution option of a connection that belongs to a handler's transaction."""

# Excludes comments that MySQL executes: /*! COMMIT */
_BEFORE = r"(?:[\s;]|/\*(?!!)(?:[^*]|\*(?!/))*\*/|(?:--|\#)[^\n]*(?:\n|$))*"
_ENDS = re.compile(
    _BEFORE + r"(COMMIT|END|ABORT|ROLLBACK(?!.*\bTO\b)|BEGIN|(?:START|PREPARE)\s+TRANSACTION|XA)\b",
    re.IGNORECASE | re.DOTALL,
)
_MYSQL_COMMITS = re.compile(
    _BEFORE + r"(?!\w+\s+(?:OR\s+REPLACE\s+)?TEMPORARY\b)"
    r"(ALTER|ANALYZE|CACHE|CHANGE|CHECK|CREATE|DROP|FLUSH|GRANT|INSTALL|LOAD\s+INDEX|LOCK|OPTIMIZE|RENAME|REPAIR|RESET|"
    r"REVOKE|SET\s+PASSWORD|SET\b[^;]*\bautocommit|TRUNCATE|UNINSTALL|UNLOCK)\b",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    _BEFORE + r"(CREATE|DELETE|DO|DROP|EXPLAIN|INSERT|LOAD|RELEASE|REPLACE|ROLLBACK|SAVEPOINT|SELECT|"
    r"SET(?!\s+STATEMENT\b)|SHOW|TABLE|UPDATE|VALUES|WITH)\b",
    re.IGNORECASE,
)
"""Statements that never commit if they do not match ``_MYSQL_COMMITS``."""
_NAME = re.compile(_BEFORE + r"([^\s(;]+(?:\s+[^\s(;]+)?)")


class Guard:
    """Watches one transaction."""

    def __init__(self, store: str, dialect: Dialect) -> None:
        self.may_commit = False
        self._store, self._dialect = store, dialect
        self._connection: Connection | None = None
        self.driver: Any = None
        self._whole: NestedTransaction | None = None
        self._in_transaction = False
        """Whether the server has reported an open transaction. MySQL does so only after the first access to a table."""
        self._running: str | None = None
        """The last statement that was sent; None once it has succeeded."""
        self._failed = False
        self._undone_by: DBAPIError | None = None
        """The error on which the database rolled back the transaction."""
        self._suspect: str | None = None
        """On MySQL, the last statement that may have committed unnoticed, for example a CALL."""
        self._ended: str | None = None

    def watch(self, connection: Connection) -> Connection:
        """Watch everything that is executed on this connection from now on."""
        self.driver = connection.connection.driver_connection
        self._connection = connection.execution_options(**{GUARD: self})
        if self._dialect.name != "postgresql":
            self.nest()
        self._in_transaction = self._dialect.in_transaction(self.driver)
        return self._connection

    def nest(self) -> None:
        """Open a savepoint around everything that follows: if it is lost, the transaction was ended."""
        if self._whole is None and self._connection is not None:
            self._whole = self._connection.begin_nested()

    def finish(self) -> None:
        """Refuse a partial commit, after a rollback or commit inside the block.

        After a deadlock MySQL rolls back the whole transaction and accepts further statements. The first savepoint is
        lost then. It is also lost after a procedure that commits and begins a new transaction.
        """
        self._check()
        if self._dialect.is_aborted(self.driver):
            raise ABORTED.on(self._store, "")
        if self._whole is None:
            return
        try:
            self._whole.commit()
        except DBAPIError as error:
            if not _misses_savepoint(error):
                raise
            raise self._lost() from error
        self._whole = None

    @contextmanager
    def undoing(self) -> Iterator[None]:
        """On an error, find out before the rollback whether a part of the transaction was committed."""
        try:
            yield
        except Exception as error:
            if self._suspect is not None and self._running is not None and self._whole is not None:
                with suppress(SQLAlchemyError), self.rolling_back(error):
                    self._whole.rollback()
            raise

    @contextmanager
    def rolling_back(self, error: BaseException) -> Iterator[None]:
        """Raise if the savepoint is missing and no deadlock explains that: then a statement has committed."""
        try:
            yield
        except DBAPIError as missing:
            passing = isinstance(error, DBAPIError) and translate(error, self._store).transient
            passing = passing or getattr(error, "transient", False) or not isinstance(error, Exception)
            if self._suspect is None or passing or not _misses_savepoint(missing):
                raise
            raise self._lost() from error

    def before_commit(self, connection: Connection) -> None:
        if not self.may_commit:
            # SQLAlchemy considers the transaction ended here and would not roll it back.
            connection.dialect.do_rollback(connection.connection)
            refuse()

    def before_statement(self, statement: str) -> None:
        self._failed = self._failed or self._running is not None
        self._check()
        if _ENDS.match(statement):
            refuse()
        if self._dialect.name == "mysql" and (found := _MYSQL_COMMITS.match(statement)):
            words = " ".join(found[1].upper().split())
            raise BadInput(f"{words} would commit the transaction on MySQL: execute it outside the block")
        self._running = statement
        # The other databases report after each statement whether it has ended the transaction.
        if self._dialect.name == "mysql" and not _PLAIN.match(statement):
            self._suspect = _named(statement)

    def after_statement(self, statement: str, cursor: Any) -> None:
        self._running = None
        now = self._dialect.in_transaction(self.driver)
        if (self._in_transaction and not now) or self._dialect.has_ended(cursor):
            self._suspect = _named(statement)
            raise self._lost()
        self._in_transaction = now

    def after_error(self, error: BaseException | None) -> None:
        """Detect a rollback by SQLite: after ON CONFLICT ROLLBACK or RAISE(ROLLBACK), and when the disk is full."""
        if isinstance(error, DBAPIError) and self._in_transaction and not self._dialect.in_transaction(self.driver):
            self._undone_by = self._undone_by or error

    def _check(self) -> None:
        """Raise if the transaction has ended."""
        if self._undone_by is not None:
            raise self._lost()
        if self._ended is not None:
            raise BadInput(self._ended)
        undone = self._whole is not None and not self._whole.is_active
        if undone or (self._connection is not None and not self._connection.in_transaction()):
            raise BadInput(f"the transaction was ended inside the block, and is rolled back: {ENDS_ITSELF}")
        if self._in_transaction and not self._dialect.in_transaction(self.driver):
            raise self._lost()

    def _lost(self) -> TallymarkError:
        """Return why the transaction was lost: rolled back by the database, or ended by a statement that succeeded."""
        if self._undone_by is not None:
            cause = translate(self._undone_by, self._store)
            words = f"{cause}; the database has rolled back the transaction"
            return TransactionUndone(words) if isinstance(cause, DataRefused) else cause
        failed = self._failed or self._running is not None
        if failed and self._suspect is None:
            return Unreachable(f"{self._store} has rolled back the transaction; try again")
        self._ended = (
            f"{self._store}: {self._suspect or 'a statement'} ended the transaction inside the block: rows that the "
            "block wrote before it may be committed, and the next start writes them again; delete them first, and "
            "leave the statement out or execute it on another connection"
        )
        return BadInput(self._ended)


def guard(engine: Engine) -> None:
    """Watch the statements of every transaction. A listener per engine is cheaper than a listener per transaction."""

    @event.listens_for(engine, "commit")
    def commit(connection: Connection) -> None:
        if (ours := connection.get_execution_options().get(GUARD)) is not None:
            ours.before_commit(connection)

    @event.listens_for(engine, "before_cursor_execute")
    def execute(connection: Connection, _: Any, statement: str, *__: Any) -> None:
        if (ours := connection.get_execution_options().get(GUARD)) is not None:
            ours.before_statement(statement)

    @event.listens_for(engine, "after_cursor_execute")
    def executed(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if (ours := connection.get_execution_options().get(GUARD)) is not None:
            ours.after_statement(statement, cursor)

    @event.listens_for(engine, "handle_error")
    def failed(context: ExceptionContext) -> None:
        connection = context.connection
        if connection is not None and (ours := connection.get_execution_options().get(GUARD)) is not None:
            ours.after_error(context.sqlalchemy_exception)


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise BadInput(ENDS_ITSELF)


def _misses_savepoint(error: DBAPIError) -> bool:
    return "savepoint" in str(error.orig).lower()


def _named(statement: str) -> str:
    """Return the first words of a statement, without its values."""
    found = _NAME.match(statement)
    return " ".join(found[1].split())[:60] if found else "a statement"
