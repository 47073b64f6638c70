"""PostgreSQL via psycopg: COPY to append rows; COPY to a temporary table and one statement to write by key."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
from sqlalchemy import ColumnElement, Connection, Engine, Select, Table, TableClause, collate, delete, event, table
from sqlalchemy import column as sql_column
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import URL
from sqlalchemy.pool import ConnectionPoolEntry

from tallymark.core.tables import TableSpec
from tallymark.errors import TallymarkError
from tallymark.stores.sql import pgcopy
from tallymark.stores.sql.columns import hexed, is_binary, plain
from tallymark.stores.sql.deletions import undeleted
from tallymark.stores.sql.dialect import MAY_IDLE, READ_SECONDS, Dialect, check_lengths, deletable, resolved, within
from tallymark.stores.sql.ledger.read import by_driver
from tallymark.stores.sql.merging import APPEND
from tallymark.stores.tls import StoreTls
from tallymark.stores.url import CONNECT_SECONDS, CONNECT_TIMEOUT, READ_TIMEOUT

# Detect a server that is gone without closing the connection within a minute.
CONNECT = {
    CONNECT_TIMEOUT: CONNECT_SECONDS,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
IDLE_LIMIT = "idle_in_transaction_session_timeout"
# A time without a zone is UTC, whatever the server's time zone is. A client that freezes in a transaction must not
# keep its locks for hours.
SETTINGS = {"TimeZone": "UTC", IDLE_LIMIT: "5min"}
# The same for a client that is gone without closing the connection.
KEEPALIVES = {"tcp_keepalives_idle": "20", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
POOLED = "tallymark_pooled"
"""Whether the connection goes through a pooler, so that each transaction may use another session."""
IDLE, IN_ERROR = 0, 3
"""libpq's PQTRANS_IDLE and PQTRANS_INERROR."""
ENDED = (b"COMMIT", b"BEGIN", b"START TRANSACTION", b"PREPARE TRANSACTION")
"""Command tags of statements that begin or end a transaction. Not ROLLBACK, which may be to a savepoint."""
INCOMING = "tallymark_incoming"
"""The temporary table for rows that are written by key; it is dropped with the transaction."""
BYTEWISE = "C"
UNCHECKED_COMMANDS = 31
"""How many commands of a pipeline are sent without asking whether the socket is ready: a question takes 4 µs."""
PIECE_ROWS, PIECE_BYTES = 10_000, 2 << 20
"""The size of one COPY message: the server processes it while the next piece is encoded."""


class Postgresql(Dialect):
    name = "postgresql"
    driver = "postgresql+psycopg"
    extra = "postgresql"
    stages = True
    tls_files = ("sslrootcert", "sslcert", "sslkey")

    def engine(self, url: URL) -> Engine:
        engine = super().engine(url)
        event.listen(engine, "do_connect", _connect)
        event.listen(engine, "connect", _on_connect)
        event.listen(engine, "begin", _on_begin)
        return engine

    def tls_mode(self, tls: StoreTls) -> dict[str, str]:
        return {"sslmode": "verify-full" if tls.checks_host else "verify-ca"}

    def unproven(self, options: Mapping[str, Any]) -> str | None:
        mode = options.get("sslmode", "disable")
        return None if mode in ("disable", "verify-full") else f"sslmode={mode}"

    def check_constraints(self, connection: Connection) -> None:
        connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")

    def check_deferred(self, connection: Connection) -> None:
        with connection.begin_nested() as probe:
            self.check_constraints(connection)
            # Rolling back makes deferred constraints deferred again.
            probe.rollback()

    def in_transaction(self, driver: Any) -> bool:
        return bool(driver.pgconn.transaction_status != IDLE)

    def is_aborted(self, driver: Any) -> bool:
        return bool(driver.pgconn.transaction_status == IN_ERROR)

    def has_ended(self, cursor: Any) -> bool:
        # A text of several statements has several results, and psycopg's public API shows only one of them.
        return any(result.command_status in ENDED for result in getattr(cursor, "_results", ()))

    def put(self, connection: Connection, table: Table, spec: TableSpec, rows: pa.Table) -> None:
        check_lengths(table, rows)
        if spec.write == "append":
            _copy(connection, _quoted(table.name), rows, table)
            return
        incoming = _copy_aside(connection, table, rows)
        self.promote(connection, table, spec, rows.column_names, undeleted(table, spec, incoming, _bytewise))
        connection.exec_driver_sql(f"DROP TABLE {INCOMING}")

    def promote(
        self, connection: Connection, table: Table, spec: TableSpec, columns: Sequence[str], rows: Select[Any]
    ) -> None:
        statement = postgresql.insert(table).from_select(list(columns), rows)
        connection.execute(resolved(statement, spec, columns, BYTEWISE, _arrays(table, spec)))

    def delete(self, connection: Connection, table: Table, spec: TableSpec, rows: pa.Table) -> None:
        # COPY would truncate trailing spaces, and the row of another key would be deleted.
        check_lengths(table, rows)
        incoming = _copy_aside(connection, table, rows)
        statement = delete(table).where(*(table.c[name] == incoming.c[name] for name in spec.key))
        if spec.version:
            statement = statement.where(deletable(table, spec, incoming.c[spec.version], BYTEWISE))
        connection.execute(statement)
        connection.exec_driver_sql(f"DROP TABLE {INCOMING}")


def _bytewise(column: ColumnElement[Any]) -> ColumnElement[Any]:
    return collate(column, BYTEWISE)


def _arrays(table: Table, spec: TableSpec) -> dict[str, str]:
    """Return the expressions that append arrays, by the types of their columns."""
    binary = {name: isinstance(plain(table.c[name]), postgresql.JSONB) for name in spec.bounds}
    return {name: APPEND["jsonb" if is_jsonb else "json"] for name, is_jsonb in binary.items()}


@cache
def _watchful() -> Any:
    import psycopg
    from psycopg.waiting import Ready, Wait

    class Watchful(psycopg.Connection[Any]):
        """A connection that fails when the server sends no answer within the read timeout.

        The timeout restarts whenever the socket is ready: a COPY may take any time while the server accepts its bytes.
        """

        _read_timeout: float = READ_SECONDS

        def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
            return super().wait(self._watched(gen), *arguments, **options)

        def _watched(self, gen: Any) -> Generator[Any, Any, Any]:
            """Wrap the generator that psycopg waits on; it is resumed ten times a second even if nothing is ready."""
            heard, unchecked = time.monotonic(), 0
            try:
                wanted = next(gen)
                while True:
                    # In a pipeline psycopg asks before each command; what the socket does not take is buffered.
                    if wanted == Wait.RW and unchecked < UNCHECKED_COMMANDS:
                        unchecked += 1
                        wanted = gen.send(Ready.W)
                        continue
                    unchecked = 0
                    ready = yield wanted
                    if ready:
                        heard = time.monotonic()
                    elif time.monotonic() - heard > self._read_timeout:
                        self.close()
                        raise psycopg.OperationalError(f"no answer for {self._read_timeout:g} s")
                    wanted = gen.send(ready)
            except StopIteration as end:
                return end.value

    return Watchful


def _connect(_: Any, __: Any, positional: Sequence[Any], given: Mapping[str, Any]) -> Any:
    options = {**CONNECT, **given}
    limit = float(options.pop(READ_TIMEOUT, READ_SECONDS))
    connection = _watchful().connect(*positional, **options)
    connection._read_timeout = limit
    return connection


def _on_connect(connection: Any, record: ConnectionPoolEntry) -> None:
    with within(connection, CONNECT_SECONDS):
        # A pooler reports a process id of its own in the handshake.
        (pid,) = connection.execute("SELECT pg_backend_pid()").fetchone()
        record.info[POOLED] = pid != connection.info.backend_pid
        if record.info[POOLED]:
            # The next transaction may run in another session, without the statements that this session has prepared.
            connection.prepare_threshold = None
        else:
            connection.execute(_settings(SETTINGS | KEEPALIVES, local=False))
        connection.commit()


def _on_begin(connection: Connection) -> None:
    limit = "0" if connection.get_execution_options().get(MAY_IDLE) else SETTINGS[IDLE_LIMIT]
    if connection.info.get(POOLED):
        connection.exec_driver_sql(_settings(SETTINGS | {IDLE_LIMIT: limit}, local=True))
    elif connection.info.get(IDLE_LIMIT, SETTINGS[IDLE_LIMIT]) != limit:
        _limit_idle(connection, limit)


def _limit_idle(connection: Connection, limit: str) -> None:
    """Change the limit for the session: a handler's connection is used by one handler after the other.

    Before the driver begins the transaction, whose rollback would undo the change.
    """
    statement = _settings({IDLE_LIMIT: limit}, local=False)
    with by_driver(connection, statement) as cursor:
        cursor.connection.autocommit = True
        try:
            cursor.execute(statement)
        finally:
            if not cursor.connection.closed:
                cursor.connection.autocommit = False
    connection.info[IDLE_LIMIT] = limit


def _settings(settings: Mapping[str, str], *, local: bool) -> str:
    chosen = [f"set_config('{name}', '{value}', {str(local).lower()})" for name, value in settings.items()]
    return f"SELECT {', '.join(chosen)}"


def _copy_aside(connection: Connection, target: Table, rows: pa.Table) -> TableClause:
    columns = ", ".join(map(_quoted, rows.column_names))
    empty = f"SELECT {columns} FROM {_quoted(target.name)} WITH NO DATA"
    incoming = f"CREATE TEMPORARY TABLE {INCOMING} ON COMMIT DROP AS {empty}"
    connection.exec_driver_sql(incoming.replace("%", "%%"))
    _copy(connection, INCOMING, rows, target)
    return table(INCOMING, *(sql_column(name, target.c[name].type) for name in rows.column_names))


def _quoted(name: str) -> str:
    """Quote a name for statements that go to the driver without parameters: SQLAlchemy would double percent signs."""
    return '"' + name.replace('"', '""') + '"'


def _copy(connection: Connection, target: str, rows: pa.Table, like: Table) -> None:
    """COPY rows to the table ``target``, whose columns have the types of ``like``."""
    encoders = pgcopy.forms(like, rows.column_names)
    pieces = pgcopy.stream(_pieces(rows), encoders) if encoders else _csv(rows)
    form = "binary" if encoders else "csv"
    statement = f"COPY {target} ({', '.join(map(_quoted, rows.column_names))}) FROM STDIN (FORMAT {form})"
    with by_driver(connection, statement) as cursor:
        with cursor.copy(statement.encode()) as copy:
            for piece in pieces:
                copy.write(piece)
        copied = cursor.rowcount
    if copied != rows.num_rows:
        raise TallymarkError(f"COPY wrote {copied} of {rows.num_rows} rows to {target}; the transaction is rolled back")


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """Split rows into pieces that are large enough for a message and bounded in memory."""
    most = max(1, min(PIECE_ROWS, rows.num_rows * PIECE_BYTES // max(1, rows.nbytes)))
    return (rows.slice(start, most) for start in range(0, rows.num_rows, most))


def _csv(rows: pa.Table) -> Iterator[bytes | memoryview]:
    """Encode rows as CSV: NULL is an empty field, an empty string is quoted."""
    # Up to PostgreSQL 17 a line that consists of an unquoted \. ends the data.
    style = "all_valid" if rows.num_columns == 1 else "needed"
    for piece in _pieces(rows):
        sink = pa.BufferOutputStream()
        columns = [_printable(column) for column in piece.columns]
        printable = pa.table(columns, names=[str(number) for number in range(rows.num_columns)])
        pa_csv.write_csv(printable, sink, pa_csv.WriteOptions(include_header=False, quoting_style=style))
        yield memoryview(sink.getvalue())


def _printable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if is_binary(column.type):
        return hexed(column, "\\x")
    if pa.types.is_timestamp(column.type):
        # The session is in UTC. Arrow formats a timestamp with a zone ten times slower.
        return column.cast(pa.timestamp("us"))
    return column.cast(pa.string()) if pa.types.is_decimal(column.type) else column
