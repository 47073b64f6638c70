"""Records in the memory of the driver, with decoded values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa

from tallymark.core import raw
from tallymark.formats.json import JsonDecoder


@dataclass(frozen=True)
class DecodedRecords:
    """``found`` are the original records; ``records`` have decoded values, which are NULL for dead records.

    ``errors`` maps rows of dead records to errors; ``slow`` is the number of values that were decoded by Python instead
    of Arrow.
    """

    found: pa.Table
    records: pa.Table
    errors: Mapping[int, str]
    slow: int
    size: int

    @classmethod
    def of(cls, found: pa.Table, decode: JsonDecoder) -> DecodedRecords:
        decoded = decode(found["value"])
        records = found.set_column(found.schema.get_field_index("value"), "value", decoded.values)
        return cls(found, records, decoded.errors, decoded.slow, raw.size(found))

    @classmethod
    def joined(cls, parts: Sequence[DecodedRecords]) -> DecodedRecords:
        """Concatenate parts of a batch."""
        firsts = accumulate((part.found.num_rows for part in parts[:-1]), initial=0)
        return cls(
            pa.concat_tables(part.found for part in parts),
            pa.concat_tables(part.records for part in parts),
            {first + at: error for first, part in zip(firsts, parts, strict=True) for at, error in part.errors.items()},
            sum(part.slow for part in parts),
            sum(part.size for part in parts),
        )
