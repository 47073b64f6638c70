"""The names of the keys of a store, and times as they are stored: ISO 8601 text in UTC, microseconds in sorted sets.

{shop}:orders:42                            a row, by the parts of its key
{shop}:clicks:web-0-17                      a row without a key: topic, partition and offset of its record
{shop}:tallymark:position:<group>:web:0     the ledger
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tallymark.core.spans import Partition, Span

LEDGER = "tallymark"


def escaped(part: object) -> str:
    """Escape a part of a key, so that it does not contain the separator."""
    return str(part).replace("%", "%25").replace(":", "%3A")


@dataclass(frozen=True)
class RedisKeys:
    """The names of the keys of a store."""

    tag: str

    def table(self, name: str) -> str:
        """Return the key prefix of all rows of a table."""
        return f"{{{self.tag}}}:{escaped(name)}:"

    def position(self, group: str, partition: Partition) -> str:
        return self._ledger("position", group, partition.topic, partition.number)

    def positions(self, group: str) -> str:
        """The set of the keys of a group's positions."""
        return self._ledger("positions", group)

    def group(self, group: str) -> str:
        return self._ledger("group", group)

    def groups(self) -> str:
        """The set of all groups, by name."""
        return self._ledger("groups")

    def batches(self, group: str) -> str:
        return self._ledger("batches", group)

    def exceptions(self, group: str) -> str:
        return self._ledger("exceptions", group)

    def skips(self, group: str) -> str:
        """The open skips of a group, by ``skip``."""
        return self._ledger("skips", group)

    def skip(self, span: Span) -> str:
        """The field of an open skip: where it starts."""
        return ":".join(map(escaped, (span.partition.topic, span.partition.number, span.start)))

    def rebalances(self, group: str) -> str:
        return self._ledger("rebalances", group)

    def letter(self, group: str, partition: Partition, offset: int, batch: str) -> str:
        return self._ledger("letter", group, partition.topic, partition.number, offset, batch)

    def letter_of(self, group: str, number: str) -> str:
        """The key of a dead letter by its id, which is the part of the key after the group."""
        return self._ledger("letter", group) + ":" + number

    def letters(self, group: str) -> str:
        """The keys of all dead letters of a group, by time."""
        return self._ledger("letters", group)

    def runs(self, group: str) -> str:
        return self._ledger("runs", group)

    def tables(self, group: str) -> str:
        """The tables that a group writes to: a hash of their stores, by a JSON array of name and write."""
        return self._ledger("tables", group)

    def deletions(self, table: str) -> str:
        """The deletions that a table remembers: a hash of times and versions, by the key of the row."""
        return self._ledger("deletions", table)

    def of_group(self, group: str) -> list[str]:
        """The keys that exist once for each group."""
        named = self.group, self.positions, self.batches, self.exceptions, self.skips, self.rebalances, self.letters
        return [name(group) for name in (*named, self.runs, self.tables)]

    def schema(self) -> str:
        return self._ledger("schema")

    def _ledger(self, *parts: object) -> str:
        return self.table(LEDGER) + ":".join(map(escaped, parts))


def as_text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def from_text(text: str) -> datetime:
    return datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC)


def score(time: datetime) -> int:
    """Return microseconds since 1970, which the double of a sorted set represents exactly."""
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
