"""Avro values as Confluent's serializers write them, encoded by fastavro."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}
LATER_ORDER = {
    **ORDER,
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "amount", "type": "double", "default": 1.5},
    ],
}
"""A later version of ORDER: values of either can be read by the other."""
OTHER = {**ORDER, "fields": [{"name": "id", "type": "string"}]}
"""ORDER can't read its values."""


def text(schema: Any) -> str:
    return json.dumps(schema)


def encoded(schema: Any, value: Any) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return body.getvalue()


def framed(id: int, schema: Any, value: Any) -> bytes:
    return prefix(id) + encoded(schema, value)


def prefix(id: int) -> bytes:
    return b"\0" + id.to_bytes(4)
