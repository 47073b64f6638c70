"""Change events as Debezium 3 writes them for PostgreSQL and MySQL, and a source table whose changes they describe."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, Literal, NamedTuple

from tallymark.core.replica import UNAVAILABLE
from tests.support.avro import encoded

Kind = Literal["postgresql", "mysql"]
Row = dict[str, Any]
EPOCH_DAY, EPOCH = date(1970, 1, 1), datetime(1970, 1, 1)
MICRO = timedelta(microseconds=1)


def same(value: Any) -> Any:
    return value


def unscaled(value: Decimal) -> bytes:
    """The big-endian two's complement of a number with two digits after the point."""
    number = int(value * 100)
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


class Column(NamedTuple):
    """A column of the source: its type here, and what Kafka Connect calls it."""

    name: str
    ddl: str
    type: str
    semantic: str | None = None
    parameters: Mapping[str, str] | None = None
    number: Callable[[Any], Any] = same
    """The value in Avro."""
    text: Callable[[Any], Any] | None = None
    """The value in JSON, if it is another one."""

    def in_json(self, value: Any) -> Any:
        return None if value is None else (self.text or self.number)(value)

    def in_avro(self, value: Any) -> Any:
        return None if value is None else self.number(value)

    def connect(self) -> dict[str, Any]:
        """Its description in the schema that Kafka Connect adds to JSON."""
        named = {"name": self.semantic, "version": 1} if self.semantic else {}
        parameters = {"parameters": dict(self.parameters)} if self.parameters else {}
        return {"type": self.type, "optional": self.name != "id", **named, **parameters, "field": self.name}

    def avro(self) -> dict[str, Any]:
        """Its field in the schema that Confluent's converter registers."""
        kind: Any = {"int32": "int", "int64": "long"}.get(self.type, self.type)
        if self.semantic:
            kind = {"type": kind, "connect.version": 1, "connect.name": self.semantic}
        if self.parameters:
            digits = {"scale": 2, "precision": 10, "logicalType": "decimal"}
            kind = {**kind, **digits, "connect.parameters": dict(self.parameters)}
        return {"name": self.name, "type": kind if self.name == "id" else ["null", kind]}


def zoned(value: datetime) -> str:
    return value.replace(tzinfo=None).isoformat() + "Z"


DECIMAL = {"scale": "2", "connect.decimal.precision": "10"}
COLUMNS = (
    Column("id", "BIGINT", "int64"),
    Column("name", "STRING", "string"),
    Column(
        "amount",
        "DECIMAL(10, 2)",
        "bytes",
        "org.apache.kafka.connect.data.Decimal",
        DECIMAL,
        text=lambda value: base64.b64encode(unscaled(value)).decode(),
    ),
    Column("day", "DATE", "int32", "io.debezium.time.Date", number=lambda value: (value - EPOCH_DAY).days),
    Column(
        "made",
        "TIMESTAMP_NTZ",
        "int64",
        "io.debezium.time.MicroTimestamp",
        number=lambda value: (value - EPOCH) // MICRO,
    ),
    Column("seen", "TIMESTAMP", "string", "io.debezium.time.ZonedTimestamp", number=zoned),
    Column("body", "STRING", "string"),
)
DDL = ", ".join(f"{column.name} {column.ddl}" for column in COLUMNS)
NAMES = [column.name for column in COLUMNS]


def random_row(random: Random, id: int) -> Row:
    made = datetime(2026, 1, 31, 12) + MICRO * random.randrange(10**12)
    row = {
        "id": id,
        "name": random.choice([None, "", "é", f"n{random.randrange(1000)}"]),
        "amount": Decimal(random.randrange(-(10**9), 10**9)) / 100,
        "day": date(2026, 1, 1) + timedelta(days=random.randrange(-40_000, 40_000)),
        "made": made,
        "seen": made.replace(tzinfo=UTC),
        "body": f"body {random.randrange(10**6)} " * 3,
    }
    # NULL is a value like others.
    return {name: None if name in ("amount", "day") and random.random() < 0.1 else value for name, value in row.items()}


class Event(NamedTuple):
    """A record: the key, and the event; None is a tombstone."""

    id: int
    value: Mapping[str, Any] | None


@dataclass
class Source:
    """A table of a database with a log, and the events of its changes in the order in which a connector writes them."""

    kind: Kind
    random: Random
    rows: dict[int, Row] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    position: int = 1_000
    committed: int | None = None
    """The position of the last commit that was streamed."""
    made: int = 0

    def fill(self, count: int) -> None:
        """Insert rows before anything is read."""
        for _ in range(count):
            self._insert()

    def snapshot(self) -> None:
        """Read all rows. On PostgreSQL a transaction is open, which has written before, and commits afterwards."""
        early = self._next()
        self.position += 500 + len(self.rows)
        marks = ["first", *["true"] * len(self.rows), "last"]
        for number, (id, row) in enumerate(list(self.rows.items())):
            mark = marks[-1] if number == len(self.rows) - 1 else marks[number]
            self._write(id, "r", None, dict(row), self.position, mark)
        for number, id in enumerate(list(self.rows)[::3] if self.kind == "postgresql" else ()):
            self.rows[id] = random_row(self.random, id)
            self._write(id, "u", None, dict(self.rows[id]), early + number)
        self.position += 10
        self.committed = self.position

    def change(self, times: int) -> None:
        """Commit transactions of a few changes each."""
        for _ in range(times):
            for _ in range(self.random.randrange(1, 4)):
                self._change()
            self.committed = self._next()

    def records(self, restarts: float = 0.01) -> Iterator[Event]:
        """The events, some of them again, as after restarts of the connector."""
        for at, event in enumerate(self.events):
            yield event
            if self.random.random() < restarts:
                yield from self.events[max(0, at - self.random.randrange(30)) : at + 1]

    def _next(self) -> int:
        self.position += self.random.randrange(1, 60)
        return self.position

    def _insert(self) -> tuple[int, Row]:
        self.made += 1
        self.rows[self.made] = random_row(self.random, self.made)
        return self.made, self.rows[self.made]

    def _change(self) -> None:
        at, chance = self._next(), self.random.random()
        if chance < 0.25 or not self.rows:
            id, row = self._insert()
            self._write(id, "c", None, row, at)
            return
        id = self.random.choice(list(self.rows))
        if chance < 0.45:
            self._delete(id, at)
        elif chance < 0.55:
            # A new key is a deletion and an insertion, at the same position.
            row = self._delete(id, at)
            self.made += 1
            self.rows[self.made] = {**row, "id": self.made}
            self._write(self.made, "c", None, self.rows[self.made], at)
        elif chance < 0.6:
            # A key that was deleted comes back.
            self._delete(id, at)
            self.rows[id] = random_row(self.random, id)
            self._write(id, "c", None, self.rows[id], self._next())
        else:
            self._update(id, at)

    def _update(self, id: int, at: int) -> None:
        before, after = self.rows[id], random_row(self.random, id)
        given = dict(after)
        if self.random.random() < 0.6:
            after["body"] = before["body"]
            # PostgreSQL writes no unchanged large values to its log, MySQL writes all of them.
            given["body"] = UNAVAILABLE if self.kind == "postgresql" else before["body"]
        self.rows[id] = after
        self._write(id, "u", before if self.kind == "mysql" else None, given, at)

    def _delete(self, id: int, at: int) -> Row:
        row = self.rows.pop(id)
        nothing = {**dict.fromkeys(NAMES), "id": id}
        self._write(id, "d", row if self.kind == "mysql" else nothing, None, at)
        self.events.append(Event(id, None))
        return row

    def _write(self, id: int, op: str, before: Row | None, after: Row | None, at: int, mark: str = "false") -> None:
        millis = 1_770_000_000_000 + at
        source = {
            "version": "3.4.0.Final",
            "connector": self.kind,
            "name": "shop",
            "snapshot": mark,
            "db": "shop",
            **times(millis),
            **(self._in_wal(at, mark) if self.kind == "postgresql" else in_binlog(at)),
        }
        sides = {side: None if row is None else dict(row) for side, row in (("before", before), ("after", after))}
        self.events.append(Event(id, {**sides, "source": source, "transaction": None, "op": op, **times(millis + 5)}))

    def _in_wal(self, at: int, mark: str) -> Row:
        commit = None if mark != "false" or self.committed is None else str(self.committed)
        place = {"sequence": json.dumps([commit, str(at)]), "schema": "public", "table": "orders"}
        return {**place, "txId": 700 + at // 100, "lsn": at, "xmin": None}


def times(millis: int) -> Row:
    return {"ts_ms": millis, "ts_us": millis * 1_000, "ts_ns": millis * 1_000_000}


def in_binlog(at: int) -> Row:
    """A position that starts again with each file."""
    file, pos = divmod(at, 2_000)
    place = {"sequence": None, "table": "orders", "server_id": 1, "gtid": None}
    return {**place, "file": f"mysql-bin.{file:06}", "pos": pos // 3, "row": pos % 3, "thread": 7, "query": None}


def as_json(event: Mapping[str, Any] | None, *, schema: bool = False) -> bytes | None:
    """The value as Kafka Connect's JSON converter writes it, with or without its schema."""
    if event is None:
        return None
    sides = {side: _json_row(event[side]) for side in ("before", "after")}
    payload = {**event, **sides}
    return json.dumps({"schema": CONNECT_SCHEMA, "payload": payload} if schema else payload).encode()


def _json_row(row: Row | None) -> Row | None:
    return None if row is None else {column.name: column.in_json(row[column.name]) for column in COLUMNS}


def as_avro(event: Mapping[str, Any], schema: Any = None, more: Callable[[Row], Row] = same) -> bytes:
    """The body of the value as Confluent's Avro converter writes it; ``more`` adds columns that ``schema`` has."""
    rows = {side: _avro_row(event[side]) for side in ("before", "after")}
    sides = {side: None if row is None else more(row) for side, row in rows.items()}
    return encoded(schema or envelope(event["source"]["connector"]), {**event, **sides})


def _avro_row(row: Row | None) -> Row | None:
    if row is None:
        return None
    return {column.name: column.in_avro(row[column.name]) for column in COLUMNS}


def _connect_row(side: str) -> dict[str, Any]:
    fields = [column.connect() for column in COLUMNS]
    return {"type": "struct", "fields": fields, "optional": True, "name": "shop.public.orders.Value", "field": side}


CONNECT_SCHEMA = {
    "type": "struct",
    "fields": [
        _connect_row("before"),
        _connect_row("after"),
        {
            "type": "struct",
            "fields": [{"type": "string", "optional": False, "field": "version"}],
            "optional": False,
            "name": "io.debezium.connector.postgresql.Source",
            "version": 1,
            "field": "source",
        },
        {"type": "string", "optional": False, "field": "op"},
        {"type": "int64", "optional": True, "field": "ts_ms"},
    ],
    "optional": False,
    "name": "shop.public.orders.Envelope",
    "version": 2,
}
SNAPSHOT = {
    "type": "string",
    "connect.version": 1,
    "connect.parameters": {
        "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
    },
    "connect.default": "false",
    "connect.name": "io.debezium.data.Enum",
}
PLACES: Mapping[str, Mapping[str, str]] = {
    "postgresql": {
        "sequence": "string",
        "ts_us": "long",
        "ts_ns": "long",
        "schema": "string",
        "table": "string",
        "txId": "long",
        "lsn": "long",
        "xmin": "long",
    },
    "mysql": {
        "sequence": "string",
        "ts_us": "long",
        "ts_ns": "long",
        "table": "string",
        "server_id": "long",
        "gtid": "string",
        "file": "string",
        "pos": "long",
        "row": "int",
        "thread": "long",
        "query": "string",
    },
}


def envelope(connector: str) -> dict[str, Any]:
    """The schema of events of a connector, as the converter registers it."""
    row = {"type": "record", "name": "Value", "fields": [column.avro() for column in COLUMNS]}
    source: list[dict[str, Any]] = [{"name": name, "type": "string"} for name in ("version", "connector", "name")]
    source += [{"name": "ts_ms", "type": "long"}, {"name": "snapshot", "type": [SNAPSHOT, "null"], "default": "false"}]
    source += [{"name": "db", "type": "string"}]
    source += [{"name": name, "type": ["null", kind], "default": None} for name, kind in PLACES[connector].items()]
    block = [{"name": "id", "type": "string"}]
    block += [{"name": name, "type": "long"} for name in ("total_order", "data_collection_order")]
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.public.orders",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {
                "name": "source",
                "type": {
                    "type": "record",
                    "name": "Source",
                    "namespace": f"io.debezium.connector.{connector}",
                    "fields": source,
                },
            },
            {
                "name": "transaction",
                "type": ["null", {"type": "record", "name": "block", "namespace": "event", "fields": block}],
                "default": None,
            },
            {"name": "op", "type": "string"},
            *({"name": name, "type": ["null", "long"], "default": None} for name in ("ts_ms", "ts_us", "ts_ns")),
        ],
        "connect.name": "shop.public.orders.Envelope",
    }
