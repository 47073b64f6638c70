"""What a producer may have written as it should not be: the time of a record, and the names of its headers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from operator import methodcaller
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
LAST_MILLIS = 253_402_300_799_999
"""The end of the year 9999."""
UNREADABLE = "\ufffd"


def timestamp(message: Any) -> datetime | None:
    """The time of a record."""
    return moment(*message.timestamp())


def moment(kind: int, millis: int) -> datetime | None:
    """None where a record has no time, or one beyond all calendars, such as microseconds taken for milliseconds."""
    known = kind != TIMESTAMP_NOT_AVAILABLE and 0 <= millis <= LAST_MILLIS
    return EPOCH + timedelta(milliseconds=millis) if known else None


def headers(message: Any) -> Sequence[tuple[str, bytes | None]]:
    """The headers of a record, with U+FFFD in names that are not UTF-8, as Java reads them."""
    try:
        return _headers(message) or ()
    except SystemError as error:
        return _repaired(message, error.__cause__)


def _repaired(message: Any, cause: BaseException | None) -> Sequence[tuple[str, bytes | None]]:
    """confluent_kafka complains once of one such name, and then gives tuples with nothing where these names should be.

    To touch that place would end the process. The message gets the repaired headers, as others may ask for them. The
    name is known if there is only one.
    """
    found = _headers(message) or ()
    broken = [repr(header).startswith("(<NULL>,") for header in found]
    known = broken.count(True) == 1 and isinstance(cause, UnicodeDecodeError)
    name = cause.object.decode(errors="replace") if known else UNREADABLE  # type: ignore[union-attr]
    repaired = [(name, header[1]) if lacks else header for header, lacks in zip(found, broken, strict=True)]
    message.set_headers(repaired)
    return repaired


_headers = methodcaller("headers")
"""Called from C, it fails with an exception at once; called from Python, the exception may come up anywhere later."""
