"""Decides for each key of a table which records must have a row, and which must not. Pure, in bulk with Arrow.

Rows are identified only by their records. So if a record makes rows of several keys, the number of its rows in the
table is known, but not their keys: the record is wrong only if no choice of keys explains the number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallymark.core.spans import Partition, Span
from tallymark.core.tables import TableSpec
from tallymark.operate.audit.scope import Difference, Scope, in_spans

HERE = ["key", "topic", "partition"]
RECORD = ["topic", "partition", "offset"]
KEYS = pa.schema(
    [
        *(("key", pa.int64()), ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())),
        *(("there", pa.int64()), ("keys", pa.int64())),
        *(("deleted", pa.bool_()), ("final", pa.bool_()), ("present", pa.bool_()), ("alone", pa.bool_())),
    ]
)
"""A row for each key of a record. ``keys``: number of keys that the record puts. ``there``: number of its table rows.

``final``: the record deletes the row of the key, regardless of its version. ``present``: the table has a row of the
record, or the record deletes the row of the key. ``alone``: no other record has the key.
"""
FOR_EVER = 2**63 - 1
"""An offset after all others, so that no record supersedes it."""


@dataclass
class KeyedRows:
    """The records of each key that decide whether its row is right."""

    spec: TableSpec
    _kept: pa.Table = field(default_factory=KEYS.empty_table)
    _passed: pa.Table = field(default_factory=KEYS.empty_table)
    """Records with rows, although their key has a later record in the partition; if not ordered, a final deletion."""
    _versions: Versions = field(default_factory=lambda: Versions())

    @property
    def ordered(self) -> bool:
        """Whether the last record of a key in its partition decides."""
        return self.spec.write == "upsert" and self.spec.version is None

    def keep(self, scope: Scope, made: pa.Table, there: pa.Table) -> None:
        """Keep the last record of each key and partition, or if order does not decide, a record that is present."""
        new = _keyed(scope.partition, made, there)
        # Backfilled and replayed records were applied after later records, and may have overwritten or deleted them.
        later = pc.and_(new["present"], pc.greater(in_spans(new["offset"], _late(scope)), 0))
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
        """Keep for each key and partition a record that is present since the last final deletion.

        A final deletion leaves no row of an earlier record.
        """
        rows, starts, ends = _runs(rows, HERE, "offset")
        if not rows.num_rows:
            return
        first, is_last = (edges.to_numpy(zero_copy_only=False) for edges in (starts, ends))
        numbers = np.arange(rows.num_rows)
        deletions = np.maximum.reduceat(np.where(rows["final"].to_numpy(), numbers, -1), np.flatnonzero(first))
        deletion = deletions[np.cumsum(first) - 1]
        before = rows.filter(pa.array(numbers < deletion))
        self._passed = pa.concat_tables([self._passed, before.filter(pc.greater(before["there"], 0))])
        # The deletion itself matters only if no record follows it.
        since = (numbers > deletion) | ((numbers == deletion) & is_last)
        # A record with a row outranks a deletion: a final deletion that follows has to find it.
        rows, starts, ends = _runs(rows.filter(pa.array(since)), HERE, "present", "there")
        alone = pc.and_(rows["alone"], pc.and_(starts, ends))
        self._kept = _with(rows, alone=alone).filter(ends)

    def missing(self) -> Iterator[Difference]:
        """Yield records with too few rows, and records without a row for a key of which no record is present."""
        rows, starts, ends = _runs(self._kept, ["key"], "present")
        lost = _by_record(rows.filter(pc.and_(ends, pc.invert(rows["present"]))))
        yield from _differences(lost, "missing", None)
        alone = pc.and_(pc.and_(starts, ends), pc.and_(rows["alone"], pc.invert(rows["deleted"])))
        few = _by_record(rows.filter(alone))
        some = pc.and_(pc.greater(few["there"], 0), pc.less(few["there"], few["count"]))
        yield from _differences(few.filter(some), "missing", few.filter(some)["count"])
        yield from self._versions.missing()

    def foreign(self) -> Iterator[Difference]:
        """Yield records that have more rows than keys that were not deleted later."""
        passed = self._passed
        if self.ordered:
            gone = self._kept.filter(self._kept["deleted"]).select(HERE)
            passed = passed.join(gone, HERE, join_type="left semi")
        many = _by_record(passed)
        left = pc.subtract(many["keys"], many["count"])
        some = pc.and_(pc.greater(many["there"], left), pc.less_equal(many["there"], many["keys"]))
        yield from _differences(many.filter(some), "foreign", left.filter(some))
        yield from self._versions.foreign()


@dataclass
class Versions:
    """The highest version of the rows of each key, that of its deletions, and the versions in the table.

    A deletion without a version leaves nothing behind, so that any version may follow it: its key is left out.
    """

    _put: pa.Table | None = None
    _deleted: pa.Table | None = None
    _final: pa.Table | None = None
    _there: pa.Table | None = None

    def keep(self, new: pa.Table, made: pa.Table) -> None:
        rows = new.join(made.select(["offset", "key", "version"]), ["offset", "key"], join_type="inner")
        puts, deletions = rows.filter(pc.invert(rows["deleted"])), rows.filter(rows["deleted"])
        self._put, self._deleted = _highest(self._put, puts), _highest(self._deleted, deletions)
        self._final = _joined(self._final, deletions.filter(deletions["final"]).select(["key"]))
        # If a record has rows of several keys, it is unknown which of them are in the table.
        known = pc.and_(pc.greater(puts["there"], 0), pc.equal(puts["keys"], 1))
        self._there = _joined(self._there, puts.filter(known))

    def missing(self) -> Iterator[Difference]:
        """Yield records with the highest version of a key if the table has a lower version."""
        if self._put is None or self._there is None:
            return
        rows = self._without_final(self._put)
        if self._deleted is not None:
            rows = rows.join(_named(self._deleted, "version_deleted"), "key", join_type="left outer")
            rows = rows.filter(pc.invert(pc.fill_null(pc.less_equal(rows["version"], rows["version_deleted"]), False)))
        rows = rows.join(_named(self._there, "version_there"), "key", join_type="inner")
        yield from _differences(
            _by_record(rows.filter(_lower(rows["version_there"], rows["version"]))), "missing", None
        )

    def foreign(self) -> Iterator[Difference]:
        """Yield records with a row in the table although their key was deleted with a higher version."""
        if self._deleted is None or self._there is None:
            return
        deleted = _named(self._deleted, "version_deleted")
        rows = self._without_final(self._there).join(deleted, "key", join_type="inner")
        back = _by_record(rows.filter(_lower(rows["version"], rows["version_deleted"])))
        yield from _differences(back, "foreign", pa.array([0] * back.num_rows))

    def _without_final(self, rows: pa.Table) -> pa.Table:
        return rows if self._final is None else rows.join(self._final, "key", join_type="left anti")


def _highest(before: pa.Table | None, rows: pa.Table) -> pa.Table:
    """Return the row with the highest version of each key that has one."""
    rows, _, ends = _runs(_joined(before, rows.filter(pc.is_valid(rows["version"]))), ["key"], "version")
    return rows.filter(ends)


def _named(rows: pa.Table, version: str) -> pa.Table:
    return rows.select(["key", "version"]).rename_columns(["key", version])


def _lower(version: pa.ChunkedArray, than: pa.ChunkedArray) -> pa.ChunkedArray:
    """Mark the versions that are lower; a row without a version is older than any other."""
    return pc.fill_null(pc.less(version, than), True)


def _joined(before: pa.Table | None, rows: pa.Table) -> pa.Table:
    return rows if before is None else pa.concat_tables([before, rows])


def _late(scope: Scope) -> list[Span]:
    return [*scope.account.fills, *scope.account.replays]


def _keyed(partition: Partition, made: pa.Table, there: pa.Table) -> pa.Table:
    made = _with(made, deleted=pc.fill_null(made["deleted"], False))
    keys = made.filter(pc.invert(made["deleted"])).group_by("offset").aggregate([("key", "count")])
    rows = made.join(there, "offset", join_type="left outer").join(keys, "offset", join_type="left outer")
    held = pc.fill_null(rows["there"], 0)
    return pa.table(
        [
            rows["key"],
            pa.repeat(partition.topic, rows.num_rows),
            pa.repeat(pa.scalar(partition.number, pa.int32()), rows.num_rows),
            rows["offset"],
            held,
            pc.fill_null(rows["key_count"], 0),
            rows["deleted"],
            pc.fill_null(rows["final"], False),
            pc.or_(pc.greater(held, 0), rows["deleted"]),
            pa.repeat(True, rows.num_rows),
        ],
        schema=KEYS,
    )


def _by_record(rows: pa.Table) -> pa.Table:
    """Group by record. ``count`` is the number of the record's keys among these rows."""
    counted = rows.group_by(RECORD).aggregate([("key", "count"), ("there", "max"), ("keys", "max")])
    return counted.rename_columns({"key_count": "count", "there_max": "there", "keys_max": "keys"}).sort_by(
        [(name, "ascending") for name in RECORD]
    )


def _differences(records: pa.Table, kind: str, wanted: Any) -> Iterator[Difference]:
    numbers = [None] * records.num_rows if wanted is None else wanted.to_pylist()
    for row, number in zip(records.to_pylist(), numbers, strict=True):
        yield Difference(Partition(row["topic"], row["partition"]), row["offset"], kind, row["there"], number)


def _runs(rows: pa.Table, columns: Sequence[str], *then: str) -> tuple[pa.Table, pa.Array, pa.Array]:
    """Sort by these columns, and return masks of the first and the last row of each run of equal values."""
    rows = rows.sort_by([(name, "ascending") for name in [*columns, *then]]).combine_chunks()
    changes = pa.repeat(False, max(0, rows.num_rows - 1))
    for name in columns:
        column = rows[name].combine_chunks()
        changes = pc.or_(changes, pc.not_equal(column[1:], column[:-1]))
    edge = pa.repeat(True, min(1, rows.num_rows))
    return rows, pa.concat_arrays([edge, changes]), pa.concat_arrays([changes, edge])


def _with(rows: pa.Table, **columns: Any) -> pa.Table:
    """Replace columns by arrays or by constants."""
    for name, value in columns.items():
        at = rows.schema.get_field_index(name)
        kind = rows.schema.field(at).type
        column = pa.repeat(pa.scalar(value, kind), rows.num_rows) if isinstance(value, bool | int) else value
        rows = rows.set_column(at, rows.schema.field(at), column)
    return rows
