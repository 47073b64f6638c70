"""Compiles a schema into the functions that encode its values, and encodes defaults.

Subclasses of ``Compiler`` say how values look: Python objects (``encoder.py``), JSON (``from_json.py``), and the JSON
of defaults, which is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from typing import Any

from tallymark.formats.avro.columns import not_null
from tallymark.formats.avro.leaves import Output, Write, append_long, append_text, leaf
from tallymark.formats.avro.schema import Field, Schema, cut
from tallymark.formats.misfit import Misfit

Fields = list[tuple[str, Write, Callable[[], bytes]]]
"""Names, functions, and what is written if the field is missing."""
MISSING = object()


class Compiler:
    """Makes the functions for the types of one schema."""

    an_object, a_list = "a dict", "a list"
    """What error messages tell to write."""
    ignores_unknown = False
    """Whether a record may have fields that its schema does not have."""

    def __init__(self) -> None:
        self._records: dict[Schema, Write] = {}
        self._waiting: list[tuple[Schema, Fields]] = []

    def compiled(self, schema: Schema) -> Write:
        """Return the function for a type, and complete those of the records in it."""
        write = self.write(schema)
        self.complete()
        return write

    def complete(self) -> None:
        """Make the functions of records."""
        # A loop, because a record may contain itself, or lead to many others.
        while self._waiting:
            record, fields = self._waiting.pop()
            fields += [(field.name, self.write(field.schema), self.missing(field, record)) for field in record.fields]

    def write(self, schema: Schema) -> Write:
        if schema.type == "record":
            return self._record(schema)
        if schema.type == "union":
            others = not_null(schema)
            return self._nullable(schema) if len(others) == 1 and len(schema.branches) == 2 else self.union(schema)
        if schema.type == "array":
            return self._array(schema)
        return self._map(schema) if schema.type == "map" else self.leaf(schema)

    def leaf(self, schema: Schema) -> Write:
        """Return the function for a type without parts."""
        raise NotImplementedError

    def union(self, schema: Schema) -> Write:
        """Return the function for a union, except for those of null and one type."""
        raise NotImplementedError

    def fields_of(self, value: Any) -> dict[str, Any] | None:
        """Return the fields of a record; None if the value is none."""
        return value if isinstance(value, dict) else None

    def entries_of(self, value: Any) -> Collection[tuple[Any, Any]] | None:
        """Return the entries of a map; None if the value is none."""
        return value.items() if isinstance(value, dict) else None

    def items_of(self, value: Any) -> Sequence[Any] | None:
        """Return the items of an array; None if the value is none."""
        return value if isinstance(value, (list, tuple)) else None

    def missing(self, field: Field, record: Schema) -> Callable[[], bytes]:
        """Return the function that gives the bytes of a field that is missing."""
        return cache(partial(_default, field, record))

    def _record(self, schema: Schema) -> Write:
        if schema in self._records:
            return self._records[schema]
        fields: Fields = []
        self._waiting.append((schema, fields))
        fields_of, kind = self.fields_of, f"record {schema.name}; write {self.an_object}"
        ignores_unknown = self.ignores_unknown

        def write(value: Any, out: Output) -> None:
            given = fields_of(value)
            if given is None:
                raise Misfit(kind, value)
            absent = 0
            get = given.get
            for name, part, missing in fields:
                item = get(name, MISSING)
                if item is MISSING:
                    absent += 1
                    out += missing()
                    continue
                try:
                    part(item, out)
                except Misfit as misfit:
                    raise misfit.within(f".{name}") from None
            if len(given) + absent != len(fields) and not ignores_unknown:
                raise _unknown(schema, given)

        self._records[schema] = write
        return write

    def _array(self, schema: Schema) -> Write:
        part, kind, items_of = self.write(schema.item), f"array; write {self.a_list}", self.items_of

        def write(value: Any, out: Output) -> None:
            items = items_of(value)
            if items is None:
                raise Misfit(kind, value)
            if items:
                append_long(len(items), out)
            for at, item in enumerate(items):
                try:
                    part(item, out)
                except Misfit as misfit:
                    raise misfit.within(f"[{at}]") from None
            out.append(0)

        return write

    def _map(self, schema: Schema) -> Write:
        part, kind, entries_of = self.write(schema.item), f"map; write {self.an_object}", self.entries_of

        def write(value: Any, out: Output) -> None:
            entries = entries_of(value)
            if entries is None:
                raise Misfit(kind, value)
            if entries:
                append_long(len(entries), out)
            for key, item in entries:
                if not isinstance(key, str):
                    raise Misfit("the key of a map, which is text", key)
                append_text(key, out)
                try:
                    part(item, out)
                except Misfit as misfit:
                    raise misfit.within(f"[{cut(key)!r}]") from None
            out.append(0)

        return write

    def _nullable(self, schema: Schema) -> Write:
        (other,) = not_null(schema)
        part, at = self.write(other), schema.branches.index(other)
        null, branch = 2 * (1 - at), 2 * at

        def write(value: Any, out: Output) -> None:
            if value is None:
                out.append(null)
            else:
                out.append(branch)
                part(value, out)

        return write


class Defaults(Compiler):
    """Encodes the defaults of fields: in their JSON, bytes are text, and any branch of a union may be meant."""

    an_object, a_list, ignores_unknown = "an object", "an array", True

    def leaf(self, schema: Schema) -> Write:
        write = leaf(schema)
        convert = {"bytes": _bytes, "fixed": _bytes, "float": _real, "double": _real}.get(schema.type)
        return write if convert is None else lambda value, out: write(convert(value), out)

    def union(self, schema: Schema) -> Write:
        branches = [self.write(branch) for branch in schema.branches]
        return partial(write_first, list(enumerate(branches)), " or ".join(one.label for one in schema.branches))


def encoded(schema: Schema, default: Any) -> bytes:
    """Return the bytes of a default, or raise Misfit."""
    out = Output()
    Defaults().compiled(schema)(default, out)
    return bytes(out)


Branches = Sequence[tuple[int, Write]]
"""Branches of a union in the order in which they are tried, with their indexes."""


def write_first(branches: Branches, names: str, value: Any, out: Output) -> None:
    """Append the first branch that fits.

    What becomes of a dict or a list is remembered, because unions within unions would otherwise try it again for each
    branch around it: the time would double with every level.
    """
    if not isinstance(value, (dict, list, tuple)):
        return _try(branches, names, value, out)
    # The value is alive as long as the output, so no other one has its id.
    key = id(value), id(branches)
    known = out.tried.get(key)
    if isinstance(known, Misfit):
        raise known.within("")
    if known is not None:
        out += known
        return None
    start = len(out)
    try:
        _try(branches, names, value, out)
    except Misfit as misfit:
        # A copy, because the traceback of an exception keeps its variables alive.
        out.tried[key] = misfit.within("")
        raise
    out.tried[key] = bytes(out[start:])
    return None


def _try(branches: Branches, names: str, value: Any, out: Output) -> None:
    start, best = len(out), Misfit(names, value)
    for at, write in branches:
        append_long(at, out)
        try:
            return write(value, out)
        except Misfit as misfit:
            # A branch that fits in part says more than that none fits.
            best = misfit.within("") if misfit.path and not best.path else best
            del out[start:]
    raise best


def _default(field: Field, record: Schema) -> bytes:
    if not field.has_default:
        raise Misfit(f"field {field.name} of {record.name} is missing, and has no default")
    try:
        return encoded(field.schema, field.default)
    except Misfit as misfit:
        why = f"field {field.name} of {record.name} is missing, and its default is not valid: {misfit}"
        raise Misfit(why) from None


def _unknown(schema: Schema, given: dict[str, Any]) -> Misfit:
    extra = sorted(map(str, given.keys() - {field.name for field in schema.fields}))
    return Misfit(f"{schema.name} has no field {cut(', '.join(extra))}")


def _bytes(value: Any) -> Any:
    """Text of the letters 0 to 255 stands for bytes."""
    if not isinstance(value, str) or any(ord(letter) > 255 for letter in value):
        raise Misfit("bytes", value)
    return value.encode("latin-1")


def _real(value: Any) -> Any:
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value
