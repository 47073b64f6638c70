"""Encodes JSON keys and values as Avro, Protobuf or framed JSON, by the schemas that a registry has for a topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tallymark.errors import BadInput
from tallymark.formats.avro import from_json as avro
from tallymark.formats.fields import compact
from tallymark.formats.framing import HEADERS
from tallymark.formats.protobuf import from_json as protobuf
from tallymark.formats.protobuf.indexes import encoded
from tallymark.formats.protobuf.messages import declared_text, written_message
from tallymark.formats.registry import Registered, Schemas
from tallymark.formats.value import Avro, Part
from tallymark.produce.formats import id_header, id_prefix, with_header

Pairs = Sequence[tuple[str, bytes | None]]
Encode = Callable[[Any, str | None], tuple[bytes, bytes]]
"""Returns what follows the id of the schema, and the bytes of parsed JSON as the message with this name."""


@dataclass(frozen=True)
class JsonPart:
    """Writes the keys or the values of one topic."""

    part: Part
    schema: Registered
    encode: Encode

    def __call__(self, content: Any, headers: Pairs, message: str | None = None) -> tuple[bytes, Pairs]:
        """Return the bytes of parsed JSON, and the headers. ``message`` is that of Protobuf.

        The id of the schema precedes the bytes; if a header of the record has an id, it gets this one instead.
        """
        after_id, body = self.encode(content, message)
        name = HEADERS[self.part]
        if all(other != name for other, _ in headers):
            return id_prefix(self.schema) + after_id + body, headers
        return body, [*with_header(headers, name, id_header(self.schema) + after_id)]


def json_part(
    schemas: Schemas, topic: str, part: Part, schema: str | None = None, message: str | None = None
) -> JsonPart | None:
    """Return what writes keys or values with the latest schema, or with this one; None if there is no subject.

    ``message`` is the message of Protobuf, unless a record names another one; without it, the first one is written.
    """
    subject = f"{topic}-{part}"
    found = schemas.find(subject)
    if found is None:
        return None
    if schema is not None:
        found = _declared(schemas, subject, found, schema)
    if message is not None and found.kind != "PROTOBUF":
        raise BadInput(f"--message is for Protobuf, but subject {subject} is {found.kind}; leave it out")
    return JsonPart(part, found, _encode(subject, found, message))


def _declared(schemas: Schemas, subject: str, latest: Registered, schema: str) -> Registered:
    if latest.kind == "JSON":
        raise BadInput(f"subject {subject} is JSON, which is written without its schema; leave out --schema")
    text = declared_text(schema) if latest.kind == "PROTOBUF" else Avro(schema=schema).schema or ""
    found = schemas.lookup(subject, latest.kind, text)
    if found is None:
        raise BadInput(f"{schemas.name} does not have the schema of --schema for subject {subject}: register it")
    return found


def _encode(subject: str, found: Registered, message: str | None) -> Encode:
    if found.kind == "JSON":
        return _json_text
    if found.kind == "PROTOBUF":
        return _Messages(subject, found, message)
    try:
        encode = avro.JsonEncoder(found.text, found.references)
    except BadInput as error:
        raise BadInput(f"subject {subject}: {error}") from None
    return lambda content, _: (b"", encode(content))


class _Messages:
    """Writes the messages of one Protobuf schema."""

    def __init__(self, subject: str, schema: Registered, message: str | None) -> None:
        self._subject, self._schema = subject, schema
        self._default = message
        self._known: dict[str | None, tuple[bytes, protobuf.JsonEncoder]] = {}
        self._of(message)

    def __call__(self, content: Any, message: str | None) -> tuple[bytes, bytes]:
        after_id, encode = self._of(message or self._default)
        return after_id, encode(content)

    def _of(self, name: str | None) -> tuple[bytes, protobuf.JsonEncoder]:
        if name not in self._known:
            message, places = written_message(self._subject, self._schema, name)
            self._known[name] = encoded(places), protobuf.JsonEncoder(message)
        return self._known[name]


def _json_text(content: Any, _: str | None) -> tuple[bytes, bytes]:
    try:
        return b"", compact(content).encode()
    except RecursionError:
        raise BadInput("the value is nested too deeply") from None
    except UnicodeEncodeError:
        raise BadInput("the value has text with half of a surrogate pair") from None
