"""Merge functions: how the column of a row is combined with the same column of the row that has its key.

Every function gives the same result wherever the batches begin. ``first`` and ``append``, and ``newest`` and ``oldest``
without a version, depend on the order of the commits. docs/reference/merging.md specifies them. ``merged`` combines the
rows of a batch before they are sent; the stores combine the result with the stored row by the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tallymark.core import arrays
from tallymark.errors import DataRefused

MergeFunction: TypeAlias = str
"""What users write: the name of a function, and for ``append`` how many elements stay, such as ``append(100)``."""
Name = Literal["sum", "count", "min", "max", "newest", "oldest", "first", "append"]
_PLAIN: Mapping[str, Name] = {name: name for name in get_args(Name) if name != "append"}
_BOUNDED = re.compile(r"append\(([1-9][0-9]{0,4})\)")
MOST_ELEMENTS = 10_000
"""The largest bound of ``append``: each commit rewrites the arrays of its keys."""
BY_VERSION: Mapping[str, Name] = {"newest": "max", "oldest": "min"}
"""The functions that compare versions, and how the version itself is merged then."""
BY_ORDER = ("newest", "oldest", "first")
"""The functions that take any type, because they only choose between two values."""


def merge_functions(given: Mapping[str, MergeFunction], version: str | None) -> dict[str, Name]:
    """Return the names of the functions with that of the version, which need not be given."""
    functions = {column: known[0] for column, function in given.items() if (known := _parsed(function))}
    implied = {BY_VERSION[name] for name in functions.values() if name in BY_VERSION}
    return {**functions, version: implied.pop()} if version and len(implied) == 1 else functions


def bounds(given: Mapping[str, MergeFunction]) -> dict[str, int]:
    """Return how many elements stay in each column that is merged by ``append``."""
    return {column: known[1] for column, function in given.items() if (known := _parsed(function)) and known[1]}


def _parsed(function: MergeFunction) -> tuple[Name, int] | None:
    """Return the name of a function, and how many elements ``append`` keeps; None if there is no such function."""
    text = str(function)
    if text in _PLAIN:
        return _PLAIN[text], 0
    match = _BOUNDED.fullmatch(text)
    return ("append", int(match[1])) if match and int(match[1]) <= MOST_ELEMENTS else None


def complaints(given: Mapping[str, MergeFunction], key: Sequence[str], version: str | None) -> Iterator[str]:
    """Yield what is wrong with ``merge=``."""
    for column, function in given.items():
        if _parsed(function) is None and str(function).startswith("append"):
            yield f"merge={{{column!r}: {function!r}}}: say how many elements stay, 1 to {MOST_ELEMENTS:,}: append(100)"
        elif _parsed(function) is None:
            yield f"merge={{{column!r}: {function!r}}} is not known; write {', '.join(_PLAIN)} or append(100)"
        if column in key:
            yield f"column {column} is in key= and in merge=; remove it from merge="
    used = [name for name in BY_VERSION if name in given.values()]
    if version and not used:
        yield "version= needs a column that is merged by newest or oldest, which it decides"
    if version and len(used) > 1:
        yield "version= decides newest or oldest, and not both; merge the other one in a second table"
    if version and used and given.get(version, BY_VERSION[used[0]]) != BY_VERSION[used[0]]:
        yield f"version={version!r} is merged by {BY_VERSION[used[0]]}, because it decides what is {used[0]}"


def unfit(functions: Mapping[str, Name], schema: pa.Schema, key: Sequence[str]) -> str | None:
    """Return why rows of this schema can't be merged by these functions, if they can't."""
    if missing := [name for name in functions if name not in schema.names]:
        return f"its function does not return column {missing[0]} of merge="
    for field in schema:
        function = functions.get(field.name)
        if function is None and field.name not in key:
            return f"column {field.name} is neither in key= nor in merge=; say how it is merged, or leave it out"
        if function == "count" and not pa.types.is_integer(field.type):
            return f"column {field.name} is {field.type}, and count needs an integer"
        if function == "sum" and not _is_number(field.type):
            return f"column {field.name} is {field.type}, and sum needs a number"
        if function in ("min", "max") and (pa.types.is_nested(field.type) or field.metadata):
            return f"column {field.name} is {field.type}, which has no order for {function}"
        if function == "append" and not field.metadata:
            return f"column {field.name} is {field.type}, and append needs an array"
    return None


def wrong_values(functions: Mapping[str, Name], rows: pa.Table) -> Iterator[tuple[pa.ChunkedArray, str]]:
    """Mark the rows with NaN or infinity where numbers are merged, and with no array for ``append``; say what it is."""
    for name, function in functions.items():
        if function == "append":
            marks, what = arrays.no_array(rows[name]), "no JSON array"
        elif function not in BY_ORDER and pa.types.is_floating(rows[name].type):
            marks, what = pc.fill_null(pc.invert(pc.is_finite(rows[name])), False), "not finite"
        else:
            continue
        if pc.any(marks).as_py():
            yield marks, f"column {name} is {what}, as {function} needs it"


def merged(
    given: Mapping[str, MergeFunction], version: str | None, rows: pa.Table, starts: npt.NDArray[np.bool_]
) -> pa.Table:
    """Return one row for each key. ``rows`` are sorted by key, oldest first; ``starts`` marks the first of each key."""
    functions, bounded = merge_functions(given, version), bounds(given)
    # An array of a single row may be too long.
    if starts.all() and not bounded:
        for name in (name for name, function in functions.items() if function == "count"):
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, rows.schema.field(at), pc.fill_null(rows[name], 0))
        return rows
    firsts = np.flatnonzero(starts)
    groups = pa.array(np.cumsum(starts))
    columns = []
    for name in rows.column_names:
        function, column = functions.get(name), rows[name]
        if function is None:
            columns.append(column.take(pa.array(firsts)))
        elif name in bounded:
            columns.append(arrays.joined(column, starts, bounded[name]))
        elif function in BY_ORDER:
            columns.append(_chosen(function, column, rows[version] if version else None, starts))
        else:
            columns.append(_computed(name, function, column, groups))
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _computed(name: str, function: Name, column: pa.ChunkedArray, groups: pa.Array) -> pa.ChunkedArray:
    """Combine the values of each group. Sums are computed exactly and then checked against the column's type."""
    adds, kind = function in ("sum", "count"), column.type
    if function == "count":
        column = pc.fill_null(column, 0)
    if adds and pa.types.is_integer(kind):
        column = column.cast(pa.decimal128(19))
    elif adds and pa.types.is_decimal(kind):
        column = column.cast(pa.decimal256(76, kind.scale))
    table = pa.table({"group": groups, "value": column})
    found = table.group_by("group", use_threads=False).aggregate([("value", "sum" if adds else function)])
    try:
        return found.column(1).cast(kind)
    except pa.ArrowInvalid as error:
        raise DataRefused(f"column {name}: the sum does not fit {kind}") from error


def _chosen(
    function: Name,
    column: pa.ChunkedArray,
    version: pa.ChunkedArray | None,
    starts: npt.NDArray[np.bool_],
) -> pa.ChunkedArray:
    """Choose a value of each group: the first that is not NULL, or that of the newest or oldest row."""
    count, firsts = len(starts), np.flatnonzero(starts)
    places = np.arange(count)
    if function == "first":
        at = np.minimum.reduceat(np.where(column.is_valid().to_numpy(), places, count), firsts)
        return column.take(pa.array(at, mask=at == count))
    if version is None:
        return column.take(pa.array(firsts if function == "oldest" else np.append(firsts[1:], count) - 1))
    known = version.is_valid().to_numpy()
    # Ranks from 1 on; a row without a version gives way to any other.
    ranks = pc.rank(version, tiebreaker="dense").to_numpy().astype(np.int64)
    ranks = np.where(known, ranks if function == "newest" else count + 1 - ranks, 0)
    # Of equal versions the last row is the newest, and the first row the oldest.
    best = ranks * (count + 1) + (places if function == "newest" else count - 1 - places)
    place = np.maximum.reduceat(best, firsts) % (count + 1)
    return column.take(pa.array(place if function == "newest" else count - 1 - place))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
