"""Compares a store with Kafka: every committed record once, and every offset accounted for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tallymark.core.spans import Partition
from tallymark.stores.redis.ledger import VERSION as VERSION_IN_REDIS
from tallymark.stores.sql.ledger.tables import VERSION as VERSION_IN_SQL
from tests.support import databases, redis

Record = tuple[int, int]
Committed = Mapping[Record, bytes | None]
Rows = Counter[tuple[Any, ...]]
COUNTS = ("applied", "dead", "skipped", "lost", "absent")


def check_complete(url: str, committed: Committed) -> None:
    """The store holds every record of Kafka once, and nothing else."""
    assert_holds(url, committed)
    check_accounts(url)


def check_consistent(url: str, committed: Committed) -> None:
    """The store holds exactly the records below its positions; this holds at every moment."""
    assert_holds(url, below(committed, positions(url)))
    check_accounts(url)


def assert_holds(url: str, committed: Committed) -> None:
    """Every table is as if exactly these records had been applied in order."""
    good, dead = split(committed)
    assert letters(url) == Counter(dead)
    assert events(url) == expected_events(good)
    assert rows(url, "traced", "tallymark_partition", "tallymark_offset", "id") == expected_events(good)
    for table, expected in expected_by_id(good).items():
        columns = ("id", "record_offset", "version") if table == "versions" else ("id", "record_offset")
        assert rows(url, table, *columns) == Counter(expected), table
    assert rows(url, "sums", "bucket", "records", "total", "lowest", "highest") == expected_sums(good)
    check_batches_of_rows(url)


def check_batches_of_rows(url: str) -> None:
    """A row's provenance names the batch in the history that moved the position over its record."""
    moved = {
        (batch, partition, offset)
        for batch, spans in history(url, "batch", "spans")
        for _, partition, start, stop in json.loads(spans)
        for offset in range(start, stop)
    }
    found = set(rows(url, "traced", "tallymark_batch", "tallymark_partition", "tallymark_offset"))
    assert found <= moved


def check_accounts(url: str) -> None:
    """Every offset is in exactly one of the tallies, and the history adds up to them."""
    found = ledger(url, "positions", "next_offset", "first_offset", *COUNTS)
    for stop, start, *tally in found:
        assert sum(tally) == stop - start
        assert min(tally) >= 0
    totals = [sum(column) for column in zip(*(tally for _, _, *tally in found), strict=True)]
    history_ = history(url, *COUNTS)
    assert [sum(column) for column in zip(*history_, strict=True)] == (totals if history_ else [])
    assert history_ or not any(totals)


def below(committed: Committed, reached: Mapping[int, int]) -> dict[Record, bytes | None]:
    return {at: value for at, value in committed.items() if at[1] < reached.get(at[0], 0)}


# The content of Kafka


def split(committed: Committed) -> tuple[dict[Record, Any], list[Record]]:
    """Values with an id, and the coordinates of all others."""
    good: dict[Record, Any] = {}
    dead = []
    for at, value in sorted(committed.items(), key=lambda item: (item[0][1], item[0][0])):
        try:
            good[at] = json.loads(value or b"")
            good[at]["id"]
        except (ValueError, KeyError, TypeError):
            good.pop(at, None)
            dead.append(at)
    return good, dead


def expected_events(good: Mapping[Record, Any]) -> Rows:
    return Counter((partition, offset, value["id"]) for (partition, offset), value in good.items())


def expected_by_id(good: Mapping[Record, Any]) -> dict[str, Iterable[tuple[Any, ...]]]:
    """The tables with a key. Ids stay in one partition, so offsets determine which record is newer."""
    latest: dict[int, int] = {}
    first: dict[int, int] = {}
    alive: dict[int, int] = {}
    versions: dict[int, tuple[int, int | None]] = {}
    for (_, offset), value in good.items():
        number, version = value["id"], value.get("version")
        latest[number] = offset
        first.setdefault(number, offset)
        alive[number] = offset
        if value.get("op") == "d":
            del alive[number]
        before = versions.get(number, (0, None))[1]
        if before is None or (version is not None and version >= before):
            versions[number] = (offset, version)
    by_version = [(number, *found) for number, found in versions.items()]
    return {"latest": latest.items(), "first_seen": first.items(), "alive": alive.items(), "versions": by_version}


def expected_sums(good: Mapping[Record, Any]) -> Rows:
    """The totals of all records, counted one by one."""
    buckets: dict[int, list[Record]] = {}
    for partition, offset in good:
        buckets.setdefault((partition + offset) % 5, []).append((partition, offset))
    return Counter(
        (
            bucket,
            len(found),
            sum(at - number for number, at in found),
            min(at for _, at in found),
            max(at for _, at in found),
        )
        for bucket, found in buckets.items()
    )


# The content of the store


def rows(url: str, table: str, *columns: str) -> Rows:
    if url.startswith("redis"):
        return Counter(_fields(_hash(row), columns) for row in redis.dump(url, f"{table}:").values())
    return Counter(databases.query(url, f"SELECT {', '.join(columns)} FROM {table}"))


def events(url: str) -> Rows:
    return rows(url, "events", "partition_id", "record_offset", "id")


def ledger(url: str, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """The same names in every store: positions, batches, dead_letters."""
    if url.startswith("redis"):
        return [_fields(entry, columns) for entry in _ledger_in_redis(url, table)]
    found: Any = databases.query(url, f"SELECT {', '.join(columns)} FROM tallymark_{table}")
    return list(found)


def letters(url: str) -> Counter[Record]:
    return Counter(ledger(url, "dead_letters", "partition_id", "record_offset"))


def positions(url: str) -> dict[int, int]:
    return dict(ledger(url, "positions", "partition_id", "next_offset"))


def history(url: str, *columns: str) -> list[tuple[Any, ...]]:
    return ledger(url, "batches", *columns)


def batches(url: str) -> int:
    return len(history(url, "batch"))


def everything(url: str) -> dict[str, Any]:
    """All content of the store; equal before and after if nothing was written in between."""
    if url.startswith("redis"):
        return redis.dump(url)
    # The view shows ages, which change with time.
    tables = databases.tables(url) - {"tallymark_status"}
    return {name: Counter(databases.query(url, f"SELECT * FROM {name}")) for name in tables}


def versions(url: str) -> list[int]:
    """The recorded versions of the ledger; Redis records only the last one."""
    if url.startswith("redis"):
        return [int(redis.dump(url, "tallymark:schema")[""][b"version"])]
    return [int(str(version)) for (version,) in databases.query(url, "SELECT version FROM tallymark_schema")]


def newest_version(url: str) -> int:
    return VERSION_IN_REDIS if url.startswith("redis") else VERSION_IN_SQL


# Changes from outside


def set_version(url: str, version: int) -> None:
    if url.startswith("redis"):
        redis.client(url).hset(redis.key(url, "tallymark:schema"), "version", version)
    else:
        databases.execute(url, f"UPDATE tallymark_schema SET version = {version}")


def delete_position(url: str, group: str, partition: Partition) -> None:
    if url.startswith("redis"):
        redis.client(url).delete(redis.key(url, f"tallymark:position:{group}:{partition.topic}:{partition.number}"))
    else:
        where = f"group_name = '{group}' AND topic = '{partition.topic}' AND partition_id = {partition.number}"
        databases.execute(url, f"DELETE FROM tallymark_positions WHERE {where}")


def _ledger_in_redis(url: str, table: str) -> list[dict[bytes, bytes]]:
    if table == "batches":
        (found, *_) = [*redis.dump(url, "tallymark:batches:").values(), []]
        parsed = [json.loads(line) for line, _ in found]
        return [{name.encode(): _text(value).encode() for name, value in line.items()} for line in parsed]
    under = {"positions": "tallymark:position:", "dead_letters": "tallymark:letter:"}[table]
    return list(redis.dump(url, under).values())


def _hash(row: Mapping[bytes, bytes] | bytes) -> Mapping[bytes, bytes]:
    """The fields of a row, which is a hash or JSON."""
    if not isinstance(row, bytes):
        return row
    return {name.encode(): _text(value).encode() for name, value in json.loads(row).items() if value is not None}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _fields(found: Mapping[bytes, bytes], columns: Iterable[str]) -> tuple[Any, ...]:
    """Redis holds text: text that looks like a number is converted."""
    values = [found[name.encode()].decode() if name.encode() in found else None for name in columns]
    return tuple(int(value) if value is not None and value.removeprefix("-").isdigit() else value for value in values)
