"""Several types in one value, such as the events of a topic: a STRUCT with a field for each; one is not NULL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

SHOWN = 10
"""Maximum number of types that an error message lists."""


def field_names(names: Sequence[str]) -> list[str]:
    """Name the fields of types: by names without namespaces, or by full names with ``_`` if those are equal."""
    shorts = [name.rpartition(".")[2] for name in names]
    uses = Counter(short.lower() for short in shorts)
    return [
        name.replace(".", "_") if uses[short.lower()] > 1 else short for name, short in zip(names, shorts, strict=True)
    ]


def in_field(found: pa.Array, at: int, kind: pa.StructType) -> pa.StructArray:
    """Return structs that have these values in one field, and NULL in all others."""
    columns = [pa.nulls(len(found), field.type) for field in kind]
    columns[at] = found
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def none_of(names: Sequence[str]) -> str:
    """Say in an error message that a type is not one of these."""
    more = f" and {len(names) - SHOWN} others" if len(names) > SHOWN else ""
    return f"none of {', '.join(names[:SHOWN])}{more}"
