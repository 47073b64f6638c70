"""Parses Avro schemas into a tree in which the named types are resolved."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

NAMED = ("record", "error", "enum", "fixed")
PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
DEEPEST = 100
"""Maximum nesting of types: beyond it Python may exceed its stack, and Arrow can't transport a column."""
NAME = re.compile(r"[^\W\d]\w*")
PLAIN_LOGICAL = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "timestamp-nanos": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "local-timestamp-nanos": "long",
    "instant-text": "string",
}
"""Logical types of numbers, and one of text, with the type that each annotates."""
DEBEZIUM = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Time": "time-millis",
    "io.debezium.time.MicroTime": "time-micros",
    "io.debezium.time.Timestamp": "local-timestamp-millis",
    "io.debezium.time.MicroTimestamp": "local-timestamp-micros",
    "io.debezium.time.NanoTimestamp": "local-timestamp-nanos",
    "io.debezium.time.ZonedTimestamp": "instant-text",
}
"""Debezium's types of dates and times, which Kafka Connect writes as ``connect.name``."""
MOST_SCALE = 38
SHOWN = 60
"""Maximum number of characters of a schema that an error message quotes."""


class SchemaInvalid(ValueError):
    """A schema is not valid, or has no column type. The message is one phrase."""


@dataclass(frozen=True, eq=False, slots=True)
class Field:
    """A field of a record. ``default`` is the JSON value; it counts only if ``has_default``."""

    name: str
    schema: Schema
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = None


@dataclass(frozen=True, eq=False, slots=True)
class Schema:
    """A type. Only records may contain themselves, so every cycle passes through ``fields``."""

    type: str
    logical: str | None = None
    name: str = ""
    """The full name of a record, an enum or a fixed."""
    aliases: tuple[str, ...] = ()
    """Other full names."""
    fields: tuple[Field, ...] = field(default=(), repr=False)
    items: Schema | None = field(default=None, repr=False)
    """The type of an array's items or a map's values."""
    branches: tuple[Schema, ...] = field(default=(), repr=False)
    symbols: tuple[str, ...] = ()
    default: str | None = None
    """The symbol that stands for unknown symbols."""
    size: int = 0
    precision: int = 0
    scale: int = 0

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def label(self) -> str:
        """What error messages and branches of unions call this type."""
        return self.name or self.type

    @property
    def item(self) -> Schema:
        assert self.items is not None
        return self.items


def parse(text: str, references: Sequence[str] = ()) -> Schema:
    """Parse a schema. ``references`` are schemas whose named types it may use; each may use those before it."""
    parser = _Parser()
    for reference in references:
        parser.schema(_json(reference))
    return parser.schema(_json(text))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise SchemaInvalid(f"it is not JSON: {error}") from None


def _too_deep() -> SchemaInvalid:
    return SchemaInvalid(f"its types are nested more than {DEEPEST} levels deep")


def repeated(names: Sequence[str]) -> Iterator[str]:
    """Yield the names that appear again."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)


class _Parser:
    """Knows the named types so far. Every method parses what its name says."""

    def __init__(self) -> None:
        self._named: dict[str, Schema] = {}
        self._depth = 0

    def schema(self, given: Any) -> Schema:
        try:
            return self._type(given, "")
        except RecursionError:
            raise _too_deep() from None

    def _type(self, given: Any, namespace: str) -> Schema:
        if isinstance(given, str):
            return self._by_name(given, namespace)
        self._depth += 1
        if self._depth > DEEPEST:
            raise _too_deep()
        found = self._union(given, namespace) if isinstance(given, list) else self._complex(given, namespace)
        self._depth -= 1
        return found

    def _by_name(self, name: str, namespace: str) -> Schema:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        # A type may also be in no namespace.
        found = self._named.get(_full(name, namespace)) or self._named.get(name)
        if found is None:
            raise SchemaInvalid(f"type {cut(name)} is not defined")
        return found

    def _complex(self, given: Any, namespace: str) -> Schema:
        if not isinstance(given, dict):
            raise SchemaInvalid(f"{cut(given)} is not a type")
        kind = given.get("type")
        if kind is None:
            raise SchemaInvalid(f"{cut(given)} has no type")
        if not isinstance(kind, str):
            return self._type(kind, namespace)
        if kind in NAMED:
            return self._named_type(given, kind, namespace)
        if kind in ("array", "map"):
            key = "items" if kind == "array" else "values"
            if key not in given:
                raise SchemaInvalid(f"{_article(kind)} has no {key}")
            return Schema(kind, items=self._type(given[key], namespace))
        found = self._by_name(kind, namespace)
        return _with_logical(found, given) if found.type in PRIMITIVE else found

    def _union(self, given: list[Any], namespace: str) -> Schema:
        branches = tuple(self._type(branch, namespace) for branch in given)
        if not branches:
            raise SchemaInvalid("a union has no branches")
        labels = [branch.label for branch in branches]
        if "union" in labels:
            raise SchemaInvalid("a union contains a union")
        for twice in repeated(labels):
            raise SchemaInvalid(f"a union contains {twice} twice")
        return Schema("union", branches=branches)

    def _named_type(self, given: dict[str, Any], kind: str, namespace: str) -> Schema:
        name = self._name(given, kind, namespace)
        if name in self._named:
            raise SchemaInvalid(f"{name} is defined twice")
        inner = name.rpartition(".")[0]
        kind = "record" if kind == "error" else kind
        aliases = tuple(_full(alias, inner) for alias in _texts(given.get("aliases", []), f"the aliases of {name}"))
        if kind == "record":
            return self._record(given, name, aliases)
        found = self._enum(given, name, aliases) if kind == "enum" else self._fixed(given, name, aliases)
        self._named[name] = found
        return found

    def _name(self, given: dict[str, Any], kind: str, namespace: str) -> str:
        name, own = given.get("name"), given.get("namespace", namespace)
        if not isinstance(name, str):
            raise SchemaInvalid(f"{_article(kind)} has no name")
        full = _full(name, own if isinstance(own, str) else namespace)
        if not all(NAME.fullmatch(part) for part in full.split(".")):
            raise SchemaInvalid(f"{cut(full)} is not a valid name")
        if full in PRIMITIVE:
            raise SchemaInvalid(f"{_article(kind)} has the name of the type {full}")
        return full

    def _record(self, given: dict[str, Any], name: str, aliases: tuple[str, ...]) -> Schema:
        fields = given.get("fields")
        if not isinstance(fields, list):
            raise SchemaInvalid(f"record {name} has no fields")
        record = Schema("record", name=name, aliases=aliases)
        self._named[name] = record
        parsed = []
        for part in fields:
            parsed.append(self._field(part, record))
        for twice in repeated([part.name for part in parsed]):
            raise SchemaInvalid(f"record {name} has two fields {twice}")
        # Its fields may contain it, so it must exist before them.
        object.__setattr__(record, "fields", tuple(parsed))
        return record

    def _field(self, given: Any, record: Schema) -> Field:
        name = given.get("name") if isinstance(given, dict) else None
        if not isinstance(name, str):
            raise SchemaInvalid(f"a field of {record.name} has no name")
        if not NAME.fullmatch(name):
            raise SchemaInvalid(f"{cut(name)}, a field of {record.name}, is not a valid name")
        if "type" not in given:
            raise SchemaInvalid(f"field {name} of {record.name} has no type")
        schema = self._type(given["type"], record.name.rpartition(".")[0])
        aliases = _texts(given.get("aliases", []), f"the aliases of field {name}")
        return Field(name, schema, aliases, "default" in given, given.get("default"))

    def _enum(self, given: dict[str, Any], name: str, aliases: tuple[str, ...]) -> Schema:
        symbols = _texts(given.get("symbols"), f"the symbols of {name}")
        for twice in repeated(symbols):
            raise SchemaInvalid(f"enum {name} has the symbol {twice} twice")
        default = given.get("default")
        if default is not None and default not in symbols:
            raise SchemaInvalid(f"the default of enum {name} is none of its symbols")
        return Schema("enum", name=name, aliases=aliases, symbols=symbols, default=default)

    def _fixed(self, given: dict[str, Any], name: str, aliases: tuple[str, ...]) -> Schema:
        size: Any = given.get("size")
        if not _is_whole(size) or not 0 <= size < 1 << 31:
            raise SchemaInvalid(f"fixed {name} has no valid size")
        return _with_logical(Schema("fixed", name=name, aliases=aliases, size=size), given)


def _with_logical(plain: Schema, given: dict[str, Any]) -> Schema:
    """Annotate a type. Logical types that are unknown or invalid are ignored, as the Avro specification demands."""
    logical = given.get("logicalType")
    if not isinstance(logical, str):
        logical = DEBEZIUM.get(str(given.get("connect.name")))
    if logical is None:
        return plain
    precision: Any = 0
    scale: Any = 0
    if logical == "decimal":
        precision, scale = given.get("precision"), given.get("scale", 0)
        valid = _is_decimal(plain, precision, scale)
    elif logical == "uuid":
        valid = plain.type == "string" or (plain.type == "fixed" and plain.size == 16)
    elif logical == "duration":
        valid = plain.type == "fixed" and plain.size == 12
    else:
        valid = PLAIN_LOGICAL.get(logical) == plain.type
    if not valid:
        return plain
    return Schema(
        plain.type,
        logical,
        plain.name,
        plain.aliases,
        size=plain.size,
        precision=precision,
        scale=scale,
    )


def _is_decimal(plain: Schema, precision: Any, scale: Any) -> bool:
    if not (plain.type in ("bytes", "fixed") and _is_whole(precision) and _is_whole(scale)):
        return False
    if plain.type == "fixed" and (plain.size == 0 or precision > _digits(plain.size)):
        return False
    return bool(precision > 0 and 0 <= scale <= min(precision, MOST_SCALE))


def _digits(size: int) -> int:
    """The most digits of which every number fits so many bytes."""
    return int((8 * size - 1) * 0.30102999566398119521)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _texts(given: Any, what: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise SchemaInvalid(f"{what} are not a list of strings")
    return tuple(given)


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def cut(given: Any) -> str:
    text = given if isinstance(given, str) else json.dumps(given, default=str)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


_PRIMITIVES = {name: Schema(name) for name in PRIMITIVE}
