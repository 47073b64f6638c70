"""What a database says when it fails, as one of our errors: the data, the table, the connection or the permissions.

Drivers agree on little, so each case is recognised by its code where there is one and by its words where there is none.
Data comes first: the words of those errors quote values, which may say anything.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tallymark.errors import AccessDenied, BadInput, DataRefused, TableChanged, TallymarkError, Unreachable
from tallymark.stores.tls import tls_failure


def _codes(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# PostgreSQL's codes have five characters; the first two are a class. MySQL's are numbers, SQLite has words only.
_DATA_CLASSES = ("22", "23")
_DATA = _codes(
    "428C9 54000 P0001 1048 1062 1118 1169 1216 1217 1263 1264 1265 1292 1364 1365 1366 1367 1406 1411 1441 1451 "
    "1452 1526 1557 1586 1644 1690 1748 1906 3105 3140 3141 3156 3819 3903 4025"
)
_DATA_WORDS = ("too big", "datatype mismatch", "can not be used with mysql")
# 08P01 and 22P03: the bytes of a binary COPY are those of another type than the column has now.
_CHANGED = _codes("42P01 42703 42804 42P10 42846 08P01 22P03 1054 1072 1136 1146 1412")
_CHANGED_WORDS = (
    "no such table",
    "no such column",
    "has no column named",
    "does not match any primary key",
    "cached plan must not change",
)
_FULL = _codes("53000 53100 53200 1021 1030 1037 1038 1041 1114 1135 1206")
_FULL_WORDS = ("disk is full", "disk i/o error", "out of memory", "no space left", "error 28")
_DENIED = _codes("28000 28P01 42501 1044 1045 1142 1143 1227 1698")
_DENIED_WORDS = (
    "password authentication failed",
    "no password supplied",
    "permission denied",
    "access denied",
    "readonly database",
    "pg_hba.conf",
)
_HANDSHAKE = _codes("2003 2013 2026")
_WRONG_WORDS = ("unknown database", "no such file or directory")
_CONFLICT = _codes("1205 1213 40001 40P01 55P03")
_TIMEOUT = _codes("57014 25P03 25P04 1317 1969 3024")
_GONE = _codes("1053 1927 2002 2003 2006 2013 2055 53300 57P01 57P02 57P03")
_GONE_WORDS = (
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
)


@contextmanager
def translated(store: str) -> Iterator[None]:
    """Raise database errors inside the block as ours, named after the store (its URL without the password)."""
    try:
        yield
    except DBAPIError as error:
        raise translate(error, store) from error
    except PoolTimeout as error:
        raise Unreachable(f"{store}: no free connection within the time limit") from error
    except SQLAlchemyError as error:
        raise TallymarkError(f"{store}: {_first_line(error)}") from error


def translate(error: DBAPIError, store: str) -> TallymarkError:
    """Our error for theirs. What is wrong with a row or a table is said without the store, for dead letters."""
    words, code = _first_line(error.orig), _code(error.orig)
    lowered = words.lower()

    def said(*marks: str) -> bool:
        return any(mark in lowered for mark in marks)

    if code in _CHANGED:
        return TableChanged(words)
    if _blames_data(error.orig, code) or (code is None and said(*_DATA_WORDS)):
        return DataRefused(words)
    if said(*_CHANGED_WORDS):
        return TableChanged(words)
    if (code is None or code in _HANDSHAKE) and (handshake := tls_failure(store, words)) is not None:
        return handshake
    if code in _FULL or said(*_FULL_WORDS):
        return Unreachable(f"{store} has no room: {words}; free disk space or memory there")
    if code in _DENIED or said(*_DENIED_WORDS):
        return AccessDenied(f"{store} refused: {words}; check the user, the password and the user's permissions")
    if code in ("3D000", "1049") or said(*_WRONG_WORDS) or (said("database") and said("does not exist")):
        return BadInput(f"{store}: {words}; create the database first or correct the URL")
    if said("unable to open database file"):
        return BadInput(f"{store}: the file can't be opened; check that its directory exists and can be written to")
    if code in _CONFLICT or said("database is locked"):
        return Unreachable(f"{store} had to give way to another transaction: {words}; try again")
    if code in _TIMEOUT:
        return Unreachable(f"{store} was not done in time: {words}; try again, or allow it more time")
    if error.connection_invalidated or code in _GONE or said(*_GONE_WORDS):
        return Unreachable(f"{store} can't be reached: {words}; check that it runs and that the address is right")
    return TallymarkError(f"{store}: {words}")


def _blames_data(error: BaseException | None, code: str | None) -> bool:
    if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
        return True
    if code is None:
        # Without an answer from the server: the driver itself could not send a value.
        return type(error).__name__ == "DataError"
    return code in _DATA or (len(code) == 5 and code.startswith(_DATA_CLASSES))


def _code(error: BaseException | None) -> str | None:
    """The number of MySQL's errors, which says more than their SQLSTATE, or the SQLSTATE of PostgreSQL's."""
    first = error.args[0] if error is not None and error.args else None
    return str(first if isinstance(first, int) else getattr(error, "sqlstate", None) or "") or None


def _first_line(error: BaseException | None) -> str:
    """The driver's words in one line. MySQL's drivers give (code, words); libpq's go on for several lines."""
    parts = error.args if error is not None else ()
    words = str(parts[1] if len(parts) > 1 and isinstance(parts[0], int) else error)
    return " ".join(words.split())[:300].rstrip(".")
