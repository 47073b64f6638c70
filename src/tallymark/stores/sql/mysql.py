"""MySQL 8+ and MariaDB 10.6+, via PyMySQL: LOAD DATA LOCAL for many rows, INSERT for few."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    LargeBinary,
    Select,
    String,
    Table,
    cast,
    event,
    insert,
    select,
    text,
)
from sqlalchemy.engine import URL

from tallymark.core.tables import TableSpec
from tallymark.errors import BadInput, DataRefused, TableMismatch
from tallymark.stores.sql.columns import is_binary, is_text, python_rows
from tallymark.stores.sql.deletions import is_deleted, undeleted
from tallymark.stores.sql.dialect import READ_SECONDS, Dialect, check_lengths, not_in_key, parameters
from tallymark.stores.sql.keys import Unique, unique_indexes
from tallymark.stores.sql.merging import assignments
from tallymark.stores.sql.myload import INCOMING, LoadIsOff, load, load_aside
from tallymark.stores.tls import StoreTls
from tallymark.stores.url import CONNECT_SECONDS, CONNECT_TIMEOUT, READ_TIMEOUT, in_seconds, shown

log = logging.getLogger(__name__)

MANY = 1_000
"""The number of rows from which LOAD DATA is faster. With INSERT the server names the row that it refuses."""
DELETED_AT_ONCE = 500
IN_TRANSACTION = 1
"""SERVER_STATUS_IN_TRANS, which is part of every OK packet."""
REST = 64 * 1024
"""Bytes reserved in a packet for everything except a row's texts and binary values."""
ESCAPED = "[\\x00\\n\\r\\x1a\"'\\\\]"
"""Characters that the driver escapes with a backslash."""


WRITE_TIMEOUT = "write_timeout"


class Mysql(Dialect):
    name = "mysql"
    driver = "mysql+pymysql"
    extra = "mysql"
    stages = True
    defers = False
    tls_files = ("ssl_ca", "ssl_cert", "ssl_key")

    def __init__(self) -> None:
        self._may_load = True
        self._packet: int | None = None

    def engine(self, url: URL) -> Engine:
        url = in_seconds(url, WRITE_TIMEOUT)
        url = url if "local_infile" in url.query else url.update_query_dict({"local_infile": "1"})
        engine = super().engine(url.update_query_dict({"charset": "utf8mb4"}))
        event.listen(engine, "do_connect", partial(_connect, shown(url)))
        event.listen(engine, "connect", _on_connect)
        return engine

    def engine_options(self) -> dict[str, Any]:
        # Positional parameters, because rows go to the driver as tuples.
        return super().engine_options() | {"paramstyle": "format"}

    def tls_mode(self, tls: StoreTls) -> dict[str, str]:
        # Given a CA file, PyMySQL verifies certificate and host name. With its explicit verify options, SQLAlchemy and
        # PyMySQL would drop the CA file.
        return {} if tls.checks_host else {"ssl_check_hostname": "false"}

    def unproven(self, options: Mapping[str, Any]) -> str | None:
        given = sorted(name for name in options if name.startswith("ssl"))
        if not given or "ssl_disabled" in given:
            return None
        loose = [name for name in given if name.startswith("ssl_verify_")]
        if str(options.get("ssl_check_hostname", "true")).lower() not in ("true", "1", "yes", "on"):
            loose.append("ssl_check_hostname")
        proven = not loose and {"ssl_ca", "ssl_capath"} & set(given)
        return None if proven else f"{(loose or given)[0]}="

    def in_transaction(self, driver: Any) -> bool:
        return bool(driver.server_status & IN_TRANSACTION)

    def check_table(self, connection: Connection, table: Table, spec: TableSpec, columns: Sequence[str]) -> None:
        found = text(
            "SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :name"
        )
        engine = connection.scalar(found, {"name": table.name})
        if engine != "InnoDB":
            raise TableMismatch(
                f"table {table.name} uses the engine {engine}, which has no transactions; "
                f"convert it: ALTER TABLE {table.name} ENGINE = InnoDB"
            )
        for unique in unique_indexes(connection, table) if spec.write != "append" else ():
            if _can_be_met(table, spec, unique, columns):
                raise TableMismatch(
                    f"table {table.name}: besides ({', '.join(spec.key)}) it has the unique key {unique.name}, and an "
                    f"{spec.write} that conflicts with it would affect another row; drop it"
                )

    def put(self, connection: Connection, table: Table, spec: TableSpec, rows: pa.Table) -> None:
        self._check_sizes(connection, rows)
        check_lengths(table, rows)
        if rows.num_rows >= MANY and self._may_load:
            try:
                self._load(connection, table, spec, rows)
                return
            except LoadIsOff as error:
                self._may_load = False
                log.info("LOAD DATA LOCAL not available, using INSERT error=%s", error)
        given, statement = parameters(table, rows), insert(table)
        if (deleted := is_deleted(table, spec, given, _bytes)) is None:
            statement = statement.values(given)
        else:
            chosen = select(*given.values()).select_from(text("DUAL")).where(~deleted)
            statement = statement.from_select(rows.column_names, chosen)
        self._execute_many(connection, statement, rows, _on_duplicate(connection, table, spec, rows.column_names))

    def _load(self, connection: Connection, table: Table, spec: TableSpec, rows: pa.Table) -> None:
        if spec.write == "append":
            load(connection, connection.dialect.identifier_preparer.quote(table.name), rows)
            return
        incoming = load_aside(connection, table, rows)
        self.promote(connection, table, spec, rows.column_names, undeleted(table, spec, incoming, _bytes))
        connection.exec_driver_sql(f"DROP TEMPORARY TABLE {INCOMING}")

    def promote(
        self, connection: Connection, table: Table, spec: TableSpec, columns: Sequence[str], rows: Select[Any]
    ) -> None:
        statement = insert(table).from_select(list(columns), rows)
        compiled = statement.compile(connection, compile_kwargs={"render_postcompile": True})
        values = tuple(compiled.params[place] for place in compiled.positiontup or ())
        connection.exec_driver_sql(f"{compiled}{_on_duplicate(connection, table, spec, columns)}", values)

    def delete(self, connection: Connection, table: Table, spec: TableSpec, rows: pa.Table) -> None:
        quote = connection.dialect.identifier_preparer.quote
        given = {name: f"{quote(name)} = %s" for name in spec.key}
        if spec.version:
            there = _bytewise(table, spec.version, quote(spec.version))
            given[spec.version] = f"COALESCE({there} <= %s, TRUE)"
        one = f"({' AND '.join(given.values())})"
        identified = list(python_rows(rows.select(list(given)), self.name))
        for start in range(0, len(identified), DELETED_AT_ONCE):
            some = identified[start : start + DELETED_AT_ONCE]
            # Not (a, b) IN (...), which can't compare the version.
            statement = f"DELETE FROM {quote(table.name)} WHERE {' OR '.join([one] * len(some))}"
            connection.exec_driver_sql(statement, tuple(value for row in some for value in row))

    def _check_sizes(self, connection: Connection, rows: pa.Table) -> None:
        """Refuse a row that is larger than a packet: the server would close the connection, as in an outage."""
        texts = [column for column in rows.columns if is_text(column.type) or is_binary(column.type)]
        if not texts:
            return
        if self._packet is None:
            self._packet = int(connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one())
        largest = _largest(texts, escaped=False)
        # Escaping at most doubles the size. Counting the escaped characters is slow, so do it only near the limit.
        if 2 * largest + REST > self._packet:
            largest = _largest(texts, escaped=True)
        if largest + REST > self._packet:
            raise DataRefused(f"the row has {largest} bytes, more than max_allowed_packet={self._packet} of the server")


def _can_be_met(table: Table, spec: TableSpec, unique: Unique, columns: Sequence[str]) -> bool:
    """Whether a row can conflict on this unique key with a row of another key, which MySQL would then update."""
    if not unique.flaw and set(spec.key) <= set(unique.columns):
        return False
    others = [table.c[name] for name in unique.columns if name is not None and name not in columns]
    return not any(_is_always_new(column) for column in others)


def _is_always_new(column: Column[Any]) -> bool:
    """Whether the column, if omitted, gets a value that never conflicts: a generated number or NULL."""
    filled = column.server_default is not None or column.computed is not None
    return column.autoincrement is True or bool(column.nullable and not filled)


def _largest(texts: Sequence[pa.ChunkedArray], *, escaped: bool) -> int:
    """Return the size of the largest row in bytes."""
    sizes = [pc.fill_null(pc.binary_length(column).cast(pa.int64()), 0) for column in texts]
    if escaped:
        marks = [pc.count_substring_regex(column, pattern=ESCAPED).cast(pa.int64()) for column in texts]
        sizes += [pc.fill_null(mark, 0) for mark in marks]
    return int(pc.max(reduce(pc.add, sizes)).as_py() or 0)


def _on_duplicate(connection: Connection, table: Table, spec: TableSpec, columns: Sequence[str]) -> str:
    """Return the ON DUPLICATE KEY clause. The version is assigned last, because the other columns compare with it."""
    if spec.write == "append":
        return ""
    quote = connection.dialect.identifier_preparer.quote
    there = {name: f"{quote(table.name)}.{quote(name)}" for name in columns}
    # VALUES(col) rather than a row alias: MariaDB does not support the alias.
    given = {name: f"VALUES({quote(name)})" for name in columns}
    others = sorted(not_in_key(columns, (*spec.key, *spec.kept)), key=lambda name: name == spec.version)
    if spec.write == "ignore" or not others:
        # Not INSERT IGNORE, which ignores every other error too.
        others, given = [spec.key[0]], there
    elif spec.write == "merge":
        given = assignments(spec, there, given, {name: _bytewise(table, name, there[name]) for name in columns})
    elif spec.version:
        version = _bytewise(table, spec.version, there[spec.version])
        newer = f"{there[spec.version]} IS NULL OR {given[spec.version]} >= {version}"
        given = {name: f"IF({newer}, {given[name]}, {there[name]})" for name in columns}
    return f" ON DUPLICATE KEY UPDATE {', '.join(f'{quote(name)} = {given[name]}' for name in others)}"


def _bytes(column: ColumnElement[Any]) -> ColumnElement[Any]:
    return cast(column, LargeBinary())


def _bytewise(table: Table, name: str, expression: str) -> str:
    """Compare text by its bytes, as is done within a batch."""
    return f"CAST({expression} AS BINARY)" if isinstance(table.c[name].type, String) else expression


def _connect(store: str, dialect: Any, _: Any, positional: Sequence[Any], given: Mapping[str, Any]) -> Any:
    options = {CONNECT_TIMEOUT: CONNECT_SECONDS, READ_TIMEOUT: READ_SECONDS, **given}
    if isinstance(password := options.get("password"), str):
        # PyMySQL would encode it as Latin-1, and the server compares UTF-8.
        options["password"] = password.encode()
    usual = options[READ_TIMEOUT], options.get(WRITE_TIMEOUT, options[READ_TIMEOUT])
    try:
        # PyMySQL applies the read timeout to the handshake too.
        connection = dialect.connect(
            *positional, **options | dict.fromkeys((READ_TIMEOUT, WRITE_TIMEOUT), options[CONNECT_TIMEOUT])
        )
    except RuntimeError as error:
        # The user's authentication plugin needs a package that is not installed.
        raise BadInput(f"{store}: {error}: pip install 'tallymark[mysql]'") from error
    except (TypeError, ValueError, AttributeError, OSError) as error:
        # PyMySQL has no exception of its own for invalid options.
        raise BadInput(f"{store}: PyMySQL refused the options of the URL: {error}; correct them") from error
    connection._read_timeout, connection._write_timeout = usual
    return connection


def _on_connect(connection: Any, _: Any) -> None:
    # A server may answer any statement with a request for a local file: allow that only during LOAD DATA.
    connection._local_infile = False
    with connection.cursor() as cursor:
        # Without strict mode the server silently truncates values. NO_AUTO_VALUE_ON_ZERO stores 0 instead of generating
        # a number. A handler may be idle for longer than a short wait_timeout; 8 hours are MySQL's default.
        modes = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO"
        # CAST, because MySQL does not treat the result of GREATEST as an integer.
        wait = "wait_timeout = CAST(GREATEST(@@wait_timeout, 28800) AS UNSIGNED)"
        cursor.execute(f"SET SESSION sql_mode = CONCAT(@@sql_mode, ',{modes}'), time_zone = '+00:00', {wait}")
