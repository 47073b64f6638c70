"""Decodes Avro contents: those of one schema, and those that name the schema that they were written with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tallymark.core.topics import is_pattern
from tallymark.errors import BadInput
from tallymark.formats.avro.columns import arrow_type
from tallymark.formats.avro.decoder import decode
from tallymark.formats.avro.extension import extended
from tallymark.formats.avro.projection import Incompatible, Program, projection
from tallymark.formats.avro.schema import Schema, SchemaInvalid, parse
from tallymark.formats.decoder import Contents, Decoded, Decoder
from tallymark.formats.framing import HEADERS, Id, Identified, framed, in_headers
from tallymark.formats.origin import GIVEN, Origin, Unread
from tallymark.formats.registry import Registered, Schemas
from tallymark.formats.unnamed import Rowset, written
from tallymark.formats.value import Avro, Part, Protobuf


class PlainAvro:
    """Decodes contents that were all written with one schema, which they do not name."""

    header, learns, version, finds = None, False, 0, False

    def __init__(self, writer: Schema, reader: Schema | None = None) -> None:
        self.program = projection(writer, reader or writer)
        self.type = self.program.type
        self.in_bulk, self.is_nullable = self.program.in_bulk, self.program.is_nullable

    def __call__(self, contents: Contents, headers: pa.Array | pa.ChunkedArray | None = None) -> Decoded:  # noqa: ARG002
        bodies = as_array(contents)
        rows = np.flatnonzero(np.asarray(bodies.is_valid()))
        return placed([(rows, decode(self.program, bodies.drop_null()))], {}, len(bodies), self.type)


class RegisteredAvro:
    """Decodes contents by the schemas that they name, for one reader's schema.

    Each schema is fetched from the registry once. One that the registry does not know is asked for again later.
    """

    learns = True

    def __init__(
        self,
        schemas: Schemas,
        reader: Schema,
        part: Part,
        *,
        in_headers: bool,
        origin: Origin = GIVEN,
        finds: bool = False,
    ) -> None:
        self.finds = finds
        self.header = HEADERS[part] if in_headers else None
        self.type = arrow_type(reader)
        self._schemas = schemas
        self._reader = reader
        self._part = part
        self.origin = origin
        self.unread = Unread(schemas, origin)
        """Schemas that records were written with, and that have fields which the reader's schema lacks."""
        self._programs: dict[Id, Program | str] = {}
        own = projection(reader, reader)
        self.in_bulk, self.is_nullable = own.in_bulk, own.is_nullable

    @property
    def version(self) -> int:
        return len(self._programs)

    @property
    def programs(self) -> Mapping[Id, Program]:
        """How to read the schemas that were needed so far."""
        known = self._programs.copy().items()
        return {name: program for name, program in known if isinstance(program, Program)}

    def grown(self) -> RegisteredAvro | None:
        """Return the decoder that reads the fields of the subject's latest schema, too; None if there are no more."""
        return self.unread.followed(self._extended)

    def _extended(self, subject: str, latest: Registered) -> RegisteredAvro | None:
        later = subject_schema(subject, latest)
        reader = extended(self._reader, later)
        if reader is self._reader:
            return None
        try:
            arrow_type(reader)
            origin = self.origin.extended(latest, fully=_reads(reader, later))
        except SchemaInvalid as error:
            raise self.origin.not_extended(latest, error) from None
        more = {"in_headers": self.header is not None, "finds": self.finds}
        found = RegisteredAvro(self._schemas, reader, self._part, origin=origin, **more)
        # Tasks then know the schemas of earlier records.
        for name in list(self._programs):
            found._program(name)
        return found

    def __call__(self, contents: Contents, headers: pa.Array | pa.ChunkedArray | None = None) -> Decoded:
        given = as_array(contents)
        found = framed(given) if headers is None else in_headers(given, headers, self._part)
        errors = dict(found.errors)
        parts = list(self._parts(found, errors))
        return placed(parts, errors, len(given), self.type)

    def _parts(self, found: Identified, errors: dict[int, str]) -> Iterator[tuple[np.ndarray, Decoded]]:
        """Yield the contents of each schema with their rows; adds errors of schemas that can't be read."""
        for at, name in enumerate(found.ids):
            rows = found.rows_of(at)
            program = self._program(name)
            if isinstance(program, str):
                errors.update(dict.fromkeys(rows.tolist(), program))
            else:
                bodies = found.bodies if len(rows) == len(found.bodies) else found.bodies.take(pa.array(rows))
                yield rows, with_unnamed(decode(program, bodies), program.root if self.finds else {})

    def _program(self, name: Id) -> Program | str:
        """How to read the contents of a schema, or why they can't be read."""
        if name not in self._programs:
            found = self._schemas.by_id(name) if isinstance(name, int) else self._schemas.by_guid(name)
            if found is None:
                return f"schema {name} is unknown to the registry"
            self._programs[name] = self._compiled(name, found)
        return self._programs[name]

    def _compiled(self, name: Id, found: Registered) -> Program | str:
        if found.kind != "AVRO":
            return f"schema {name} is not Avro but {found.kind}"
        try:
            writer = parse(found.text, found.references)
            program = projection(writer, self._reader)
        except SchemaInvalid as error:
            return f"schema {name} can't be read: {error}"
        except Incompatible as error:
            return self.origin.unreadable(name, self._schemas, error)
        if extended(self._reader, writer) is not self._reader:
            self.unread.add(name)
        return program


def _reads(reader: Schema, writer: Schema) -> bool:
    try:
        projection(writer, reader)
    except Incompatible:
        return False
    return True


def with_unnamed(decoded: Decoded, root: Mapping[str, Any]) -> Decoded:
    """Add the fields that the writer's schema has and the reader's has not. They are those of every content."""
    names = list(written(root))
    return replace(decoded, unnamed=dict.fromkeys(names, np.arange(len(decoded.values)))) if names else decoded


def avro_decoder(
    source: Avro, schemas: Schemas | None, part: Part, topics: Sequence[str], *, finds: bool = False
) -> Decoder:
    """Create the decoder of a source's keys or values; asks the registry for the reader's schema if it is not given."""
    origin = GIVEN
    if source.schema is not None:
        reader = reader_schema(source.schema, "Avro(schema=...)")
        if schemas is None:
            return PlainAvro(reader)
    elif source.subjects:
        assert schemas is not None
        reader = types_schema({subject: schemas.latest(subject) for subject in source.subjects})
    else:
        subject = subject_name(source, part, topics)
        assert schemas is not None
        latest = schemas.latest(subject)
        reader, origin = subject_schema(subject, latest), Origin.of(subject, latest)
    assert schemas is not None
    in_headers = source.ids == "headers"
    return RegisteredAvro(schemas, reader, part, in_headers=in_headers, origin=origin, finds=finds)


def subject_name(source: Avro | Protobuf, part: Part, topics: Sequence[str]) -> str:
    """Return the subject whose latest schema is the reader's."""
    if source.subject is None and (len(topics) != 1 or is_pattern(topics[0])):
        raise BadInput(
            f"{type(source).__name__}() of several topics needs schema= or subject=, because each topic has a subject "
            "of its own"
        )
    return source.subject_of(topics[0] if topics else "", part)


def subject_schema(subject: str, found: Registered) -> Schema:
    """Return the schema of a subject as a reader's."""
    if found.kind != "AVRO":
        raise BadInput(f"subject {subject} is not Avro but {found.kind}; use the format of its values")
    return reader_schema(found.text, f"subject {subject}", found.references)


def types_schema(found: Mapping[str, Registered]) -> Schema:
    """Return the union of the records of several subjects as a reader's."""
    subjects: dict[str, str] = {}
    branches = []
    for subject, registered in found.items():
        schema = subject_schema(subject, registered)
        if schema.type != "record":
            raise BadInput(f"subject {subject} is not a record but {schema.type}; a list needs records: leave it out")
        if (other := subjects.setdefault(schema.name, subject)) != subject:
            raise BadInput(f"subjects {other} and {subject} are both {schema.name}; list one of them")
        branches.append(schema)
    union = Schema("union", branches=tuple(branches))
    try:
        arrow_type(union)
    except SchemaInvalid as error:
        raise BadInput(f"subjects {', '.join(found)} can't be read together: {error}") from None
    return union


def reader_schema(text: str, name: str, references: Sequence[str] = ()) -> Schema:
    """Return a schema that has a column type; ``name`` says in errors where it is from."""
    try:
        schema = parse(text, references)
        arrow_type(schema)
    except SchemaInvalid as error:
        raise BadInput(f"{name} can't be read: {error}") from None
    return schema


def as_array(contents: Contents) -> pa.Array:
    """Contents as one array."""
    if isinstance(contents, pa.ChunkedArray):
        return contents.combine_chunks()
    return contents if isinstance(contents, pa.Array) else pa.array(contents, pa.binary())


def placed(
    parts: Sequence[tuple[np.ndarray, Decoded]], errors: dict[int, str], count: int, kind: pa.DataType
) -> Decoded:
    """Return all parts together, each in its rows; NULL in rows of no part."""
    unnamed = Rowset()
    for rows, decoded in parts:
        errors.update({int(rows[at]): error for at, error in decoded.errors.items()})
        unnamed.add_rows({name: rows[at] for name, at in decoded.unnamed.items()})
    if len(parts) == 1 and len(parts[0][0]) == count:
        return Decoded(parts[0][1].values, errors, unnamed.found())
    places = np.full(count, -1, np.int64)
    first = 0
    for rows, _ in parts:
        places[rows] = np.arange(first, first + len(rows))
        first += len(rows)
    values = pa.chunked_array([chunk for _, decoded in parts for chunk in _chunks(decoded.values)], kind)
    return Decoded(values.take(pa.array(places, mask=places < 0)), errors, unnamed.found())


def _chunks(values: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return values.chunks if isinstance(values, pa.ChunkedArray) else [values]
