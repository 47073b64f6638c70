"""Reads Struct, Value and ListValue, which contain each other. Pieces of one value are merged."""

from __future__ import annotations

import struct
from typing import Any, Protocol

from tallymark.formats.protobuf.body import Body, Dead
from tallymark.formats.protobuf.program import DEEPEST_JSON, FIXED64, LENGTH, VARINT

NUMBER = struct.Struct("<d")
KEY, VALUE = 1, 2
"""The fields of an entry of a Struct."""
NULL, DOUBLE, TEXT, TRUTH, OBJECT, ARRAY = range(1, 7)
"""The fields of a Value, of which the last one counts."""
WIRES = {NULL: VARINT, DOUBLE: FIXED64, TEXT: LENGTH, TRUTH: VARINT, OBJECT: LENGTH, ARRAY: LENGTH}


class Tree(Protocol):
    def read(self, body: Body, depth: int) -> None:
        """Add what the bytes up to the end hold."""

    def plain(self) -> Any:
        """The value as Python's dicts, lists, texts, numbers, truth values and None."""


class Object:
    """A Struct."""

    def __init__(self) -> None:
        self._items: dict[str, Value] = {}

    def read(self, body: Body, depth: int) -> None:
        _check_depth(depth)
        while body.at < body.end:
            number, wire = body.tag()
            if number != 1:
                body.skip(number, wire)
                continue
            _check_wire(wire, LENGTH)
            outer = body.enter()
            self._entry(body, depth)
            body.leave(outer)

    def _entry(self, body: Body, depth: int) -> None:
        key, value = "", Value()
        while body.at < body.end:
            number, wire = body.tag()
            if number not in (KEY, VALUE):
                body.skip(number, wire)
                continue
            _check_wire(wire, LENGTH)
            if number == KEY:
                key = body.text()
            else:
                _read_inner(value, body, depth)
        self._items[key] = value

    def plain(self) -> dict[str, Any]:
        return {key: value.plain() for key, value in self._items.items()}


class Array:
    """A ListValue."""

    def __init__(self) -> None:
        self._items: list[Value] = []

    def read(self, body: Body, depth: int) -> None:
        _check_depth(depth)
        while body.at < body.end:
            number, wire = body.tag()
            if number != 1:
                body.skip(number, wire)
                continue
            _check_wire(wire, LENGTH)
            value = Value()
            _read_inner(value, body, depth)
            self._items.append(value)

    def plain(self) -> list[Any]:
        return [value.plain() for value in self._items]


class Value:
    """A Value; one without a field is null."""

    __slots__ = ("_content",)

    def __init__(self) -> None:
        self._content: Any = None

    def read(self, body: Body, depth: int) -> None:
        while body.at < body.end:
            number, wire = body.tag()
            if number not in WIRES:
                body.skip(number, wire)
                continue
            _check_wire(wire, WIRES[number])
            self._read_field(number, body, depth)

    def _read_field(self, number: int, body: Body, depth: int) -> None:
        if number == NULL:
            body.varint()
            self._content = None
        elif number == DOUBLE:
            self._content = NUMBER.unpack(body.take(NUMBER.size, "a number"))[0]
        elif number == TEXT:
            self._content = body.text()
        elif number == TRUTH:
            self._content = body.varint() != 0
        else:
            kind = Object if number == OBJECT else Array
            if not isinstance(self._content, kind):
                self._content = kind()
            _read_inner(self._content, body, depth + 1)

    def plain(self) -> Any:
        return self._content.plain() if isinstance(self._content, (Object, Array)) else self._content


TREES: dict[str, type[Object | Array | Value]] = {"struct": Object, "list": Array, "value": Value}


def _read_inner(tree: Tree, body: Body, depth: int) -> None:
    outer = body.enter()
    tree.read(body, depth)
    body.leave(outer)


def _check_wire(wire: int, wanted: int) -> None:
    if wire != wanted:
        raise Dead(f"it has the wire type {wire} instead of {wanted}")


def _check_depth(depth: int) -> None:
    if depth > DEEPEST_JSON:
        raise Dead(f"objects and arrays are nested more than {DEEPEST_JSON} levels deep")
