"""The handler's transaction on an SQL database: SQLAlchemy's connection with ``write``, which can't be ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, CursorResult, Engine, Executable, ScalarResult, text
from sqlalchemy.exc import DBAPIError, PendingRollbackError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tallymark.core.claims import Entry
from tallymark.core.halving import Undoing
from tallymark.core.progress import Step
from tallymark.core.tables import Write
from tallymark.errors import DataRefused, TableChanged, TallymarkError, Unreachable
from tallymark.stores.handler_rows import Given, Rows, cast, changes, check_keys
from tallymark.stores.sql import write as bulk
from tallymark.stores.sql.dialect import Dialect
from tallymark.stores.sql.errors import translated
from tallymark.stores.sql.fitting import Fitted, fit
from tallymark.stores.sql.guard import Guard, refuse
from tallymark.stores.sql.ledger.commit import write_entry
from tallymark.stores.transaction import Transaction, spec_for

Known = dict[tuple[Any, ...], Fitted]
"""Cache of tables, by the spec and the shape of the rows."""
MOST_KNOWN = 1_000
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None

_ENDING = ("commit", "rollback", "close", "begin", "begin_twophase", "invalidate", "detach")


class SqlTransaction(Transaction):
    """Begins with the first statement, so that a handler that computes first holds no lock.

    Has all methods of ``Connection`` that do not end the transaction. ``execute``, ``scalar`` and ``scalars`` also
    accept plain text with named parameters (``:id``). Inside the block errors are SQLAlchemy's; outside they are
    tallymark's.
    """

    def __init__(self, store: str, engine: Engine, dialect: Dialect, known: Known) -> None:
        self.written = {}
        self.defers = dialect.defers
        self._store, self._engine, self._dialect, self._known = store, engine, dialect, known
        # Added to the shared cache only after the commit: this transaction may have created the table.
        self._found: Known = {}
        self._stack = ExitStack()
        self._connection: Connection | None = None
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
            connection = self._stack.enter_context(self._engine.begin())
            self._dialect.let_wait(connection)
            self._connection = self._guard.watch(connection)
        return self._connection

    def execute(self, statement: str | Executable, parameters: Parameters = None, **options: Any) -> CursorResult[Any]:
        if isinstance(statement, str) and parameters and not options:
            driver = _for_driver(statement, self._engine.dialect)
            if (given := driver.arranged(parameters)) is not None:
                return self._open.exec_driver_sql(driver.text, given)
        return self._open.execute(_statement(statement), parameters, **options)

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
        write: Write = "append",
        version: str | None = None,
        create: bool = True,
        evolve: bool = False,
    ) -> None:
        spec = spec_for(table, key, write, version, create=create, evolve=evolve)
        given = Given.of(table, rows)
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
                change = changes(spec, cast(table, given.rows, fitted.schema))
                bulk.write(self._dialect, self._open, fitted.table, change)
                self.written[table] = self.written.get(table, 0) + len(change)
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


class _Driver(NamedTuple):
    """A statement in the driver's parameter style. SQLAlchemy would check the type of every parameter."""

    text: str
    names: frozenset[str]
    order: Sequence[str] | None

    def arranged(self, given: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Any:
        """Return the parameters in the driver's form; None if they are wrong, which SQLAlchemy reports better."""
        if isinstance(given, Mapping):
            return self._row(given)
        rows = [self._row(row) for row in given]
        return None if None in rows else rows

    def _row(self, given: Mapping[str, Any]) -> Any:
        if not isinstance(given, Mapping) or not self.names <= given.keys():
            return None
        return given if self.order is None else tuple([given[name] for name in self.order])


@lru_cache(MOST_KNOWN)
def _for_driver(statement: str, dialect: Any) -> _Driver:
    compiled = text(statement).compile(dialect=dialect)
    return _Driver(str(compiled), frozenset(compiled.params), compiled.positiontup)


def _statement(statement: str | Executable) -> Executable:
    return text(statement) if isinstance(statement, str) else statement
