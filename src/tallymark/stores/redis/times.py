"""Times as stored in Redis: ISO 8601 text in UTC, and microseconds for the scores of sorted sets."""

from __future__ import annotations

from datetime import datetime, timezone


def as_text(time: datetime) -> str:
    return time.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def from_text(text: str) -> datetime:
    return datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=timezone.utc)


def score(time: datetime) -> int:
    """Return microseconds since 1970, which the double of a sorted set represents exactly."""
    since = time - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
