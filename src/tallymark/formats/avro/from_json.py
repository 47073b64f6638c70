"""Encodes JSON as Avro: text in base64 as bytes, ISO 8601 as times, as docs/reference/json.md has them.

``formats/fields.py`` parses the JSON. Nothing is rounded, and fields that the schema does not have are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa

from tallymark.errors import BadInput
from tallymark.formats.avro.compiler import Compiler, write_first
from tallymark.formats.avro.encoder import branch_of, struct_branches, writer_schema
from tallymark.formats.avro.leaves import Misfit, Output, Write, append_long, leaf, name_of
from tallymark.formats.avro.logical import logical_leaf
from tallymark.formats.avro.schema import Schema
from tallymark.formats.fields import DECIMAL, LONGEST, MISFITS, Pairs, Real, Unfit, Whole, converter, shown

Convert = Callable[[Any], Any]
NOT_FINITE = ("nan", "inf", "-inf")


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


class JsonValues(Compiler):
    """Encodes what ``fields.parse`` returns."""

    an_object, a_list = "an object", "an array"

    def leaf(self, schema: Schema) -> Write:
        encode = (logical_leaf if schema.logical else leaf)(schema)
        convert, name = _convert(schema), name_of(schema)

        def write(value: Any, out: Output) -> None:
            try:
                encode(convert(value), out)
            except MISFITS as error:
                # The message shows the JSON, not what it was converted to.
                raise Misfit(error.why if isinstance(error, Misfit) else name, value) from None

        return write

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

    def fields_of(self, value: Any) -> dict[str, Any] | None:
        return dict(value) if isinstance(value, Pairs) else None

    def entries_of(self, value: Any) -> Collection[tuple[Any, Any]] | None:
        return dict(value).items() if isinstance(value, Pairs) else None

    def items_of(self, value: Any) -> Sequence[Any] | None:
        return value if isinstance(value, list) else None


def _convert(schema: Schema) -> Convert:
    """Return the conversion of JSON to the value that is encoded; it raises one of MISFITS."""
    kind = schema.logical or schema.type
    if kind.startswith("timestamp"):
        moment = converter(pa.timestamp("us", tz="UTC"))
        return lambda value: moment(value).replace(tzinfo=UTC)
    if kind.startswith("local"):
        return converter(pa.timestamp("us"))
    if kind in ("float", "double"):
        return partial(_real, converter(pa.float32() if kind == "float" else pa.float64()))
    if kind in _COLUMNS:
        return converter(_COLUMNS[kind])
    return {"null": _same, "boolean": _same, "decimal": _decimal, "duration": _duration}.get(kind, _text)


_COLUMNS = {"int": pa.int32(), "long": pa.int64(), "bytes": pa.binary(), "fixed": pa.binary(), "date": pa.date32()}


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise Unfit
    return value


def _real(convert: Convert, value: Any) -> Any:
    # JSON has no such numbers. As text, they are printed when records are shown.
    return float(value) if type(value) is str and value in NOT_FINITE else convert(value)


def _decimal(value: Any) -> Decimal:
    if not isinstance(value, (str, Whole, Real)) or len(value) > LONGEST or not DECIMAL.fullmatch(value):
        raise Unfit
    return Decimal(value)


def _duration(value: Any) -> dict[str, Any]:
    whole = converter(pa.int64())
    if not isinstance(value, Pairs):
        raise Unfit
    return {name: whole(part) for name, part in value}
