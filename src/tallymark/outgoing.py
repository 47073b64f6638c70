"""A record on its way out: what a user may write for its parts, and the bytes that are sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from tallymark.errors import BadInput
from tallymark.times import LAST_MILLIS

Headers = Mapping[str, "str | bytes | None"] | Sequence[tuple[str, "str | bytes | None"]]
Encode = Callable[[Any], "bytes | str | None"]
NOTHING: frozenset[type] = frozenset({type(None)})
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
PLAIN: frozenset[type] = NOTHING | {bytes, str}
"""Types that the client takes as they are. It encodes text as UTF-8."""


class Outgoing(NamedTuple):
    """A record as ``send`` was given it, or as the interceptors before have changed it."""

    topic: str
    key: str | bytes | None
    value: Any
    headers: Headers | None
    partition: int | None
    timestamp: datetime | int | None


def encode(value: Any) -> str | bytes:
    """Compact JSON. Times are ISO 8601; decimals and UUIDs are strings, so that no digit is lost."""
    if isinstance(value, (bytes, str)):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    try:
        return _JSON.encode(value)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"a value of type {type(value).__name__} can't be written as JSON: {error}; encode it, or pass value="
        ) from None


def check_topic(topic: Any) -> str:
    if isinstance(topic, str) and TOPIC.fullmatch(topic):
        return topic
    raise BadInput(f"topic={topic!r} is no name for a topic: letters, digits, '.', '_' and '-', at most 249 of them")


def check_key(key: Any) -> str | bytes | None:
    if key is None or isinstance(key, (str, bytes)):
        return key
    raise BadInput(
        f"key={key!r} must be str, bytes or None: Java's clients hash the bytes, so say which; str(key) in most cases"
    )


def epoch_millis(timestamp: datetime | int) -> int:
    """As Kafka has it."""
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise BadInput(f"timestamp={timestamp!r} has no time zone; add one, such as tzinfo=timezone.utc")
        timestamp = round(timestamp.timestamp() * 1000)
    if not isinstance(timestamp, int) or timestamp <= 0:
        raise BadInput(f"timestamp={timestamp!r} must be a datetime or milliseconds after 1970")
    if timestamp > LAST_MILLIS:
        raise BadInput(f"timestamp={timestamp} is later than the year 9999; give milliseconds, not microseconds")
    return timestamp


def _default(value: Any) -> str:
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not known to JSON")


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_default)
