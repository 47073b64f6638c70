"""The result of decoding, which all formats share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Decoded:
    """``values`` is NULL for tombstones and for dead records; ``errors`` maps the index of dead records to errors."""

    values: pa.ChunkedArray | pa.Array
    errors: Mapping[int, str]
