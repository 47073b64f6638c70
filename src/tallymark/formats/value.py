"""Declarations of value formats: JSON or bytes."""

from __future__ import annotations

from dataclasses import dataclass

from tallymark.errors import BadInput


@dataclass(frozen=True)
class Json:
    """Values are JSON objects with the fields of a Spark DDL schema: ``id BIGINT, customer STRING, at TIMESTAMP``.

    A value that is not a JSON object, or has a field of another type, becomes a dead letter. Fields that are not in the
    schema are ignored; missing fields are NULL.
    """

    schema: str

    def __post_init__(self) -> None:
        if not self.schema.strip():
            raise BadInput("Json() needs a schema string, such as Json('id BIGINT, name STRING')")


@dataclass(frozen=True)
class Bytes:
    """Values are not decoded: ``value`` is BINARY."""
