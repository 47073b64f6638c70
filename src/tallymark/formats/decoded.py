"""Records in the memory of the driver, decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from tallymark.core import raw
from tallymark.formats.decoders import Decoders


@dataclass(frozen=True)
class DecodedRecords:
    """``found`` are the original records; ``records`` have decoded keys and values.

    ``errors`` maps rows of dead records to errors.
    """

    found: pa.Table
    records: pa.Table
    errors: Mapping[int, str]
    size: int

    @classmethod
    def of(cls, found: pa.Table, decoders: Decoders) -> DecodedRecords:
        return cls(found, *decoders.table(found), raw.size(found))
