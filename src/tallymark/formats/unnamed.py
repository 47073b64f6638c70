"""Finds the fields of contents that the reader's schema does not name.

A field is found in the values where it is not null. Its name is its path, ``address.zip``; arrays and maps add nothing
to the path. ``spark/jvm/Names.java`` counts the same fields in Spark's tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tallymark.core.drift import Fields, Found, bounded, short
from tallymark.core.spans import Partition

Rows = npt.NDArray[np.int64]
Unnamed = Mapping[str, Rows]
"""The rows that have each field. A row may appear several times only among those of ``OTHERS``."""
NOTHING: Unnamed = {}
Find = Callable[[Any, set[str]], None]
"""Adds the unnamed fields of a valid value to a set. Objects are tuples of pairs, arrays are lists."""


class Rowset:
    """Collects the rows of a limited number of fields."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Iterable[int]]] = {}

    def add(self, paths: Iterable[str], row: int) -> None:
        """Add the fields of one row."""
        for name in sorted({short(path) for path in paths}):
            self._rows.setdefault(bounded(name, self._rows), []).append((row,))

    def add_rows(self, unnamed: Unnamed, first: int = 0) -> None:
        """Add fields whose rows are counted from ``first``."""
        for path, rows in unnamed.items():
            if len(rows):
                name = short(path)
                self._rows.setdefault(bounded(name, self._rows), []).append(rows + first)

    def found(self) -> Unnamed:
        return {
            name: np.sort(np.concatenate([np.asarray(part, np.int64) for part in parts]))
            for name, parts in self._rows.items()
        }


def finder(kind: pa.DataType, path: str = "") -> Find | None:
    """Return the function for values of this type; None if they can't have unnamed fields."""
    if pa.types.is_struct(kind):
        inner = {field.name: finder(field.type, f"{path}{field.name}.") for field in kind}

        def in_object(value: Any, found: set[str]) -> None:
            for name, item in value:
                if item is None:
                    continue
                if name not in inner:
                    found.add(path + name)
                elif (find := inner[name]) is not None:
                    find(item, found)

        return in_object
    if pa.types.is_map(kind) and (in_value := finder(kind.item_type, path)):
        return lambda value, found: _each(in_value, (item for _, item in value), found)
    if pa.types.is_list(kind) and (in_item := finder(kind.value_type, path)):
        return lambda value, found: _each(in_item, value, found)
    return None


def _each(find: Find, items: Iterable[Any], found: set[str]) -> None:
    for item in items:
        if item is not None:
            find(item, found)


def written(step: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the fields that a program for Avro or Protobuf skips, because the reader's schema does not have them."""
    for part in step.get("fields", ()):
        if part["to"] < 0:
            yield path + part["name"]
        else:
            yield from written(part["step"], f"{path}{part['name']}.")
    for inner in (*step.get("branches", ()), *(step[key] for key in ("items", "values") if key in step)):
        yield from written(inner, path)
    if step.get("read") == "branch":
        yield from written(step["step"], f"{path}{step['name']}.")
    if "entry" in step:
        # Of a map in Protobuf: the key and the value are no fields.
        for part in step["entry"]["fields"]:
            yield from written(part["step"], path)


def by_partition(unnamed: Unnamed, records: pa.Table, dead: Iterable[int]) -> Mapping[Partition, Fields]:
    """Count the records of each partition, except dead rows. The records of a partition are in offset order."""
    if not unnamed:
        return {}
    offsets = records["offset"].to_numpy()
    topics = records["topic"].combine_chunks().dictionary_encode()
    topics = topics.combine_chunks() if isinstance(topics, pa.ChunkedArray) else topics
    places = topics.indices.to_numpy().astype(np.int64) << 32 | records["partition"].to_numpy()
    gone = np.fromiter(dead, np.int64)
    found: dict[Partition, dict[str, Found]] = {}
    for name, rows in unnamed.items():
        rows = rows[~np.isin(rows, gone)]
        # Rows are sorted, so that the first row of a partition has its first offset.
        there, first, counts = np.unique(places[rows], return_index=True, return_counts=True)
        for place, count, offset in zip(there.tolist(), counts.tolist(), offsets[rows[first]].tolist(), strict=True):
            partition = Partition(topics.dictionary[place >> 32].as_py(), place & 0xFFFFFFFF)
            found.setdefault(partition, {})[name] = Found(count, offset)
    return found
