"""Replicas: tables that follow a table of another database by its change events.

A replica is an upsert with deletions, whose version is the position of the event in the log of the source. An event
may lack the value of a column, because the source did not write an unchanged large value to its log. Debezium puts a
placeholder in its place, and the replica keeps the value that it has.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from hashlib import md5
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tallymark.core.tables import HIDDEN, Evolve, TableSpec
from tallymark.errors import BadInput

SOURCE_VERSION = "source_version"
"""The column with the position of the last event of a row, as text that sorts like the log."""
DELETE = "value.op = 'd'"
UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's placeholder of a value that an event does not have (``unavailable.value.placeholder``)."""
_CODES = list(UNAVAILABLE.encode())
_STRUCTURES = [
    [UNAVAILABLE],
    {UNAVAILABLE: UNAVAILABLE},
    [b64encode(UNAVAILABLE.encode()).decode()],
    [str(UUID(bytes=md5(UNAVAILABLE.encode(), usedforsecurity=False).digest(), version=3))],
    _CODES,
    [(date(1970, 1, 1) + timedelta(days=code)).isoformat() for code in _CODES],
]
"""The placeholder in arrays of text, in an hstore, and in arrays of bytes, of UUIDs, of integers and of dates."""
IN_JSON = [json.dumps(one, separators=between) for one in _STRUCTURES for between in ((",", ":"), (", ", ": "))]
"""The same as text, which arrays and objects are here."""


def replica(
    name: str,
    key: Sequence[str],
    *,
    provenance: bool = False,
    create: bool = True,
    evolve: Evolve = False,
    topics: str | None = None,
) -> TableSpec:
    """Return the spec of a replica. Without a key, ``with_key`` adds it."""
    return TableSpec(
        name,
        tuple(key),
        "upsert",
        SOURCE_VERSION,
        DELETE,
        provenance,
        create,
        evolve,
        topics=topics,
        is_replica=True,
    )


def with_key(spec: TableSpec, of_records: Sequence[str] = ()) -> TableSpec:
    """Return a replica with its own key, or with the fields of the records' keys as its key."""
    key = spec.key or tuple(of_records)
    if not key:
        raise BadInput(
            f"table {spec.name}: replica needs key=, the primary key of the source's table, or the format of the "
            "records' keys, such as Kafka(..., key=Json('id BIGINT'))"
        )
    return replace(spec, key=key)


def check_options(name: str, **options: object) -> None:
    """Refuse options of other tables: a replica has its own version and deletions."""
    given = [option for option, value in options.items() if value]
    if given:
        raise BadInput(f"table {name}: {given[0]}= can't be set with write='replica', which sets it; leave it out")


def with_known_values(rows: pa.Table, starts: npt.NDArray[np.bool_]) -> pa.Table:
    """Replace placeholders by the value of the previous row of the key. Rows are sorted; ``starts`` marks new keys.

    Placeholders stay in rows without a previous value: the table may have it.
    """
    numbers = np.arange(rows.num_rows)
    for at, field in enumerate(rows.schema):
        missing = _missing(rows, field)
        if missing is not None:
            known = np.maximum.accumulate(np.where(~missing | starts, numbers, 0))
            rows = rows.set_column(at, field, rows.column(at).take(pa.array(known)))
    return rows


def by_known_columns(spec: TableSpec, rows: pa.Table) -> Iterator[tuple[TableSpec, pa.Table]]:
    """Split rows to put by the columns that are to keep the stored value, which ``TableSpec.kept`` names."""
    missing = {field.name: _missing(rows, field) for field in rows.schema if spec.is_replica}
    marks = {name: marks for name, marks in missing.items() if marks is not None}
    if not marks:
        yield spec, rows
        return
    sets, numbers = np.unique(np.stack(list(marks.values()), axis=1), axis=0, return_inverse=True)
    for number, lacking in enumerate(sets):
        kept = tuple(name for name, lacks in zip(marks, lacking, strict=True) if lacks)
        yield replace(spec, kept=kept), rows.filter(pa.array(numbers.reshape(-1) == number))


def with_nulls(rows: pa.Table, names: Collection[str]) -> pa.Table:
    """Replace all values of these columns by NULL."""
    for at, field in enumerate(rows.schema):
        if field.name in names:
            rows = rows.set_column(at, field, pa.nulls(rows.num_rows, field.type))
    return rows


def _missing(rows: pa.Table, field: pa.Field) -> npt.NDArray[np.bool_] | None:
    """Mark the rows with a placeholder in this column; None if there is none."""
    placeholders = {pa.string(): [UNAVAILABLE, *IN_JSON], pa.binary(): [UNAVAILABLE.encode()]}.get(field.type)
    if placeholders is None or field.name in HIDDEN:
        return None
    found = pc.is_in(rows[field.name], value_set=pa.array(placeholders, field.type))
    return np.asarray(found.to_numpy()) if pc.any(found).as_py() else None
