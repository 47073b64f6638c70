"""Parses lines with Arrow, each of which is a JSON object, and finds the fields that the schema does not name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from tallymark.core.drift import MOST
from tallymark.formats.unnamed import NOTHING, Rows, Rowset, Unnamed, finder

SAMPLE = 20
"""Number of lines with unnamed fields from which their types are learned at once."""
MOST_LESSONS = 20
"""How often types are learned: values of a field that never have the same type are not worth more."""


UNEXPECTED = "unexpected field"
"""A part of Arrow's message. If it changes, unnamed fields are found one by one."""
NULL = pa.null()


class LineParser:
    """Parses the objects of one schema.

    Arrow can refuse objects with unnamed fields, which costs nothing. If it does, the types of these fields are learned
    from some of the lines, and parsed like those of the schema. Lines with still others, or with values that do not
    have one type, are searched in Python.
    """

    def __init__(self, schema: pa.Schema, *, finds: bool) -> None:
        self._schema = schema
        self._type = self._extended = pa.struct(list(schema))
        self._finds = finds
        self._find = finder(self._type)
        self._lessons = 0

    def __call__(self, text: pa.Buffer) -> tuple[pa.Table, Unnamed]:
        """Parse the lines. The second result has the rows of unnamed fields."""
        if not self._finds:
            return _parsed(text, self._schema, "ignore"), NOTHING
        try:
            return self._at_once(text)
        except pa.ArrowException as error:
            if self._extended is self._type and UNEXPECTED not in str(error):
                raise
            # Raises again if it is not because of unnamed fields.
            table = _parsed(text, self._schema, "ignore")
        if self._learn(text):
            try:
                return self._at_once(text)
            except pa.ArrowException:
                pass
        return table, self._found(text)

    def _at_once(self, text: pa.Buffer) -> tuple[pa.Table, Unnamed]:
        extended = self._extended
        table = _parsed(text, pa.schema(list(extended)), "error")
        if extended is self._type:
            return table, NOTHING
        whole = pa.StructArray.from_arrays([column.combine_chunks() for column in table.columns], table.column_names)
        rows = dict(_unnamed(whole, self._type, "", np.arange(len(table))))
        columns = [_narrowed(whole.field(field.name), field.type) for field in self._type]
        return pa.Table.from_arrays(columns, schema=self._schema), rows

    def _learn(self, text: pa.Buffer) -> bool:
        """Learn the types of unnamed fields; False if nothing was learned, or there are too many."""
        if self._lessons == MOST_LESSONS:
            return False
        self._lessons += 1
        types = _Types(self._extended, MOST)
        learned = 0
        for value in _values(text):
            if types.widen(value):
                learned += 1
            if learned == SAMPLE or types.left < 0:
                break
        if not learned or types.left < 0:
            return False
        self._extended = types.type
        return True

    def _found(self, text: pa.Buffer) -> Unnamed:
        found = Rowset()
        assert self._find is not None
        for row, value in enumerate(_values(text)):
            paths: set[str] = set()
            self._find(value, paths)
            found.add(paths, row)
        return found.found()


def _parsed(text: pa.Buffer, schema: pa.Schema, unexpected: str) -> pa.Table:
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=len(text))
    parsing = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    return pyarrow.json.read_json(pa.BufferReader(text), reading, parsing)


def _values(text: pa.Buffer) -> Iterator[Any]:
    """Parse the lines in Python: objects as tuples of pairs, because names may be repeated."""
    return (_DECODER.decode(line) for line in text.to_pybytes().decode().split("\n"))


_DECODER = json.JSONDecoder(object_pairs_hook=tuple, parse_int=float)


class _Types:
    """The types of objects, to which those of further fields are added: at most ``left``."""

    def __init__(self, kind: pa.DataType, left: int) -> None:
        self._root, self.left = _tree(kind), left
        self._changes = 0

    @property
    def type(self) -> pa.DataType:
        return _type_of(self._root)

    def widen(self, value: Any) -> bool:
        """Add the fields of an object. Returns whether it had any that were not known."""
        before = self._changes
        self._widened(self._root, value)
        return self._changes > before

    def _widened(self, node: Any, value: Any) -> Any:
        if value is None or self.left < 0:
            return node
        if node is NULL:
            node = _empty(value)
            self._changes += 1
        if isinstance(node, dict) and isinstance(value, tuple):
            for name, item in value:
                if name not in node:
                    self.left -= 1
                    self._changes += 1
                node[name] = self._widened(node.get(name, NULL), item)
        elif isinstance(node, list) and isinstance(value, list):
            for item in value:
                node[0] = self._widened(node[0], item)
        return node


def _tree(kind: pa.DataType) -> Any:
    """Return a type as nodes that can be changed: an object is a dict, an array is a list of one."""
    if pa.types.is_struct(kind):
        return {field.name: _tree(field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_tree(kind.value_type)]
    return NULL if pa.types.is_null(kind) else kind


def _type_of(node: Any) -> pa.DataType:
    if isinstance(node, dict):
        return pa.struct([(name, _type_of(inner)) for name, inner in node.items()])
    return pa.list_(_type_of(node[0])) if isinstance(node, list) else node


def _empty(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return {} if isinstance(value, tuple) else [NULL]
    if isinstance(value, bool):
        return pa.bool_()
    return pa.string() if isinstance(value, str) else pa.float64()


def _unnamed(found: pa.Array, kind: pa.DataType, path: str, rows: Rows) -> Iterator[tuple[str, Rows]]:
    """Yield the fields of an array that its type does not name, with the rows where they are not null."""
    if pa.types.is_struct(kind):
        named = {field.name: field.type for field in kind}
        for field, part in zip(found.type, found.flatten(), strict=True):
            if field.name in named:
                yield from _unnamed(part, named[field.name], f"{path}{field.name}.", rows)
            else:
                yield path + field.name, np.unique(rows[np.asarray(part.is_valid())])
    elif pa.types.is_list(kind) and found.type != kind:
        parents = pa.compute.list_parent_indices(found).to_numpy()
        yield from _unnamed(found.flatten(), kind.value_type, path, rows[parents])


def _narrowed(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the array without the fields that its type does not name."""
    if found.type == kind:
        return found
    if pa.types.is_struct(kind):
        parts = [_narrowed(found.field(field.name), field.type) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=found.is_null())
    inner = _narrowed(found.values, kind.value_type)
    return pa.ListArray.from_arrays(found.offsets, inner, kind, mask=found.is_null())
