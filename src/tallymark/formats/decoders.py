"""Decodes the keys and values of a source's records, each by its format."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import methodcaller
from typing import Any

import pyarrow as pa

from tallymark.core import raw
from tallymark.core.records import DeadLetter
from tallymark.core.retry import PATIENCE
from tallymark.formats.debezium.json import DebeziumJson, check_event
from tallymark.formats.decoder import Contents, Decoded, Decoder
from tallymark.formats.framing import framed
from tallymark.formats.json import JsonDecoder
from tallymark.formats.protobuf.registered import RegisteredProtobuf, protobuf_decoder
from tallymark.formats.registered import RegisteredAvro, as_array, avro_decoder
from tallymark.formats.registry import Schemas
from tallymark.formats.unnamed import Rowset, Unnamed
from tallymark.formats.value import Avro, Bytes, Debezium, Format, Json, Part, Protobuf


class BytesDecoder:
    """Leaves contents as they are."""

    type, in_bulk, is_nullable, header = pa.binary(), True, False, None
    learns, version, finds = False, 0, False

    def __call__(self, contents: Contents, headers: pa.Array | pa.ChunkedArray | None = None) -> Decoded:  # noqa: ARG002
        return Decoded(contents if isinstance(contents, pa.ChunkedArray) else as_array(contents), {})


class FramedDecoder:
    """Decodes contents behind the id of a schema, which it does not need."""

    header, learns, version = None, False, 0

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.type, self.in_bulk = decoder.type, decoder.in_bulk
        self.is_nullable, self.finds = decoder.is_nullable, decoder.finds

    def __call__(self, contents: Contents, headers: pa.Array | pa.ChunkedArray | None = None) -> Decoded:  # noqa: ARG002
        found = framed(as_array(contents))
        decoded = self.decoder(found.bodies)
        return Decoded(decoded.values, {**decoded.errors, **found.errors}, decoded.unnamed)


class Decoders:
    """Decodes values and, unless they stay bytes, keys. Created once for a source, called for every batch."""

    def __init__(self, value: Decoder, key: Decoder | None = None) -> None:
        self.value = value
        self.key = key
        self._parts: dict[Part, Decoder] = {"value": value} if key is None else {"value": value, "key": key}

    @classmethod
    def of(
        cls,
        value: Format,
        key: Format | None = None,
        topics: Sequence[str] = (),
        stop: threading.Event | None = None,
        patience: float = PATIENCE,
        *,
        finds: bool = False,
    ) -> Decoders:
        """Create the decoders of these formats. A registry is asked for schemas, until ``stop`` is set.

        With ``finds`` they find fields that the schema does not name.
        """

        def created(source: Format, part: Part) -> Decoder:
            if isinstance(source, Debezium):
                return events(source, part)
            if isinstance(source, Json):
                decoder = JsonDecoder(source, finds=finds)
                return FramedDecoder(decoder) if source.framed else decoder
            if isinstance(source, Avro):
                schemas = Schemas.of(source.server, stop, patience) if source.server else None
                return avro_decoder(source, schemas, part, topics, finds=finds)
            if isinstance(source, Protobuf):
                schemas = Schemas.of(source.server, stop, patience) if source.server else None
                return protobuf_decoder(source, schemas, part, topics, finds=finds)
            return BytesDecoder()

        def events(source: Debezium, part: Part) -> Decoder:
            if isinstance(source.inner, Json):
                from_json = DebeziumJson(source, finds=finds)
                return FramedDecoder(from_json) if source.inner.framed else from_json
            decoder = created(source.inner, part)
            check_event(decoder.type, "the schema")
            return decoder

        return cls(created(value, "value"), None if key in (None, Bytes()) else created(key, "key"))

    @property
    def in_bulk(self) -> bool:
        return all(decoder.in_bulk for decoder in self._parts.values())

    @property
    def header_names(self) -> set[str]:
        """The headers that are needed."""
        return {decoder.header for decoder in self._parts.values() if decoder.header}

    @property
    def finds(self) -> bool:
        """Whether fields that the schema does not name are found."""
        return any(decoder.finds for decoder in self._parts.values())

    @property
    def learns(self) -> bool:
        """Whether schemas are asked for as they appear."""
        return any(decoder.learns for decoder in self._parts.values())

    @property
    def version(self) -> int:
        """Changes when more can be decoded than before."""
        return sum(decoder.version for decoder in self._parts.values())

    @property
    def origin(self) -> str:
        """The subjects and versions of the readers' schemas; empty if they do not come from a registry."""
        return " and ".join(str(decoder.origin) for decoder in self._following.values())

    @property
    def is_outgrown(self) -> bool:
        """Whether records were written with fields that the readers' schemas lack, and that nothing has asked for."""
        return any(decoder.unread for decoder in self._following.values())

    @property
    def _following(self) -> dict[Part, RegisteredAvro | RegisteredProtobuf]:
        """The decoders whose schemas are the latest of a subject."""
        found = {
            part: one for part, one in self._parts.items() if isinstance(one, (RegisteredAvro, RegisteredProtobuf))
        }
        return {part: decoder for part, decoder in found.items() if decoder.origin.subject}

    def grown(self) -> Decoders | None:
        """Ask for the latest schemas, and return the decoders of their fields, too; None if there are no more."""
        grown = {part: decoder.grown() for part, decoder in self._following.items() if decoder.unread}
        if not any(grown.values()):
            return None
        return Decoders(grown.get("value") or self.value, grown.get("key") or self.key)

    def table(self, found: pa.Table) -> tuple[pa.Table, Mapping[int, str], Unnamed]:
        """Replace keys and values by what they decode to.

        The second result maps rows of dead records to errors, the third has fields that the schema does not name.
        """
        errors: dict[int, str] = {}
        unnamed = Rowset()
        records = found
        for part, decoder in self._parts.items():
            decoded = decoder(found[part], found["headers"] if decoder.header else None)
            records = records.set_column(records.schema.get_field_index(part), part, decoded.values)
            _add(errors, part, decoded.errors)
            unnamed.add_rows(_named(part, decoded.unnamed))
        return records, errors, unnamed.found()

    def messages(self, messages: Sequence[Any]) -> tuple[Mapping[Part, pa.Array], Mapping[int, str], Unnamed]:
        """Decode librdkafka's messages, with the same further results as ``table``."""
        values: dict[Part, pa.Array] = {}
        errors: dict[int, str] = {}
        unnamed = Rowset()
        for part, decoder in self._parts.items():
            headers = raw.of_messages(messages, ["headers"])["headers"] if decoder.header else None
            decoded = decoder(list(map(methodcaller(part), messages)), headers)
            values[part] = decoded.values
            _add(errors, part, decoded.errors)
            unnamed.add_rows(_named(part, decoded.unnamed))
        return values, errors, unnamed.found()

    def explained(self, letters: Sequence[DeadLetter], otherwise: str) -> list[DeadLetter]:
        """Replace the errors of records by what makes them dead; by ``otherwise`` if they can be decoded."""
        found = [letter for letter in letters if letter.value is not None or letter.key is not None]
        errors = self.table(raw.of_letters(found))[1] if found else {}
        said = iter([errors.get(at, otherwise) for at in range(len(found))])
        return [
            letter if letter.value is None and letter.key is None else replace(letter, error=next(said))
            for letter in letters
        ]


def _named(part: Part, unnamed: Unnamed) -> Unnamed:
    return unnamed if part == "value" else {f"{part}: {name}": rows for name, rows in unnamed.items()}


def _add(errors: dict[int, str], part: Part, more: Mapping[int, str]) -> None:
    for at, error in more.items():
        said = error if part == "value" else f"{part}: {error}"
        errors[at] = f"{errors[at]}; {said}" if at in errors else said
