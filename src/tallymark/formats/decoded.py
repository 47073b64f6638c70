"""Records in the memory of the driver, with decoded values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from tallymark.core import raw
from tallymark.formats.json import JsonDecoder


@dataclass(frozen=True)
class DecodedRecords:
    """``found`` are the original records; ``records`` have decoded values, which are NULL for dead records.

    ``errors`` maps rows of dead records to errors.
    """

    found: pa.Table
    records: pa.Table
    errors: Mapping[int, str]
    size: int

    @classmethod
    def of(cls, found: pa.Table, decode: JsonDecoder) -> DecodedRecords:
        decoded = decode(found["value"])
        records = found.set_column(found.schema.get_field_index("value"), "value", decoded.values)
        return cls(found, records, decoded.errors, raw.size(found))
