"""A table with every type of column, random changes of it, and what a replica of it is to hold.

Rows are compared without tallymark's code: both sides are read by the drivers of the databases.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

MICRO = timedelta(microseconds=1)
ADDED = 7
"""The default of the column that is added later."""
BULK, FIRST_BULK = 3_000, 1_000_000
"""The size of large transactions, and the first id of their rows."""
HIGHEST = FIRST_BULK + BULK - 2
"""The highest id that is left."""
MARKS = 30

Make = Callable[[Random], Any]


class Column(NamedTuple):
    name: str
    type: str
    """In the source."""
    ddl: str
    """In the pipeline."""
    make: Make
    expected: Callable[[Any], Any] = lambda value: value
    """What the replica holds instead of the source's value."""
    read: str = "{}"
    """SQL that reads the source's value."""


def micros(value: timedelta | time) -> int:
    if isinstance(value, time):
        value = datetime.combine(date.min, value) - datetime.min
    return value // MICRO


def little(bits: int) -> bytes:
    return bits.to_bytes(2, "little")


def without_zeros(bits: str) -> bytes:
    """The connector for PostgreSQL leaves out the highest bytes if they are 0."""
    return little(int(bits, 2)).rstrip(b"\0")


def cents(random: Random) -> Decimal:
    return Decimal(random.randrange(-(10**9), 10**9)).scaleb(-2)


def day(random: Random) -> date:
    return date(2026, 1, 1) + timedelta(days=random.randrange(-40_000, 40_000))


def moment(random: Random) -> datetime:
    return datetime(2026, 1, 31, 12) + MICRO * random.randrange(10**15)


def soon(random: Random) -> datetime:
    """A TIMESTAMP of MySQL ends in 2038."""
    return datetime(2026, 1, 31, 12) + MICRO * random.randrange(10**14)


def second(random: Random) -> datetime:
    return moment(random).replace(microsecond=0)


def milli(random: Random) -> datetime:
    return second(random) + timedelta(milliseconds=random.randrange(1000))


def text(random: Random) -> str:
    """Short, or so long and random that PostgreSQL stores it apart (TOAST)."""
    size = random.choice([0, 5, 3_000])
    return "".join(random.choices(string.ascii_letters + "é'\"\\", k=size))


def document(random: Random) -> str:
    return json.dumps({"a": [1.5, None, True], "b": {"c": text(random)}})


def content(random: Random) -> bytes:
    return random.randbytes(random.choice([0, 3, 3_000]))


def number(random: Random) -> Decimal:
    return Decimal(random.randrange(-(10**9), 10**9)).scaleb(-random.randrange(6))


def uuid(random: Random) -> UUID:
    return UUID(int=random.getrandbits(128), version=4)


def listed(make: Make, most: int) -> Make:
    """An array, which has NULLs. Long ones are stored apart."""

    def array(random: Random) -> list[Any]:
        items = [make(random) for _ in range(random.choice([0, 2, most]))]
        return [None if random.random() < 0.1 else item for item in items]

    return array


def texts(values: list[Any]) -> list[Any]:
    return [None if value is None else str(value) for value in values]


def small(random: Random) -> int:
    return random.randrange(-(2**31), 2**31)


def duration(random: Random) -> timedelta:
    """Whole seconds: the connector computes the microseconds in floating point."""
    return timedelta(seconds=random.randrange(-(10**6), 10**6))


def clock(random: Random) -> str:
    """A time of MySQL, which may be negative and longer than a day."""
    sign, parts = random.choice(["", "-"]), (random.randrange(800), random.randrange(60), random.randrange(60))
    return f"{sign}{':'.join(f'{part:02}' for part in parts)}.{random.randrange(10**6):06}"


def point(random: Random) -> str:
    return f"({random.randrange(100) / 4},{random.randrange(100) / 4})"


POINT = "CASE WHEN {0} IS NOT NULL THEN array[{0}[0], {0}[1]] END"
POSTGRESQL = [
    Column("small", "int", "INT", small),
    Column("n", "numeric", "DECIMAL(20, 5)", number),
    Column("amount", "numeric(10,2)", "DECIMAL(10, 2)", lambda random: cents(random) / 100),
    Column("price", "money", "DECIMAL(12, 2)", cents, read="{}::numeric"),
    Column("ratio", "double precision", "DOUBLE", lambda random: random.uniform(-1e9, 1e9)),
    Column("day", "date", "DATE", day),
    Column("at", "time", "BIGINT", lambda random: moment(random).time(), micros),
    Column("made", "timestamp", "TIMESTAMP_NTZ", moment),
    Column("short", "timestamp(3)", "TIMESTAMP_NTZ", milli),
    Column("seen", "timestamptz", "TIMESTAMP", lambda random: moment(random).replace(tzinfo=UTC)),
    Column("lasts", "interval", "BIGINT", duration, micros),
    Column("uid", "uuid", "STRING", uuid, str),
    Column("doc", "json", "STRING", document),
    Column("docb", "jsonb", "STRING", document),
    Column("raw", "bytea", "BINARY", content),
    Column("flag", "bit(1)", "BOOLEAN", lambda random: random.choice("01"), lambda value: value == "1"),
    Column("bits", "bit(9)", "BINARY", lambda random: f"{random.randrange(512):09b}", without_zeros),
    Column("mood", "mood", "STRING", lambda random: random.choice(["sad", "ok"])),
    Column("texts", "text[]", "ARRAY<STRING>", listed(text, 3)),
    Column("ints", "int[]", "ARRAY<INT>", listed(small, 700)),
    Column("bigs", "bigint[]", "ARRAY<BIGINT>", listed(lambda random: random.randrange(2**62), 500)),
    Column("days", "date[]", "ARRAY<DATE>", listed(day, 700), texts),
    Column("uids", "uuid[]", "ARRAY<STRING>", listed(uuid, 200), texts),
    Column("times", "timestamp(3)[]", "ARRAY<TIMESTAMP_NTZ>", listed(milli, 3)),
    Column("sums", "numeric(10,2)[]", "ARRAY<DECIMAL(10, 2)>", listed(lambda random: cents(random) / 100, 3)),
    Column(
        "place",
        "point",
        "STRUCT<x: DOUBLE, y: DOUBLE>",
        point,
        read="CASE WHEN {0} IS NOT NULL THEN array[{0}[0], {0}[1]] END",
    ),
    Column("body", "text", "STRING", text),
]
MYSQL = [
    Column("small", "int", "INT", small),
    Column("amount", "decimal(10,2)", "DECIMAL(10, 2)", lambda random: cents(random) / 100),
    Column("ratio", "double", "DOUBLE", lambda random: random.uniform(-1e9, 1e9)),
    Column("huge", "bigint unsigned", "DECIMAL(20, 0)", lambda random: random.getrandbits(64)),
    Column("day", "date", "DATE", day),
    Column("age", "year", "INT", lambda random: random.randrange(1901, 2156)),
    Column("at", "time(6)", "BIGINT", clock, micros),
    Column("made", "datetime(6)", "TIMESTAMP_NTZ", moment),
    Column("short", "datetime", "TIMESTAMP_NTZ", second),
    Column("seen", "timestamp(6) null", "TIMESTAMP", soon, lambda value: value.replace(tzinfo=UTC)),
    Column("doc", "json", "STRING", document),
    Column("raw", "longblob", "BINARY", content),
    Column("flag", "bit(1)", "BOOLEAN", lambda random: random.randrange(2), bool, "{} + 0"),
    Column("bits", "bit(9)", "BINARY", lambda random: random.randrange(512), little, "{} + 0"),
    Column("mood", "enum('sad','ok')", "STRING", lambda random: random.choice(["sad", "ok"])),
    Column("tags", "set('x','y','z')", "STRING", lambda random: random.choice(["", "x", "x,z", "x,y,z"])),
    Column("body", "longtext", "STRING", text),
]
COLUMNS = {"postgresql": POSTGRESQL, "mariadb": MYSQL, "mysql": MYSQL}
PREPARED = {"postgresql": ["CREATE TYPE mood AS ENUM ('sad', 'ok')"]}


class SourceTable:
    """The table ``orders`` of a database, and its changes. ``connection`` is a driver's, without autocommit."""

    def __init__(self, kind: str, connection: Any, random: Random) -> None:
        self.connection, self.random = connection, random
        self.columns = COLUMNS[kind]
        self._casts = {column.name: f"%s::{column.type}" if kind == "postgresql" else "%s" for column in self.columns}
        self._ids: list[int] = []
        self._next = 1
        described = ", ".join(f"{column.name} {column.type}" for column in self.columns)
        self.run(*PREPARED.get(kind, []), f"CREATE TABLE orders (id BIGINT PRIMARY KEY, {described})")

    @property
    def ddl(self) -> str:
        """The columns of a pipeline, with the one that is added later."""
        return ", ".join(["id BIGINT", *(f"{one.name} {one.ddl}" for one in self.columns), "extra INT"])

    def run(self, *statements: str) -> None:
        """Run statements in a transaction of their own."""
        for statement in statements:
            self.connection.cursor().execute(statement)
        self.connection.commit()

    def change(self, transactions: int) -> None:
        """Commit transactions of a few changes each."""
        for _ in range(transactions):
            for _ in range(self.random.randrange(1, 4)):
                self._change()
            self.connection.commit()

    def change_many(self) -> None:
        """Commit large transactions."""
        rows = [(id, "many") for id in range(FIRST_BULK, FIRST_BULK + BULK)]
        self.connection.cursor().executemany("INSERT INTO orders (id, body) VALUES (%s, %s)", rows)
        self.connection.commit()
        for half, change in enumerate(["UPDATE orders SET small = 1", "DELETE FROM orders"]):
            self._execute(f"{change} WHERE id >= %s AND mod(id, 2) = {half}", FIRST_BULK)
            self.connection.commit()

    def mark(self, text: str) -> None:
        """Insert rows with this text, so many that every partition has one: all before them was read if they were."""
        for _ in range(MARKS):
            self._execute("INSERT INTO orders (id, body) VALUES (%s, %s)", self._new(), f"mark {text}")
        self.connection.commit()

    def rows(self) -> dict[int, Mapping[str, Any]]:
        """What a replica is to hold."""
        reads = ", ".join(column.read.format(column.name) for column in self.columns)
        cursor = self.connection.cursor()
        cursor.execute(f"SELECT id, {reads}, extra FROM orders")
        found = {id: dict(zip(self._names(), values, strict=True)) for id, *values in cursor.fetchall()}
        self.connection.commit()
        expected = {column.name: column.expected for column in self.columns}
        return {
            id: {name: plain(value, expected.get(name)) for name, value in row.items()} for id, row in found.items()
        }

    def _names(self) -> list[str]:
        return [*(column.name for column in self.columns), "extra"]

    def replicated(self, rows: list[tuple[Any, ...]]) -> dict[int, Mapping[str, Any]]:
        """The rows of a replica; ``rows`` have the columns that ``reading`` names."""
        return {row[0]: dict(zip(self._names(), map(plain, row[1:]), strict=True)) for row in rows}

    @property
    def reading(self) -> str:
        return f"SELECT id, {', '.join(self._names())} FROM orders"

    def _change(self) -> None:
        chance = self.random.random()
        if chance < 0.3 or not self._ids:
            self._insert()
        elif chance < 0.45:
            self._execute("DELETE FROM orders WHERE id = %s", self._taken())
        elif chance < 0.55:
            self._execute("UPDATE orders SET id = %s WHERE id = %s", self._new(), self._taken())
        elif chance < 0.6:
            id = self._taken()
            self._execute("DELETE FROM orders WHERE id = %s", id)
            self._insert(id)
        else:
            self._update(self.random.choice(self._ids))

    def _insert(self, id: int | None = None) -> None:
        if id is None:
            id = self._new()
        else:
            self._ids.append(id)
        names = ", ".join(column.name for column in self.columns)
        values = [self._value(column) for column in self.columns]
        self._execute(f"INSERT INTO orders (id, {names}) VALUES (%s, {', '.join(self._casts.values())})", id, *values)

    def _update(self, id: int) -> None:
        changed = self.random.sample(self.columns, self.random.randrange(1, 4))
        sets = ", ".join(f"{column.name} = {self._casts[column.name]}" for column in changed)
        self._execute(f"UPDATE orders SET {sets} WHERE id = %s", *map(self._value, changed), id)

    def _value(self, column: Column) -> Any:
        return None if self.random.random() < 0.1 else column.make(self.random)

    def _new(self) -> int:
        self._ids.append(self._next)
        self._next += 1
        return self._ids[-1]

    def _taken(self) -> int:
        return self._ids.pop(self.random.randrange(len(self._ids)))

    def _execute(self, sql: str, *values: Any) -> None:
        self.connection.cursor().execute(sql, values)


def plain(value: Any, expected: Callable[[Any], Any] | None = None) -> Any:
    """The same value for each database and driver. Texts that are JSON are compared as JSON, whose spaces differ."""
    if value is None:
        return None
    value = expected(value) if expected else value
    if isinstance(value, str) and value[:1] in ("[", "{"):
        value = json.loads(value)
    if isinstance(value, dict) and set(value) == {"x", "y"}:
        value = [value["x"], value["y"]]
    if isinstance(value, list):
        return [_item(item) for item in value]
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def _item(item: Any) -> Any:
    """Numbers and times within JSON may be text."""
    if isinstance(item, str):
        for parsed in (Decimal, datetime.fromisoformat):
            try:
                return parsed(item)
            except (ValueError, ArithmeticError):
                pass
    return Decimal(str(item)) if isinstance(item, (int, float)) and not isinstance(item, bool) else item
