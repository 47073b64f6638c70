"""Random Avro schemas, their evolutions and values, and an encoder that knows nothing of the decoders under test."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Context, Decimal
from random import Random
from typing import Any

PLAIN = ("boolean", "int", "long", "float", "double", "bytes", "string")
WHOLE = {"int": 31, "long": 63}
PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
}
LETTERS = "aZ09 -é€\U0001f600\0"
TIMES = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
FIRST, LAST = -719162 * 86_400, 2932897 * 86_400
"""Seconds from 1970 to the year 1, and to the year 10000."""
EXACT = Context(prec=80)


class Dead(Exception):
    """A value that no column can hold."""


@dataclass
class Choice:
    """A value of a union."""

    branch: int
    value: Any


@dataclass
class Pairs:
    """Entries of a map, which may have equal keys."""

    entries: list[tuple[str, Any]]


@dataclass
class Schemas:
    """Makes schemas as JSON. Every named type gets another name."""

    random: Random
    logical: bool = True
    count: int = field(default=0)

    def name(self) -> str:
        self.count += 1
        return f"N{self.count}"

    def record(self, depth: int = 3) -> dict[str, Any]:
        fields = [{"name": self.name().lower(), "type": self.type(depth - 1)} for _ in range(self.random.randint(1, 4))]
        return {"type": "record", "name": self.name(), "fields": fields}

    def type(self, depth: int) -> Any:
        kinds = ["plain", "plain", "fixed", "enum"] + (["logical"] * 3 if self.logical else [])
        if depth > 0:
            kinds += ["record", "array", "map", "nullable", "nullable", "union"]
        kind = self.random.choice(kinds)
        made: Any = getattr(self, f"_{kind}")(depth)
        return made

    def _plain(self, _: int) -> Any:
        return self.random.choice(PLAIN)

    def _fixed(self, _: int) -> Any:
        return {"type": "fixed", "name": self.name(), "size": self.random.choice((1, 4, 12, 16, 17))}

    def _enum(self, _: int) -> Any:
        symbols = [f"S{n}" for n in range(self.random.randint(1, 4))]
        return {"type": "enum", "name": self.name(), "symbols": symbols}

    def _logical(self, _: int) -> Any:
        size = self.random.choice((4, 12, 16, 20))
        precision = self.random.randint(1, 9)
        return self.random.choice(
            [
                {"type": "int", "logicalType": "date"},
                {"type": "int", "logicalType": "time-millis"},
                {"type": "long", "logicalType": "time-micros"},
                *(
                    {"type": "long", "logicalType": f"{local}timestamp-{unit}"}
                    for unit in TIMES
                    for local in ("", "local-")
                ),
                {"type": "string", "logicalType": "uuid"},
                {"type": "fixed", "name": self.name(), "size": 16, "logicalType": "uuid"},
                {"type": "fixed", "name": self.name(), "size": 12, "logicalType": "duration"},
                {"type": "bytes", "logicalType": "decimal", "precision": 4 * precision, "scale": precision},
                {"type": "bytes", "logicalType": "decimal", "precision": 38 + precision, "scale": 2},
                {"type": "fixed", "name": self.name(), "size": size, "logicalType": "decimal", "precision": precision},
            ]
        )

    def _record(self, depth: int) -> Any:
        return self.record(depth)

    def _array(self, depth: int) -> Any:
        return {"type": "array", "items": self.type(depth - 1)}

    def _map(self, depth: int) -> Any:
        return {"type": "map", "values": self.type(depth - 1)}

    def _nullable(self, depth: int) -> Any:
        inner = self.type(0)
        return ["null", inner] if self.random.random() < 0.7 else [inner, "null"]

    def _union(self, depth: int) -> Any:
        branches: list[Any] = self.random.sample(["null", *PLAIN], self.random.randint(1, 3))
        if self.random.random() < 0.5:
            branches.append(self.record(depth - 1))
        self.random.shuffle(branches)
        return branches


def evolved(schemas: Schemas, schema: Any, *, missing: bool = True) -> Any:
    """A schema that can read most of what another wrote. ``missing``: new fields may have no default."""
    random = schemas.random
    kind = kind_of(schema)
    if kind == "union":
        return _evolved_union(schemas, schema, missing)
    if kind == "record":
        return _evolved_record(schemas, schema, missing)
    if kind in ("array", "map"):
        inner = "items" if kind == "array" else "values"
        return {**schema, inner: evolved(schemas, schema[inner], missing=missing)}
    if kind == "enum" and random.random() < 0.5:
        symbols = [symbol for symbol in schema["symbols"] if random.random() < 0.7] + ["OTHER"]
        return {**schema, "symbols": symbols, "default": "OTHER"}
    if isinstance(schema, str) and random.random() < 0.3:
        schema = random.choice((schema, *PROMOTED.get(schema, ())))
    return ["null", schema] if random.random() < 0.2 else schema


def _evolved_union(schemas: Schemas, schema: list[Any], missing: bool) -> Any:
    random = schemas.random
    if random.random() < 0.2:
        return evolved(schemas, random.choice(schema), missing=missing)
    branches = [branch if isinstance(branch, str) else evolved(schemas, branch, missing=missing) for branch in schema]
    branches = [branch for branch in branches if kind_of(branch) != "union"] or ["null"]
    random.shuffle(branches)
    return branches


def _evolved_record(schemas: Schemas, schema: dict[str, Any], missing: bool) -> Any:
    random = schemas.random
    fields = []
    for given in schema["fields"]:
        if random.random() < 0.2:
            continue
        changed = {**given, "type": evolved(schemas, given["type"], missing=missing)}
        if random.random() < 0.2:
            changed |= {"name": schemas.name().lower(), "aliases": [given["name"]]}
        fields.append(changed)
    for _ in range(random.randint(0 if fields else 1, 2)):
        kind = schemas.type(1)
        added = {"name": schemas.name().lower(), "type": kind}
        if not missing or random.random() < 0.7:
            added["default"] = default_of(random, kind)
        fields.append(added)
    random.shuffle(fields)
    return {**schema, "fields": fields}


def default_of(random: Random, schema: Any) -> Any:
    """The JSON form of a small value."""
    kind = kind_of(schema)
    if kind == "union":
        return default_of(random, schema[0])
    if kind == "record":
        return {part["name"]: default_of(random, part["type"]) for part in schema["fields"]}
    if kind == "array":
        return [default_of(random, schema["items"]) for _ in range(random.randint(0, 2))]
    if kind == "map":
        return {key: default_of(random, schema["values"]) for key in "ab"[: random.randint(0, 2)]}
    if kind == "enum":
        return random.choice(schema["symbols"])
    if logical_of(schema) == "uuid" and kind == "string":
        return str(uuid.UUID(int=random.getrandbits(128)))
    if logical_of(schema) == "decimal" and kind == "bytes":
        return "\x07"
    if kind == "fixed":
        return "\0" * schema["size"]
    return {"null": None, "boolean": True, "int": 5, "long": -6, "float": 1.5, "double": -0.25, "bytes": "\xff\0"}.get(
        kind, "text"
    )


def value_of(random: Random, schema: Any) -> Any:
    """A value to encode: whole numbers and bytes of logical types, ``Choice`` for unions."""
    kind, logical = kind_of(schema), logical_of(schema)
    if kind == "union":
        branch = random.randrange(len(schema))
        return Choice(branch, value_of(random, schema[branch]))
    if kind == "record":
        return [value_of(random, part["type"]) for part in schema["fields"]]
    if kind == "array":
        return [value_of(random, schema["items"]) for _ in range(_length(random))]
    if kind == "map":
        keys = [_text(random)[:2] for _ in range(_length(random))]
        return Pairs([(key, value_of(random, schema["values"])) for key in keys])
    if kind == "enum":
        return random.randrange(len(schema["symbols"]))
    if kind in WHOLE:
        return _whole(random, kind, logical)
    if kind in ("float", "double"):
        form = "<f" if kind == "float" else "<d"
        number = random.choice((0.0, -0.0, 1.5, float("nan"), float("-inf"), random.uniform(-1e9, 1e9)))
        return struct.unpack(form, struct.pack(form, number))[0]
    if kind == "fixed":
        filler = random.choice((b"\0", b"\xff")) if random.random() < 0.5 else b""
        content = random.randbytes(min(schema["size"], 3)) if filler else random.randbytes(schema["size"])
        return content.rjust(schema["size"], filler or b"\0")
    if kind == "bytes":
        return random.randbytes(random.choice((0, 1, 2, 7, 8, 9, 15, 16, 17)))
    if logical == "uuid":
        text = str(uuid.UUID(int=random.getrandbits(128)))
        return random.choice((text, text, text.upper(), text[:-1], text.replace("-", "")))
    return {"null": None, "boolean": random.random() < 0.5}.get(kind, _text(random))


def _length(random: Random) -> int:
    return random.choice((0, 0, 1, 2, 3, 5))


def _text(random: Random) -> str:
    return "".join(random.choice(LETTERS) for _ in range(random.choice((0, 1, 3, 20))))


def _whole(random: Random, kind: str, logical: str | None) -> int:
    bits = WHOLE[kind]
    number = random.getrandbits(random.randint(1, bits)) * random.choice((1, -1))
    number = random.choice((number, number, 0, -1, (1 << bits) - 1, -(1 << bits)))
    if logical and random.random() < 0.9:
        unit = TIMES.get(logical.rpartition("-")[2], 1)
        return number % (86_400 * unit) if logical != "date" else number % 3_000_000 - 700_000
    return number


def encoded(random: Random, schema: Any, value: Any) -> bytes:
    """The bytes of a value. Arrays and maps have random blocks, with and without sizes."""
    kind = kind_of(schema)
    if kind == "union":
        return varint(value.branch) + encoded(random, schema[value.branch], value.value)
    if kind == "record":
        parts = zip(schema["fields"], value, strict=True)
        return b"".join(encoded(random, part["type"], item) for part, item in parts)
    if kind == "array":
        return b"".join(_blocks(random, [encoded(random, schema["items"], item) for item in value]))
    if kind == "map":
        entries = [encoded(random, "string", k) + encoded(random, schema["values"], v) for k, v in value.entries]
        return b"".join(_blocks(random, entries))
    if kind in ("bytes", "string"):
        content = value.encode() if isinstance(value, str) else value
        return varint(len(content)) + content
    if kind == "fixed":
        return bytes(value)
    if kind in ("float", "double"):
        return struct.pack("<f" if kind == "float" else "<d", value)
    return b"" if value is None else bytes([value]) if kind == "boolean" else varint(value)


def _blocks(random: Random, items: list[bytes]) -> Iterator[bytes]:
    while items:
        size = random.randint(1, len(items))
        block, items = b"".join(items[:size]), items[size:]
        yield varint(-size) + varint(len(block)) if random.random() < 0.3 else varint(size)
        yield block
    yield b"\0"


def varint(number: int) -> bytes:
    rest = number * 2 if number >= 0 else -number * 2 - 1
    found = bytearray()
    while rest > 127:
        found.append(rest % 128 + 128)
        rest //= 128
    return bytes([*found, rest])


def in_column(schema: Any, value: Any) -> Any:
    """What a column of this schema contains, in the form that Arrow converts; raises Dead."""
    kind, logical = kind_of(schema), logical_of(schema)
    if kind == "union":
        return _union_in_column(schema, value)
    if kind == "record":
        return tuple(in_column(part["type"], item) for part, item in zip(schema["fields"], value, strict=True))
    if kind == "array":
        return [in_column(schema["items"], item) for item in value]
    if kind == "map":
        return list({key: in_column(schema["values"], item) for key, item in value.entries}.items())
    if kind == "enum":
        return schema["symbols"][value]
    return LOGICAL[logical.split("-")[0]](schema, value) if logical else value


def _union_in_column(schema: list[Any], value: Choice) -> Any:
    others = [at for at, branch in enumerate(schema) if branch != "null"]
    if value.branch not in others:
        return None
    found = in_column(schema[value.branch], value.value)
    return found if len(others) == 1 else tuple(found if at == value.branch else None for at in others)


def _date(_: Any, days: int) -> int:
    return _between(days, FIRST // 86_400, LAST // 86_400)


def _clock(schema: Any, number: int) -> str:
    per_second = TIMES[schema["logicalType"].split("-")[1]]
    seconds, fraction = divmod(_between(number, 0, 86_400 * per_second), per_second)
    digits = str(per_second + fraction)[1:]
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{digits}"


def _instant(schema: Any, number: int) -> int:
    per_second = TIMES[schema["logicalType"].split("-")[-1]]
    return _between(number, FIRST * per_second, LAST * per_second) * 1_000_000 // per_second


def _between(number: int, least: int, beyond: int) -> int:
    if not least <= number < beyond:
        raise Dead
    return number


def _decimal(schema: Any, content: bytes) -> Decimal:
    number = int.from_bytes(content, "big", signed=True)
    if not content or len(str(abs(number))) > min(38, schema["precision"]):
        raise Dead
    return EXACT.divide(Decimal(number), Decimal(10 ** schema.get("scale", 0)))


def _uuid(_: Any, value: str | bytes) -> str:
    if isinstance(value, bytes):
        return str(uuid.UUID(bytes=value))
    if len(value) != 36:
        raise Dead
    return str(uuid.UUID(value))


def _duration(_: Any, content: bytes) -> tuple[int, ...]:
    return tuple(int.from_bytes(content[at : at + 4], "little") for at in (0, 4, 8))


LOGICAL: dict[str, Any] = {
    "date": _date,
    "time": _clock,
    "timestamp": _instant,
    "local": _instant,
    "decimal": _decimal,
    "uuid": _uuid,
    "duration": _duration,
}


def kind_of(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    return schema if isinstance(schema, str) else str(schema["type"])


def logical_of(schema: Any) -> str | None:
    return schema.get("logicalType") if isinstance(schema, dict) else None


def text_of(schema: Any) -> str:
    return json.dumps(schema)
