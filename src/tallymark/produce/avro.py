"""Encodes keys and values as Avro, with schemas of a schema registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tallymark.errors import BadInput, UnknownSchema
from tallymark.formats.avro.encoder import AvroEncoder
from tallymark.formats.framing import HEADERS, guid_header, prefix
from tallymark.formats.registry import Registered, Schemas
from tallymark.formats.value import Avro, Part
from tallymark.produce.settings import Headers


@dataclass(frozen=True)
class _Encoding:
    """How the keys or values of one topic are written. ``header`` is the value of the header that has the id."""

    write: AvroEncoder
    prefix: bytes = b""
    header: bytes | None = None


class AvroRecords:
    """Encodes the keys, the values or both of a producer's records.

    The schema of a topic is asked for with its first record, and stays the same as long as the producer lives.
    """

    def __init__(self, formats: Mapping[Part, Avro], patience: float) -> None:
        """``patience`` is the time in seconds to wait for the registry."""
        self._formats = formats
        self._patience = patience
        self._known: dict[tuple[str, Part], _Encoding] = {}

    @classmethod
    def of(cls, key: Any, value: Any, patience: float) -> AvroRecords | None:
        """Return None if neither keys nor values are Avro."""
        if key is not None and not isinstance(key, Avro):
            raise BadInput(f"Producer(key={key!r}) is not known; pass Avro(...), or the keys themselves to send()")
        for name, given in (("key", key), ("value", value)):
            if isinstance(given, Avro) and given.subjects:
                raise BadInput(
                    f"Producer({name}=Avro(subject=[...])): the schema to write with is that of one subject; name it"
                )
        formats: dict[Part, Avro] = {}
        if isinstance(key, Avro):
            formats["key"] = key
        if isinstance(value, Avro):
            formats["value"] = value
        return cls(formats, patience) if formats else None

    def __call__(self, topic: str, key: Any, value: Any, headers: Headers | None) -> tuple[Any, Any, Headers | None]:
        """Return key, value and headers as they are sent. None is not encoded: it is no key, or a tombstone."""
        if key is not None and "key" in self._formats:
            key, headers = self._encode(topic, "key", key, headers)
        if value is not None and "value" in self._formats:
            value, headers = self._encode(topic, "value", value, headers)
        return key, value, headers

    def _encode(self, topic: str, part: Part, content: Any, headers: Headers | None) -> tuple[bytes, Headers | None]:
        encoding = self._known.get((topic, part))
        if encoding is None:
            encoding = self._known[topic, part] = self._encoding(topic, part)
        try:
            encoded = encoding.prefix + encoding.write(content)
        except BadInput as error:
            raise BadInput(f"topic {topic}: {part} can't be sent: {error}") from None
        if encoding.header is None:
            return encoded, headers
        return encoded, with_header(headers, HEADERS[part], encoding.header)

    def _encoding(self, topic: str, part: Part) -> _Encoding:
        format = self._formats[part]
        try:
            if format.server is None:
                return _Encoding(AvroEncoder(format.schema or ""))
            schemas = Schemas.of(format.server, patience=self._patience)
            found = _registered(schemas, format, format.subject_of(topic, part))
            write = AvroEncoder(found.text, found.references)
        except BadInput as error:
            # It is not the record that is at fault.
            raise UnknownSchema(f"topic {topic}: {error}") from None
        if format.ids == "values":
            return _Encoding(write, id_prefix(found))
        return _Encoding(write, header=id_header(found))


def _registered(schemas: Schemas, format: Avro, subject: str) -> Registered:
    """Return the schema to write with: the declared one, or the latest."""
    if format.schema is None:
        latest = schemas.latest(subject)
        if latest.kind != "AVRO":
            raise BadInput(f"{schemas.name}: the latest schema of subject {subject} is {latest.kind}, not AVRO")
        return latest
    if format.register:
        return schemas.register(subject, "AVRO", format.schema)
    found = schemas.lookup(subject, "AVRO", format.schema)
    if found is None:
        raise BadInput(
            f"{schemas.name} does not have this schema for subject {subject}: register it, or set register=True of "
            "Avro(), or leave out schema= to write with the latest one"
        )
    return found


def id_prefix(schema: Registered) -> bytes:
    """Return what precedes a content that was written with a schema of a subject."""
    assert schema.id is not None, "of a subject"
    return prefix(schema.id)


def id_header(schema: Registered) -> bytes:
    """Return the value of the header that has the id of a schema instead."""
    return guid_header(schema.guid) if schema.guid else id_prefix(schema)


def with_header(headers: Headers | None, name: str, value: bytes) -> Headers:
    """Add a header in place of others of the same name, because clients differ in which one they read."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return [*((other, content) for other, content in pairs if other != name), (name, value)]
