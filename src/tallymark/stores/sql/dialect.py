"""What a kind of database has to tell us: how to connect, and the statements that write rows.

A batch's rows reach ``put`` and ``delete`` as Arrow, inside the transaction that also moves the positions. The plain
road is the driver's ``executemany``; a database with a bulk road of its own takes that one.
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
    or_,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection
from sqlalchemy.sql.dml import Insert

from tallymark.errors import DataRefused
from tallymark.shape import TableSpec
from tallymark.stores.columns import is_text, most_characters, python_rows
from tallymark.stores.failures import READ_ONLY as READ_ONLY_SERVER
from tallymark.stores.failures import judged
from tallymark.stores.tls import Tls, check_file, take_tls, warn
from tallymark.stores.url import CONNECT_SECONDS, CONNECT_TIMEOUT, READ_TIMEOUT, seconds, shown, with_password

IDLE_SECONDS = 1.0
"""How long a connection may be unused before it is tried out."""
READ_SECONDS = 300
"""For how long a server may be silent while a statement waits for its answer, unless the URL has read_timeout=."""
READ_ONLY = "tallymark_read_only"
"""Execution option of connections that only look: on SQLite they take no write lock."""


class Dialect(ABC):
    """One kind of database."""

    name: str
    driver: str
    extra: str | None = None
    stages = False
    """Whether executors can reach the database and write to it in parallel."""

    tls_files: tuple[str, str, str] | None = None
    """What the driver calls the files of the authorities, of our certificate and of its key."""

    def engine(self, url: URL) -> Engine:
        """Its URL says everything in the driver's own words, password and all: executors get that one."""
        for name in (CONNECT_TIMEOUT, READ_TIMEOUT):
            seconds(url, name, CONNECT_SECONDS)
        url = self._in_own_words(with_password(url))
        engine = create_engine(url.set(drivername=self.driver), **self.engine_options())
        _ping_after_idling(engine)
        event.listen(engine, "handle_error", _leave_if_read_only)
        return engine

    def engine_options(self) -> dict[str, Any]:
        return {"isolation_level": "READ COMMITTED"}

    def tls_mode(self, tls: Tls) -> dict[str, str]:
        """The driver's options for how much is verified."""
        raise NotImplementedError

    def unproven(self, options: Mapping[str, Any]) -> str | None:
        """The driver's own option that encrypts without verifying who the server is, if there is one."""
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
        """Refuse a table that would take these columns, and not keep our promise on this kind of database."""

    def let_wait(self, connection: Connection) -> None:  # noqa: B027
        """Let this transaction be idle for as long as its handler waits for something else."""

    def check_constraints(self, connection: Connection) -> None:  # noqa: B027
        """Have constraints checked now and from now on: a deferred one would fail in COMMIT, which blames no row."""

    def check_deferred(self, connection: Connection) -> None:  # noqa: B027
        """Raise if COMMIT would refuse what was written; deferred constraints stay deferred."""

    @abstractmethod
    def in_transaction(self, driver: Any) -> bool:
        """Whether the server has told the driver's connection that a transaction is open."""

    def is_aborted(self, driver: Any) -> bool:  # noqa: ARG002
        """Whether the open transaction can only be rolled back."""
        return False

    def has_ended(self, cursor: Any) -> bool:  # noqa: ARG002
        """Whether the text that the driver's cursor has executed ended a transaction and began another one."""
        return False

    @abstractmethod
    def put(self, connection: Connection, table: Table, spec: TableSpec, rows: pa.Table) -> None:
        """Write rows as ``spec.write`` says. Where there is a key, each occurs once, and they come sorted."""

    @abstractmethod
    def delete(self, connection: Connection, table: Table, spec: TableSpec, rows: pa.Table) -> None:
        """Delete rows by key, each unless a higher version is there. ``rows`` has the columns of key and version.

        What has no version is deleted, and so is what a deletion without a version names.
        """

    def promote(
        self, connection: Connection, table: Table, spec: TableSpec, columns: Sequence[str], rows: Select[Any]
    ) -> None:
        """Write staged rows as ``spec.write`` says. Where there is a key, each occurs once."""
        raise NotImplementedError

    def _execute_many(
        self, connection: Connection, statement: Insert | Delete, rows: pa.Table, suffix: str = ""
    ) -> None:
        """Run a statement, whose parameters are ``places`` of these rows, once for each of them."""
        compiled = statement.compile(connection)
        # The statement names the columns in an order of its own.
        columns = {place.key: name for name, place in places(statement.table, rows).items()}
        ordered = rows.select([columns[place] for place in compiled.positiontup or ()])
        try:
            # The driver's own executemany: SQLAlchemy's would build a dict for every row.
            connection.exec_driver_sql(f"{compiled}{suffix}", list(python_rows(ordered, self.name)))
        except (UnicodeEncodeError, OverflowError) as error:
            raise DataRefused(str(error)) from error


def _ping_after_idling(engine: Engine) -> None:
    """Try out a connection that was idle for a while, and take another one if it is broken.

    SQLAlchemy's own way asks the server each time, which a small batch can feel.
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
    """After a failover the address may lead to another server, and the connections of the pool to the old one."""
    if judged(context.original_exception) == READ_ONLY_SERVER:
        context.is_disconnect = True


@contextmanager
def within(connection: Any, most: float) -> Iterator[None]:
    """Wait no longer than this for an answer. Connections to servers have the attribute, PyMySQL's by themselves."""
    usual = getattr(connection, "_read_timeout", None)
    if usual is not None:
        connection._read_timeout = min(usual, most)
    try:
        yield
    finally:
        if usual is not None:
            connection._read_timeout = usual


def places(table: Any, rows: pa.Table) -> dict[str, BindParameter[Any]]:
    """A parameter for each column of the rows, whatever its name."""
    return {
        name: bindparam(f"_tallymark_{number}", type_=table.c[name].type)
        for number, name in enumerate(rows.column_names)
    }


def check_lengths(table: Table, rows: pa.Table) -> None:
    """Refuse text that is too long for its column: a server that refuses it too would still cut off spaces."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        most = most_characters(table.c[name])
        if most is None or not is_text(column.type):
            continue
        if (pc.max(pc.utf8_length(column)).as_py() or 0) > most:
            raise DataRefused(f"a text is too long for column {name}, which has {most} characters at most")


def resolved(
    statement: postgresql.Insert | sqlite.Insert, spec: TableSpec, columns: Sequence[str], bytewise: str
) -> Insert:
    """The insert, with what becomes of a row whose key is there already."""
    others = not_in_key(columns, spec.key)
    if spec.write == "append":
        return statement
    if spec.write == "ignore" or not others:
        return statement.on_conflict_do_nothing(index_elements=list(spec.key))
    overwritten = {column: statement.excluded[column] for column in others}
    newer = None
    if spec.version:
        there = statement.table.c[spec.version]
        newer = or_(there.is_(None), not_above(statement.table, spec, statement.excluded[spec.version], bytewise))
    return statement.on_conflict_do_update(index_elements=list(spec.key), set_=overwritten, where=newer)


def deletable(table: Any, spec: TableSpec, version: ColumnElement[Any], bytewise: str) -> ColumnElement[bool]:
    """Whether a deletion of this version deletes the row that is there: unless both have one, it does."""
    return func.coalesce(not_above(table, spec, version, bytewise), true())


def not_above(table: Any, spec: TableSpec, version: ColumnElement[Any], bytewise: str) -> ColumnElement[bool]:
    """Whether the row that is there has at most this version. Text is compared by its bytes, as within a batch."""
    there = table.c[spec.version]
    return (collate(there, bytewise) if isinstance(there.type, String) else there) <= version


def not_in_key(columns: Sequence[str], key: Sequence[str]) -> list[str]:
    return [column for column in columns if column not in key]
