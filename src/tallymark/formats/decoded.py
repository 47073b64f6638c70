"""Records that are in the driver's memory, with their values decoded by Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

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

    @classmethod
    def joined(cls, parts: Sequence[Arrived]) -> Arrived:
        """Parts of a batch, one behind the other."""
        firsts = accumulate((part.found.num_rows for part in parts[:-1]), initial=0)
        return cls(
            pa.concat_tables(part.found for part in parts),
            pa.concat_tables(part.records for part in parts),
            {first + at: error for first, part in zip(firsts, parts, strict=True) for at, error in part.errors.items()},
            sum(part.slow for part in parts),
            sum(part.size for part in parts),
        )
