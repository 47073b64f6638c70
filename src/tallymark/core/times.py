"""Reads record timestamps and header names, which producers may have written incorrectly."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from operator import methodcaller
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MILLIS = 253_402_300_799_999
"""The end of the year 9999, the last that ``datetime`` supports."""
UNREADABLE = "\ufffd"


def timestamp(message: Any) -> datetime | None:
    return moment(*message.timestamp())


def moment(kind: int, millis: int) -> datetime | None:
    """Return None if a record has no timestamp, or one out of range, such as microseconds written as milliseconds."""
    return from_micros(millis * 1000) if kind != TIMESTAMP_NOT_AVAILABLE else None


def from_micros(micros: int) -> datetime | None:
    """Return the time of a record; None if it is out of range."""
    return EPOCH + timedelta(microseconds=micros) if 0 <= micros <= LAST_MILLIS * 1000 else None


def headers(message: Any) -> Sequence[tuple[str, bytes | None]]:
    """Return the headers of a record, with U+FFFD in names that are not UTF-8, as in Java."""
    try:
        return _headers(message) or ()
    except SystemError as error:
        return _repaired(message, error.__cause__)


def _repaired(message: Any, cause: BaseException | None) -> Sequence[tuple[str, bytes | None]]:
    """Repair headers whose names are not UTF-8.

    confluent_kafka raises once for such a name, and afterwards returns tuples with a NULL pointer in place of each such
    name. Accessing this element crashes the process. The repaired headers are set on the message, because other code
    may read them. The original name is known only if there is a single invalid name.
    """
    found = _headers(message) or ()
    broken = [repr(header).startswith("(<NULL>,") for header in found]
    known = broken.count(True) == 1 and isinstance(cause, UnicodeDecodeError)
    name = cause.object.decode(errors="replace") if known else UNREADABLE  # type: ignore[union-attr]
    repaired = [(name, header[1]) if lacks else header for header, lacks in zip(found, broken, strict=True)]
    message.set_headers(repaired)
    return repaired


_headers = methodcaller("headers")
"""Called from C, it raises at once; called from Python, the exception may surface at any later point."""
