"""Records that are in the driver's memory, with their values decoded by Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from tallymark import raw
from tallymark.formats import Decoder


@dataclass(frozen=True)
class Arrived:
    """``found`` are records as they came, ``records`` the same with values that are decoded, or NULL if they are dead.

    ``errors`` says why a value is dead, by its row; ``slow`` is how many values Arrow's parser left to Python.
    """

    found: pa.Table
    records: pa.Table
    errors: Mapping[int, str]
    slow: int
    size: int

    @classmethod
    def of(cls, found: pa.Table, decode: Decoder) -> Arrived:
        decoded = decode(found["value"])
        records = found.set_column(found.schema.get_field_index("value"), "value", decoded.values)
        return cls(found, records, decoded.errors, decoded.slow, raw.size(found))
