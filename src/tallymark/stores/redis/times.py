"""Points in time as Redis keeps them: ISO 8601 in UTC, and microseconds where a sorted set needs a number."""

from __future__ import annotations

from datetime import datetime, timezone


def as_text(time: datetime) -> str:
    return time.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def from_text(text: str) -> datetime:
    return datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=timezone.utc)


def score(time: datetime) -> int:
    """Microseconds: few enough for the double that a sorted set keeps."""
    since = time - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
