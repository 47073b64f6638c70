"""The interface of what decodes keys or values, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import pyarrow as pa

from tallymark.formats.unnamed import Unnamed

Contents: TypeAlias = Sequence[bytes | None] | pa.Array | pa.ChunkedArray
"""Keys or values of records."""


@dataclass(frozen=True)
class Decoded:
    """``values`` is NULL for tombstones and for dead records; ``errors`` maps the index of dead records to errors.

    ``unnamed`` are the fields that the schema does not name, if the decoder looks for them.
    """

    values: pa.ChunkedArray | pa.Array
    errors: Mapping[int, str]
    unnamed: Unnamed = field(default_factory=dict)


class Decoder(Protocol):
    """Decodes the keys or the values of one format. Created once, called for every batch."""

    @property
    def type(self) -> pa.DataType: ...
    @property
    def in_bulk(self) -> bool:
        """Whether many contents are decoded at once, without a Python object for each."""

    @property
    def is_nullable(self) -> bool:
        """Whether a content may be decoded to NULL."""

    @property
    def header(self) -> str | None:
        """The header that the decoder needs, such as the id of a schema."""

    @property
    def learns(self) -> bool:
        """Whether the decoder asks for schemas that it does not know."""

    @property
    def finds(self) -> bool:
        """Whether the decoder finds fields that the schema does not name."""

    @property
    def version(self) -> int:
        """The number of schemas that it has learned."""

    def __call__(self, contents: Contents, headers: pa.Array | pa.ChunkedArray | None = None) -> Decoded:
        """Decode them. ``headers`` are those of the records, if the decoder needs one."""
