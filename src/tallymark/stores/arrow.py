"""What stores of every kind need to know about Arrow columns: which hold JSON, and which times are out of range."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

JSON_MARK = b"tallymark:json"
"""Field metadata of a string column that holds JSON: an array, struct or map on the Spark side."""
SCHEMAS_MARK = b"tallymark:schemas"
"""Metadata of rows' columns: the subjects and versions of the schemas that the records are read with."""
FIRST_SECOND, END_SECOND = -62_135_596_800, 253_402_300_800
"""Bounds of the years 1 to 9999, in seconds since 1970."""
OFF_CALENDAR = "a time beyond the years 1 to 9999"


def is_json(field: pa.Field) -> bool:
    """Whether the text of the column is JSON."""
    return bool(field.metadata and JSON_MARK in field.metadata)


def schemas_of(schema: pa.Schema) -> str:
    """Return the schemas that the records are read with, for the end of a phrase; empty if there are none."""
    return f" ({schema.metadata[SCHEMAS_MARK].decode()})" if SCHEMAS_MARK in (schema.metadata or {}) else ""


def off_calendar(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Mark the times outside the years 1 to 9999: Arrow formats them wrongly, as it has 16 bits for a year."""
    ticks, units = column.cast(pa.int64()), {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
    first, end = max(FIRST_SECOND * units, -(2**63)), min(END_SECOND * units, 2**63 - 1)
    return pc.fill_null(pc.or_(pc.less(ticks, first), pc.greater_equal(ticks, end)), False)
