"""Declarations of value formats: JSON, Avro, Protobuf, change events or bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tallymark.errors import BadInput
from tallymark.formats.registry_server import Registry

Part = Literal["key", "value"]
"""The two parts of a record that have a schema."""


class _OfRegistry:
    """A format whose schemas a registry has."""

    registry: str | Registry | None
    subject: str | Sequence[str] | None

    @property
    def server(self) -> Registry | None:
        """The registry, also if it was given as text."""
        return self.registry if isinstance(self.registry, Registry) else None

    @property
    def subjects(self) -> Sequence[str]:
        """The subjects, if several are listed."""
        return self.subject if isinstance(self.subject, tuple) else ()

    def subject_of(self, topic: str, part: Part = "value") -> str:
        """Return the only subject whose schemas the keys or values of a topic have."""
        return self.subject if self.subject and isinstance(self.subject, str) else f"{topic}-{part}"


@dataclass(frozen=True)
class Json(_OfRegistry):
    """Values are JSON objects with the fields of a Spark DDL schema: ``id BIGINT, customer STRING, at TIMESTAMP``.

    A value that is not a JSON object, or has a field of another type, becomes a dead letter. Fields that are not in the
    schema are ignored; missing fields are NULL. With ``framed``, values have the framing of a schema registry: the
    magic byte and the id of their schema precede the text.

    Only a producer needs the ``registry``: it writes the id of the latest schema of ``subject``, which is
    ``<topic>-value`` (for keys ``<topic>-key``) unless it is given. It checks that values fit ``schema``.
    """

    schema: str
    framed: bool = False
    registry: str | Registry | None = None
    subject: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.registry, str):
            object.__setattr__(self, "registry", Registry(self.registry))
        if not self.schema.strip():
            raise BadInput("Json() needs a schema string, such as Json('id BIGINT, name STRING')")
        if self.registry is not None and not self.framed:
            raise BadInput("Json(): registry= needs framed=True, because the id of a schema precedes the text")
        if self.registry is None and self.subject:
            raise BadInput("Json(): subject= needs registry=, the address of the registry")
        if self.subject is not None and not isinstance(self.subject, str):
            raise BadInput("Json(subject=...) must be the name of one subject")


@dataclass(frozen=True)
class Avro(_OfRegistry):
    """Values are Avro, with the ids of their schemas: ``Avro("https://registry:8081")``.

    ``schema`` is the reader's schema, as JSON text or the path of a file; without it, the latest schema of ``subject``
    is used, which is ``<topic>-value`` (for keys ``<topic>-key``) unless it is given. With a list of subjects, each of
    which is a record, a value is a struct with a field for each record, such as ``value.Placed``. ``ids`` says where a
    record has the id of the schema that it was written with: in the first five bytes of the value, or in a header.
    Without a registry, every value is a plain Avro body of ``schema``.

    A producer writes with ``schema``, or without it with the latest one. ``register=True`` registers ``schema`` if
    the subject does not have it.
    """

    registry: str | Registry | None = None
    schema: str | None = field(default=None, repr=False)
    subject: str | Sequence[str] | None = None
    ids: Literal["values", "headers"] = "values"
    register: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.registry, str):
            object.__setattr__(self, "registry", Registry(self.registry))
        if self.schema is not None:
            object.__setattr__(self, "schema", _schema_text(self.schema))
        object.__setattr__(self, "subject", _one_or_several("Avro(subject=...)", self.subject))
        if self.registry is None and self.schema is None:
            raise BadInput("Avro() needs registry= or schema=, such as Avro('https://registry:8081')")
        if self.ids not in ("values", "headers"):
            raise BadInput(f"Avro(ids={self.ids!r}) is not known; write 'values' or 'headers'")
        if self.registry is None and (self.subject or self.register or self.ids == "headers"):
            raise BadInput("Avro(): subject=, ids='headers' and register= need registry=, the address of the registry")
        if self.register and self.schema is None:
            raise BadInput("Avro(register=True) needs schema=, the schema to register")
        if self.schema is not None and self.subjects:
            raise BadInput("Avro(): schema= and a list of subjects are both given; keep one of them")


@dataclass(frozen=True)
class Protobuf(_OfRegistry):
    """Values are Protobuf, with the ids of their schemas: ``Protobuf("https://registry:8081", message="shop.Order")``.

    ``message`` is the reader's message. ``schema`` is the path of a ``.proto`` file, or of a FileDescriptorSet
    (``protoc --descriptor_set_out --include_imports``); without it, the latest schema of ``subject`` is used, which is
    ``<topic>-value`` (for keys ``<topic>-key``) unless it is given. Without ``message`` it is the first one of the
    subject, or the only one of the file. With a list of messages, a value is a struct with a field for each message,
    such as ``value.Placed``; ``subject`` may then list a subject for each. ``ids`` says where a record has the id of
    the schema that it was written with: in the first bytes of the value, or in a header. Without a registry, every
    value is a plain message.

    A producer writes with ``schema``, or without it with the latest one. ``register=True`` registers ``schema``, a
    ``.proto`` file without imports, if the subject does not have it.
    """

    registry: str | Registry | None = None
    schema: str | None = None
    message: str | Sequence[str] | None = None
    subject: str | Sequence[str] | None = None
    ids: Literal["values", "headers"] = "values"
    register: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.registry, str):
            object.__setattr__(self, "registry", Registry(self.registry))
        if self.registry is None and self.schema is None:
            raise BadInput("Protobuf() needs registry= or schema=, such as Protobuf('https://registry:8081')")
        if self.ids not in ("values", "headers"):
            raise BadInput(f"Protobuf(ids={self.ids!r}) is not known; write 'values' or 'headers'")
        if self.registry is None and (self.subject or self.register or self.ids == "headers"):
            raise BadInput(
                "Protobuf(): subject=, ids='headers' and register= need registry=, the address of the registry"
            )
        if self.register and self.schema is None:
            raise BadInput("Protobuf(register=True) needs schema=, the schema to register")
        self._check_several()
        if self.schema is not None and not Path(self.schema).is_file():
            raise BadInput(
                f"Protobuf(schema={self.schema!r}): there is no such file; give the path of a .proto file, or of what "
                "protoc --descriptor_set_out --include_imports writes"
            )

    def _check_several(self) -> None:
        for name in ("message", "subject"):
            given = _one_or_several(f"Protobuf({name}=...)", getattr(self, name))
            object.__setattr__(self, name, given)
        if self.messages and self.registry is None:
            raise BadInput(
                "Protobuf(): several messages need registry=, because only the id of a schema tells which message a "
                "value is"
            )
        if self.subjects and (self.schema is not None or len(self.messages) != len(self.subjects)):
            raise BadInput(
                "Protobuf(): a list of subjects needs a list of messages, one of each subject, and no schema=; correct "
                "message="
            )

    @property
    def messages(self) -> Sequence[str]:
        """The messages, if several are listed."""
        return self.message if isinstance(self.message, tuple) else ()

    @property
    def only_message(self) -> str | None:
        """The message, if no list of them is given."""
        return self.message if isinstance(self.message, str) else None


@dataclass(frozen=True)
class Bytes:
    """Values are not decoded: ``value`` is BINARY."""


@dataclass(frozen=True)
class Debezium:
    """Values are change events of Debezium: ``Debezium(Avro("https://registry:8081"))``, or ``Debezium(Json(...))``.

    ``Json`` gives the columns of the source's table: ``Debezium(Json("id BIGINT, name STRING"))``. A value is a struct
    with ``before``, ``after``, ``source``, ``op`` and ``ts_ms``. In JSON without ``schema`` and ``payload``, ``times``
    is the unit of timestamps that are numbers, and ``decimals`` says whether text is base64, as Debezium writes
    decimals with ``decimal.handling.mode=precise``, or digits.
    """

    inner: Json | Avro
    times: Literal["millis", "micros", "nanos"] = "micros"
    decimals: Literal["base64", "text"] = "base64"

    def __post_init__(self) -> None:
        if not isinstance(self.inner, (Json, Avro)):
            raise BadInput(
                "Debezium() needs the format of its events, such as Debezium(Json('id BIGINT, name STRING'))"
            )
        if self.times not in ("millis", "micros", "nanos"):
            raise BadInput(f"Debezium(times={self.times!r}) is not known; write 'millis', 'micros' or 'nanos'")
        if self.decimals not in ("base64", "text"):
            raise BadInput(f"Debezium(decimals={self.decimals!r}) is not known; write 'base64' or 'text'")


Format = Json | Avro | Protobuf | Debezium | Bytes
Formatted = Avro | Protobuf | Json
"""The formats that a producer writes."""


def is_latest(source: Format) -> bool:
    """Whether the schema of the reader is the latest one of a subject."""
    found = source.inner if isinstance(source, Debezium) else source
    return isinstance(found, (Avro, Protobuf)) and found.schema is None


def check_follows(table: str, *sources: Format) -> None:
    """Refuse to follow the schemas of records whose columns do not come from a registry."""
    if not any(map(is_latest, sources)):
        raise BadInput(
            f"table {table}: evolve='follow' needs records whose schemas are in a registry, such as "
            "value=tm.Avro('https://registry:8081') without schema=; set evolve=True"
        )
    if any(_has_several_types(source) for source in sources):
        raise BadInput(
            f"table {table}: evolve='follow' follows the schema of one type, and the source has a list of them; set "
            "evolve=True, which adds the columns of new fields at the next start"
        )


def _has_several_types(source: Format) -> bool:
    found = source.inner if isinstance(source, Debezium) else source
    return isinstance(found, (Avro, Protobuf)) and bool(found.subjects or getattr(found, "messages", ()))


def _one_or_several(name: str, given: str | Sequence[str] | None) -> str | tuple[str, ...] | None:
    """Return one name as it is, and a list of several names as a tuple."""
    if given is None or isinstance(given, str):
        return given
    names = tuple(given) if isinstance(given, (list, tuple)) else ()
    if len(names) < 2 or not all(isinstance(one, str) and one for one in names):
        raise BadInput(f"{name} must be a name, or a list of at least two names")
    if len(set(names)) < len(names):
        raise BadInput(f"{name} lists a name twice; leave it out once")
    return names


def _schema_text(given: str) -> str:
    """Return the schema as JSON text, from the text itself or from the file that it names."""
    text = given.strip()
    if not text.startswith(("{", "[", '"')):
        text = _schema_file(text)
    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadInput(f"Avro(schema=...) is not JSON: {why}; write an Avro schema, or the path of its file") from None
    if not isinstance(parsed, (dict, list, str)):
        raise BadInput("Avro(schema=...) is not an Avro schema; write a JSON object, a union or the name of a type")
    return text


def _schema_file(path: str) -> str:
    try:
        return Path(path).read_text("utf-8-sig").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise BadInput(
            f"Avro(schema={path!r}): the file can't be read: {reason}; give the path of a schema, or its JSON text"
        ) from None
