"""The content of a table with a key, by the rule of docs/reference/write-modes.md alone.

Written from the text, row by row, without code of the engine, whose mistakes it would repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Made:
    """A row that a function made of a record."""

    key: Any
    topic: str
    partition: int
    offset: int
    timestamp: Any = None
    version: Any = None
    deletes: bool = False
    columns: tuple[Any, ...] = ()


@dataclass
class Oracle:
    """A table, batch by batch."""

    versions: bool = False
    first_stays: bool = False
    rows: dict[Any, Made] = field(default_factory=dict)
    deleted: dict[Any, Any] = field(default_factory=dict)
    """The versions of deletions, which are remembered."""

    def apply(self, batch: Iterable[Made]) -> None:
        """Apply the rows of a batch in order."""
        for row in in_order(list(batch)):
            there = self.rows.get(row.key)
            if row.deletes and (not self.versions or row.version is None):
                self.rows.pop(row.key, None)
                self.deleted.pop(row.key, None)
            elif self.first_stays:
                self.rows.setdefault(row.key, row)
            elif self.versions and _is_older(row, there.version if there else self.deleted.get(row.key)):
                continue
            elif row.deletes:
                self.rows.pop(row.key, None)
                self.deleted[row.key] = row.version
            else:
                self.rows[row.key] = row


def _is_older(row: Made, version: Any) -> bool:
    return version is not None and (row.version is None or row.version < version)


def in_order(rows: Sequence[Made]) -> list[Made]:
    """From the oldest to the newest."""

    def time(row: Made) -> tuple[Any, ...]:
        """Its own timestamp or the latest earlier one in its partition; a row without one is the oldest."""
        until = [
            other.timestamp
            for other in rows
            if (other.key, other.topic, other.partition) == (row.key, row.topic, row.partition)
            and other.offset <= row.offset
            and other.timestamp is not None
        ]
        return (True, max(until)) if until else (False,)

    def columns(row: Made) -> list[tuple[Any, ...]]:
        return [(True,) if value is None else (False, value) for value in row.columns]

    return sorted(rows, key=lambda row: (time(row), row.topic, row.partition, row.offset, columns(row)))
