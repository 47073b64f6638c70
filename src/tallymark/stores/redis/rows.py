"""Convert rows for the script: a key for each row, and its cells as a hash or as a JSON object."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallymark.core import arrays
from tallymark.core.replica import by_known_columns
from tallymark.core.tables import (
    OFFSET,
    PARTITION,
    TOPIC,
    Changes,
    Refusal,
    TableSpec,
    check_merge,
    has_origin,
    refusal,
    unusable_rows,
    visible,
)
from tallymark.errors import BadInput
from tallymark.stores.arrow import OFF_CALENDAR, off_calendar
from tallymark.stores.redis.address import Form
from tallymark.stores.redis.keys import LEDGER, RedisKeys, escaped, score
from tallymark.stores.redis.script import Block, Cell

_NOT_IN_JSON = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def _plain(column: pa.ChunkedArray) -> list[Any]:
    return list(column.cast(pa.string()).to_pylist())


def _float(column: pa.ChunkedArray) -> list[Any]:
    # Via Arrow's text, which is the shortest for the column's width: 0.1 stays 0.1 in a float32.
    return [None if text is None else repr(float(text)) for text in _plain(column)]


def _decimal(column: pa.ChunkedArray) -> list[Any]:
    return [None if number is None else format(number, "f") for number in column.to_pylist()]


def _time(column: pa.ChunkedArray) -> list[Any]:
    """Format as ISO 8601 with all digits of the fraction, so that texts sort like times."""
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
    """Refuse columns of types that have no text form."""
    for field in schema:
        if not any(matches(field.type) for matches, _, _ in _KINDS):
            raise BadInput(
                f"table {table}: column {field.name}: Redis can't store {field.type}; cast it or leave it out"
            )


def texts(column: pa.ChunkedArray) -> list[Cell | None]:
    """Return the cells of a column as stored in a hash."""
    return next(convert for matches, convert, _ in _KINDS if matches(column.type))(column)


def key_parts(column: pa.ChunkedArray) -> list[Cell | None]:
    """Return the cells of a column as parts of a key: bytes in hexadecimal."""
    return [cell.hex() if isinstance(cell, bytes) else cell for cell in texts(column)]


def objects(rows: pa.Table, already_json: set[str]) -> list[str]:
    """Return each row as a JSON object. Columns that hold JSON are embedded unchanged."""
    columns = [_pieces(rows[name], is_json=name in already_json) for name in rows.column_names]
    shape = "{" + ",".join(_quoted(name).replace("%", "%%") + ":%s" for name in rows.column_names) + "}"
    return [shape % row for row in zip(*columns, strict=True)]


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _pieces(column: pa.ChunkedArray, *, is_json: bool) -> list[str]:
    wrap = str if is_json else next(wrap for matches, _, wrap in _KINDS if matches(column.type))
    return ["null" if cell is None else wrap(cell) for cell in texts(column)]


MOST_COLUMNS = 3900
"""Lua passes at most 8,000 arguments to a command, and a column needs two."""
KINDS = {"hash": "hash", "json": "string"}


def check_table(spec: TableSpec, schema: pa.Schema, form: Form) -> None:
    """Refuse a table that Redis can't store. There is nothing to create or to evolve."""
    check_merge(spec, schema)
    if spec.write == "merge" and form == "json":
        raise BadInput(f"table {spec.name}: merge needs a field for each column; remove rows=json from the store's URL")
    if spec.is_replica and form == "json":
        raise BadInput(
            f"table {spec.name}: a replica needs a field for each column, because events may lack some; remove "
            "rows=json from the store's URL"
        )
    if spec.name == LEDGER:
        raise BadInput(f"table {spec.name}: the name is reserved for the ledger; choose another name")
    for name in [*spec.key, *([spec.version] if spec.version else [])]:
        if name not in schema.names:
            raise BadInput(f"table {spec.name}: its function does not return column {name} of key= or version=")
    if len(schema) > MOST_COLUMNS:
        raise BadInput(
            f"table {spec.name} has {len(schema)} columns, but a script takes {MOST_COLUMNS}: leave some out"
        )
    check_types(spec.name, schema)


def blocks(
    change: Changes, form: Form, prefix: str, batch: str, already_json: set[str]
) -> Iterator[tuple[Block, pa.Table]]:
    """Yield the script's blocks for a table and the rows of each: deletes first, as in every store."""
    if change.deletes.num_rows:
        yield _deletes(change.spec, change.deletes, form, prefix), change.deletes
    if change.puts.num_rows:
        make = _objects if form == "json" else _hashes
        for spec, rows in by_known_columns(change.spec, change.puts):
            keys = _keys(spec, rows, prefix, batch)
            # The other fields of a hash stay.
            yield make(spec, visible(rows).drop_columns(list(spec.kept)), keys, already_json), rows


def remembering(block: Block, spec: TableSpec, keys: RedisKeys) -> Block:
    """Return the block with the place where the table remembers its deletions, if it does."""
    if not spec.remembers:
        return block
    return replace(block, deletions=keys.deletions(spec.name), time=score(datetime.now(UTC)))


def refused_rows(change: Changes, form: Form) -> list[Refusal]:
    """Return the records whose rows have NULL or NaN in a key, a time without a text form, or only NULLs for a hash."""
    found = [*unusable_rows(change.spec, change.puts), *unusable_rows(change.spec, change.deletes)]
    for name in (field.name for field in visible(change.puts).schema if pa.types.is_timestamp(field.type)):
        wrong = change.puts.filter(off_calendar(change.puts[name]))
        found += [refusal(change.spec, wrong, at, f"column {name}: {OFF_CALENDAR}") for at in range(wrong.num_rows)]
    if change.spec.write == "append" and form == "hash" and change.puts.num_rows:
        columns = visible(change.puts).columns
        empty = change.puts.filter(reduce(pc.and_, (pc.is_null(column) for column in columns)))
        error = "all columns are NULL, and Redis stores no empty hash: filter such rows out, or set rows=json"
        found += [refusal(change.spec, empty, at, error) for at in range(empty.num_rows)]
    return found


def _hashes(spec: TableSpec, rows: pa.Table, keys: list[str], _: set[str]) -> Block:
    names = rows.column_names
    version, compare, where, start = _version(spec, rows, names.index(spec.version) if spec.version else 0)
    columns = [texts(_bounded(spec, name, rows[name])) for name in names]
    merge = [_merge(spec, field) for field in rows.schema] if spec.merge else []
    return Block(_mode(spec), "hash", keys, names, columns, version, compare, where, start, merge)


def _bounded(spec: TableSpec, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the arrays of the rows with as many elements as may stay: the script merges row by row."""
    if name not in spec.bounds:
        return column
    return arrays.joined(column, np.ones(len(column), np.bool_), spec.bounds[name])


def _merge(spec: TableSpec, field: pa.Field) -> tuple[str, str, str, str]:
    function, kind = spec.functions.get(field.name, ""), field.type
    if function == "append":
        return function, "text", "0", str(spec.bounds[field.name])
    if pa.types.is_floating(kind):
        return function, "float", "", ""
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1) - 1
        return function, "number", str(-most - 1), str(most)
    if pa.types.is_decimal(kind):
        most = format(Decimal(10**kind.precision - 1).scaleb(-kind.scale), "f")
        return function, "number", f"-{most}", most
    return function, "text", "", ""


def _objects(spec: TableSpec, rows: pa.Table, keys: list[str], already_json: set[str]) -> Block:
    if not spec.version:
        return Block(_mode(spec), "string", keys, ["object"], [objects(rows, already_json)])
    # The version is the first member, so that the script can read it without a JSON parser, which would round it.
    rows = rows.select([spec.version, *(name for name in rows.column_names if name != spec.version)])
    columns: list[Sequence[Cell | None]] = [objects(rows, already_json), texts(rows[spec.version])]
    return Block(_mode(spec), "string", keys, ["object", "version"], columns, *_version(spec, rows, 1))


def _deletes(spec: TableSpec, rows: pa.Table, form: Form, prefix: str) -> Block:
    names = [spec.version] if spec.version else []
    columns = [texts(rows[name]) for name in names]
    return Block("delete", KINDS[form], _keys(spec, rows, prefix, ""), names, columns, *_version(spec, rows, 0))


def _version(spec: TableSpec, rows: pa.Table, at: int) -> tuple[int, str, str, str]:
    """Return the version column, how it is compared, and where the stored row has it."""
    if not spec.version:
        return 0, "", "", ""
    start = objects(pa.table({spec.version: [True]}), set())[0].removesuffix("true}")
    return at + 1, "number" if is_number(rows[spec.version].type) else "text", spec.version, start


def _mode(spec: TableSpec) -> str:
    return spec.write if spec.write in ("ignore", "merge") else "put"


def _keys(spec: TableSpec, rows: pa.Table, prefix: str, batch: str) -> list[str]:
    if spec.key:
        parts = [[escaped(part) for part in key_parts(rows[name])] for name in spec.key]
        return [prefix + ":".join(key) for key in zip(*parts, strict=True)]
    if not has_origin(rows):
        return [f"{prefix}{escaped(batch)}-{number}" for number in range(1, rows.num_rows + 1)]
    records = zip(*(rows[name].to_pylist() for name in (TOPIC, PARTITION, OFFSET)), strict=True)
    seen: Counter[str] = Counter()
    keys = []
    for topic, partition, offset in records:
        key = f"{prefix}{escaped(topic)}-{partition}-{offset}"
        seen[key] += 1
        # Not a dash: web-1-2-3 could be the third row of web[1] 2 or the first row of web-1[2] 3.
        keys.append(key if seen[key] == 1 else f"{key}:{seen[key]}")
    return keys
