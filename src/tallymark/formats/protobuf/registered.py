"""Decodes Protobuf contents: those of one message, and those that name the schema that they were written with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from tallymark.errors import BadInput
from tallymark.formats.decoder import Contents, Decoded, Decoder
from tallymark.formats.framing import HEADERS, Id, Identified, framed, in_headers
from tallymark.formats.origin import GIVEN, Origin, Unread
from tallymark.formats.protobuf import indexes
from tallymark.formats.protobuf.body import Dead
from tallymark.formats.protobuf.columns import arrow_type, types_type
from tallymark.formats.protobuf.compiler import compiled
from tallymark.formats.protobuf.decoder import decode
from tallymark.formats.protobuf.extension import extended
from tallymark.formats.protobuf.indexes import Indexes
from tallymark.formats.protobuf.messages import declared_message, subject_message
from tallymark.formats.protobuf.program import Program
from tallymark.formats.protobuf.projection import Incompatible, one_of, projection
from tallymark.formats.protobuf.schema import Files, Message, SchemaInvalid, parse
from tallymark.formats.registered import as_array, placed, subject_name, with_unnamed
from tallymark.formats.registry import Registered, Schemas
from tallymark.formats.types import none_of
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
    """Decodes contents by the schemas and message indexes that they name, for one reader's message or for several.

    The value is the message, or of several messages a struct in which only that of the value is not NULL.
    Each schema is fetched from the registry once. One that the registry does not know is asked for again later.
    """

    learns, is_nullable = True, False

    def __init__(
        self,
        schemas: Schemas,
        readers: Sequence[Message],
        part: Part,
        *,
        in_headers: bool,
        origin: Origin = GIVEN,
        message: str | None = None,
        finds: bool = False,
    ) -> None:
        """``message`` is the name of the only reader's message in the subject; without it, it is the first."""
        self.finds = finds
        self.header = HEADERS[part] if in_headers else None
        self._schemas = schemas
        self._readers = readers
        self._part = part
        self._message = message
        self.origin = origin
        self.unread = Unread(schemas, origin)
        """Schemas that records were written with, and that have fields which the reader's message lacks."""
        self._files: dict[Id, Files | str] = {}
        self._programs: dict[tuple[Id, Indexes], Program | str] = {}
        own = [projection(reader, reader) for reader in readers]
        self.type = own[0].type if len(own) == 1 else types_type(readers)
        self.in_bulk = all(program.in_bulk for program in own)

    @property
    def version(self) -> int:
        return len(self._programs)

    @property
    def programs(self) -> Mapping[tuple[Id, Indexes], Program]:
        """How to read the messages that were needed so far."""
        known = self._programs.copy().items()
        return {name: program for name, program in known if isinstance(program, Program)}

    def grown(self) -> RegisteredProtobuf | None:
        """Return the decoder that reads the fields of the subject's latest message, too; None if there are no more."""
        return self.unread.followed(self._extended)

    def _extended(self, subject: str, latest: Registered) -> RegisteredProtobuf | None:
        (before,) = self._readers
        later = subject_message(subject, latest, self._message)
        if later.short_name != before.short_name:
            raise self.origin.not_extended(latest, f"its message is {later.name} instead of {before.name}")
        reader = extended(before, later)
        if reader is before:
            return None
        try:
            arrow_type(reader)
            origin = self.origin.extended(latest, fully=_reads(reader, later))
        except SchemaInvalid as error:
            raise self.origin.not_extended(latest, error) from None
        found = RegisteredProtobuf(
            self._schemas,
            [reader],
            self._part,
            in_headers=self.header is not None,
            origin=origin,
            message=self._message,
            finds=self.finds,
        )
        # Tasks then know the schemas of earlier records.
        for name, places in list(self._programs):
            found._program(name, places)
        return found

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
            program = self._projected(files.at(places), name)
        except SchemaInvalid as error:
            return f"schema {name} can't be read: {error}"
        except Incompatible as error:
            self._programs[name, places] = unreadable = self.origin.unreadable(name, self._schemas, error)
            return unreadable
        if isinstance(program, Program):
            self._programs[name, places] = program
        return program

    def _projected(self, writer: Message, name: Id) -> Program | str:
        if len(self._readers) > 1:
            names = [reader.name for reader in self._readers]
            program = one_of(writer, self._readers)
            return program or f"the value is a {writer.name} of schema {name}, {none_of(names)}"
        (reader,) = self._readers
        if writer.short_name != reader.short_name:
            return f"the value is a {writer.name} of schema {name}, not a {reader.name}"
        program = projection(writer, reader)
        if extended(reader, writer) is not reader:
            self.unread.add(name)
        return program

    def _file(self, name: Id) -> Files | str:
        """The files of a schema, or why they can't be read."""
        if name not in self._files:
            found = self._schemas.by_id(name) if isinstance(name, int) else self._schemas.by_guid(name)
            if found is None:
                return f"schema {name} is unknown to the registry"
            self._files[name] = self._schemas.retried(partial(_files, name, found))
        return self._files[name]


def _reads(reader: Message, writer: Message) -> bool:
    try:
        projection(writer, reader)
    except Incompatible:
        return False
    return True


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
    messages: Sequence[str | None] = source.messages or [source.only_message]
    origin = GIVEN
    if source.schema is not None:
        readers = [declared_message(source.schema, message) for message in messages]
        if schemas is None:
            return PlainProtobuf(readers[0])
    else:
        subjects = source.subjects or [subject_name(source, part, topics)] * len(messages)
        assert schemas is not None
        latest = {subject: schemas.latest(subject) for subject in subjects}
        readers = [
            subject_message(subject, latest[subject], message)
            for subject, message in zip(subjects, messages, strict=True)
        ]
        if len(readers) == 1:
            origin = Origin.of(subjects[0], latest[subjects[0]])
    assert schemas is not None
    _check_several(readers)
    return RegisteredProtobuf(
        schemas,
        readers,
        part,
        in_headers=source.ids == "headers",
        origin=origin,
        message=source.only_message,
        finds=finds,
    )


def _check_several(readers: Sequence[Message]) -> None:
    """Refuse messages that would not each have a field."""
    names = [reader.name for reader in readers]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"Protobuf(message=[...]) names {name} twice; leave it out once")
    if len(readers) > 1:
        try:
            types_type(readers)
        except SchemaInvalid as error:
            raise BadInput(f"Protobuf(message=[...]) can't be used: {error}") from None
