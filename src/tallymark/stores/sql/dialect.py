"""The interface for one kind of SQL database: how to connect, and the statements that write rows.

``put`` and ``delete`` get a batch's rows as Arrow, inside the transaction that also moves the positions. The default is
the driver's ``executemany``; databases with a bulk load use that.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Delete,
    Engine,
    Select,
    String,
    Table,
    bindparam,
    collate,
    create_engine,
    event,
    func,
    literal_column,
    or_,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection
from sqlalchemy.sql.dml import Insert

from tallymark.core.tables import TableSpec
from tallymark.errors import DataRefused
from tallymark.stores.sql.columns import is_text, most_characters, python_rows
from tallymark.stores.sql.errors import READ_ONLY as READ_ONLY_SERVER
from tallymark.stores.sql.errors import judged
from tallymark.stores.sql.merging import assignments
from tallymark.stores.tls import StoreTls, check_file, take_tls, warn
from tallymark.stores.url import CONNECT_SECONDS, CONNECT_TIMEOUT, READ_TIMEOUT, in_seconds, shown, with_password

IDLE_SECONDS = 1.0
"""Connections that were idle for longer are pinged before use."""
READ_SECONDS = 300
"""Default of read_timeout=: seconds to wait for the answer to a statement."""
READ_ONLY = "tallymark_read_only"
"""Execution option of connections that only read: on SQLite they take no write lock."""
MAY_IDLE = "tallymark_may_idle"
"""Execution option of a handler's transaction, which may be idle while the handler waits for something else."""


class Dialect(ABC):
    """One kind of database."""

    name: str
    driver: str
    extra: str | None = None
    stages = False
    """Whether executors can reach the database and write to it in parallel."""
    defers = True
    """Whether the database has deferred constraints, which COMMIT checks."""

    tls_files: tuple[str, str, str] | None = None
    """The driver's option names for the CA file, the client certificate and its key."""

    def engine(self, url: URL) -> Engine:
        """Create the engine. Its URL is complete, with the password and the driver's own options: executors get it."""
        url = self._in_own_words(with_password(in_seconds(url, CONNECT_TIMEOUT, READ_TIMEOUT)))
        engine = create_engine(url.set(drivername=self.driver), **self.engine_options())
        _ping_after_idling(engine)
        event.listen(engine, "handle_error", _leave_if_read_only)
        return engine

    def engine_options(self) -> dict[str, Any]:
        return {"isolation_level": "READ COMMITTED"}

    def tls_mode(self, tls: StoreTls) -> dict[str, str]:
        """Return the driver's options for what TLS verifies."""
        raise NotImplementedError

    def unproven(self, options: Mapping[str, Any]) -> str | None:
        """Return the driver option that encrypts without authenticating the server, if one is set."""
        raise NotImplementedError

    def _in_own_words(self, url: URL) -> URL:
        if self.tls_files is None:
            return url
        url, tls = take_tls(url)
        if tls is not None:
            files = zip(self.tls_files, (tls.ca, tls.cert, tls.key), strict=True)
            return url.update_query_dict(self.tls_mode(tls) | {name: path for name, path in files if path})
        for name in self.tls_files:
            check_file(url, name)
        if (said := self.unproven(url.query)) is not None:
            warn(shown(url), said)
        return url

    def check_table(  # noqa: B027
        self, connection: Connection, table: Table, spec: TableSpec, columns: Sequence[str]
    ) -> None:
        """Refuse a table that fits these columns but can't be exactly once on this kind of database."""

    def check_constraints(self, connection: Connection) -> None:  # noqa: B027
        """Check constraints now and after each further statement: a failure in COMMIT does not identify the row."""

    def check_deferred(self, connection: Connection) -> None:  # noqa: B027
        """Raise if COMMIT would refuse what was written; deferred constraints stay deferred."""

    @abstractmethod
    def in_transaction(self, driver: Any) -> bool:
        """Whether a transaction is open, as last reported by the server to the driver's connection."""

    def is_aborted(self, driver: Any) -> bool:  # noqa: ARG002
        """Whether the open transaction can only be rolled back."""
        return False

    def has_ended(self, cursor: Any) -> bool:  # noqa: ARG002
        """Whether the SQL text that the cursor has executed ended a transaction and began another."""
        return False

    @abstractmethod
    def put(self, connection: Connection, table: Table, spec: TableSpec, rows: pa.Table) -> None:
        """Write rows as ``spec.write`` says. If the table has a key, rows are unique by key and sorted.

        Rows that are older than a remembered deletion of their key are not written.
        """

    @abstractmethod
    def delete(self, connection: Connection, table: Table, spec: TableSpec, rows: pa.Table) -> None:
        """Delete rows by key, except those with a higher version. ``rows`` has the columns of key and version.

        A row without a version is deleted; a deletion without a version deletes any version.
        """

    def promote(
        self, connection: Connection, table: Table, spec: TableSpec, columns: Sequence[str], rows: Select[Any]
    ) -> None:
        """Write staged rows as ``spec.write`` says. If the table has a key, rows are unique by key."""
        raise NotImplementedError

    def _execute_many(
        self, connection: Connection, statement: Insert | Delete, rows: pa.Table, suffix: str = ""
    ) -> None:
        """Execute a statement, with ``parameters`` for these rows, for each row."""
        compiled = statement.compile(connection)
        # The compiled statement may order the columns differently.
        columns = {place.key: name for name, place in parameters(statement.table, rows).items()}
        ordered = rows.select([columns[place] for place in compiled.positiontup or ()])
        try:
            # The driver's own executemany: SQLAlchemy's would build a dict for every row.
            connection.exec_driver_sql(f"{compiled}{suffix}", list(python_rows(ordered, self.name)))
        except (UnicodeEncodeError, OverflowError) as error:
            raise DataRefused(str(error)) from error


def _ping_after_idling(engine: Engine) -> None:
    """Ping a connection that was idle, and replace it if it is broken.

    SQLAlchemy's ``pool_pre_ping`` adds a round trip to every checkout, which slows down small batches.
    """

    def used(_: Any, record: ConnectionPoolEntry) -> None:
        record.info["used"] = time.monotonic()

    def check(connection: DBAPIConnection, record: ConnectionPoolEntry, _: PoolProxiedConnection) -> None:
        if time.monotonic() - record.info.get("used", 0.0) < IDLE_SECONDS:
            return
        try:
            with within(connection, CONNECT_SECONDS):
                alive = engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error:
            alive = False
        if not alive:
            raise DisconnectionError

    event.listen(engine, "checkin", used)
    event.listen(engine, "checkout", check)


def _leave_if_read_only(context: ExceptionContext) -> None:
    """Drop pooled connections to a read-only server: after a failover the address may lead to the new primary."""
    if judged(context.original_exception) == READ_ONLY_SERVER:
        context.is_disconnect = True


@contextmanager
def within(connection: Any, most: float) -> Iterator[None]:
    """Limit the wait for an answer. ``_read_timeout`` is an attribute of PyMySQL and of the psycopg subclass."""
    usual = getattr(connection, "_read_timeout", None)
    if usual is not None:
        connection._read_timeout = min(usual, most)
    try:
        yield
    finally:
        if usual is not None:
            connection._read_timeout = usual


def parameters(table: Any, rows: pa.Table) -> dict[str, BindParameter[Any]]:
    """Return a bind parameter for each column of the rows, safe for any column name."""
    return {
        name: bindparam(f"_tallymark_{number}", type_=table.c[name].type)
        for number, name in enumerate(rows.column_names)
    }


def check_lengths(table: Table, rows: pa.Table) -> None:
    """Refuse text that is too long for its column: servers refuse it too, but truncate trailing spaces."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        most = most_characters(table.c[name])
        if most is None or not is_text(column.type):
            continue
        if (pc.max(pc.utf8_length(column)).as_py() or 0) > most:
            raise DataRefused(f"a text is too long for column {name}, which holds at most {most} characters")


def resolved(
    statement: postgresql.Insert | sqlite.Insert,
    spec: TableSpec,
    columns: Sequence[str],
    bytewise: str,
    own: Mapping[str, str] | None = None,
) -> Insert:
    """Add the ON CONFLICT clause for ``spec.write`` to the insert. ``own``: expressions that merge these columns."""
    if spec.write == "merge":
        merged = _merged(statement, spec, bytewise, own)
        return statement.on_conflict_do_update(index_elements=list(spec.key), set_=merged)
    others = not_in_key(columns, spec.key)
    if spec.write == "append":
        return statement
    if spec.write == "ignore" or not others:
        return statement.on_conflict_do_nothing(index_elements=list(spec.key))
    overwritten = {column: statement.excluded[column] for column in others if column not in spec.kept}
    newer = None
    if spec.version:
        there = statement.table.c[spec.version]
        newer = or_(there.is_(None), not_above(statement.table, spec, statement.excluded[spec.version], bytewise))
    return statement.on_conflict_do_update(index_elements=list(spec.key), set_=overwritten, where=newer)


def _merged(
    statement: postgresql.Insert | sqlite.Insert, spec: TableSpec, bytewise: str, own: Mapping[str, str] | None
) -> dict[str, ColumnElement[Any]]:
    table, names = statement.table, list(spec.functions)
    # The same way of quoting in both databases.
    quoted = {name: '"' + name.replace('"', '""') + '"' for name in [table.name, *names]}
    there = {name: f"{quoted[table.name]}.{quoted[name]}" for name in names}
    given = {name: f"excluded.{quoted[name]}" for name in names}
    ordered = {
        name: f'{there[name]} COLLATE "{bytewise}"' if isinstance(table.c[name].type, String) else there[name]
        for name in names
    }
    found = assignments(spec, there, given, ordered, own)
    return {name: literal_column(expression) for name, expression in found.items()}


def deletable(table: Any, spec: TableSpec, version: ColumnElement[Any], bytewise: str) -> ColumnElement[bool]:
    """Condition under which a deletion of this version deletes the stored row: always, unless both have a version."""
    return func.coalesce(not_above(table, spec, version, bytewise), true())


def not_above(table: Any, spec: TableSpec, version: ColumnElement[Any], bytewise: str) -> ColumnElement[bool]:
    """Condition that the stored version is at most this version. Text is compared by its bytes, as within a batch."""
    there = table.c[spec.version]
    return (collate(there, bytewise) if isinstance(there.type, String) else there) <= version


def not_in_key(columns: Sequence[str], key: Sequence[str]) -> list[str]:
    return [column for column in columns if column not in key]
