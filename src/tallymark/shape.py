"""The tables a pipeline fills, and the last step before they are written: of several rows for a key, the newest.

Rows of an upsert carry where they came from in hidden columns. Within a partition the higher offset is newer; between
partitions the later timestamp, then the higher offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from tallymark.errors import BadInput

Write = Literal["append", "upsert"]

TOPIC, PARTITION, OFFSET, TIMESTAMP = (
    "_tallymark_topic",
    "_tallymark_partition",
    "_tallymark_offset",
    "_tallymark_timestamp",
)
PROVENANCE = (TOPIC, PARTITION, OFFSET, TIMESTAMP)
"""Hidden columns: which record a row came from. They never reach a table."""


@dataclass(frozen=True)
class TableSpec:
    """A table of the store, and how rows are written to it."""

    name: str
    key: tuple[str, ...] = ()
    write: Write = "append"

    def __post_init__(self) -> None:
        if not self.name:
            raise BadInput("a table needs a name, such as @pipeline.table('orders')")
        if self.write not in get_args(Write):
            raise BadInput(
                f"table {self.name}: write={self.write!r} is not known; write {' or '.join(get_args(Write))}"
            )
        if self.write == "upsert" and not self.key:
            raise BadInput(f"table {self.name}: an upsert needs key=, the column or columns that identify a row")
        if self.write == "append" and self.key:
            raise BadInput(f"table {self.name}: append takes no key=; use write='upsert' to overwrite rows by key")
        if self.name.lower().startswith("tallymark_"):
            raise BadInput(f"table {self.name}: names that start with tallymark_ belong to the ledger; choose another")


def finish(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """The rows as they will be written: one for each key of an upsert, and no hidden columns."""
    if spec.write == "upsert":
        rows = newest(spec, rows)
    return rows.drop_columns([name for name in PROVENANCE if name in rows.column_names])


def newest(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """The newest row of each key, sorted by key."""
    _refuse_null_keys(spec, rows)
    by_key = [(name, "ascending") for name in spec.key]
    if not set(PROVENANCE) <= set(rows.column_names):
        rows = rows.sort_by(by_key)
        if _last_of_each(rows, spec.key).num_rows != rows.num_rows:
            raise BadInput(
                f"table {spec.name}: several rows have the same {', '.join(spec.key)} and its function hides which "
                "record is newer; aggregate to one row per key"
            )
        return rows
    in_partition = [*spec.key, TOPIC, PARTITION]
    rows = rows.sort_by([*((name, "ascending") for name in in_partition), (OFFSET, "ascending")])
    rows = _last_of_each(rows, in_partition)
    rows = rows.sort_by([*by_key, (TIMESTAMP, "ascending"), (OFFSET, "ascending")])
    return _last_of_each(rows, spec.key)


def _last_of_each(rows: pa.Table, columns: list[str] | tuple[str, ...]) -> pa.Table:
    """Of rows sorted by these columns, the last of each run of equal ones."""
    if rows.num_rows < 2:
        return rows
    changes = pa.array([False] * (rows.num_rows - 1))
    for name in columns:
        column = rows[name].combine_chunks()
        changes = pc.or_(changes, pc.not_equal(column[1:], column[:-1]))
    return rows.filter(pa.concat_arrays([changes, pa.array([True])]))


def _refuse_null_keys(spec: TableSpec, rows: pa.Table) -> None:
    for name in spec.key:
        if rows[name].null_count:
            raise BadInput(
                f"table {spec.name}: {rows[name].null_count} rows have no {name}, which is their key; "
                "filter them out in the table's function"
            )
