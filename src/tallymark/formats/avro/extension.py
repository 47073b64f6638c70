"""Extends a reader's schema by the fields of a later one. What the reader has stays as it is."""

from __future__ import annotations

from dataclasses import replace

from tallymark.formats.avro.schema import Field, Schema

NULL = Schema("null")


def extended(reader: Schema, later: Schema) -> Schema:
    """Return the reader's schema with the fields that only ``later`` has; the same object if there are none.

    A type that may be null in ``later`` may be null in the result.
    """
    if later.type == "union":
        found = _nullable(reader) if any(branch.type == "null" for branch in later.branches) else reader
        for branch in later.branches:
            found = extended(found, branch)
        return found
    if reader.type == "union":
        # Names without namespaces count only if no branch has the full name.
        is_named = any(branch.name == later.name for branch in reader.branches)
        branches = tuple(
            branch if is_named and branch.name != later.name else extended(branch, later) for branch in reader.branches
        )
        return reader if _are_same(branches, reader.branches) else replace(reader, branches=branches)
    if reader.type != later.type or reader.short_name != later.short_name:
        return reader
    if reader.type == "record":
        return _record(reader, later)
    if reader.type in ("array", "map"):
        item = extended(reader.item, later.item)
        return reader if item is reader.item else replace(reader, items=item)
    return reader


def _record(reader: Schema, later: Schema) -> Schema:
    known = {field.name for field in reader.fields}
    fields_of_later = {field.name: field for field in later.fields}
    kept = tuple(_field(field, fields_of_later.get(field.name)) for field in reader.fields)
    new = tuple(field for field in later.fields if field.name not in known)
    return reader if not new and _are_same(kept, reader.fields) else replace(reader, fields=(*kept, *new))


def _field(field: Field, later: Field | None) -> Field:
    schema = field.schema if later is None else extended(field.schema, later.schema)
    return field if schema is field.schema else replace(field, schema=schema)


def _nullable(reader: Schema) -> Schema:
    if reader.type == "null" or any(branch.type == "null" for branch in reader.branches):
        return reader
    # Last, because a default has the type of the first branch.
    return Schema("union", branches=(*(reader.branches or (reader,)), NULL))


def _are_same(found: tuple[object, ...], expected: tuple[object, ...]) -> bool:
    return all(one is other for one, other in zip(found, expected, strict=True))
