"""The keys of a table: which records of each must have a row, and which must not. Pure, and in bulk with Arrow.

Rows are known by their records alone. So of a record that makes rows of several keys it is known how many are there,
and not which: it is wrong where no choice of them explains the number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallymark.audit.scope import Difference, Scope, in_spans
from tallymark.shape import TableSpec
from tallymark.spans import Partition, Span

HERE = ["key", "topic", "partition"]
RECORD = ["topic", "partition", "offset"]
KEYS = pa.schema(
    [
        *(("key", pa.int64()), ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())),
        *(("there", pa.int64()), ("keys", pa.int64())),
        *(("deleted", pa.bool_()), ("final", pa.bool_()), ("stands", pa.bool_()), ("alone", pa.bool_())),
    ]
)
"""A key of a record, which puts so many ``keys``, and of which so many rows are ``there``.

``final``: it deletes the row of the key, whatever version that has. ``stands``: a row of the record is there, or it has
deleted the row of the key. ``alone``: no other has the key.
"""
FOR_EVER = 2**63 - 1
"""An offset behind all others, so that it is never passed over for a later one."""


@dataclass
class Keys:
    """Of each key the records that matter in the end."""

    spec: TableSpec
    _kept: pa.Table = field(default_factory=KEYS.empty_table)
    _passed: pa.Table = field(default_factory=KEYS.empty_table)
    """What has rows, though its key has a later record in the partition, or where versions decide, a final one."""
    _versions: Versions = field(default_factory=lambda: Versions())

    @property
    def ordered(self) -> bool:
        """Whether the last record of a key in its partition decides."""
        return self.spec.write == "upsert" and self.spec.version is None

    def keep(self, scope: Scope, made: pa.Table, there: pa.Table) -> None:
        """Of each key and partition the last record; where order is no rule, one that stands."""
        new = _keyed(scope.partition, made, there)
        # What was filled in or replayed came after its successors, and may have overwritten or deleted them.
        later = pc.and_(new["stands"], pc.greater(in_spans(new["offset"], _late(scope)), 0))
        late = _with(new.filter(later), offset=FOR_EVER, deleted=False, final=False, alone=False)
        if not self.ordered:
            if self.spec.version:
                self._versions.keep(new, made)
            new = pa.concat_tables([new.filter(pc.invert(later)), late]) if self.spec.delete else new
            self._keep_any(pa.concat_tables([self._kept, new]))
            return
        rows, _, ends = _runs(pa.concat_tables([self._kept, new, late]), HERE, "offset")
        self._kept = rows.filter(ends)
        passed = rows.filter(pc.invert(pc.or_(ends, rows["deleted"])))
        self._passed = pa.concat_tables([self._passed, passed.filter(pc.greater(passed["there"], 0))])

    def _keep_any(self, rows: pa.Table) -> None:
        """Of each key and partition one that stands since the last final deletion, which leaves no earlier row."""
        rows, starts, ends = _runs(rows, HERE, "offset")
        if not rows.num_rows:
            return
        first, is_last = (edges.to_numpy(zero_copy_only=False) for edges in (starts, ends))
        numbers = np.arange(rows.num_rows)
        deletions = np.maximum.reduceat(np.where(rows["final"].to_numpy(), numbers, -1), np.flatnonzero(first))
        deletion = deletions[np.cumsum(first) - 1]
        before = rows.filter(pa.array(numbers < deletion))
        self._passed = pa.concat_tables([self._passed, before.filter(pc.greater(before["there"], 0))])
        # The deletion itself has nothing more to say where something came after it.
        since = (numbers > deletion) | ((numbers == deletion) & is_last)
        rows, starts, ends = _runs(rows.filter(pa.array(since)), HERE, "stands")
        alone = pc.and_(rows["alone"], pc.and_(starts, ends))
        self._kept = _with(rows, alone=alone).filter(ends)

    def missing(self) -> Iterator[Difference]:
        """Records without a row where neither they nor one that supersedes them stands, or with too few rows."""
        rows, starts, ends = _runs(self._kept, ["key"], "stands")
        lost = _by_record(rows.filter(pc.and_(ends, pc.invert(rows["stands"]))))
        yield from _differences(lost, "missing", None)
        alone = pc.and_(pc.and_(starts, ends), pc.and_(rows["alone"], pc.invert(rows["deleted"])))
        few = _by_record(rows.filter(alone))
        some = pc.and_(pc.greater(few["there"], 0), pc.less(few["there"], few["count"]))
        yield from _differences(few.filter(some), "missing", few.filter(some)["count"])
        yield from self._versions.missing()

    def foreign(self) -> Iterator[Difference]:
        """Records with more rows than they have keys that were not deleted after them."""
        passed = self._passed
        if self.ordered:
            gone = self._kept.filter(self._kept["deleted"]).select(HERE)
            passed = passed.join(gone, HERE, join_type="left semi")
        many = _by_record(passed)
        left = pc.subtract(many["keys"], many["count"])
        some = pc.and_(pc.greater(many["there"], left), pc.less_equal(many["there"], many["keys"]))
        yield from _differences(many.filter(some), "foreign", left.filter(some))


@dataclass
class Versions:
    """Of each key the record with the highest version, and which are there; where nothing is deleted, it is that one.

    A deletion leaves no version behind, so that any may follow it.
    """

    _highest: pa.Table | None = None
    _there: pa.Table | None = None
    _deleted: pa.Table | None = None

    def keep(self, new: pa.Table, made: pa.Table) -> None:
        rows = new.join(made.select(["offset", "key", "version"]), ["offset", "key"], join_type="inner")
        puts = rows.filter(pc.invert(rows["deleted"]))
        self._deleted = _joined(self._deleted, rows.filter(rows["deleted"]).select(["key"]))
        # Of a record with rows of several keys it is not known which of them are there.
        known = pc.and_(pc.greater(puts["there"], 0), pc.equal(puts["keys"], 1))
        self._there = _joined(self._there, puts.filter(known).select(["key", "version"]))
        highest, _, ends = _runs(_joined(self._highest, puts.filter(pc.is_valid(puts["version"]))), ["key"], "version")
        self._highest = highest.filter(ends)

    def missing(self) -> Iterator[Difference]:
        """Records with the highest version of a key, where a row of a lower one is there instead."""
        if self._highest is None or self._there is None or self._deleted is None:
            return
        there = self._there.rename_columns(["key", "version_there"])
        rows = self._highest.join(self._deleted, "key", join_type="left anti").join(there, "key", join_type="inner")
        lower = pc.fill_null(pc.less(rows["version_there"], rows["version"]), True)
        yield from _differences(_by_record(rows.filter(lower)), "missing", None)


def _joined(before: pa.Table | None, rows: pa.Table) -> pa.Table:
    return rows if before is None else pa.concat_tables([before, rows])


def _late(scope: Scope) -> list[Span]:
    return [*scope.account.fills, *scope.account.replays]


def _keyed(partition: Partition, made: pa.Table, there: pa.Table) -> pa.Table:
    made = _with(made, deleted=pc.fill_null(made["deleted"], False))
    keys = made.filter(pc.invert(made["deleted"])).group_by("offset").aggregate([("key", "count")])
    rows = made.join(there, "offset", join_type="left outer").join(keys, "offset", join_type="left outer")
    found = pc.fill_null(rows["there"], 0)
    return pa.table(
        [
            rows["key"],
            pa.repeat(partition.topic, rows.num_rows),
            pa.repeat(pa.scalar(partition.number, pa.int32()), rows.num_rows),
            rows["offset"],
            found,
            pc.fill_null(rows["key_count"], 0),
            rows["deleted"],
            pc.fill_null(rows["final"], False),
            pc.or_(pc.greater(found, 0), rows["deleted"]),
            pa.repeat(True, rows.num_rows),
        ],
        schema=KEYS,
    )


def _by_record(rows: pa.Table) -> pa.Table:
    """Each record once: how many of its keys are among these (``count``), and what else is known of it."""
    found = rows.group_by(RECORD).aggregate([("key", "count"), ("there", "max"), ("keys", "max")])
    return found.rename_columns({"key_count": "count", "there_max": "there", "keys_max": "keys"}).sort_by(
        [(name, "ascending") for name in RECORD]
    )


def _differences(records: pa.Table, kind: str, wanted: Any) -> Iterator[Difference]:
    numbers = [None] * records.num_rows if wanted is None else wanted.to_pylist()
    for row, number in zip(records.to_pylist(), numbers, strict=True):
        yield Difference(Partition(row["topic"], row["partition"]), row["offset"], kind, row["there"], number)


def _runs(rows: pa.Table, columns: Sequence[str], then: str) -> tuple[pa.Table, pa.Array, pa.Array]:
    """The rows in the order of these columns, and which is the first and which the last of each run of equal ones."""
    rows = rows.sort_by([(name, "ascending") for name in [*columns, then]]).combine_chunks()
    changes = pa.repeat(False, max(0, rows.num_rows - 1))
    for name in columns:
        column = rows[name].combine_chunks()
        changes = pc.or_(changes, pc.not_equal(column[1:], column[:-1]))
    edge = pa.repeat(True, min(1, rows.num_rows))
    return rows, pa.concat_arrays([edge, changes]), pa.concat_arrays([changes, edge])


def _with(rows: pa.Table, **columns: Any) -> pa.Table:
    """The same rows with these columns, or with the same value in all of the column."""
    for name, value in columns.items():
        at = rows.schema.get_field_index(name)
        kind = rows.schema.field(at).type
        column = pa.repeat(pa.scalar(value, kind), rows.num_rows) if isinstance(value, bool | int) else value
        rows = rows.set_column(at, rows.schema.field(at), column)
    return rows
