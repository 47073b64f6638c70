"""The tables a pipeline fills, and the last step before they are written: of several rows for a key, the newest.

Rows carry where they came from in hidden columns, wherever a row comes from a single record. README, "Which record of a
key is the newest", has the rule; ``spark/stage.py`` applies the same one on the executors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
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
NO_TIME = -(2**63)
"""Where there is no timestamp: older than all others."""


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
    per_batch: bool = False
    """Rows may be merged from the records of a batch: those of a later batch replace them, and add nothing up."""

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
            "per_batch= needs write='upsert' or 'ignore': rows that are appended replace nothing": self.per_batch
            and self.write == "append",
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


def check_unmerged(spec: TableSpec, why: str = "its function merges records") -> None:
    """Refuse rows of several records where they have a key: a batch alone does not know what they add up to."""
    if spec.write == "append" or spec.per_batch:
        return
    does = "replace what earlier batches have made of a key" if spec.write == "upsert" else "keep the first batch alone"
    raise BadInput(
        f"table {spec.name}: {why}, and write={spec.write!r} would {does}, not add to it; "
        "append the partial results of each batch and add them up in a view, count in a handler (SET n = n + :n), "
        "aggregate in a streaming query with tm.Sink, or set per_batch=True if no key returns in a later batch"
    )


def finish(spec: TableSpec, rows: pa.Table, batch: str) -> Changes:
    """The rows as they will be written: one for each key, and in the order of the keys.

    A key may be among the deletions, too, if its row is newer than one that deletes: that goes first, and the row is
    written anew, as it would be if they came in two batches.
    """
    if spec.provenance:
        rows = _with_provenance(spec, rows, batch)
    deleted = rows.slice(0, 0)
    if spec.write != "append":
        rows = _oldest_first(spec, rows)
        if has_origin(rows) and DELETED in rows.column_names:
            rows, deleted = _after_deletions(spec, rows)
        rows = _newest(spec, rows)
    if DELETED not in rows.column_names:
        return Changes(spec, rows, deleted)
    going = pc.fill_null(rows[DELETED], False)
    deleted = pa.concat_tables([deleted, rows.filter(going)])
    return Changes(spec, rows.filter(pc.invert(going)), _sorted(deleted, spec.key) if spec.key else deleted)


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


def _oldest_first(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """The rows sorted by key, and those of a key from the oldest record to the newest."""
    if not has_origin(rows):
        return _sorted(rows, spec.key)
    place = [*spec.key, TOPIC, PARTITION]
    rows = _sorted(rows, [*place, OFFSET])
    if not _starts(rows, [*place, OFFSET]).all():
        # One record has made several rows of a key: their columns decide.
        rows = _sorted(rows, [*place, OFFSET, *(name for name in rows.column_names if name not in HIDDEN)])
    starts = _starts(rows, place)
    if starts.sum() == _starts(rows, spec.key).sum():
        return rows
    return _sorted(rows, spec.key, _ages(rows[TIMESTAMP], starts), rows[TOPIC], rows[PARTITION])


def _ages(times: pa.ChunkedArray, starts: npt.NDArray[np.bool_]) -> pa.Array:
    """How new each row is by its timestamp, or by the latest before it in its run, as numbers that can be compared."""
    _, ranks = np.unique(pc.fill_null(times.cast(pa.int64()), NO_TIME).to_numpy(), return_inverse=True)
    # So that each run is above the one before it, and its first row has nothing to look back to.
    floors = np.cumsum(starts) * len(ranks)
    return pa.array(np.maximum.accumulate(floors + ranks) - floors)


def _after_deletions(spec: TableSpec, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows that are newer than all deletions of their key, and of each key the newest of these deletions.

    A deletion with a version is none of them: it is compared as rows are.
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
    """Of each key the newest row, or the oldest where the first one in stays, of rows that are in their order."""
    if not has_origin(rows):
        if rows.num_rows:
            check_unmerged(spec)
        if not _starts(rows, spec.key).all():
            raise BadInput(
                f"table {spec.name}: several rows have the same {', '.join(spec.key)} and its function hides which "
                "record is newer; aggregate to one row per key"
            )
        return rows
    if spec.version:
        # A row without a version is older than one with a version.
        rows = _sorted(rows, spec.key, pc.is_valid(rows[spec.version]), rows[spec.version])
    starts = _starts(rows, spec.key)
    return rows.filter(pa.array(starts if spec.write == "ignore" else np.append(starts[1:], starts[:1])))


def _sorted(rows: pa.Table, names: Sequence[str], *then: pa.Array | pa.ChunkedArray) -> pa.Table:
    """The rows in the order of these columns, and of these values; NULL comes last. Equal ones keep their order."""
    columns = [*(rows[name] for name in names), *then]
    # By numbers: Arrow would take some names for a path.
    keys = pa.table(columns, names=[str(number) for number in range(len(columns))])
    return rows.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names]))


def _starts(rows: pa.Table, columns: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Of rows that are sorted by these columns, which is the first of a run of equal ones."""
    changes = np.zeros(max(0, rows.num_rows - 1), np.bool_)
    for name in columns if len(changes) else ():
        column = rows[name].combine_chunks()
        changes |= pc.fill_null(pc.not_equal(column[1:], column[:-1]), True).to_numpy(zero_copy_only=False)
    return np.append(np.ones(min(1, rows.num_rows), np.bool_), changes)
