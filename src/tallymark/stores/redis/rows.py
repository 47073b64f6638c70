"""A batch's rows as the script takes them: a key for each, and its cells as a hash or as one JSON object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from tallymark.errors import BadInput, DataRefused
from tallymark.shape import (
    OFFSET,
    PARTITION,
    TOPIC,
    Changes,
    Refusal,
    TableSpec,
    has_origin,
    null_keys,
    origin,
    visible,
)
from tallymark.stores.columns import OFF_CALENDAR, off_calendar
from tallymark.stores.redis.address import Form
from tallymark.stores.redis.cells import Cell, check_types, is_number, key_parts, objects, texts
from tallymark.stores.redis.keys import LEDGER, escaped
from tallymark.stores.redis.script import Block

MOST_COLUMNS = 3900
"""Lua hands a command no more than 8,000 arguments, and a column takes two."""
KINDS = {"hash": "hash", "json": "string"}


def check_table(spec: TableSpec, schema: pa.Schema) -> None:
    """Refuse what can't become rows here. There is nothing to create, and no column to add."""
    if spec.name == LEDGER:
        raise BadInput(f"table {spec.name}: its keys would be those of the ledger; choose another name")
    for name in [*spec.key, *([spec.version] if spec.version else [])]:
        if name not in schema.names:
            raise BadInput(f"table {spec.name}: its function returns no column {name}, which key= or version= names")
    if len(schema) > MOST_COLUMNS:
        raise BadInput(
            f"table {spec.name} has {len(schema)} columns, and a script takes {MOST_COLUMNS}: leave some out"
        )
    check_types(spec.name, schema)


def blocks(
    change: Changes, form: Form, prefix: str, batch: str, already_json: set[str]
) -> Iterator[tuple[Block, pa.Table]]:
    """What the script is to do for a table, and the rows it comes from: deletes first, as everywhere."""
    if change.deletes.num_rows:
        yield _deletes(change.spec, change.deletes, form, prefix), change.deletes
    if change.puts.num_rows:
        keys = _keys(change.spec, change.puts, prefix, batch)
        make = _objects if form == "json" else _hashes
        yield make(change.spec, visible(change.puts), keys, already_json), change.puts


def refused_rows(change: Changes, form: Form) -> list[Refusal]:
    """The records whose rows have no key, a time that has no text, or nothing to put into a hash."""
    found = [*null_keys(change.spec, change.puts), *null_keys(change.spec, change.deletes)]
    for name in (field.name for field in visible(change.puts).schema if pa.types.is_timestamp(field.type)):
        wrong = change.puts.filter(off_calendar(change.puts[name]))
        found += [refusal(change.spec, wrong, at, f"column {name}: {OFF_CALENDAR}") for at in range(wrong.num_rows)]
    if change.spec.write == "append" and form == "hash" and change.puts.num_rows:
        columns = visible(change.puts).columns
        empty = change.puts.filter(reduce(pc.and_, (pc.is_null(column) for column in columns)))
        error = "all columns are NULL, and Redis keeps no empty hash: filter such rows out, or write rows=json"
        found += [refusal(change.spec, empty, at, error) for at in range(empty.num_rows)]
    return found


def refusal(spec: TableSpec, rows: pa.Table, at: int, error: str) -> Refusal:
    if not has_origin(rows):
        raise DataRefused(
            f"table {spec.name} refused a row: {error}; its function merges records, so that no single one can be "
            "set aside: correct the function"
        )
    return Refusal(*origin(rows, at), spec.name, error)


def _hashes(spec: TableSpec, rows: pa.Table, keys: list[str], _: set[str]) -> Block:
    names = rows.column_names
    version, compare, where, start = _version(spec, rows, names.index(spec.version) if spec.version else 0)
    columns = [texts(column) for column in rows.columns]
    return Block(_mode(spec), "hash", keys, names, columns, version, compare, where, start)


def _objects(spec: TableSpec, rows: pa.Table, keys: list[str], already_json: set[str]) -> Block:
    if not spec.version:
        return Block(_mode(spec), "string", keys, ["object"], [objects(rows, already_json)])
    # The version comes first in the object, where the script finds it without a parser that would round it.
    rows = rows.select([spec.version, *(name for name in rows.column_names if name != spec.version)])
    columns: list[Sequence[Cell | None]] = [objects(rows, already_json), texts(rows[spec.version])]
    return Block(_mode(spec), "string", keys, ["object", "version"], columns, *_version(spec, rows, 1))


def _deletes(spec: TableSpec, rows: pa.Table, form: Form, prefix: str) -> Block:
    names = [spec.version] if spec.version else []
    columns = [texts(rows[name]) for name in names]
    return Block("delete", KINDS[form], _keys(spec, rows, prefix, ""), names, columns, *_version(spec, rows, 0))


def _version(spec: TableSpec, rows: pa.Table, at: int) -> tuple[int, str, str, str]:
    """Which column decides, how it is compared, and where the row that is there has it."""
    if not spec.version:
        return 0, "", "", ""
    start = objects(pa.table({spec.version: [True]}), set())[0].removesuffix("true}")
    return at + 1, "number" if is_number(rows[spec.version].type) else "text", spec.version, start


def _mode(spec: TableSpec) -> str:
    return "ignore" if spec.write == "ignore" else "put"


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
        # No dash: the third row of web[1] 2 is not the first one of web-1[2] 3.
        keys.append(key if seen[key] == 1 else f"{key}:{seen[key]}")
    return keys
