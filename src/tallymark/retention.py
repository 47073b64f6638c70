"""When Kafka deletes records, as the settings of their topic say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

FOR_EVER = 100 * 366 * 86_400_000
"""Milliseconds."""


@dataclass(frozen=True)
class Retention:
    """When a topic's records are deleted. ``age`` is None where their age does not matter."""

    age: timedelta | None
    bytes: int | None

    @classmethod
    def of(cls, config: Mapping[str, str | None]) -> Retention | None:
        """None if the brokers do not tell."""
        age, size = config.get("retention.ms"), config.get("retention.bytes")
        if age is None:
            return None
        kept = not 0 <= int(age) < FOR_EVER or "delete" not in (config.get("cleanup.policy") or "delete")
        return cls(None if kept else timedelta(milliseconds=int(age)), int(size) if size and int(size) >= 0 else None)

    def left(self, unread: datetime | None, now: datetime) -> timedelta | None:
        """How long the record of this time is there, at the least: whole segments go, and by their newest record.

        None if it stays for ever, or has no time.
        """
        return None if self.age is None or unread is None else self.age - (now - unread)
