"""Encodes JSON as Avro: text in base64 as bytes, ISO 8601 as times, as docs/reference/json.md has them.

``formats/fields.py`` parses the JSON. Nothing is rounded, and fields that the schema does not have are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from tallymark.errors import BadInput
from tallymark.formats.avro.compiler import Compiler, write_first
from tallymark.formats.avro.encoder import branch_of, struct_branches, writer_schema
from tallymark.formats.avro.leaves import Output, Write, append_long, leaf, name_of
from tallymark.formats.avro.logical import logical_leaf
from tallymark.formats.avro.schema import Schema
from tallymark.formats.fields import Pairs, Unfit, converter, shown
from tallymark.formats.json_values import Convert, JsonParts, converted, decimal, moment, real, same, text
from tallymark.formats.misfit import Misfit


class JsonEncoder:
    """Encodes parsed JSON by one schema. ``references`` are the texts of the schemas that the schema uses."""

    def __init__(self, text: str, references: Sequence[str] = ()) -> None:
        self._write = JsonValues().compiled(writer_schema(text, references))

    def __call__(self, value: Any) -> bytes:
        """Return the bytes; BadInput names the field that does not fit."""
        out = Output()
        try:
            self._write(value, out)
        except Misfit as misfit:
            raise BadInput(misfit.sentence(shown)) from None
        except RecursionError:
            raise BadInput("the value is nested too deeply to be written as Avro") from None
        return bytes(out)


class JsonValues(JsonParts, Compiler):
    """Encodes what ``fields.parse`` returns."""

    def leaf(self, schema: Schema) -> Write:
        encode = (logical_leaf if schema.logical else leaf)(schema)
        return converted(_convert(schema), encode, name_of(schema))

    def union(self, schema: Schema) -> Write:
        """Encode an object with the name of a branch, because the types of JSON do not tell branches apart."""
        writes = list(map(self.write, schema.branches))
        named = struct_branches(schema, writes)
        if not named:
            return partial(write_first, list(enumerate(writes)), name_of(schema))
        null = next((at for at, branch in enumerate(schema.branches) if branch.type == "null"), None)
        kind = f'{name_of(schema)}; write an object with the name of one, such as {{"{next(iter(named))}": ...}}'

        def write(value: Any, out: Output) -> None:
            if value is None and null is not None:
                return append_long(null, out)
            fields = self.fields_of(value)
            name = branch_of(fields, named) if fields else None
            if fields is None or name is None:
                raise Misfit(kind, value)
            at, part = named[name]
            append_long(at, out)
            try:
                part(fields[name], out)
            except Misfit as misfit:
                raise misfit.within(f".{name}") from None
            return None

        return write


def _convert(schema: Schema) -> Convert:
    """Return the conversion of JSON to the value that is encoded."""
    kind = schema.logical or schema.type
    if kind.startswith("timestamp"):
        return moment
    if kind.startswith("local"):
        return converter(pa.timestamp("us"))
    if kind in ("float", "double"):
        return real(kind)
    if kind in _COLUMNS:
        return converter(_COLUMNS[kind])
    return {"null": same, "boolean": same, "decimal": decimal, "duration": _duration}.get(kind, text)


_COLUMNS = {"int": pa.int32(), "long": pa.int64(), "bytes": pa.binary(), "fixed": pa.binary(), "date": pa.date32()}


def _duration(value: Any) -> dict[str, Any]:
    whole = converter(pa.int64())
    if not isinstance(value, Pairs):
        raise Unfit
    return {name: whole(part) for name, part in value}
