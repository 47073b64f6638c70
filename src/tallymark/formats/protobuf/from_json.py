"""Encodes JSON as Protobuf: text in base64 as bytes, ISO 8601 as times, as docs/reference/json.md has them.

``formats/fields.py`` parses the JSON. Nothing is rounded, and fields that the message does not have are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tallymark.errors import BadInput
from tallymark.formats.fields import Whole, converter, shown
from tallymark.formats.json_values import Convert, JsonParts, converted, decimal, moment, real, same, text
from tallymark.formats.misfit import Misfit
from tallymark.formats.protobuf.columns import FIELD_MASK, PLAIN, TIMESTAMP
from tallymark.formats.protobuf.encoder import Values
from tallymark.formats.protobuf.json_writer import tree_of
from tallymark.formats.protobuf.leaves import Output, Write, leaf, write_paths, write_timestamp
from tallymark.formats.protobuf.schema import Field, Message


class JsonEncoder:
    """Encodes parsed JSON as one message."""

    def __init__(self, message: Message) -> None:
        self._write = JsonValues().compiled(message)

    def __call__(self, value: Any) -> bytes:
        """Return the bytes; BadInput names the field that does not fit."""
        out = Output()
        try:
            self._write(value, out)
        except Misfit as misfit:
            raise BadInput(misfit.sentence(shown)) from None
        return bytes(out)


class JsonValues(JsonParts, Values):
    """Encodes what ``fields.parse`` returns."""

    plain: Mapping[str, Write] = {
        TIMESTAMP: converted(moment, write_timestamp, TIMESTAMP),
        FIELD_MASK: converted(text, write_paths, FIELD_MASK),
    }

    def leaf(self, field: Field) -> Write:
        return converted(_convert(field.type), leaf(field), field.type)

    def tree_of(self, value: Any) -> Any:
        # Decoders return the JSON text of a Struct.
        return tree_of(value) if type(value) is str else value


def _convert(kind: str) -> Convert:
    """Return the conversion of JSON to the value that is encoded."""
    if kind in ("float", "double"):
        return real(kind)
    known: dict[str, Convert] = {"string": text, "bool": same, "enum": _symbol, "uint64": decimal, "fixed64": decimal}
    return known.get(kind) or converter(PLAIN[kind])


def _symbol(value: Any) -> Any:
    return int(value[:21]) if isinstance(value, Whole) else text(value)
