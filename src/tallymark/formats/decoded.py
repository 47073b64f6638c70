"""Records in the memory of the driver, decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from tallymark.core import raw
from tallymark.core.drift import Fields
from tallymark.core.spans import Partition
from tallymark.formats.decoders import Decoders
from tallymark.formats.unnamed import Unnamed, by_partition


@dataclass(frozen=True)
class DecodedRecords:
    """``found`` are the original records; ``records`` have decoded keys and values.

    ``errors`` maps rows of dead records to errors. ``unnamed`` are the fields that the schema does not name.
    """

    found: pa.Table
    records: pa.Table
    errors: Mapping[int, str]
    unnamed: Unnamed
    size: int

    @property
    def drift(self) -> Mapping[Partition, Fields]:
        """The fields that the schema does not name, without those of dead records."""
        return by_partition(self.unnamed, self.found, self.errors)

    @classmethod
    def of(cls, found: pa.Table, decoders: Decoders) -> DecodedRecords:
        return cls(found, *decoders.table(found), raw.size(found))
