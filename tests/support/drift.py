"""Random JSON values with fields that their schema does not name, and a search for these fields that is independent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

DDL = (
    "id BIGINT, name STRING, price DOUBLE, at TIMESTAMP, address STRUCT<zip: STRING, geo: STRUCT<lat: DOUBLE>>, "
    "items ARRAY<STRUCT<sku: STRING, n: INT>>"
)
WITH_MAP = f"{DDL}, tags MAP<STRING, STRUCT<a: INT>>"
EACH = "each"
"""Stands for the elements of an array and the values of a map."""
SCHEMA: dict[str, Any] = {
    "id": None,
    "name": None,
    "price": None,
    "at": None,
    "address": {"zip": None, "geo": {"lat": None}},
    "items": {EACH: {"sku": None, "n": None}},
}
SCHEMA_WITH_MAP = SCHEMA | {"tags": {EACH: {"a": None}}}
UNKNOWN = ["x", "y", "été", "a.b", 'quo"ted', "back\\slash", "n\0l", "id2", "😀", "l" * 250]
OF_ONE_TYPE = dict(zip(UNKNOWN, [1, "s", 1.5, True, {"k": 1}, [1, 2]], strict=False))
ANYTHING = [1, -2.5, "s", True, None, {}, [], {"k": {"id": 1}}, [1, {"z": None}], "2026-01-01", 10**30]


def value(random: Random, *, any_types: bool, dead: float = 0.05) -> bytes:
    """An object. Fields that the schema does not name have one type each, or values of any type."""

    def unknown() -> str:
        name = random.choice(UNKNOWN if any_types else list(OF_ONE_TYPE))
        item = random.choice(ANYTHING) if any_types else random.choice([OF_ONE_TYPE[name], None])
        return f"{json.dumps(name, ensure_ascii=random.random() < 0.5)}: {json.dumps(item)}"

    def members(*known: str) -> str:
        found = [one for one in known if random.random() < 0.8]
        found += [unknown() for _ in range(random.choice([0, 0, 0, 1, 3] if any_types else [0, 0, 0, 1]))]
        random.shuffle(found)
        return "{" + ", ".join(found) + "}"

    def maybe(text: str) -> str:
        return random.choice([text, text, "null"])

    address = members('"zip": "1"', f'"geo": {maybe(members(chr(34) + "lat" + chr(34) + ": 1.5"))}')
    items = [maybe(members('"sku": "a"', '"n": 1')) for _ in range(random.randrange(3))]
    id = '"x"' if random.random() < dead else "7"
    return members(
        f'"id": {id}',
        '"name": {"free": "text"}',
        '"price": 2.5',
        '"at": "2026-01-31T12:00:00Z"',
        f'"address": {maybe(address)}',
        f'"items": {maybe("[" + ", ".join(items) + "]")}',
    ).encode()


def unnamed(content: bytes, schema: dict[str, Any]) -> set[str]:
    """The fields of a value that its schema does not name and that are not null, as they are counted."""
    found = json.loads(content, object_pairs_hook=lambda pairs: dict(enumerate(pairs)))
    return {
        (path if len(path) <= 200 else path[:200] + "...").replace("\0", "\\0") for path in _walk(found, schema, ())
    }


def _walk(found: Any, schema: Any, path: tuple[str, ...]) -> Iterator[str]:
    if found is None or schema is None:
        return
    if EACH in schema:
        parts = found if isinstance(found, list) else [item for _, item in found.values()]
        for part in parts:
            yield from _walk(part, schema[EACH], path)
        return
    for name, item in found.values():
        if name in schema:
            yield from _walk(item, schema[name], (*path, name))
        elif item is not None:
            yield ".".join((*path, name))
