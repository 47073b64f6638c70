"""What a database says when it fails, as one of our errors: unreachable, denied, or the user's own mistake.

Drivers agree on little, so each case is recognised by its code where there is one and by its words where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tallymark.errors import AccessDenied, BadInput, TallymarkError, Unreachable

_DENIED = {"28000", "28P01", "42501", "1044", "1045", "1142", "1143", "1227", "1698"}
_DENIED_WORDS = (
    "password authentication failed",
    "permission denied",
    "access denied",
    "readonly database",
    "pg_hba.conf",
)
_WRONG_WORDS = ("unknown database", "no such file or directory")
_CONFLICT = {"1205", "1213", "40001", "40P01"}
_GONE = {
    "1927",
    "2002",
    "2003",
    "2006",
    "2013",
    "2055",
    "53300",
    "57P01",
    "57P02",
    "57P03",
}
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
    words, code = _first_line(error.orig), _code(error.orig)
    lowered = words.lower()
    if code in _DENIED or any(mark in lowered for mark in _DENIED_WORDS):
        return AccessDenied(f"{store} refused: {words}; check the user, the password and the user's permissions")
    if code in ("3D000", "1049") or any(mark in lowered for mark in _WRONG_WORDS) or _no_database(lowered):
        return BadInput(f"{store}: {words}; create the database first or correct the URL")
    if "unable to open database file" in lowered:
        return BadInput(f"{store}: the file can't be opened; check that its directory exists and can be written to")
    if code in _CONFLICT or "database is locked" in lowered:
        return Unreachable(f"{store} had to give way to another transaction: {words}; try again")
    if error.connection_invalidated or code in _GONE or any(mark in lowered for mark in _GONE_WORDS):
        return Unreachable(f"{store} can't be reached: {words}; check that it runs and that the address is right")
    return TallymarkError(f"{store}: {words}")


def _no_database(words: str) -> bool:
    return "database" in words and "does not exist" in words


def _code(error: BaseException | None) -> str | None:
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate:
        return str(sqlstate)
    first = error.args[0] if error is not None and error.args else None
    return str(first) if isinstance(first, int) else None


def _first_line(error: BaseException | None) -> str:
    """The driver's words in one line. MySQL's drivers give (code, words); libpq's go on for several lines."""
    parts = error.args if error is not None else ()
    words = str(parts[1] if len(parts) > 1 and isinstance(parts[0], int) else error)
    return " ".join(words.split())[:300].rstrip(".")
