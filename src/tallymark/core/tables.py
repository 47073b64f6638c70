"""Table specifications, their rows, and the rows that no store can write.

A row that comes from a single record carries its origin in hidden columns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from tallymark.core import merging
from tallymark.core.merging import MergeFunction
from tallymark.core.spans import Partition
from tallymark.errors import BadInput, DataRefused

Write = Literal["append", "upsert", "ignore", "merge"]
Evolve = bool | Literal["follow"]
"""Whether columns that a table lacks are added to it: when a run starts, or also when schemas change meanwhile."""

TOPIC, PARTITION, OFFSET, TIMESTAMP, DELETED = (
    "_tallymark_topic",
    "_tallymark_partition",
    "_tallymark_offset",
    "_tallymark_timestamp",
    "_tallymark_deleted",
)
ORIGIN = (TOPIC, PARTITION, OFFSET)
"""Hidden columns that identify the record of a row."""
HIDDEN = (*ORIGIN, TIMESTAMP, DELETED)
"""Columns that are never written to a table. Rows with a key have TIMESTAMP; DELETED marks a deletion of the key."""
PROVENANCE = {
    "tallymark_topic": pa.string(),
    "tallymark_partition": pa.int32(),
    "tallymark_offset": pa.int64(),
    "tallymark_batch": pa.string(),
}
"""The columns that ``provenance=True`` adds to a table."""
TOMBSTONE = "value IS NULL"
PLACE = re.compile(r"\{(\w*)\}")
"""A part of a table's name that comes from the topic: ``{topic}``, or a group of ``topics=``."""
NAMELESS = "filter such records out, or set delete='tombstone' if they are tombstones"
ROWLESS = (
    "the event names no row: if it is a TRUNCATE, empty the table and discard the letter, or have the connector leave "
    "such events out (skipped.operations=t); if it is a deletion without the old row, decode the records' keys (key=)"
)
"""What can be done about rows without a key."""


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
    evolve: Evolve = False
    per_batch: bool = False
    """Rows may be merged from several records of a batch. Rows of a later batch replace them and are not added up."""
    merge: tuple[tuple[str, MergeFunction], ...] = ()
    """How each column is combined with that of the row that has the key, for ``write="merge"``."""
    inexact: bool = False
    """Merge also with a delivery that adds a batch twice or leaves it out after a crash."""
    topics: str | None = None
    """The topic, or the pattern of topics, whose records the table gets; all without it."""
    is_replica: bool = False
    """Rows are those of change events (``core/replica.py``)."""
    kept: tuple[str, ...] = ()
    """Columns of an upsert whose stored value stays. A new row gets the value that is given."""

    def __post_init__(self) -> None:
        if not self.name:
            raise BadInput("a table needs a name, such as @pipeline.table('orders')")
        for complaint in self._complaints():
            raise BadInput(f"table {self.name}: {complaint}")

    def _complaints(self) -> list[str]:
        modes, upsert, merges = get_args(Write), self.write == "upsert", self.write == "merge"
        rules = {
            f"write={self.write!r} is not known; write {', '.join(modes)}": self.write not in modes,
            f"{self.write} needs key=, the column or columns that identify a row": self.write != "append"
            and not (self.key or self.is_replica),
            "append takes no key=; use write='upsert' to overwrite rows by key": self.write == "append" and self.key,
            "version= needs write='upsert' or 'merge': it says which of two rows is newer": self.version
            and not (upsert or merges),
            "version= can't be part of the key": self.version in self.key,
            "delete= needs write='upsert': rows are deleted by their key": self.delete is not None and not upsert,
            "delete= needs 'tombstone' or a condition on the record, such as \"value.op = 'd'\"": self.delete == "",
            "per_batch= needs write='upsert' or 'ignore': other rows replace nothing": self.per_batch
            and self.write in ("append", "merge"),
            f"evolve={self.evolve!r} is not known; write True, False or 'follow'": self.evolve
            not in (True, False, "follow"),
            "evolve='follow' adds columns, and merge= names all of them; leave it out": self.follows and merges,
            "merge= needs write='merge'": self.merge and not merges,
            "merge needs merge=, which says how each column is combined, such as merge={'n': 'sum'}": merges
            and not self.merge,
            "inexact=True needs write='merge': it allows totals that a crash makes wrong": self.inexact and not merges,
            "provenance= can't be kept by merge: a row comes from many records": self.provenance and merges,
            "names that start with tallymark_ are reserved; choose another": self.name.lower().startswith("tallymark_"),
        }
        found = [complaint for complaint, broken in rules.items() if broken]
        found += _complaints_of_topics(self.name, self.topics)
        return found or list(merging.complaints(dict(self.merge), self.key, self.version) if merges else ())

    @property
    def follows(self) -> bool:
        """Whether columns are added when the schema of the records gets fields while a run reads them."""
        return self.evolve == "follow"

    @property
    def functions(self) -> dict[str, merging.Name]:
        """The name of the merge function of each column that is not in the key."""
        return merging.merge_functions(dict(self.merge), self.version)

    @property
    def bounds(self) -> dict[str, int]:
        """How many elements stay in each column that is merged by ``append``."""
        return merging.bounds(dict(self.merge))

    @property
    def deletes(self) -> str | None:
        """The SQL condition on a record that deletes the row of its key."""
        return TOMBSTONE if self.delete == "tombstone" else self.delete

    @property
    def remembers(self) -> bool:
        """Whether the store remembers deletions, so that a late, older record does not bring a row back."""
        return self.version is not None and self.deletes is not None


def _complaints_of_topics(name: str, topics: str | None) -> list[str]:
    try:
        pattern = re.compile(topics if topics and topics.startswith("^") else "")
    except re.error as error:
        return [f"topics={topics!r} is not a regular expression: {error}"]
    known = {"topic", *map(str, range(1, pattern.groups + 1)), *pattern.groupindex}
    return [
        f"{{{place}}} in its name is not known; write {{topic}}, or {{1}} for the first group of topics='^shop-(.*)$'"
        for place in PLACE.findall(name)
        if place not in known
    ]


@dataclass(frozen=True, order=True)
class WrittenTable:
    """A table that a group writes to. ``store`` is set if the ledger is in another database than the table."""

    name: str
    write: Write
    store: str | None = None


@dataclass(frozen=True)
class Refusal:
    """A record that was decoded, but refused by a table or by its function, with the error."""

    partition: Partition
    offset: int
    table: str
    error: str

    @property
    def record(self) -> tuple[Partition, int]:
        return self.partition, self.offset


@dataclass(frozen=True)
class Staged:
    """Rows that executors wrote to a staging table, under the ids of the successful attempts."""

    name: str
    columns: tuple[str, ...]
    attempts: tuple[int, ...]
    rows: int


@dataclass(frozen=True)
class Changes:
    """The changes of a batch to one table: rows to put and keys to delete, with hidden columns, or staged rows."""

    spec: TableSpec
    puts: pa.Table
    deletes: pa.Table
    staged: Staged | None = None

    def __len__(self) -> int:
        return int(self.puts.num_rows + self.deletes.num_rows) + (self.staged.rows if self.staged else 0)


def table_schema(spec: TableSpec, schema: pa.Schema) -> pa.Schema:
    """Return the columns of the table for rows of this schema."""
    if not spec.provenance:
        return schema
    for name in PROVENANCE:
        if name in schema.names:
            raise BadInput(f"table {spec.name}: its function returns {name}, which provenance=True adds; rename it")
    more = [pa.field(name, kind) for name, kind in PROVENANCE.items()]
    return pa.schema([*schema, *more], metadata=schema.metadata)


def check_merge(spec: TableSpec, schema: pa.Schema) -> None:
    """Refuse rows of a schema that can't be merged as the table says."""
    if spec.write == "merge" and (why := merging.unfit(spec.functions, schema, spec.key)):
        raise BadInput(f"table {spec.name}: {why}")


def check_exact(spec: TableSpec, delivery: str) -> None:
    """Refuse totals that a crash would make wrong."""
    if spec.write == "merge" and delivery != "exactly-once" and not spec.inexact:
        raise BadInput(
            f"table {spec.name}: with delivery={delivery!r} a crash repeats or loses a batch, and write='merge' would "
            "make wrong totals of it; set delivery='exactly-once', or inexact=True if the totals need not be exact"
        )


def check_unmerged(spec: TableSpec, why: str = "its function merges records") -> None:
    """Refuse rows with a key that are merged from several records: one batch does not know the total of a key."""
    if spec.write == "append" or spec.per_batch:
        return
    if spec.write == "merge":
        _check_order(spec, why)
        return
    does = "replace the row of an earlier batch" if spec.write == "upsert" else "keep only the row of the first batch"
    raise BadInput(
        f"table {spec.name}: {why}, and write={spec.write!r} would {does} instead of adding to it; "
        "set write='merge' to combine it with the stored row, append the partial results of each batch and sum them in "
        "a view, aggregate in a streaming query with tm.Sink, or set per_batch=True if no key occurs in a later batch"
    )


def _check_order(spec: TableSpec, why: str) -> None:
    """Refuse merge functions that need the order of records, if the rows do not tell it."""
    ordered = [name for name, function in spec.functions.items() if function in merging.BY_VERSION]
    if ordered and spec.version is None:
        raise BadInput(
            f"table {spec.name}: {why}, so that nothing tells which {ordered[0]} is the {spec.functions[ordered[0]]}; "
            "set version= to a column that does, such as a time"
        )
    for name in spec.bounds:
        raise BadInput(
            f"table {spec.name}: {why}, so that nothing tells the order of the elements of {name}; "
            "return a row for each record, with the array of its elements"
        )


def visible(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([name for name in HIDDEN if name in rows.column_names])


def has_origin(rows: pa.Table) -> bool:
    return set(ORIGIN) <= set(rows.column_names)


def origin(rows: pa.Table, at: int) -> tuple[Partition, int]:
    """Return the record of a row."""
    topic, number, offset = (rows[name][at].as_py() for name in (TOPIC, PARTITION, OFFSET))
    return Partition(topic, number), offset


def refusal(spec: TableSpec, rows: pa.Table, at: int, error: str) -> Refusal:
    """Return the refusal of the record of a row. Raises if the row is merged from several records."""
    if not has_origin(rows):
        raise DataRefused(
            f"table {spec.name} refused a row: {error}; its function merges records, so that no single record can be "
            "left out: correct the function"
        )
    return Refusal(*origin(rows, at), spec.name, error)


def without(rows: pa.Table, records: Collection[tuple[Partition, int]]) -> pa.Table:
    """Return the rows that come from none of these records."""
    if not records or not has_origin(rows):
        return rows
    keep = pa.scalar(True)
    for partition in {partition for partition, _ in records}:
        offsets = pa.array([offset for other, offset in records if other == partition], pa.int64())
        here = pc.and_(pc.equal(rows[TOPIC], partition.topic), pc.equal(rows[PARTITION], partition.number))
        keep = pc.and_(keep, pc.invert(pc.and_(here, pc.is_in(rows[OFFSET], value_set=offsets))))
    return rows.filter(keep)


def unusable_rows(spec: TableSpec, rows: pa.Table) -> list[Refusal]:
    """Return the records whose rows no store can write: without a key, or with a value that can't be merged."""
    refusals = []
    for name in spec.key:
        missing = rows.filter(no_key(rows[name]))
        if missing.num_rows and not has_origin(rows):
            raise BadInput(
                f"table {spec.name}: {missing.num_rows} rows have no value in key column {name}; "
                "filter them out in the table's function"
            )
        empty = "NULL or NaN" if pa.types.is_floating(rows[name].type) else "NULL"
        error = f"key column {name} is {empty}; {ROWLESS if spec.is_replica else NAMELESS}"
        refusals += [Refusal(*origin(missing, at), spec.name, error) for at in range(missing.num_rows)]
    return [*refusals, *_unmergeable(spec, rows)]


def _unmergeable(spec: TableSpec, rows: pa.Table) -> Iterator[Refusal]:
    """Yield the records with values that can't be merged. With NaN, a total would never be a number again."""
    for marks, error in merging.wrong_values(spec.functions, rows) if spec.write == "merge" else ():
        wrong = rows.filter(marks)
        yield from (refusal(spec, wrong, at, error) for at in range(wrong.num_rows))


def no_key(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Mark the values of a key column that identify no row: NULL, and NaN, which equals itself in some databases."""
    return pc.is_null(column, nan_is_null=True)
