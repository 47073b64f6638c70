"""Translate database errors to tallymark's: bad data, a changed table, a lost connection or missing permissions.

One table for each kind of database maps error codes to verdicts. Errors without a listed code are classified by their
message. Data errors are matched first: their messages quote values, which may contain any text.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tallymark.errors import (
    AccessDenied,
    BadInput,
    DataRefused,
    TableChanged,
    TallymarkError,
    Unreachable,
    Verdict,
    verdicts,
)
from tallymark.stores.tls import tls_failure

# Without the store's name: these messages are stored in dead letters.
DATA = Verdict(DataRefused, "{words}")
CHANGED = Verdict(TableChanged, "{words}")
FULL = Verdict(Unreachable, "{name} is out of disk space or memory: {words}; free some on the server")
DENIED = Verdict(AccessDenied, "{name} denied access: {words}; check the user, the password and the user's permissions")
WRONG = Verdict(BadInput, "{name}: {words}; create the database first or correct the URL")
UNOPENED = Verdict(BadInput, "{name}: the file can't be opened; check that its directory exists and is writable")
NO_PRIMARY_KEY = Verdict(
    BadInput,
    "{name} requires a primary key for every table: {words}; let MySQL add one with SET GLOBAL "
    "sql_generate_invisible_primary_key = ON, or create the table beforehand and set road='driver'",
)
BINARY_LOG = Verdict(
    BadInput, "{name} can't log these transactions: {words}; use SET GLOBAL binlog_format = ROW, and connect again"
)
ABORTED = Verdict(
    BadInput,
    "{name}: a statement in the block has failed, so PostgreSQL rolls back the whole transaction; to catch such an "
    "error, execute the statement inside `with db.savepoint():`",
)
CONFLICT = Verdict(Unreachable, "{name}: conflict with another transaction: {words}; try again")
SLOW = Verdict(Unreachable, "{name} canceled a statement: {words}; try again, or raise the timeout of the server")
SILENT = Verdict(
    Unreachable,
    "{name} did not answer in time: {words}; check that it runs, or raise read_timeout= in its URL if its statements "
    "take longer",
)
READ_ONLY = Verdict(
    Unreachable, "{name} is not writable: {words}; after a failover, check that the URL leads to the primary"
)
GONE = Verdict(Unreachable, "{name} can't be reached: {words}; check that it runs and that the address is right")

POOLER = Verdict(BadInput, "{name}: {words}; set pool_mode of the pooler to transaction or session")

# A code of two characters is a class of SQLSTATEs.
POSTGRESQL = verdicts(
    {
        DATA: "21000 22 23 428C9 44000 54000 P0001",
        # 22P03: the fields of a binary COPY do not have the column's current type.
        CHANGED: "22P03 42703 42804 42846 42P01 42P10",
        FULL: "53000 53100 53200 53400 58030",
        DENIED: "28000 28P01 42501",
        WRONG: "3D000 57P04",
        ABORTED: "25P02",
        CONFLICT: "40000 40001 40P01 55P03 72000",
        SLOW: "25P03 25P04 57014",
        READ_ONLY: "25006",
        GONE: "08 40003 53300 57P01 57P02 57P03 57P05",
    }
)
MYSQL = verdicts(
    {
        DATA: "1048 1062 1118 1169 1216 1217 1263 1264 1265 1292 1364 1365 1366 1367 1369 1406 1411 1441 1451 1452 "
        "1526 1557 1586 1644 1690 1748 1906 3105 3140 3141 3156 3819 3903 4025",
        CHANGED: "1054 1072 1136 1146 1412",
        FULL: "1021 1030 1037 1038 1041 1114 1135 1206 1878",
        DENIED: "1044 1045 1130 1142 1143 1227 1698 1820 1862 3118 4151",
        WRONG: "1049",
        NO_PRIMARY_KEY: "1173 3750",
        BINARY_LOG: "1665",
        # 1020: a row changed under snapshot isolation. 1180: a cluster could not finish a COMMIT. 3101: a COMMIT lost
        # against another member of the cluster.
        CONFLICT: "1020 1180 1205 1213 1615 1637 1689 3058 3101 3572",
        SLOW: "1317 1969 3024",
        # 1047: a Galera node that is not part of its cluster. 3100: a group member that lost its peers.
        READ_ONLY: "1047 1290 1792 1836 1874 3100",
        GONE: "1040 1042 1043 1053 1077 1079 1129 1152 1158 1159 1160 1161 1184 1203 1226 1927 2002 2003 2005 2006 "
        "2012 2013 2055 3032 3168 3169 4031 9001",
    }
)
# Names of SQLite's codes; the name of an extended code begins with that of its primary code.
SQLITE = verdicts(
    {
        DATA: "SQLITE_CONSTRAINT SQLITE_MISMATCH SQLITE_TOOBIG",
        CHANGED: "SQLITE_SCHEMA",
        FULL: "SQLITE_FULL SQLITE_IOERR SQLITE_NOMEM",
        DENIED: "SQLITE_AUTH SQLITE_PERM SQLITE_READONLY",
        UNOPENED: "SQLITE_CANTOPEN",
        CONFLICT: "SQLITE_BUSY SQLITE_INTERRUPT SQLITE_LOCKED SQLITE_PROTOCOL",
    }
)
HANDSHAKE = frozenset({None, "2003", "2013", "2026"})
"""Codes of errors that may be a failed TLS handshake."""
DATA_WORDS = ("too big", "datatype mismatch", "can not be used with mysql")
"""Messages of drivers about a value that they can't send."""
WORDS: Mapping[Verdict, tuple[str, ...]] = {
    CHANGED: (
        "no such table",
        "no such column",
        "has no column named",
        "does not match any primary key",
        "cached plan must not change",
    ),
    FULL: ("disk is full", "disk i/o error", "out of memory", "no space left", "error 28", "errcode: 28"),
    DENIED: (
        "password authentication failed",
        "no password supplied",
        "permission denied",
        "access denied",
        "readonly database",
        "pg_hba.conf",
        'fatal: role "',
    ),
    WRONG: ("unknown database", "no such database", 'fatal: database "'),
    UNOPENED: ("unable to open database file",),
    CONFLICT: ("database is locked", "tuple concurrently updated", "tuple concurrently deleted"),
    READ_ONLY: ("during recovery", "session is read-only", "session is not read-only"),
    SILENT: ("no answer for",),
    GONE: (
        "connection refused",
        "connection failed",
        "connection timeout",
        "can't connect",
        "could not connect",
        "server closed the connection",
        "lost connection",
        "connection is closed",
        "connection is lost",
        "terminating connection",
        "consuming input failed",
        "eof detected",
        "broken pipe",
        "name or service not known",
        "failed to resolve host",
    ),
}
"""Message patterns for errors without a listed code; the first match counts."""

_CUT = "8s2b"
"""SQLAlchemy's code for using a connection that broke earlier in the same transaction."""


@contextmanager
def translated(store: str) -> Iterator[None]:
    """Translate database errors raised in the block. Messages name ``store``, its URL without the password."""
    try:
        yield
    except DBAPIError as error:
        raise translate(error, store) from error
    except PoolTimeout as error:
        raise Unreachable(f"{store}: no free connection within the time limit; try again") from error
    except SQLAlchemyError as error:
        if error.code == _CUT:
            raise Unreachable(f"{store}: the connection was lost inside a transaction; try again") from error
        raise TallymarkError(f"{store}: {first_line(error)}") from error


def translate(error: DBAPIError, store: str) -> TallymarkError:
    words, code = first_line(error.orig), _code(error.orig)
    verdict = judged(error.orig)
    if verdict not in (DATA, CHANGED) and code in HANDSHAKE and (handshake := tls_failure(store, words)) is not None:
        return handshake
    if verdict is None and error.connection_invalidated:
        verdict = GONE
    return verdict.on(store, words) if verdict else TallymarkError(f"{store}: {words}")


def judged(error: BaseException | None) -> Verdict | None:
    """Return the verdict on a driver's error, by its code or its message."""
    table, code, lowered = _table(error), _code(error), first_line(error).lower()
    if code == "08P01" and " in message" in lowered:
        # A binary COPY, as for 22P03. The message is checked too because poolers use this code for every error.
        return CHANGED
    if code == "08P01" and "statement pooling" in lowered:
        return POOLER
    if code == "2013" and "timed out" in lowered:
        return SILENT
    if code is not None and (listed := _listed(table, code)) is not None:
        return listed
    if _blames_data(error, code, lowered):
        return DATA
    return next((verdict for verdict, marks in WORDS.items() if any(mark in lowered for mark in marks)), None)


def _listed(table: Mapping[str, Verdict], code: str) -> Verdict | None:
    """Return the verdict on a code, falling back to the class of an SQLSTATE or to SQLite's primary code."""
    if code in table:
        return table[code]
    if table is POSTGRESQL:
        return table.get(code[:2])
    return next((verdict for name, verdict in table.items() if table is SQLITE and code.startswith(f"{name}_")), None)


def _blames_data(error: BaseException | None, code: str | None, lowered: str) -> bool:
    if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
        return True
    # No code: the error is not from the server, the driver itself could not send a value.
    return code is None and (type(error).__name__ == "DataError" or any(mark in lowered for mark in DATA_WORDS))


def _table(error: BaseException | None) -> Mapping[str, Verdict]:
    if isinstance(error, sqlite3.Error):
        return SQLITE
    return MYSQL if error is not None and error.args and isinstance(error.args[0], int) else POSTGRESQL


def _code(error: BaseException | None) -> str | None:
    """Return MySQL's error number (more specific than its SQLSTATE), PostgreSQL's SQLSTATE, or SQLite's error name."""
    first = error.args[0] if error is not None and error.args else None
    if isinstance(first, int):
        return str(first)
    return getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorname", None) or None


def first_line(error: BaseException | None) -> str:
    """Return the driver's message as one line. MySQL's drivers raise (code, message); libpq's have several lines."""
    parts = error.args if error is not None else ()
    words = str(parts[1] if len(parts) > 1 and isinstance(parts[0], int) else error)
    return " ".join(words.split())[:300].rstrip(".")
