"""Decodes keys and values for people who look at them, by the schemas that they name in a registry."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tallymark.core import raw
from tallymark.errors import BadInput
from tallymark.formats.avro.columns import arrow_type
from tallymark.formats.avro.decoder import decode
from tallymark.formats.avro.projection import projection
from tallymark.formats.avro.schema import parse
from tallymark.formats.decoder import Decoded
from tallymark.formats.fields import MISFITS, SHOWN
from tallymark.formats.framing import HEADERS, Id, framed, in_headers
from tallymark.formats.protobuf import indexes
from tallymark.formats.protobuf import schema as protobuf
from tallymark.formats.protobuf.compiler import compiled
from tallymark.formats.protobuf.decoder import decode as decode_protobuf
from tallymark.formats.protobuf.projection import projection as projection_of_protobuf
from tallymark.formats.registry import Registered, Schemas
from tallymark.formats.value import Part

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Shown:
    """A decoded key or value as docs/reference/json.md writes it, with the id of its schema.

    ``error`` says why it could not be decoded. ``message`` is the name of a Protobuf message.
    """

    schema: Id
    content: Any = None
    error: str | None = None
    message: str | None = None


def shown(
    schemas: Schemas | None, key: bytes | None, value: bytes | None, headers: Headers
) -> tuple[Shown | None, Shown | None]:
    """Return key and value decoded; None for one that names no schema, or without a registry."""
    if schemas is None:
        return None, None
    return _part(schemas, "key", key, headers), _part(schemas, "value", value, headers)


def _part(schemas: Schemas, part: Part, content: bytes | None, headers: Headers) -> Shown | None:
    contents = pa.array([content], pa.binary())
    if any(name == HEADERS[part] for name, _ in headers):
        pairs = [{"key": name, "value": given} for name, given in headers]
        found = in_headers(contents, pa.array([pairs], raw.HEADERS), part, rests=True)
    else:
        found = framed(contents)
    if not found.ids or found.errors or content is None:
        return None
    name = found.ids[0]
    schema = schemas.by_id(name) if isinstance(name, int) else schemas.by_guid(name)
    return None if schema is None else _shown(name, schema, found.bodies, *found.rests)


def _shown(name: Id, schema: Registered, body: pa.Array, after_id: bytes | None = None) -> Shown:
    """Decode a body; ``after_id`` is what follows the id in a header."""
    message = None
    try:
        if schema.kind == "JSON":
            return Shown(name, json.loads(body[0].as_py(), parse_float=_exact, parse_constant=_exact))
        if schema.kind == "PROTOBUF":
            message, decoded = _protobuf(schema, body, after_id)
        else:
            decoded = _avro(schema, body)
    except (BadInput, *MISFITS) as error:
        return Shown(name, error=f"schema {name} can't be shown: {error}")
    content = plain(decoded.values[0].as_py(), decoded.values.type)
    return Shown(name, content, decoded.errors.get(0), message)


def _exact(text: str) -> float:
    """Return a number of JSON, or raise ValueError if it would be shown as another one."""
    number = float(text)
    if not math.isfinite(number) or Decimal(repr(number)) != Decimal(text):
        raise ValueError(f"{text[:SHOWN]} is no number of 64 bits")
    return number


def _avro(schema: Registered, body: pa.Array) -> Decoded:
    parsed = parse(schema.text, schema.references)
    arrow_type(parsed)
    return decode(projection(parsed, parsed), body)


def _protobuf(schema: Registered, body: pa.Array, after_id: bytes | None) -> tuple[str, Decoded]:
    files = protobuf.parse(compiled(schema.text, schema.imports))
    places, size = indexes.parse(body[0].as_py() if after_id is None else after_id)
    message = files.at(places)
    skipped = np.array([size if after_id is None else 0])
    return message.name, decode_protobuf(projection_of_protobuf(message, message), body, skipped)


def plain(value: Any, kind: pa.DataType) -> Any:
    """A decoded value as JSON: bytes as base64, decimals and times as text, maps as objects."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: plain(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [plain(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return {key: plain(item, kind.item_type) for key, item in value}
    if pa.types.is_binary(kind):
        return base64.b64encode(value).decode()
    if pa.types.is_temporal(kind):
        return value.isoformat()
    # JSON has no number that is not finite.
    if pa.types.is_decimal(kind) or (pa.types.is_floating(kind) and not math.isfinite(value)):
        return str(value)
    return value
