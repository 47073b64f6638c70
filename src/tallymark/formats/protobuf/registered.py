"""Decodes Protobuf contents: those of one message, and those that name the schema that they were written with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from tallymark.errors import BadInput
from tallymark.formats.decoder import Contents, Decoded, Decoder
from tallymark.formats.framing import HEADERS, Id, Identified, framed, in_headers
from tallymark.formats.protobuf import indexes
from tallymark.formats.protobuf.body import Dead
from tallymark.formats.protobuf.columns import arrow_type
from tallymark.formats.protobuf.compiler import compiled, compiled_file
from tallymark.formats.protobuf.decoder import decode
from tallymark.formats.protobuf.indexes import Indexes
from tallymark.formats.protobuf.program import Program
from tallymark.formats.protobuf.projection import Incompatible, projection
from tallymark.formats.protobuf.schema import Files, Message, SchemaInvalid, parse
from tallymark.formats.registered import as_array, placed, subject_name, with_unnamed
from tallymark.formats.registry import Registered, Schemas
from tallymark.formats.value import Part, Protobuf

Group = tuple[Id, Indexes, np.ndarray, pa.Array, np.ndarray | None]
"""Contents of one message: schema, indexes, their rows, their bodies, and the bytes at their starts to leave out."""


class PlainProtobuf:
    """Decodes contents that are all messages of one type, which they do not name."""

    header, learns, version, is_nullable, finds = None, False, 0, False, False

    def __init__(self, writer: Message, reader: Message | None = None) -> None:
        self.program = projection(writer, reader or writer)
        self.type, self.in_bulk = self.program.type, self.program.in_bulk

    def __call__(self, contents: Contents, headers: pa.Array | pa.ChunkedArray | None = None) -> Decoded:  # noqa: ARG002
        bodies = as_array(contents)
        rows = np.flatnonzero(np.asarray(bodies.is_valid()))
        return placed([(rows, decode(self.program, bodies.drop_null()))], {}, len(bodies), self.type)


class RegisteredProtobuf:
    """Decodes contents by the schemas and message indexes that they name, for one reader's message.

    Each schema is fetched from the registry once. One that the registry does not know is asked for again later.
    """

    learns, is_nullable = True, False

    def __init__(self, schemas: Schemas, reader: Message, part: Part, *, in_headers: bool, finds: bool = False) -> None:
        self.finds = finds
        self.header = HEADERS[part] if in_headers else None
        self._schemas = schemas
        self._reader = reader
        self._part = part
        self._files: dict[Id, Files | str] = {}
        self._programs: dict[tuple[Id, Indexes], Program] = {}
        own = projection(reader, reader)
        self.type, self.in_bulk = own.type, own.in_bulk

    @property
    def version(self) -> int:
        return len(self._programs)

    @property
    def programs(self) -> Mapping[tuple[Id, Indexes], Program]:
        """How to read the messages that were needed so far."""
        return self._programs.copy()

    def __call__(self, contents: Contents, headers: pa.Array | pa.ChunkedArray | None = None) -> Decoded:
        given = as_array(contents)
        found = framed(given) if headers is None else in_headers(given, headers, self._part, rests=True)
        errors = dict(found.errors)
        parts: list[tuple[np.ndarray, Decoded]] = []
        for name, places, rows, bodies, skipped in self._groups(found, errors):
            program = self._program(name, places)
            if isinstance(program, str):
                errors.update(dict.fromkeys(rows.tolist(), program))
            else:
                decoded = decode(program, bodies, skipped)
                parts.append((rows, with_unnamed(decoded, program.root if self.finds else {})))
        return placed(parts, errors, len(given), self.type)

    def _groups(self, found: Identified, errors: dict[int, str]) -> Iterator[Group]:
        """Yield the contents of each message; adds errors of those whose message indexes can't be read."""
        for at, name in enumerate(found.ids):
            rows = found.rows_of(at)
            bodies = found.bodies if len(rows) == len(found.bodies) else found.bodies.take(pa.array(rows))
            if self.header is not None:
                try:
                    yield name, indexes.parse(found.rests[at])[0], rows, bodies, None
                except Dead as error:
                    errors.update(dict.fromkeys(rows.tolist(), str(error)))
                continue
            for places, inner, skipped in indexes.split(bodies):
                if places is None:
                    errors.update(dict.fromkeys(rows[inner].tolist(), indexes.UNREADABLE))
                else:
                    part = bodies if len(inner) == len(bodies) else bodies.take(pa.array(inner))
                    yield name, places, rows[inner], part, skipped

    def _program(self, name: Id, places: Indexes) -> Program | str:
        """How to read the contents of a message, or why they can't be read."""
        found = self._programs.get((name, places))
        if found is not None:
            return found
        files = self._file(name)
        if isinstance(files, str):
            return files
        try:
            writer = files.at(places)
            if writer.short_name != self._reader.short_name:
                return f"the value is a {writer.name} of schema {name}, not a {self._reader.name}"
            self._programs[name, places] = projection(writer, self._reader)
        except (SchemaInvalid, Incompatible) as error:
            return f"schema {name} can't be read: {error}"
        return self._programs[name, places]

    def _file(self, name: Id) -> Files | str:
        """The files of a schema, or why they can't be read."""
        if name not in self._files:
            found = self._schemas.by_id(name) if isinstance(name, int) else self._schemas.by_guid(name)
            if found is None:
                return f"schema {name} is unknown to the registry"
            self._files[name] = self._schemas.retried(partial(_files, name, found))
        return self._files[name]


def _files(name: Id, found: Registered) -> Files | str:
    if found.kind != "PROTOBUF":
        return f"schema {name} is not Protobuf but {found.kind}"
    try:
        return parse(compiled(found.text, found.imports))
    except SchemaInvalid as error:
        return f"schema {name} can't be read: {error}"


def protobuf_decoder(
    source: Protobuf, schemas: Schemas | None, part: Part, topics: Sequence[str], *, finds: bool = False
) -> Decoder:
    """Create the decoder of a source's keys or values; asks the registry for the reader's schema if it is not given."""
    if source.schema is not None:
        reader = declared_message(source.schema, source.message)
        if schemas is None:
            return PlainProtobuf(reader)
    else:
        subject = subject_name(source, part, topics)
        assert schemas is not None
        reader = subject_message(subject, schemas.latest(subject), source.message)
    assert schemas is not None
    return RegisteredProtobuf(schemas, reader, part, in_headers=source.ids == "headers", finds=finds)


def declared_message(path: str, message: str | None) -> Message:
    """Return the message of a ``.proto`` file or of a FileDescriptorSet: the one with this name, or the only one."""
    try:
        try:
            content = compiled_file(Path(path)) if path.endswith(".proto") else Path(path).read_bytes()
        except OSError as error:
            raise SchemaInvalid(error.strerror or "the file can't be read") from None
        files = parse(content)
        return _with_column(files.message(message) if message else files.only())
    except SchemaInvalid as error:
        raise BadInput(f"Protobuf(schema={path!r}) can't be used: {error}") from None


def subject_message(subject: str, found: Registered, message: str | None = None) -> Message:
    """Return the message of a subject: the one with this name, or the first."""
    if found.kind != "PROTOBUF":
        raise BadInput(f"subject {subject} is not Protobuf but {found.kind}; use the format of its values")
    try:
        files = parse(compiled(found.text, found.imports))
        return _with_column(files.message(message) if message else files.first())
    except SchemaInvalid as error:
        raise BadInput(f"subject {subject} can't be used: {error}") from None


def _with_column(message: Message) -> Message:
    arrow_type(message)
    return message
