"""MySQL 8+ and MariaDB 10.6+, by PyMySQL: many rows go by LOAD DATA LOCAL, few by INSERT."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Column, Connection, Engine, Select, String, Table, event, insert, text
from sqlalchemy.engine import URL

from tallymark.errors import BadInput, DataRefused, TableMismatch
from tallymark.shape import TableSpec
from tallymark.stores.columns import is_binary, is_text, python_rows
from tallymark.stores.dialects import READ_SECONDS, Dialect, check_lengths, not_in_key, places
from tallymark.stores.keys import Unique, unique_indexes
from tallymark.stores.load import LoadIsOff, load, load_aside
from tallymark.stores.tls import Tls
from tallymark.stores.url import CONNECT_SECONDS, CONNECT_TIMEOUT, READ_TIMEOUT, seconds, shown

log = logging.getLogger(__name__)

MANY = 1_000
"""From so many rows on LOAD DATA is faster. With fewer the server names the row that it refuses."""
DELETED_AT_ONCE = 500
IN_TRANSACTION = 1
"""SERVER_STATUS_IN_TRANS, which comes with every answer that says that a statement has succeeded."""
REST = 64 * 1024
"""Room for what else is in a packet besides a row's texts and bytes."""
ESCAPED = "[\\x00\\n\\r\\x1a\"'\\\\]"
"""What the driver puts a backslash before."""


WRITE_TIMEOUT = "write_timeout"


class Mysql(Dialect):
    name = "mysql"
    driver = "mysql+pymysql"
    extra = "mysql"
    stages = True
    tls_files = ("ssl_ca", "ssl_cert", "ssl_key")

    def __init__(self) -> None:
        self._may_load = True
        self._packet: int | None = None

    def engine(self, url: URL) -> Engine:
        seconds(url, WRITE_TIMEOUT, READ_SECONDS)
        url = url if "local_infile" in url.query else url.update_query_dict({"local_infile": "1"})
        engine = super().engine(url.update_query_dict({"charset": "utf8mb4"}))
        event.listen(engine, "do_connect", partial(_connect, shown(url)))
        event.listen(engine, "connect", _on_connect)
        return engine

    def engine_options(self) -> dict[str, Any]:
        # Positional parameters: rows go to the driver as tuples, whatever style SQLAlchemy prefers for it.
        return super().engine_options() | {"paramstyle": "format"}

    def tls_mode(self, tls: Tls) -> dict[str, str]:
        # Given the authorities, PyMySQL verifies both. Told to verify by name, SQLAlchemy and it would lose them.
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
                f"ALTER TABLE {table.name} ENGINE = InnoDB makes it fit for exactly once"
            )
        for unique in unique_indexes(connection, table) if spec.write != "append" else ():
            if _can_be_met(table, spec, unique, columns):
                raise TableMismatch(
                    f"table {table.name}: besides ({', '.join(spec.key)}) it has the unique key {unique.name}, and an "
                    f"{spec.write} that meets it would take another row for its own; drop it"
                )

    def put(self, connection: Connection, table: Table, spec: TableSpec, rows: pa.Table) -> None:
        self._check_sizes(connection, rows)
        check_lengths(table, rows)
        suffix = _on_duplicate(connection, table, spec, rows.column_names)
        if rows.num_rows >= MANY and self._may_load:
            try:
                (load_aside if suffix else load)(connection, table, rows, suffix)
                return
            except LoadIsOff as error:
                self._may_load = False
                log.info("LOAD DATA LOCAL is off (%s), rows go by INSERT", error)
        self._execute_many(connection, insert(table).values(places(table, rows)), rows, suffix)

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
            # Not (a, b) IN (...), which has no place for a version.
            statement = f"DELETE FROM {quote(table.name)} WHERE {' OR '.join([one] * len(some))}"
            connection.exec_driver_sql(statement, tuple(value for row in some for value in row))

    def _check_sizes(self, connection: Connection, rows: pa.Table) -> None:
        """Refuse a row that is larger than a packet: the server would cut the connection, as if it were broken."""
        texts = [column for column in rows.columns if is_text(column.type) or is_binary(column.type)]
        if not texts:
            return
        if self._packet is None:
            self._packet = int(connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one())
        largest = _largest(texts, escaped=False)
        # Counting what has to be escaped is slow, and at worst it doubles the size.
        if 2 * largest + REST > self._packet:
            largest = _largest(texts, escaped=True)
        if largest + REST > self._packet:
            raise DataRefused(
                f"the row has {largest} bytes, and the server takes {self._packet} at once (max_allowed_packet)"
            )


def _can_be_met(table: Table, spec: TableSpec, unique: Unique, columns: Sequence[str]) -> bool:
    """Whether a row can meet another one at this key, and not at its own: then MySQL would update that one."""
    if not unique.flaw and set(spec.key) <= set(unique.columns):
        return False
    others = [table.c[name] for name in unique.columns if name is not None and name not in columns]
    return not any(_is_always_new(column) for column in others)


def _is_always_new(column: Column[Any]) -> bool:
    """Whether a row that does not give the column gets a value there that no other row has; NULL is one."""
    filled = column.server_default is not None or column.computed is not None
    return column.autoincrement is True or bool(column.nullable and not filled)


def _largest(texts: Sequence[pa.ChunkedArray], *, escaped: bool) -> int:
    """The bytes of the largest row."""
    sizes = [pc.fill_null(pc.binary_length(column).cast(pa.int64()), 0) for column in texts]
    if escaped:
        marks = [pc.count_substring_regex(column, pattern=ESCAPED).cast(pa.int64()) for column in texts]
        sizes += [pc.fill_null(mark, 0) for mark in marks]
    return int(pc.max(reduce(pc.add, sizes)).as_py() or 0)


def _on_duplicate(connection: Connection, table: Table, spec: TableSpec, columns: Sequence[str]) -> str:
    """What becomes of a row whose key is there already; the version goes last, as the others are compared with it."""
    if spec.write == "append":
        return ""
    quote = connection.dialect.identifier_preparer.quote
    there = {name: f"{quote(table.name)}.{quote(name)}" for name in columns}
    # VALUES(col) rather than a row alias: MariaDB does not know the alias.
    given = {name: f"VALUES({quote(name)})" for name in columns}
    others = sorted(not_in_key(columns, spec.key), key=lambda name: name == spec.version)
    if spec.write == "ignore" or not others:
        # Not INSERT IGNORE, which forgives every other error too.
        others, given = [spec.key[0]], there
    elif spec.version:
        version = _bytewise(table, spec.version, there[spec.version])
        newer = f"{there[spec.version]} IS NULL OR {given[spec.version]} >= {version}"
        given = {name: f"IF({newer}, {given[name]}, {there[name]})" for name in columns}
    return f" ON DUPLICATE KEY UPDATE {', '.join(f'{quote(name)} = {given[name]}' for name in others)}"


def _bytewise(table: Table, name: str, expression: str) -> str:
    """Text is compared by its bytes, as within a batch."""
    return f"CAST({expression} AS BINARY)" if isinstance(table.c[name].type, String) else expression


def _connect(store: str, dialect: Any, _: Any, positional: Sequence[Any], given: Mapping[str, Any]) -> Any:
    options = {CONNECT_TIMEOUT: CONNECT_SECONDS, READ_TIMEOUT: READ_SECONDS, **given}
    if isinstance(password := options.get("password"), str):
        # PyMySQL would send Latin-1, and a server compares UTF-8.
        options["password"] = password.encode()
    usual = options[READ_TIMEOUT], options.get(WRITE_TIMEOUT, options[READ_TIMEOUT])
    try:
        # PyMySQL waits for the handshake as long as for the answer to a statement.
        connection = dialect.connect(
            *positional, **options | dict.fromkeys((READ_TIMEOUT, WRITE_TIMEOUT), options[CONNECT_TIMEOUT])
        )
    except RuntimeError as error:
        # The way in of the user's account needs a package that is not installed.
        raise BadInput(f"{store}: {error}: pip install 'tallymark[mysql]'") from error
    except (TypeError, ValueError, AttributeError, OSError) as error:
        # PyMySQL looks at its options one by one, and has no error of its own for them.
        raise BadInput(f"{store}: PyMySQL can't take the options of the URL: {error}; correct them") from error
    connection._read_timeout, connection._write_timeout = usual
    return connection


def _on_connect(connection: Any, _: Any) -> None:
    # A server may answer any statement by asking for a file of ours: only while we load is it given one.
    connection._local_infile = False
    with connection.cursor() as cursor:
        # Without strict mode the server cuts values to fit, silently. A zero is a value, not a request for a number. A
        # handler may wait for longer than a server waits for its clients: eight hours are the server's own default.
        modes = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO"
        # CAST: to MySQL the result of GREATEST is no integer.
        wait = "wait_timeout = CAST(GREATEST(@@wait_timeout, 28800) AS UNSIGNED)"
        cursor.execute(f"SET SESSION sql_mode = CONCAT(@@sql_mode, ',{modes}'), time_zone = '+00:00', {wait}")
