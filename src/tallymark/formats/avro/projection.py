"""Resolves the schema that wrote records against the schema of their reader, as the Avro specification demands.

There are two deviations: a field that was not written and has no default is NULL, and the types of whole values are
told apart by full names.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallymark.formats.avro import values
from tallymark.formats.avro.columns import arrow_type, branch_names, not_null
from tallymark.formats.avro.compiler import encoded
from tallymark.formats.avro.conversions import Incompatible, conversion, promotes, unreadable
from tallymark.formats.avro.program import Program, Step
from tallymark.formats.avro.schema import Field, Schema
from tallymark.formats.avro.skipping import Skipping
from tallymark.formats.misfit import Misfit
from tallymark.formats.types import none_of

__all__ = ["Incompatible", "Program", "projection"]

MOST_STEPS = 500_000
"""Maximum size of a program. A few named types that unions combine again and again make one of any size."""


def projection(writer: Schema, reader: Schema) -> Program:
    """Return the program that decodes what ``writer`` wrote into the column of ``reader``; raises Incompatible."""
    column = arrow_type(reader)
    skipping = Skipping()
    try:
        root = _Resolution(skipping, reader).step(writer, reader)
    except RecursionError:
        raise Incompatible("its types are nested too deeply") from None
    except _TooLarge:
        raise Incompatible(f"reading it takes more than {MOST_STEPS} steps") from None
    return Program(root, skipping.skips, column, _is_nullable(reader))


def _is_nullable(schema: Schema) -> bool:
    return schema.type == "null" or any(branch.type == "null" for branch in schema.branches)


class _TooLarge(Exception):
    """The program is too large. It is not ``Incompatible``, which makes a single branch of a union unreadable."""


class _Resolution:
    def __init__(self, skipping: Skipping, top: Schema) -> None:
        """``top`` is the whole schema of the reader."""
        self._skipping = skipping
        self._top = top
        self._steps = 0

    def step(self, writer: Schema, reader: Schema) -> Step:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise _TooLarge
        if writer.type == "union":
            return self._from_union(writer, reader)
        if reader.type == "union":
            return self._to_union(writer, reader)
        if reader.name and writer.type == reader.type and not _has_name_of(writer, reader):
            raise unreadable(writer, reader)
        if writer.type == reader.type == "record":
            return self._record(writer, reader)
        if writer.type == reader.type == "enum":
            return _enum(writer, reader)
        if writer.type == reader.type == "array":
            step: Step = {"read": "array", "items": self.step(writer.item, reader.item)}
            return {**step, "empty": True} if self._skipping.is_empty(writer.item) else step
        if writer.type == reader.type == "map":
            return {"read": "map", "values": self.step(writer.item, reader.item)}
        return conversion(writer, reader)

    def _from_union(self, writer: Schema, reader: Schema) -> Step:
        branches: list[Step] = []
        errors = []
        for branch in writer.branches:
            try:
                branches.append(self.step(branch, reader))
            except Incompatible as error:
                errors.append(error)
                branches.append({"read": "dead", "why": error.why, "path": ".".join(error.path)})
        if len(errors) == len(branches):
            raise errors[-1]
        return {"read": "union", "branches": branches, "width": _width(reader)}

    def _to_union(self, writer: Schema, reader: Schema) -> Step:
        if writer.type == "null" and _is_nullable(reader):
            return {"read": "null"}
        others = not_null(reader)
        candidates = _types(writer, others) if reader is self._top and len(others) > 1 else others
        errors = []
        for branch in sorted(candidates, key=lambda branch: _distance(writer, branch)):
            try:
                step = self.step(writer, branch)
            except Incompatible as error:
                errors.append(error)
                continue
            return _branch(others, others.index(branch), step) if _width(reader) else step
        if len(errors) == 1:
            raise errors[0]
        raise Incompatible(f"{writer.label} can't be read as any branch of the union")

    def _record(self, writer: Schema, reader: Schema) -> Step:
        places = _places(writer, reader)
        written = {at for at in places if at >= 0}
        defaults = [
            {"to": at, **default}
            for at, field in enumerate(reader.fields)
            if at not in written and (default := self._default(field)) is not None
        ]
        fields = []
        for field, to in zip(writer.fields, places, strict=True):
            fields.append({"name": field.name, "to": to, "step": self._field(field, reader, to)})
        return {"read": "record", "width": len(reader.fields), "fields": fields, "defaults": defaults}

    def _field(self, field: Field, reader: Schema, to: int) -> Step:
        if to < 0:
            return self._skipping.step(field.schema)
        target = reader.fields[to]
        try:
            return self.step(field.schema, target.schema)
        except Incompatible as error:
            raise error.within(target.name) from None

    def _default(self, field: Field) -> dict[str, object] | None:
        """Return how the default of a field is decoded; None if it is NULL."""
        if not field.has_default:
            return None
        try:
            body = encoded(field.schema, field.default)
            step = self.step(field.schema, field.schema)
            value = values.decoder(step, {})(body)
        except (Misfit, values.Dead) as error:
            raise Incompatible(f"its default is not valid: {error}", (field.name,)) from None
        return None if value is None else {"step": step, "bytes": body.hex()}


def _places(writer: Schema, reader: Schema) -> list[int]:
    """The place in the reader of each field of the writer; -1 if there is none."""
    by_name = {field.name: at for at, field in enumerate(reader.fields)}
    by_alias = {alias: at for at, field in reversed(list(enumerate(reader.fields))) for alias in field.aliases}
    places = [by_name.get(field.name, -1) for field in writer.fields]
    taken = set(places)
    for n, field in enumerate(writer.fields):
        alias = by_alias.get(field.name, -1)
        if places[n] < 0 and alias not in taken:
            places[n] = alias
            taken.add(alias)
    return places


def _enum(writer: Schema, reader: Schema) -> Step:
    known = set(reader.symbols)
    symbols = [symbol if symbol in known else reader.default for symbol in writer.symbols]
    step: Step = {"read": "enum", "symbols": symbols}
    return {**step, "written": list(writer.symbols)} if None in symbols else step


def _types(writer: Schema, branches: Sequence[Schema]) -> Sequence[Schema]:
    """The branches that a whole value may become: another type must not be read as a record of the same short name."""
    if writer.type != "record":
        return branches
    records = [branch for branch in branches if branch.type == "record"]
    found = [branch for branch in records if branch.name == writer.name]
    found = found or [branch for branch in records if writer.name in branch.aliases]
    if not found:
        raise Incompatible(f"{writer.name} is {none_of([branch.label for branch in branches])}")
    return found


def _branch(branches: Sequence[Schema], to: int, step: Step) -> Step:
    """The step that reads a value into the field of a branch."""
    return {"read": "branch", "to": to, "width": len(branches), "name": branch_names(branches)[to], "step": step}


def _width(reader: Schema) -> int:
    """The number of fields if the column of a union is a struct, else 0."""
    others = len(not_null(reader))
    return others if others > 1 else 0


def _has_name_of(writer: Schema, reader: Schema) -> bool:
    """Whether the types have the same name without namespaces, or the reader an alias."""
    aliases = (alias.rpartition(".")[2] for alias in reader.aliases)
    return writer.short_name == reader.short_name or writer.short_name in aliases


def _distance(writer: Schema, branch: Schema) -> int:
    """How far a branch of a union is from what was written: the same type, another namespace, a promotion."""
    if writer.type == branch.type:
        return 0 if writer.name == branch.name else 1
    return 2 if promotes(writer.type, branch.type) else 3
