"""Encodes the default of a field, which is JSON, as Avro: what decodes records then decodes the default, too."""

from __future__ import annotations

import json
import struct
from typing import Any

from tallymark.formats.avro.schema import Schema, cut

NOT_FINITE = ("NaN", "Infinity", "-Infinity")


class Misfit(ValueError):
    """A default is not a value of its type."""


def encoded(schema: Schema, value: Any) -> bytes:
    """Encode the JSON form of a value."""
    if schema.type == "union":
        return _union(schema, value)
    if schema.type == "record":
        return _record(schema, value)
    if schema.type == "array" and isinstance(value, list):
        return _block([encoded(schema.item, item) for item in value])
    if schema.type == "map" and isinstance(value, dict):
        return _block([_text(key) + encoded(schema.item, item) for key, item in value.items()])
    if schema.type == "enum" and value in schema.symbols:
        return _varint(schema.symbols.index(value))
    plain = _plain(schema, value)
    if plain is None:
        raise Misfit(f"{cut(json.dumps(value))} is no {schema.label}")
    return plain


def _union(schema: Schema, value: Any) -> bytes:
    """Encode for the first branch that fits; older versions of Avro allow only the first."""
    for at, branch in enumerate(schema.branches):
        try:
            return _varint(at) + encoded(branch, value)
        except Misfit:
            continue
    raise Misfit(f"{cut(json.dumps(value))} fits no branch of the union")


def _record(schema: Schema, value: Any) -> bytes:
    if not isinstance(value, dict):
        raise Misfit(f"{cut(json.dumps(value))} is no record")
    parts = []
    for field in schema.fields:
        if field.name not in value and not field.has_default:
            raise Misfit(f"{cut(json.dumps(value))} has no {field.name}")
        parts.append(encoded(field.schema, value.get(field.name, field.default)))
    return b"".join(parts)


def _plain(schema: Schema, value: Any) -> bytes | None:
    """Encode a value of a type without parts; None if it does not fit."""
    kind = schema.type
    if kind == "null" and value is None:
        return b""
    if kind == "boolean" and isinstance(value, bool):
        return bytes([value])
    if kind in ("int", "long") and isinstance(value, int) and not isinstance(value, bool):
        limit = 1 << (31 if kind == "int" else 63)
        return _varint(value) if -limit <= value < limit else None
    if kind in ("float", "double"):
        return _real(kind, value)
    if kind == "string" and isinstance(value, str):
        return _text(value)
    if kind in ("bytes", "fixed") and isinstance(value, str) and all(ord(letter) < 256 for letter in value):
        content = value.encode("latin-1")
        if kind == "fixed":
            return content if len(content) == schema.size else None
        return _varint(len(content)) + content
    return None


def _real(kind: str, value: Any) -> bytes | None:
    if isinstance(value, bool) or not (isinstance(value, (int, float)) or value in NOT_FINITE):
        return None
    try:
        return struct.pack("<f" if kind == "float" else "<d", float(value))
    except OverflowError:
        return None


def _text(value: str) -> bytes:
    try:
        content = value.encode()
    except UnicodeEncodeError:
        raise Misfit(f"{json.dumps(value)} is no Unicode text") from None
    return _varint(len(content)) + content


def _block(items: list[bytes]) -> bytes:
    return (_varint(len(items)) if items else b"") + b"".join(items) + b"\0"


def _varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    found = bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return bytes(found)
