"""Encodes JSON keys and values as Avro, by the schemas that a registry has for a topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tallymark.errors import BadInput
from tallymark.formats.avro.from_json import JsonEncoder
from tallymark.formats.framing import HEADERS
from tallymark.formats.registry import Registered, Schemas
from tallymark.formats.value import Part
from tallymark.produce.formats import id_header, id_prefix, with_header

Pairs = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class JsonPart:
    """Writes the keys or the values of one topic."""

    part: Part
    schema: Registered
    encode: JsonEncoder

    def __call__(self, content: Any, headers: Pairs) -> tuple[bytes, Pairs]:
        """Return the bytes of parsed JSON, and the headers.

        The id of the schema precedes the bytes; if a header of the record has an id, it gets this one instead.
        """
        body = self.encode(content)
        name = HEADERS[self.part]
        if all(other != name for other, _ in headers):
            return id_prefix(self.schema) + body, headers
        return body, [*with_header(headers, name, id_header(self.schema))]


def json_part(schemas: Schemas, topic: str, part: Part, text: str | None = None) -> JsonPart | None:
    """Return what writes keys or values with the latest schema, or with this one; None if there is no subject."""
    subject = f"{topic}-{part}"
    found = schemas.find(subject)
    if found is not None and text is not None:
        found = schemas.lookup(subject, "AVRO", text)
        if found is None:
            raise BadInput(f"{schemas.name} does not have the schema of --schema for subject {subject}: register it")
    if found is None:
        return None
    if found.kind != "AVRO":
        raise BadInput(
            f"{schemas.name}: the latest schema of subject {subject} is {found.kind}; produce writes only AVRO"
        )
    try:
        return JsonPart(part, found, JsonEncoder(found.text, found.references))
    except BadInput as error:
        raise BadInput(f"subject {subject}: {error}") from None
