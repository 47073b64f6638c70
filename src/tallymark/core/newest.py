"""The last step before rows are written: the newest row of each key, or all rows of a key combined to one.

A row that comes from a single record carries its origin in hidden columns. docs/reference/write-modes.md has the
rule; ``spark/executors.py`` applies the same rule on the executors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tallymark.core import merging
from tallymark.core.replica import with_known_values
from tallymark.core.tables import (
    DELETED,
    HIDDEN,
    OFFSET,
    PARTITION,
    PROVENANCE,
    TIMESTAMP,
    TOPIC,
    Changes,
    TableSpec,
    check_unmerged,
    has_origin,
    table_schema,
    visible,
)
from tallymark.errors import BadInput

NO_TIME = -(2**63)
"""Sort value of a missing timestamp: older than all others."""


def finish(spec: TableSpec, rows: pa.Table, batch: str) -> Changes:
    """Return the rows as they are written. With a key they are sorted by it, and unless they are merged, unique.

    A key may be both deleted and put, if its newest row is newer than a deletion. The deletion is applied first, and
    the row is inserted after it, as if they were in two batches.
    """
    if spec.provenance:
        rows = _with_provenance(spec, rows, batch)
    deleted = rows.slice(0, 0)
    if spec.write != "append":
        rows = _oldest_first(spec, rows)
        if has_origin(rows) and DELETED in rows.column_names:
            rows, deleted = _after_deletions(spec, rows)
        # Rows to merge stay apart until they are sent, so that a refused row leads to its record.
        rows = rows if spec.write == "merge" else _newest(spec, rows)
    if DELETED not in rows.column_names:
        return Changes(spec, rows, deleted)
    going = pc.fill_null(rows[DELETED], False)
    deleted = pa.concat_tables([deleted, rows.filter(going)])
    return Changes(spec, rows.filter(pc.invert(going)), _sorted(deleted, spec.key) if spec.key else deleted)


def sendable(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """Return the rows to put without their hidden columns; rows to merge are combined to one for each key."""
    shown = visible(rows)
    if spec.write != "merge" or not rows.num_rows:
        return shown
    return merging.merged(dict(spec.merge), spec.version, shown, _starts(rows, spec.key))


def _with_provenance(spec: TableSpec, rows: pa.Table, batch: str) -> pa.Table:
    if not rows.num_rows:
        return table_schema(spec, rows.schema).empty_table()
    if not has_origin(rows):
        raise BadInput(
            f"table {spec.name}: provenance=True requires that each row comes from a single record, "
            "but the function merges records; remove provenance=True"
        )
    columns = [rows[TOPIC], rows[PARTITION], rows[OFFSET], pa.repeat(batch, rows.num_rows)]
    for (name, kind), column in zip(PROVENANCE.items(), columns, strict=True):
        rows = rows.append_column(pa.field(name, kind), column.cast(kind))
    return rows


def _oldest_first(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """Sort the rows by key, and those of one key from the oldest record to the newest."""
    if not has_origin(rows):
        return _sorted(rows, spec.key)
    place = [*spec.key, TOPIC, PARTITION]
    rows = _sorted(rows, [*place, OFFSET])
    if not _starts(rows, [*place, OFFSET]).all():
        # One record produced several rows of a key: sort by their columns to be deterministic.
        rows = _sorted(rows, [*place, OFFSET, *(name for name in rows.column_names if name not in HIDDEN)])
    starts = _starts(rows, place)
    if starts.sum() == _starts(rows, spec.key).sum():
        return rows
    return _sorted(rows, spec.key, _ages(rows[TIMESTAMP], starts), rows[TOPIC], rows[PARTITION])


def _ages(times: pa.ChunkedArray, starts: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the rank of each row by the latest timestamp in its run up to this row."""
    _, ranks = np.unique(pc.fill_null(times.cast(pa.int64()), NO_TIME).to_numpy(), return_inverse=True)
    # Each run gets higher numbers than the run before it, so that the maximum starts anew with each run.
    floors = np.cumsum(starts) * len(ranks)
    return pa.array(np.maximum.accumulate(floors + ranks) - floors)


def _after_deletions(spec: TableSpec, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows that are newer than all deletions of their key, and the newest deletion of each key.

    Deletions with a version do not count here: they are compared by version, as rows are.
    """
    going = pc.fill_null(rows[DELETED], False)
    if spec.version:
        going = pc.and_(going, pc.is_null(rows[spec.version]))
    if not pc.any(going).as_py():
        return rows, rows.slice(0, 0)
    starts, numbers = _starts(rows, spec.key), np.arange(rows.num_rows)
    last = np.maximum.reduceat(np.where(going.to_numpy(), numbers, -1), np.flatnonzero(starts))
    last_of_key = last[np.cumsum(starts) - 1]
    return rows.filter(pa.array(numbers > last_of_key)), rows.filter(pa.array(numbers == last_of_key))


def _newest(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """Return the newest row of each key, or the oldest for ``write="ignore"``; ``rows`` are sorted, oldest first."""
    if not has_origin(rows):
        if rows.num_rows:
            check_unmerged(spec)
        if not _starts(rows, spec.key).all():
            raise BadInput(
                f"table {spec.name}: several rows have the same {', '.join(spec.key)}, and its function merges "
                "records, so that none of them is the newest; aggregate to one row per key"
            )
        return rows
    if spec.version:
        # A row without a version is older than any row with a version.
        rows = _sorted(rows, spec.key, pc.is_valid(rows[spec.version]), rows[spec.version])
    starts = _starts(rows, spec.key)
    if spec.is_replica:
        rows = with_known_values(rows, starts)
    return rows.filter(pa.array(starts if spec.write == "ignore" else np.append(starts[1:], starts[:1])))


def _sorted(rows: pa.Table, names: Sequence[str], *then: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Sort the rows by these columns, then by these values. NULL sorts last; the sort is stable."""
    columns = [*(rows[name] for name in names), *then]
    # Columns are named by number, because Arrow interprets some names as a path.
    keys = pa.table(columns, names=[str(number) for number in range(len(columns))])
    return rows.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names]))


def _starts(rows: pa.Table, columns: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Mark the first row of each run of equal values; ``rows`` are sorted by these columns."""
    changes = np.zeros(max(0, rows.num_rows - 1), np.bool_)
    for name in columns if len(changes) else ():
        column = rows[name].combine_chunks()
        changes |= pc.fill_null(pc.not_equal(column[1:], column[:-1]), True).to_numpy(zero_copy_only=False)
    return np.append(np.ones(min(1, rows.num_rows), np.bool_), changes)
