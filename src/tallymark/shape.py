"""The tables a pipeline fills, and the last step before they are written: of several rows for a key, the newest.

Rows carry where they came from in hidden columns, wherever a row comes from a single record. Within a partition the
higher offset is newer; between partitions the later timestamp, then the higher offset. Where a table has a version, the
higher version is newer, and the record decides among equals.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from tallymark.errors import BadInput
from tallymark.spans import Partition

Write = Literal["append", "upsert", "ignore"]

TOPIC, PARTITION, OFFSET, TIMESTAMP, DELETED = (
    "_tallymark_topic",
    "_tallymark_partition",
    "_tallymark_offset",
    "_tallymark_timestamp",
    "_tallymark_deleted",
)
ORIGIN = (TOPIC, PARTITION, OFFSET)
"""Hidden columns: which record a row came from."""
HIDDEN = (*ORIGIN, TIMESTAMP, DELETED)
"""Columns that never reach a table. Rows with a key have TIMESTAMP; DELETED says that the row of a key is to go."""
PROVENANCE = {
    "tallymark_topic": pa.string(),
    "tallymark_partition": pa.int32(),
    "tallymark_offset": pa.int64(),
    "tallymark_batch": pa.string(),
}
"""The columns that ``provenance=True`` adds to a table."""
TOMBSTONE = "value IS NULL"
VERSIONED = "_tallymark_versioned"


@dataclass(frozen=True)
class TableSpec:
    """A table of the store, and how rows are written to it."""

    name: str
    key: tuple[str, ...] = ()
    write: Write = "append"
    version: str | None = None
    delete: str | None = None
    provenance: bool = False
    create: bool = True
    evolve: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise BadInput("a table needs a name, such as @pipeline.table('orders')")
        for complaint in self._complaints():
            raise BadInput(f"table {self.name}: {complaint}")

    def _complaints(self) -> list[str]:
        modes, upsert = get_args(Write), self.write == "upsert"
        rules = {
            f"write={self.write!r} is not known; write {', '.join(modes)}": self.write not in modes,
            f"{self.write} needs key=, the column or columns that identify a row": self.write != "append"
            and not self.key,
            "append takes no key=; use write='upsert' to overwrite rows by key": self.write == "append" and self.key,
            "version= needs write='upsert': it says which of two rows is newer": self.version and not upsert,
            "version= can't be part of the key": self.version in self.key,
            "delete= needs write='upsert': rows are deleted by their key": self.delete is not None and not upsert,
            "delete= needs 'tombstone' or a condition on the record, such as \"value.op = 'd'\"": self.delete == "",
            "names that start with tallymark_ belong to the ledger; choose another": self.name.lower().startswith(
                "tallymark_"
            ),
        }
        return [complaint for complaint, broken in rules.items() if broken]

    @property
    def deletes(self) -> str | None:
        """The condition on the record under which its row is deleted."""
        return TOMBSTONE if self.delete == "tombstone" else self.delete


@dataclass(frozen=True)
class Refusal:
    """A record whose value was decoded, but that a table or its function refused, and why."""

    partition: Partition
    offset: int
    table: str
    error: str

    @property
    def record(self) -> tuple[Partition, int]:
        return self.partition, self.offset


@dataclass(frozen=True)
class Staged:
    """Rows that executors have put into a staging table, under the ids of the attempts that succeeded."""

    name: str
    columns: tuple[str, ...]
    attempts: tuple[int, ...]
    rows: int


@dataclass(frozen=True)
class Changes:
    """What a batch does to one table: rows to put and keys to delete, with their hidden columns, or staged rows."""

    spec: TableSpec
    puts: pa.Table
    deletes: pa.Table
    staged: Staged | None = None

    def __len__(self) -> int:
        return int(self.puts.num_rows + self.deletes.num_rows) + (self.staged.rows if self.staged else 0)


def table_schema(spec: TableSpec, schema: pa.Schema) -> pa.Schema:
    """The columns of the table that takes rows of this schema."""
    if not spec.provenance:
        return schema
    for name in PROVENANCE:
        if name in schema.names:
            raise BadInput(f"table {spec.name}: its function returns {name}, which provenance=True adds; rename it")
    return pa.schema([*schema, *(pa.field(name, kind) for name, kind in PROVENANCE.items())])


def finish(spec: TableSpec, rows: pa.Table, batch: str) -> Changes:
    """The rows as they will be written: one for each key, and in the order of the keys."""
    if spec.provenance:
        rows = _with_provenance(spec, rows, batch)
    if spec.write != "append":
        rows = _one_per_key(spec, rows)
    if DELETED not in rows.column_names:
        return Changes(spec, rows, rows.slice(0, 0))
    going = pc.fill_null(rows[DELETED], False)
    return Changes(spec, rows.filter(pc.invert(going)), rows.filter(going))


def visible(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([name for name in HIDDEN if name in rows.column_names])


def has_origin(rows: pa.Table) -> bool:
    return set(ORIGIN) <= set(rows.column_names)


def origin(rows: pa.Table, at: int) -> tuple[Partition, int]:
    """The record that a row came from."""
    topic, number, offset = (rows[name][at].as_py() for name in (TOPIC, PARTITION, OFFSET))
    return Partition(topic, number), offset


def without(rows: pa.Table, records: Collection[tuple[Partition, int]]) -> pa.Table:
    """The rows of all other records."""
    if not records or not has_origin(rows):
        return rows
    keep = pa.scalar(True)
    for partition in {partition for partition, _ in records}:
        offsets = pa.array([offset for other, offset in records if other == partition], pa.int64())
        here = pc.and_(pc.equal(rows[TOPIC], partition.topic), pc.equal(rows[PARTITION], partition.number))
        keep = pc.and_(keep, pc.invert(pc.and_(here, pc.is_in(rows[OFFSET], value_set=offsets))))
    return rows.filter(keep)


def null_keys(spec: TableSpec, rows: pa.Table) -> list[Refusal]:
    """The records whose row has no key, and can't be told from others."""
    found = []
    for name in spec.key:
        missing = rows.filter(no_key(rows[name]))
        if missing.num_rows and not has_origin(rows):
            raise BadInput(
                f"table {spec.name}: {missing.num_rows} rows have no {name}, which is their key; "
                "filter them out in the table's function"
            )
        empty = "NULL or NaN" if pa.types.is_floating(rows[name].type) else "NULL"
        error = (
            f"key column {name} is {empty}; filter such records out, or set delete='tombstone' if they are tombstones"
        )
        found += [Refusal(*origin(missing, at), spec.name, error) for at in range(missing.num_rows)]
    return found


def no_key(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which values of a key column tell no row from others: NULL, and NaN, which equals itself in some databases."""
    return pc.is_null(column, nan_is_null=True)


def _with_provenance(spec: TableSpec, rows: pa.Table, batch: str) -> pa.Table:
    if not rows.num_rows:
        return table_schema(spec, rows.schema).empty_table()
    if not has_origin(rows):
        raise BadInput(
            f"table {spec.name}: provenance=True needs a function that makes each row of a single record, "
            "and this one merges records; leave it out"
        )
    columns = [rows[TOPIC], rows[PARTITION], rows[OFFSET], pa.repeat(batch, rows.num_rows)]
    for (name, kind), column in zip(PROVENANCE.items(), columns, strict=True):
        rows = rows.append_column(pa.field(name, kind), column.cast(kind))
    return rows


def _one_per_key(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """Of each key the newest row, or the oldest where the first one in stays; sorted by key."""
    if not has_origin(rows):
        ordered = rows.sort_by([(name, "ascending") for name in spec.key])
        if _last_of_each(ordered, spec.key).num_rows != rows.num_rows:
            raise BadInput(
                f"table {spec.name}: several rows have the same {', '.join(spec.key)} and its function hides which "
                "record is newer; aggregate to one row per key"
            )
        return ordered
    newest = "descending" if spec.write == "ignore" else "ascending"
    version = []
    if spec.version:
        # A row without a version is older than one with a version.
        rows = rows.append_column(VERSIONED, pc.is_valid(rows[spec.version]))
        version = [(VERSIONED, "ascending"), (spec.version, "ascending")]
    in_partition = [*spec.key, TOPIC, PARTITION]
    rows = _last_of_each(_sorted(rows, in_partition, [*version, (OFFSET, newest)]), in_partition)
    rows = _last_of_each(_sorted(rows, spec.key, [*version, (TIMESTAMP, newest), (OFFSET, newest)]), spec.key)
    return rows.drop_columns([VERSIONED]) if spec.version else rows


def _sorted(rows: pa.Table, by: Sequence[str], then: Sequence[tuple[str, str]]) -> pa.Table:
    return rows.sort_by([*((name, "ascending") for name in by), *then])


def _last_of_each(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Of rows sorted by these columns, the last of each run of equal ones."""
    if rows.num_rows < 2:
        return rows
    changes = pa.array([False] * (rows.num_rows - 1))
    for name in columns:
        column = rows[name].combine_chunks()
        changes = pc.or_(changes, pc.not_equal(column[1:], column[:-1]))
    return rows.filter(pa.concat_arrays([changes, pa.array([True])]))
