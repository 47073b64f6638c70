"""When records were made, as far as a datetime can say it. A producer may write any number there."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
LAST_MILLIS = 253_402_300_799_999
"""The end of the year 9999."""


def timestamp(message: Any) -> datetime | None:
    """The time of a record."""
    return moment(*message.timestamp())


def moment(kind: int, millis: int) -> datetime | None:
    """None where a record has no time, or one beyond all calendars, such as microseconds taken for milliseconds."""
    known = kind != TIMESTAMP_NOT_AVAILABLE and 0 <= millis <= LAST_MILLIS
    return EPOCH + timedelta(milliseconds=millis) if known else None
