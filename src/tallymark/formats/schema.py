"""Parses Spark DDL schemas, such as ``id BIGINT, at TIMESTAMP``, into Arrow types without Spark.

The types are those of Spark's own conversion to Arrow, so that a table is the same with and without Spark. NOT NULL and
comments have no effect, as in Spark's ``from_json``: missing fields are NULL.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from tallymark.errors import BadInput

PLAIN: dict[str, pa.DataType] = {
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "STRING": pa.string(),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
DECIMALS = {"DECIMAL", "DEC", "NUMERIC"}
MOST_DIGITS = 38
TOKEN = re.compile(r"""\w+|`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\S""")
Item = TypeVar("Item")


def parse(ddl: str) -> pa.Schema:
    """Parse a schema string; BadInput gives the position of a syntax error."""
    parser = _Parser(ddl)
    fields = list(parser.type()) if parser.is_struct() else parser.fields()
    parser.end()
    return pa.schema(fields)


def name(kind: pa.DataType) -> str:
    """Return the DDL name of a type, without element types or fields."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    nested = {pa.types.is_list: "ARRAY", pa.types.is_map: "MAP", pa.types.is_struct: "STRUCT"}
    return next((word for is_one, word in nested.items() if is_one(kind)), None) or next(
        word for word, plain in PLAIN.items() if plain == kind
    )


class _Parser:
    """A recursive descent parser: every method parses the element in its name and advances past it."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens = [(match.group(), match.start()) for match in TOKEN.finditer(ddl)]
        self._next = 0

    def is_struct(self) -> bool:
        return [token.upper() for token, _ in self._tokens[:2]] == ["STRUCT", "<"]

    def fields(self) -> list[pa.Field]:
        fields = self._list(self._field)
        names = [field.name.lower() for field in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise self._invalid(f"field {' and '.join(twice)} is declared more than once")
        return fields

    def type(self) -> pa.DataType:
        name = self._token().upper()
        nested = {"ARRAY": self._array, "MAP": self._map, "STRUCT": self._struct}
        if name not in PLAIN and name not in DECIMALS and name not in nested:
            raise self._unexpected("a type such as BIGINT, STRING or ARRAY<STRING>")
        self._next += 1
        if name in PLAIN:
            return PLAIN[name]
        if name in DECIMALS:
            return self._decimal()
        self._take("<")
        kind = nested[name]()
        self._take(">")
        return kind

    def end(self) -> None:
        if self._token():
            raise self._unexpected("a comma or the end")

    def _field(self) -> pa.Field:
        name = self._name()
        self._skip(":")
        field = pa.field(name, self.type())
        if self._skip("NOT"):
            self._take("NULL")
        if self._skip("COMMENT"):
            self._match("""['"].+""", "a comment in quotes")
        return field

    def _name(self) -> str:
        name = self._match("`.+`|[a-z0-9_]*[a-z_][a-z0-9_]*", "a field name, in `backticks` if it is not a plain word")
        return name[1:-1].replace("``", "`") if name[0] == "`" else name

    def _decimal(self) -> pa.DataType:
        if not self._skip("("):
            return pa.decimal128(10, 0)
        precision = int(self._match("[0-9]{1,3}", "a number of digits"))
        scale = int(self._match("[0-9]{1,3}", "a number of digits")) if self._skip(",") else 0
        self._take(")")
        if not max(1, scale) <= precision <= MOST_DIGITS:
            raise self._invalid(
                f"DECIMAL({precision}, {scale}) must have 1 to {MOST_DIGITS} digits, and not more after the point"
            )
        return pa.decimal128(precision, scale)

    def _array(self) -> pa.DataType:
        return pa.list_(pa.field("element", self.type()))

    def _map(self) -> pa.DataType:
        self._match("STRING", "STRING, the only type of keys in JSON")
        self._take(",")
        return pa.map_(pa.string(), pa.field("value", self.type()))

    def _struct(self) -> pa.DataType:
        return pa.struct(self.fields())

    def _list(self, read: Callable[[], Item]) -> list[Item]:
        items = [read()]
        while self._skip(","):
            items.append(read())
        return items

    def _token(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    def _skip(self, token: str) -> bool:
        skips = self._token().upper() == token
        self._next += skips
        return skips

    def _take(self, token: str) -> None:
        if not self._skip(token):
            raise self._unexpected(token)

    def _match(self, pattern: str, expected: str) -> str:
        token = self._token()
        if not re.fullmatch(pattern, token, re.IGNORECASE | re.ASCII | re.DOTALL):
            raise self._unexpected(expected)
        self._next += 1
        return token

    def _unexpected(self, expected: str) -> BadInput:
        if not self._token():
            return self._invalid(f"found the end, expected {expected}")
        token, position = self._tokens[self._next]
        return self._invalid(f"found {token!r} at position {position}, expected {expected}")

    def _invalid(self, why: str) -> BadInput:
        return BadInput(f"Json schema {self._ddl!r} is not valid: {why}")
