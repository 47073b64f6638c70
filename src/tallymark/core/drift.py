"""Drift: fields of records that the schema does not name, counted by partition with the position. Pure.

A partition has counts for up to ``MOST`` names. What is found of still others is added up as ``OTHERS``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from tallymark.errors import Drifted

if TYPE_CHECKING:
    from tallymark.core.spans import Partition

OnDrift = Literal["ignore", "record", "fail"]

MOST = 100
OTHERS = "..."
LONGEST_NAME = 200
LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class Found(NamedTuple):
    """The number of records of a batch that have a field, and the offset of the first of them."""

    records: int
    offset: int

    def __add__(self, other: Found) -> Found:  # type: ignore[override]
        return Found(self.records + other.records, min(self.offset, other.offset))


Fields = Mapping[str, Found]
"""By name: the path of the field, such as ``address.zip``."""


@dataclass(frozen=True)
class Seen:
    """The number of records that had a field, and when the first and the last of them were committed."""

    records: int
    first_at: datetime
    last_at: datetime

    def __add__(self, other: Seen) -> Seen:
        first, last = min(self.first_at, other.first_at), max(self.last_at, other.last_at)
        return Seen(self.records + other.records, first, last)


Drift = Mapping[str, Seen]
"""By name: what the ledger holds for a partition, or the sum over partitions."""


def short(path: str) -> str:
    """Return the name under which a field is counted: every store can hold it, and ``Names.java`` returns the same."""
    name = path if path.isascii() else LONE_SURROGATES.sub("\ufffd", path)
    name = name.replace("\0", "\\0")
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}{OTHERS}"


def bounded(name: str, known: Mapping[str, object], most: int = MOST) -> str:
    """Return the name, or ``OTHERS`` if it is new and so many are known."""
    return name if name in known or len(known) < most else OTHERS


def merged(first: Mapping[Partition, Fields], later: Mapping[Partition, Fields]) -> dict[Partition, Fields]:
    """Return the sums of both."""
    sums = dict(first)
    for partition, fields in later.items():
        found = dict(sums.get(partition, {}))
        for path, more in fields.items():
            name = bounded(path, found)
            found[name] = found[name] + more if name in found else more
        sums[partition] = found
    return sums


def reduced(found: Mapping[Partition, Fields], refused: Mapping[Partition, Fields]) -> dict[Partition, Fields]:
    """Return the counts without those of refused records."""
    rest: dict[Partition, Fields] = {}
    for partition, fields in found.items():
        left = {name: one.records for name, one in fields.items()}
        for path, gone in refused.get(partition, {}).items():
            name = path if path in left else OTHERS
            left[name] = left.get(name, 0) - gone.records
        if fields := {name: Found(left[name], one.offset) for name, one in fields.items() if left[name] > 0}:
            rest[partition] = fields
    return rest


def added(drift: Drift, fields: Fields, now: datetime) -> dict[str, Seen]:
    """Return the drift of a partition after a commit."""
    sums = dict(drift)
    for path, found in sorted(fields.items()):
        name, seen = bounded(path, sums), Seen(found.records, now, now)
        sums[name] = sums[name] + seen if name in sums else seen
    return sums


def total(drifts: Iterable[Drift]) -> dict[str, Seen]:
    """Return the sums over partitions: the fields of most records first, OTHERS last."""
    sums: dict[str, Seen] = {}
    for drift in drifts:
        for name, seen in drift.items():
            sums[name] = sums[name] + seen if name in sums else seen
    return dict(sorted(sums.items(), key=lambda item: (item[0] == OTHERS, -item[1].records, item[0])))


def limited(drift: Drift, most: int) -> dict[str, Seen]:
    """Return the first fields, and the others added up as OTHERS."""
    sums: dict[str, Seen] = {}
    for path, seen in drift.items():
        name = bounded(path, sums, most)
        sums[name] = sums[name] + seen if name in sums else seen
    return sums


def check(group: str, found: Mapping[Partition, Fields]) -> None:
    """Raise if a record has such a field. The error names the first one."""
    if not found:
        return
    places = [(partition, one.offset, name) for partition, fields in found.items() for name, one in fields.items()]
    partition, offset, name = min(places)
    raise Drifted(
        f"group {group}: {partition} offset {offset} has the field {name}, which the schema does not name; nothing of "
        "its batch was committed: add the field to the schema, or set on_drift='record', which counts such fields and "
        "continues"
    )


def described(drift: Drift, most: int) -> str:
    """Return a text for operators with up to ``most`` fields; empty if there is no drift."""
    if not drift:
        return ""
    listed = [
        f"{name} in {seen.records:,} record{'s' * (seen.records != 1)} since {seen.first_at:%Y-%m-%d %H:%M} UTC"
        for name, seen in list(drift.items())[:most]
    ]
    more = [f"and {len(drift) - most} more"] if len(drift) > most else []
    return "fields that the schema does not name: " + ", ".join([*listed, *more])


def to_json(drift: Drift) -> str | None:
    """Return the form in the ledger: for each name the records, and the times of the first and the last commit."""
    stored = {name: [seen.records, *map(_text, (seen.first_at, seen.last_at))] for name, seen in drift.items()}
    return json.dumps(stored) if stored else None


def from_json(text: str | None) -> dict[str, Seen]:
    """Parse the result of ``to_json``."""
    return {
        name: Seen(records, datetime.fromisoformat(first), datetime.fromisoformat(last))
        for name, (records, first, last) in json.loads(text or "{}").items()
    }


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds")
