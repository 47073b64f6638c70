"""The rows that change events describe, as Arrow; spark/replica.py computes the same in Spark.

``source_version`` is the position of an event in the log of its source, as text that sorts like the log:

- PostgreSQL: the position of the last commit before the transaction, 0 for a snapshot and 1 for the stream, and the
  position of the change. Positions of changes alone do not suffice: a transaction that commits after a snapshot may
  have written its changes before it. If the connector knows no commit, a snapshot comes first, and for a change its own
  position takes the place of the commit. An incremental snapshot is a part of the stream; its rows have their position
  only in ``sequence``.
- MySQL and MariaDB: the number of the binlog file, the position in it, and the row of the event.
- Others: 0 for a snapshot and 1 for the stream, and the time of the event in milliseconds. The time of a row in a
  snapshot is that of reading it, and changes that were committed shortly before come later.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallymark.core.replica import SOURCE_VERSION
from tallymark.core.tables import DELETED
from tallymark.errors import BadInput
from tallymark.formats.value import Debezium, Format

WITH_ROWS = ("c", "r", "u", "d", "t")
"""The operations that change rows. That of a TRUNCATE names no row, and is refused when it is written."""
NOT_SNAPSHOT, INCREMENTAL = "false", "incremental"
COMMIT, POSITION = '^."({}[0-9]+)"', ',"({}[0-9]+)".$'
"""Find the last commit and the position in PostgreSQL's ``sequence``, such as ``["24023119","24023128"]``."""
FILE_NUMBER = "({}[0-9]+)$"
DIGITS, FILE_DIGITS = 20, 10
NEEDS_EVENTS = "needs change events; give the source value=tm.Debezium(tm.Avro(...)) or tm.Debezium(tm.Json(...))"


def check_replica(name: str, value: Format) -> None:
    """Refuse a replica of a source whose values are not change events."""
    if not isinstance(value, Debezium):
        raise BadInput(f"table {name}: write='replica' {NEEDS_EVENTS}")


def changes(values: pa.Array, keys: pa.Array | None = None) -> pa.Table:
    """Return a row for each event that changes a row: the columns of the source, SOURCE_VERSION and DELETED."""
    if not pa.types.is_struct(values.type) or not {"before", "after", "op", "source"} <= _names(values.type):
        raise BadInput(f"records.changes() {NEEDS_EVENTS}")
    with_rows = pc.is_in(pc.struct_field(values, "op"), value_set=pa.array(WITH_ROWS))
    values, keys = values.filter(with_rows), None if keys is None else keys.filter(with_rows)
    deletes = pc.equal(pc.struct_field(values, "op"), "d")
    columns = {
        field.name: pc.if_else(deletes, _gone(values, keys, field), pc.struct_field(values, ["after", field.name]))
        for field in values.type.field("after").type
    }
    for name in (SOURCE_VERSION, DELETED):
        if name in columns:
            raise BadInput(f"records.changes(): the source has a column {name}, which is added to its rows; rename it")
    return pa.table({**columns, SOURCE_VERSION: versions(values), DELETED: deletes})


def versions(values: pa.Array) -> pa.Array:
    """Return the position of each event in the log of its source."""
    source = pc.struct_field(values, "source")
    sequence, snapshot = _text(source, "sequence"), pc.fill_null(_text(source, "snapshot"), NOT_SNAPSHOT)
    lsn = pc.coalesce(_text(source, "lsn"), _extracted(sequence, POSITION))
    is_change = pc.equal(snapshot, NOT_SNAPSHOT)
    is_streamed = pc.or_(is_change, pc.equal(snapshot, INCREMENTAL))
    commit = pc.coalesce(_extracted(sequence, COMMIT), pc.if_else(is_streamed, lsn, "0"))
    in_wal = _joined(_padded(commit), pc.if_else(is_streamed, "1", "0"), _padded(lsn))
    number = _padded(pc.fill_null(_extracted(_text(source, "file"), FILE_NUMBER), ""), FILE_DIGITS)
    row = _padded(pc.fill_null(_text(source, "row"), "0"), FILE_DIGITS)
    in_binlog = _joined(number, _padded(_text(source, "pos")), row)
    time = pc.coalesce(_text(source, "ts_ms"), _text(values, "ts_ms"))
    return pc.coalesce(in_wal, in_binlog, _joined(pc.if_else(is_change, "1", "0"), _padded(time)))


def _gone(values: pa.Array, keys: pa.Array | None, field: pa.Field) -> pa.Array:
    """Return a column of deleted rows; without the old row, that of the record's key."""
    before = pc.struct_field(values, ["before", field.name])
    if keys is None or not pa.types.is_struct(keys.type) or field.name not in _names(keys.type):
        return before
    return pc.coalesce(before, pc.struct_field(keys, field.name).cast(field.type))


def _names(kind: pa.StructType) -> set[str]:
    return {field.name for field in kind}


def _text(values: pa.Array, name: str) -> pa.Array:
    known = name in _names(values.type)
    return pc.struct_field(values, name).cast(pa.string()) if known else pa.nulls(len(values), pa.string())


def _extracted(texts: pa.Array, pattern: str) -> pa.Array:
    return pc.struct_field(pc.extract_regex(texts, pattern.format("?P<found>")), "found")


def _padded(texts: pa.Array, digits: int = DIGITS) -> pa.Array:
    return pc.utf8_lpad(texts, digits, "0")


def _joined(*texts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*texts, "-")
