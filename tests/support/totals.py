"""The oracle of merged totals: computes from a topic what docs/reference/merging.md promises of the tables.

It shares no code with the package: records come from a plain consumer, tables are read by SQL or Redis commands.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from tests.support import databases, redis

Record = tuple[int, int]
Row = dict[str, Any]
Table = dict[tuple[Any, ...], Row]

FULL = "full"
"""The shop whose points have reached the end of their column before the first record."""
BAD_KIND = 7
"""The kind that the table ``marks`` refuses until it is repaired."""
MOST_POINTS = 2**63 - 1

KEYS: Mapping[str, Mapping[str, type]] = {
    "totals": {"shop": str},
    "origins": {"shop": str, "day": int},
    "grouped": {"shop": str},
    "marks": {"id": int},
}
COLUMNS: Mapping[str, Mapping[str, type]] = {
    "totals": {
        "records": int,
        "flagged": int,
        "points": int,
        "amount": Decimal,
        "lowest": Decimal,
        "highest": int,
        "word": str,
        "state": str,
        "last": int,
        "since": datetime,
    },
    "origins": {"records": int, "state": str, "begun": int},
    "grouped": {"orders": int, "revenue": Decimal},
    "marks": {"kind": int},
}


# The content of Kafka


def fate(value: bytes | None) -> str:
    """What becomes of a record: good, dead for ever, or dead until a table is repaired."""
    try:
        content = json.loads(value or b"")
    except ValueError:
        return "dead"
    if not isinstance(content, dict) or content.get("shop") is None:
        return "dead"
    return "repairable" if content["shop"] == FULL or content["kind"] == BAD_KIND else "good"


def split(committed: Mapping[Record, bytes | None]) -> dict[str, dict[Record, Row]]:
    """The records by their fate, decoded if they are not dead for ever."""
    fates: dict[str, dict[Record, Row]] = {"good": {}, "repairable": {}, "dead": {}}
    for place, value in committed.items():
        now = fate(value)
        fates[now][place] = {} if now == "dead" else json.loads(value or b"")
    return fates


def expected(values: Sequence[Row]) -> dict[str, Table]:
    """Every table as these records make it."""
    return {
        "totals": {key: _total(rows) for key, rows in _by(values, "shop").items()},
        "origins": {key: _origin(rows) for key, rows in _by(values, "shop", "day").items()},
        "grouped": {
            key: {"orders": len(rows), "revenue": _sum(rows, "amount", Decimal)}
            for key, rows in _by(values, "shop").items()
        },
        "marks": {(value["id"],): {"kind": value["kind"]} for value in values},
    }


def _by(values: Iterable[Row], *key: str) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for value in values:
        found.setdefault(tuple(value[name] for name in key), []).append(value)
    return found


def _total(rows: Sequence[Row]) -> Row:
    return {
        "records": len(rows),
        "flagged": sum(row.get("flag") or 0 for row in rows),
        "points": _sum(rows, "points", int),
        "amount": _sum(rows, "amount", Decimal),
        "lowest": min((Decimal(text) for text in _known(rows, "amount")), default=None),
        "highest": max(_known(rows, "points"), default=None),
        "word": max(_known(rows, "word"), key=lambda word: word.encode(), default=None),
        "state": _by_version(rows, max),
        "last": max(_known(rows, "at"), default=None),
        "since": min((datetime.fromisoformat(text) for text in _known(rows, "since")), default=None),
    }


def _origin(rows: Sequence[Row]) -> Row:
    return {"records": len(rows), "state": _by_version(rows, min), "begun": min(_known(rows, "at"), default=None)}


def _known(rows: Iterable[Row], name: str) -> list[Any]:
    return [row[name] for row in rows if row.get(name) is not None]


def _sum(rows: Iterable[Row], name: str, kind: Callable[[Any], Any]) -> Any:
    known = [kind(value) for value in _known(rows, name)]
    return sum(known[1:], known[0]) if known else None


UNDECIDED = "any"


def _by_version(rows: Sequence[Row], choose: Callable[..., Row]) -> Any:
    """The state of the row with the highest or lowest version. Versions are unique; without any, the order decides."""
    versioned = [row for row in rows if row.get("at") is not None]
    return choose(versioned, key=lambda row: row["at"]).get("state") if versioned else UNDECIDED


# The content of the store


def found(url: str, tables: Iterable[str] = KEYS) -> dict[str, Table]:
    """The tables of a store. An empty cell of Redis is NULL."""
    return {name: _read(url, name) for name in tables}


def _read(url: str, name: str) -> Table:
    key, columns = KEYS[name], COLUMNS[name]
    if not url.startswith("redis"):
        rows = databases.query(url, f"SELECT {', '.join([*key, *columns])} FROM {name}")
        cells = [dict(zip([*key, *columns], row, strict=True)) for row in rows]
    else:
        hashes = [row for row in redis.dump(url, f"{name}:").values() if isinstance(row, dict)]
        cells = [{field.decode(): value.decode() for field, value in row.items()} for row in hashes]
    read: Table = {}
    for row in cells:
        identity = tuple(_typed(kind, row[column]) for column, kind in key.items())
        assert identity not in read, f"{name} has two rows of {identity}"
        read[identity] = {column: _typed(kind, row.get(column)) for column, kind in columns.items()}
    return read


def _typed(kind: type, value: Any) -> Any:
    """A cell as a value of Python: SQLite keeps times and decimals as text, Redis everything."""
    if value is None:
        return None
    if kind is not datetime:
        return kind(str(value))
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def check(url: str, values: Sequence[Row], without: str | None = None, tables: Iterable[str] = KEYS) -> None:
    """The tables are as these records make them. The shop ``without`` is left out."""
    wanted, there = expected(values), found(url, tables)
    for name in tables:
        wrong = [
            f"{name} {key} {column}: {row.get(column)} instead of {other.get(column)}"
            for key in sorted(wanted[name].keys() | there[name].keys(), key=str)
            if key[0] != without
            for row, other in [(there[name].get(key, {}), wanted[name].get(key, {}))]
            for column in COLUMNS[name]
            if other.get(column) != UNDECIDED and row.get(column) != other.get(column)
        ]
        assert not wrong, f"{len(wrong)} cells are wrong:\n" + "\n".join(wrong[:20])


def check_tallies(url: str, fates: Mapping[str, Mapping[Record, Row]], *, repaired: bool) -> None:
    """Every offset has the outcome that its record has by itself, and the open letters are those of the dead ones."""
    dead = {**fates["dead"], **({} if repaired else fates["repairable"])}
    good = {**fates["good"], **(fates["repairable"] if repaired else {})}
    applied_in, dead_in = (Counter(partition for partition, _ in places) for places in (good, dead))
    for partition, tally in tallies(url).items():
        stop = tally.pop("next_offset")
        assert tally.pop("first_offset") == 0
        absent = stop - applied_in[partition] - dead_in[partition]
        wanted = {"applied": applied_in[partition], "dead": dead_in[partition], "absent": absent}
        assert tally == {"skipped": 0, "lost": 0, **wanted}, f"partition {partition}"
    assert open_letters(url) == Counter(dead.keys())


TALLY = ("next_offset", "first_offset", "applied", "dead", "skipped", "lost", "absent")


def tallies(url: str) -> dict[int, dict[str, int]]:
    """The position of each partition, and the outcomes of its offsets."""
    if url.startswith("redis"):
        rows = redis.dump(url, "tallymark:position:").values()
        cells = [{name: int(row[name.encode()]) for name in ("partition_id", *TALLY)} for row in rows]
    else:
        names = ("partition_id", *TALLY)
        selected: Any = databases.query(url, f"SELECT {', '.join(names)} FROM tallymark_positions")
        cells = [dict(zip(names, row, strict=True)) for row in selected]
    return {row.pop("partition_id"): row for row in cells}


def open_letters(url: str) -> Counter[Record]:
    if url.startswith("redis"):
        rows = redis.dump(url, "tallymark:letter:").values()
        return Counter(
            (int(row[b"partition_id"]), int(row[b"record_offset"])) for row in rows if row[b"state"] == b"dead"
        )
    letters: Any = databases.query(
        url, "SELECT partition_id, record_offset FROM tallymark_dead_letters WHERE state = 'dead'"
    )
    return Counter((partition, offset) for partition, offset in letters)
