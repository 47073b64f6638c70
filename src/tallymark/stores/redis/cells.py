"""Arrow columns to what Redis keeps: text in a hash, or pieces of a JSON object. Column by column, never row by row."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallymark.errors import BadInput

Cell = str | bytes
_NOT_IN_JSON = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def _plain(column: pa.ChunkedArray) -> list[Any]:
    return list(column.cast(pa.string()).to_pylist())


def _float(column: pa.ChunkedArray) -> list[Any]:
    # By way of Arrow's text, which is the shortest for the column's own width: 0.1 stays 0.1 in a float32.
    return [None if text is None else repr(float(text)) for text in _plain(column)]


def _decimal(column: pa.ChunkedArray) -> list[Any]:
    return [None if number is None else format(number, "f") for number in column.to_pylist()]


def _time(column: pa.ChunkedArray) -> list[Any]:
    """ISO 8601, always with all digits of the fraction, so that the order of the texts is that of the times."""
    kind = column.type
    mark = "Z" if kind.tz else ""
    return list(pc.strftime(column.cast(pa.timestamp(kind.unit)), format=f"%Y-%m-%dT%H:%M:%S{mark}").to_pylist())


def _bytes(column: pa.ChunkedArray) -> list[Any]:
    return list(column.to_pylist())


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_KINDS: list[tuple[Any, Callable[[pa.ChunkedArray], list[Any]], Callable[[Any], str]]] = [
    (pa.types.is_boolean, _plain, str),
    (pa.types.is_integer, _plain, str),
    (pa.types.is_floating, _float, lambda text: _NOT_IN_JSON.get(text, text)),
    (pa.types.is_decimal, _decimal, str),
    (pa.types.is_date, _plain, _quoted),
    (pa.types.is_timestamp, _time, _quoted),
    (pa.types.is_string, _plain, _quoted),
    (pa.types.is_large_string, _plain, _quoted),
    (pa.types.is_binary, _bytes, lambda value: f'"{base64.b64encode(value).decode()}"'),
    (pa.types.is_large_binary, _bytes, lambda value: f'"{base64.b64encode(value).decode()}"'),
]


def check_types(table: str, schema: pa.Schema) -> None:
    """Refuse columns that have no text."""
    for field in schema:
        if not any(matches(field.type) for matches, _, _ in _KINDS):
            raise BadInput(f"table {table}: column {field.name}: {field.type} has no text; cast it or leave it out")


def texts(column: pa.ChunkedArray) -> list[Cell | None]:
    """The cells of a column as a hash keeps them."""
    return next(convert for matches, convert, _ in _KINDS if matches(column.type))(column)


def key_parts(column: pa.ChunkedArray) -> list[Cell | None]:
    """The same for the name of a key: bytes in hexadecimal."""
    return [cell.hex() if isinstance(cell, bytes) else cell for cell in texts(column)]


def objects(rows: pa.Table, already_json: set[str]) -> list[str]:
    """Every row as a JSON object. Columns that hold JSON are put in as they are."""
    columns = [_pieces(rows[name], is_json=name in already_json) for name in rows.column_names]
    shape = "{" + ",".join(_quoted(name).replace("%", "%%") + ":%s" for name in rows.column_names) + "}"
    return [shape % row for row in zip(*columns, strict=True)]


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _pieces(column: pa.ChunkedArray, *, is_json: bool) -> list[str]:
    wrap = str if is_json else next(wrap for matches, _, wrap in _KINDS if matches(column.type))
    return ["null" if cell is None else wrap(cell) for cell in texts(column)]
