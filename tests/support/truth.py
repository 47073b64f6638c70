"""What must be in a store, compared with Kafka itself: every committed record once, and every offset accounted for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.support.databases import query

Record = tuple[int, int]
COUNTS = "applied, dead, skipped, lost, absent"


def check_complete(url: str, committed: Mapping[Record, bytes | None]) -> None:
    """The store holds all that Kafka holds, once, and nothing else."""
    applied, dead = split(committed)
    assert events(url) == applied
    assert letters(url) == dead
    assert set(query(url, "SELECT id, record_offset FROM latest")) == set(_latest(applied).items())
    check_accounts(url)


def check_consistent(url: str, committed: Mapping[Record, bytes | None]) -> None:
    """The store holds exactly what is below its positions, wherever they are: the truth at every moment."""
    positions: Any = query(url, "SELECT partition_id, next_offset FROM tallymark_positions")
    reached = dict(positions)
    below = {at: value for at, value in committed.items() if at[1] < reached.get(at[0], 0)}
    applied, dead = split(below)
    assert events(url) == applied
    assert letters(url) == dead
    check_accounts(url)


def check_accounts(url: str) -> None:
    """Every offset is in exactly one of the tallies, and the history adds up to them."""
    rows: Any = query(url, f"SELECT next_offset - first_offset, {COUNTS} FROM tallymark_positions")
    for distance, *tally in rows:
        assert sum(tally) == distance
    totals = [sum(column) for column in zip(*(tally for _, *tally in rows), strict=True)]
    history: Any = query(url, f"SELECT {COUNTS} FROM tallymark_batches")
    assert [sum(column) for column in zip(*history, strict=True)] == (totals if history else [])
    assert history or not any(totals)


def events(url: str) -> Counter[tuple[int, int, int]]:
    rows: Any = query(url, "SELECT partition_id, record_offset, id FROM events")
    return Counter(rows)


def letters(url: str) -> Counter[Record]:
    rows: Any = query(url, "SELECT partition_id, record_offset FROM tallymark_dead_letters")
    return Counter(rows)


def batches(url: str) -> int:
    return len(query(url, "SELECT batch FROM tallymark_batches"))


def split(committed: Mapping[Record, bytes | None]) -> tuple[Counter[tuple[int, int, int]], Counter[Record]]:
    applied: Counter[tuple[int, int, int]] = Counter()
    dead: Counter[Record] = Counter()
    for (partition, offset), value in committed.items():
        try:
            applied[partition, offset, json.loads(value or b"")["id"]] += 1
        except (ValueError, KeyError, TypeError):
            dead[partition, offset] += 1
    return applied, dead


def _latest(applied: Counter[tuple[int, int, int]]) -> dict[int, int]:
    """Ids stay in one partition, so the highest offset is the last."""
    return {number: offset for _, offset, number in sorted(applied, key=lambda event: event[1])}
