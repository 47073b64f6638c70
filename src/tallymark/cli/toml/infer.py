"""Infers a schema, in Spark's DDL, that all values of a sample fit."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tallymark.formats import fields
from tallymark.formats.limits import is_deep

LARGEST = 2**63
WIDER = {frozenset({"BIGINT", "DOUBLE"}): "DOUBLE", frozenset({"DATE", "TIMESTAMP"}): "TIMESTAMP"}
Kind = str | dict[str, Any] | list[Any] | None
"""A type name, the fields of a struct, the kind of an array's elements, or None if all values are null."""


def infer_schema(values: Sequence[bytes]) -> str | None:
    """The fields of JSON objects; None unless most of the values are objects."""
    objects = [found for found in map(_object, values) if found]
    if not objects or len(objects) * 2 < len(values):
        return None
    found: dict[str, Kind] = {}
    for one in objects:
        found = _merged_fields(found, {name: _kind(value) for name, value in one.items()})
    return ", ".join(f"{_name(name)} {_ddl(kind)}" for name, kind in _distinct(found).items())


def _object(value: bytes) -> dict[str, Any] | None:
    if is_deep(value):
        return None
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _kind(value: Any, *, nested: bool = False) -> Kind:
    match value:
        case None:
            return None
        case bool():
            return "BOOLEAN"
        case int():
            return "BIGINT" if -LARGEST <= value < LARGEST else "STRING"
        case float():
            return "DOUBLE"
        case dict():
            return {name: _kind(one, nested=True) for name, one in value.items()} or "STRING"
        case list():
            kind: Kind = None
            for one in value:
                kind = _merged(kind, _kind(one, nested=True))
            return [kind]
    # Tables hold nested values as JSON text.
    return "STRING" if nested else _text_kind(str(value))


def _text_kind(value: str) -> str:
    if fields.DATE.fullmatch(value):
        return "DATE"
    return "TIMESTAMP" if fields.ZONED.fullmatch(value) else "STRING"


def _merged(one: Kind, other: Kind) -> Kind:
    """A kind that fits the values of both."""
    if one is None or other is None or one == other:
        return other if one is None else one
    if isinstance(one, dict) and isinstance(other, dict):
        return _merged_fields(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])]
    if isinstance(one, str) and isinstance(other, str):
        return WIDER.get(frozenset({one, other}), "STRING")
    return "STRING"


def _merged_fields(one: dict[str, Kind], other: dict[str, Kind]) -> dict[str, Kind]:
    return {name: _merged(one.get(name), other.get(name)) for name in {**one, **other}}


def _distinct(fields: dict[str, Kind]) -> dict[str, Kind]:
    """Drop names that differ from another only in case, because Spark does not distinguish them."""
    seen: dict[str, str] = {}
    for name in fields:
        seen.setdefault(name.lower(), name)
    return {name: fields[name] for name in seen.values()}


def _ddl(kind: Kind) -> str:
    if isinstance(kind, dict):
        return f"STRUCT<{', '.join(f'{_name(name)}: {_ddl(one)}' for name, one in _distinct(kind).items())}>"
    if isinstance(kind, list):
        return f"ARRAY<{_ddl(kind[0])}>"
    return kind or "STRING"


def _name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else f"`{name.replace('`', '``')}`"
