"""Encodes keys and values as Avro, Protobuf or JSON, with schemas of a schema registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tallymark.errors import BadInput, UnknownSchema
from tallymark.formats.avro.encoder import AvroEncoder
from tallymark.formats.framing import HEADERS, guid_header, prefix
from tallymark.formats.json import JsonDecoder
from tallymark.formats.protobuf.encoder import ProtobufEncoder
from tallymark.formats.protobuf.indexes import encoded
from tallymark.formats.protobuf.messages import declared_message, declared_text, written_message
from tallymark.formats.registry import Kind, Registered, Schemas
from tallymark.formats.value import Avro, Formatted, Json, Part, Protobuf
from tallymark.produce.settings import Headers, encode

KINDS: Mapping[type[Formatted], Kind] = {Avro: "AVRO", Protobuf: "PROTOBUF", Json: "JSON"}
Write = Callable[[Any], bytes]


class JsonWriter:
    """Writes JSON that a reader of the same format accepts. Text and bytes are JSON already."""

    def __init__(self, format: Json) -> None:
        self._read = JsonDecoder(format)

    def __call__(self, value: Any) -> bytes:
        found = encode(value)
        try:
            content = found.encode() if isinstance(found, str) else found
        except UnicodeEncodeError:
            raise BadInput("the value has text with half of a surrogate pair") from None
        if errors := self._read([content]).errors:
            raise BadInput(f"the value does not fit the schema of Json(): {errors[0]}")
        return content


@dataclass(frozen=True)
class _Encoding:
    """How the keys or values of one topic are written. ``header`` is the value of the header that has the id."""

    write: Write
    prefix: bytes = b""
    header: bytes | None = None


class FormattedRecords:
    """Encodes the keys, the values or both of a producer's records.

    The schema of a topic is asked for with its first record, and stays the same as long as the producer lives.
    """

    def __init__(self, formats: Mapping[Part, Formatted], patience: float) -> None:
        """``patience`` is the time in seconds to wait for the registry."""
        self._formats = formats
        self._patience = patience
        self._known: dict[tuple[str, Part], _Encoding] = {}

    @classmethod
    def of(cls, key: Any, value: Any, patience: float) -> FormattedRecords | None:
        """Return None if neither keys nor values have a format."""
        if key is not None and not isinstance(key, Formatted):
            raise BadInput(
                f"Producer(key={key!r}) is not known; pass Avro(...), Protobuf(...) or Json(...), or the keys "
                "themselves to send()"
            )
        formats: dict[Part, Formatted] = {}
        if isinstance(key, Formatted):
            formats["key"] = key
        if isinstance(value, Formatted):
            formats["value"] = value
        for part, format in formats.items():
            if format.subjects or (isinstance(format, Protobuf) and format.messages):
                raise BadInput(
                    f"Producer({part}={type(format).__name__}(...)) has a list of types, and each record is written as "
                    "one; name one subject, or one message"
                )
            if isinstance(format, Json) and format.framed and format.registry is None:
                raise BadInput(
                    f"Producer({part}=Json(..., framed=True)) needs registry=, which has the id of the schema, such as "
                    "Json('id BIGINT', framed=True, registry='https://registry:8081')"
                )
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
                return _Encoding(_plain(format))
            schemas, subject = Schemas.of(format.server, patience=self._patience), format.subject_of(topic, part)
            found = _registered(schemas, format, subject)
            write, after_id = schemas.retried(partial(_writer, format, subject, found))
        except BadInput as error:
            # It is not the record that is at fault.
            raise UnknownSchema(f"topic {topic}: {error}") from None
        if isinstance(format, Json) or format.ids == "values":
            return _Encoding(write, id_prefix(found) + after_id)
        return _Encoding(write, header=id_header(found) + after_id)


def _plain(format: Formatted) -> Write:
    """Return what writes values without an id."""
    if isinstance(format, Json):
        return JsonWriter(format)
    assert format.schema is not None, "without a registry"
    if isinstance(format, Avro):
        return AvroEncoder(format.schema)
    return ProtobufEncoder(declared_message(format.schema, format.only_message, column=False))


def _writer(format: Formatted, subject: str, found: Registered) -> tuple[Write, bytes]:
    """Return what writes values with a schema, and what follows the id of the schema."""
    if isinstance(format, Json):
        return JsonWriter(format), b""
    if isinstance(format, Avro):
        return AvroEncoder(found.text, found.references), b""
    message, places = written_message(subject, found, format.only_message)
    return ProtobufEncoder(message), encoded(places)


def _registered(schemas: Schemas, format: Formatted, subject: str) -> Registered:
    """Return the schema to write with: the declared one, or the latest."""
    kind = KINDS[type(format)]
    if isinstance(format, Json) or format.schema is None:
        latest = schemas.latest(subject)
        if latest.kind != kind:
            raise BadInput(f"{schemas.name}: the latest schema of subject {subject} is {latest.kind}, not {kind}")
        return latest
    if isinstance(format, Protobuf):
        # Before it is registered: a file with several messages needs the name of one.
        declared_message(format.schema, format.only_message, column=False)
    text = format.schema if isinstance(format, Avro) else declared_text(format.schema)
    if format.register:
        return schemas.register(subject, kind, text)
    found = schemas.lookup(subject, kind, text)
    if found is None:
        raise BadInput(
            f"{schemas.name} does not have this schema for subject {subject}: register it, or set register=True of "
            f"{type(format).__name__}(), or leave out schema= to write with the latest one"
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
