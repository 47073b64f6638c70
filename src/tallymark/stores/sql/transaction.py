"""The handler's transaction on an SQL database: SQLAlchemy's connection with ``write``, which can't be ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, Literal, NamedTuple, NoReturn
from typing import cast as typing_cast

from sqlalchemy import Connection, CursorResult, Engine, Executable, ScalarResult, text
from sqlalchemy.exc import DBAPIError, PendingRollbackError, ResourceClosedError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tallymark.core.claims import Entry
from tallymark.core.halving import Undoing
from tallymark.core.merging import MergeFunction
from tallymark.core.progress import Step
from tallymark.core.tables import Write, WrittenTable
from tallymark.errors import DataRefused, TableChanged, TallymarkError, Unreachable
from tallymark.stores.handler_rows import (
    Given,
    Rows,
    cast,
    changes,
    check_keys,
    check_mergeable,
    deleted_rows,
    with_wide_sums,
)
from tallymark.stores.sql import write as bulk
from tallymark.stores.sql.deletions import lock_table
from tallymark.stores.sql.dialect import Dialect
from tallymark.stores.sql.errors import translated
from tallymark.stores.sql.fitting import Fitted, fit
from tallymark.stores.sql.guard import Guard, refuse
from tallymark.stores.sql.ledger.commit import write_entry
from tallymark.stores.sql.ledger.read import as_sqlalchemy
from tallymark.stores.transaction import Transaction

Known = dict[tuple[Any, ...], Fitted]
"""Cache of tables, by the spec and the shape of the rows."""
MOST_KNOWN = 1_000
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None

_CHANGES = re.compile(r"\s*(INSERT|UPDATE|DELETE)\b(?!.*(\bRETURNING\b|;))", re.IGNORECASE | re.DOTALL)
"""Statements that return no rows for certain."""
_ENDING = ("commit", "rollback", "close", "begin", "begin_twophase", "invalidate", "detach")


class SqlTransaction(Transaction):
    """Begins with the first statement, so that a handler that computes first holds no lock.

    Has all methods of ``Connection`` that do not end the transaction. ``execute``, ``scalar`` and ``scalars`` also
    accept plain text with named parameters (``:id``). Inside the block errors are SQLAlchemy's; outside they are
    tallymark's.
    """

    def __init__(self, store: str, engine: Engine, dialect: Dialect, known: Known) -> None:
        self.written, self.tables = {}, set()
        self.defers = dialect.defers
        self._store, self._engine, self._dialect, self._known = store, engine, dialect, known
        # Added to the shared cache only after the commit: this transaction may have created the table.
        self._found: Known = {}
        self._stack = ExitStack()
        self._connection: Connection | None = None
        self._cursor: Any = None
        self._guard = Guard(store, dialect)

    @property
    def connection(self) -> Connection:
        """SQLAlchemy's connection, for ORMs: ``Session(bind=db.connection)``."""
        connection = self._open
        # A session opens its own savepoint inside this savepoint, and rolls back only that.
        self._guard.nest()
        return connection

    @property
    def _open(self) -> Connection:
        self._check_open()
        if self._connection is None:
            self._connection = self._guard.watch(self._stack.enter_context(self._engine.begin()))
        return self._connection

    def execute(self, statement: str | Executable, parameters: Parameters = None, **options: Any) -> CursorResult[Any]:
        if isinstance(statement, str) and parameters and not options:
            driver = _for_driver(statement, self._engine.dialect)
            if (given := driver.arranged(parameters)) is not None:
                if driver.returns_rows:
                    return self._open.exec_driver_sql(driver.text, given)
                return self._change(driver.text, given)
        return self._open.execute(_statement(statement), parameters, **options)

    def _change(self, statement: str, given: Any) -> CursorResult[Any]:
        """Execute a statement that returns no rows. SQLAlchemy's context and result take a third of the time."""
        connection = self._open
        self._guard.before_statement(statement)
        try:
            if self._cursor is None:
                self._cursor = self._stack.enter_context(closing(self._guard.driver.cursor()))
            if isinstance(given, list):
                self._cursor.executemany(statement, given)
            else:
                self._cursor.execute(statement, given)
        except self._engine.dialect.loaded_dbapi.Error as error:
            known = as_sqlalchemy(error, connection, statement)
            self._guard.after_error(known)
            raise known from error
        self._guard.after_statement(statement, self._cursor)
        changed = Changed(self._cursor.rowcount, getattr(self._cursor, "lastrowid", None))
        return typing_cast("CursorResult[Any]", changed)

    def scalar(self, statement: str | Executable, parameters: Mapping[str, Any] | None = None, **options: Any) -> Any:
        return self._open.scalar(_statement(statement), parameters, **options)

    def scalars(self, statement: str | Executable, parameters: Parameters = None, **options: Any) -> ScalarResult[Any]:
        return self._open.scalars(_statement(statement), parameters, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return refuse if name in _ENDING else getattr(self._open, name)

    def write(
        self,
        table: str,
        rows: Rows,
        *,
        key: str | Sequence[str] = (),
        write: Write | Literal["replica"] = "append",
        version: str | None = None,
        create: bool = True,
        evolve: bool = False,
        merge: Mapping[str, MergeFunction] | None = None,
        inexact: bool = False,
    ) -> None:
        spec = self._spec(table, key, write, version, create=create, evolve=evolve, merge=merge, inexact=inexact)
        deleted = deleted_rows(spec, rows)
        given = Given.of(table, rows, spec.bounds)
        if not given.rows.num_rows:
            return
        check_keys(spec, given)
        place = (spec, given.shape)
        try:
            with translated(self._store), self.savepoint():
                fitted = self._found.get(place) or self._known.get(place)
                if fitted is None:
                    used = table in self.written
                    fitted = fit(self._open, self._engine, self._dialect, spec, given, used=used)
                self._found[place] = fitted
                schema = with_wide_sums(spec, given, fitted.schema)
                change = changes(spec, cast(table, given.rows, schema), deleted)
                check_mergeable(change)
                if spec.remembers and self.group is not None:
                    lock_table(self._open, self.group, [WrittenTable(table, spec.write)], datetime.now(UTC), change)
                bulk.write(self._dialect, self._open, fitted.table, change)
                self.written[table] = self.written.get(table, 0) + len(change)
                self.tables.add(WrittenTable(table, spec.write))
        except TableChanged:
            self._known.pop(place, None)
            raise

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        nested, written, found = self._open.begin_nested(), dict(self.written), dict(self._found)
        try:
            yield
            nested.commit()
        except Undoing:
            # The database has rolled back the transaction: no savepoint is left.
            raise
        except BaseException as error:
            # After a deadlock or a lost connection the savepoint is gone; the guard reports that.
            with suppress(SQLAlchemyError), self._guard.rolling_back(error):
                nested.rollback()
            self.written, self._found = written, found
            other = isinstance(error, Exception) and not isinstance(error, SQLAlchemyError | TallymarkError)
            if other and nested.connection.invalidated:
                # This transaction can't continue, whatever the error was.
                raise Unreachable(f"{self._store}: the connection was lost inside a transaction; try again") from error
            raise

    def check(self) -> None:
        with translated(self._store):
            self._dialect.check_deferred(self._open)

    @contextmanager
    def opened(self) -> Iterator[SqlTransaction]:
        """Commit at the end of the block; roll back if it raises."""
        try:
            with self._stack, self._guard.undoing():
                yield self
        except (DBAPIError, PoolTimeout, PendingRollbackError) as error:
            # Other SQLAlchemy errors are usage errors in the handler and are not translated.
            try:
                with translated(self._store):
                    raise
            except DataRefused as refused:
                if not self._over:
                    raise
                raise DataRefused(f"refused at the end of the block: {refused}; nothing was written") from error
        finally:
            self._over = True
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        self._known.update(self._found)

    def finish(self, entry: Entry | None, on_step: Callable[[Step], None]) -> None:
        """Write the entry to the ledger at the end of the block, the positions last."""
        if entry is None and self._connection is None:
            return
        connection = self._open
        self._guard.finish()
        if entry is None:
            on_step(Step.WRITTEN)
        else:
            write_entry(connection, entry, lambda: on_step(Step.WRITTEN))
            on_step(Step.MOVED)
        self._over = self._guard.may_commit = True


class Changed:
    """The result of a statement without rows, with what SQLAlchemy's result has then."""

    returns_rows = False

    def __init__(self, rowcount: int, lastrowid: Any) -> None:
        self.rowcount, self.lastrowid = rowcount, lastrowid

    def close(self) -> None:
        """There is nothing to close."""

    def __iter__(self) -> NoReturn:
        raise ResourceClosedError("This result object does not return rows. It has been closed automatically.")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(CursorResult, name):
            raise AttributeError(name)
        iter(self)


class _Driver(NamedTuple):
    """A statement in the driver's parameter style. SQLAlchemy would check the type of every parameter."""

    text: str
    row: Callable[[Mapping[str, Any]], Any]
    """Returns the parameters of a row in the driver's form."""
    returns_rows: bool

    def arranged(self, given: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Any:
        """Return the parameters in the driver's form; None if they are wrong, which SQLAlchemy reports better."""
        try:
            return self.row(given) if isinstance(given, Mapping) else list(map(self.row, given))
        except (KeyError, TypeError):
            return None


@lru_cache(MOST_KNOWN)
def _for_driver(statement: str, dialect: Any) -> _Driver:
    compiled, returns_rows = text(statement).compile(dialect=dialect), _CHANGES.match(statement) is None
    if dialect.paramstyle == "pyformat":
        # psycopg takes longer for named parameters. But it sends a repeated one once, which also gives it one type.
        by_place = text(statement).compile(dialect=type(dialect)(paramstyle="format"))
        compiled = compiled if len(by_place.positiontup or ()) > len(compiled.params) else by_place
    names = compiled.positiontup
    row = partial(_named, tuple(compiled.params)) if names is None else _getter(names)
    return _Driver(str(compiled), row, returns_rows)


def _named(names: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def _getter(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda row: tuple([row[name] for name in names])


def _statement(statement: str | Executable) -> Executable:
    return text(statement) if isinstance(statement, str) else statement
