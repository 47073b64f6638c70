"""Finds the records of a batch that give no row to any table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import pyarrow as pa

from tallymark.core import raw
from tallymark.core.records import Reading
from tallymark.core.tables import OFFSET, ORIGIN, PARTITION, TOPIC, Refusal, has_origin

Unmatched = Literal["applied", "dead"]
"""What a record is that gives no row to any table."""
NO_ROW = "no table has a row of this record: its functions left it out"
COORDINATES = pa.schema([raw.SCHEMA.field(name) for name in ("topic", "partition", "offset")])
AT = "at"


def unmatched(records: pa.Table, rows: Iterable[pa.Table], refusals: Sequence[Refusal]) -> list[int]:
    """Return which of these records are neither in a row of a table nor refused."""
    numbered = records.select(COORDINATES.names).append_column(AT, pa.arange(0, records.num_rows))
    found = numbered.join(_matched(rows, refusals), COORDINATES.names, join_type="left anti")
    return sorted(found[AT].to_pylist())


def count_unmatched(reading: Reading) -> int | None:
    """Count the decoded records that are neither in a row of a table nor refused; None if rows do not tell."""
    if not all(map(has_origin, reading.rows.values())):
        return None
    decoded = sum(counts.records - counts.dead for counts in reading.seen.values())
    return decoded - int(_matched(reading.rows.values(), reading.refusals).num_rows)


def _matched(rows: Iterable[pa.Table], refusals: Sequence[Refusal]) -> pa.Table:
    """The coordinates of the records that have a row or are refused, each once."""
    refused = [
        {TOPIC: refusal.partition.topic, PARTITION: refusal.partition.number, OFFSET: refusal.offset}
        for refusal in refusals
    ]
    hidden = pa.schema([field.with_name(name) for field, name in zip(COORDINATES, ORIGIN, strict=True)])
    tables = [pa.Table.from_pylist(refused, hidden), *(table.select(ORIGIN).cast(hidden) for table in rows)]
    return pa.concat_tables(tables).rename_columns(COORDINATES.names).group_by(COORDINATES.names).aggregate([])
