"""Decodes Protobuf messages into Arrow columns, as docs/reference/protobuf.md specifies.

Many messages are decoded at once (``bulk.py``). Messages that this refuses, and small batches, are decoded one by one
(``values.py``), which says why a message is dead.
"""

from __future__ import annotations

from functools import lru_cache

from tallymark.formats.avro.cursor import Longs
from tallymark.formats.bodies import Bodies, BodyDecoder
from tallymark.formats.decoder import Decoded
from tallymark.formats.protobuf import values
from tallymark.formats.protobuf.bulk import BulkDecoder
from tallymark.formats.protobuf.program import Program


def decode(program: Program, bodies: Bodies, skipped: Longs | None = None) -> Decoded:
    """Decode bodies, none of which is NULL, without so many bytes at their starts."""
    return _decoder(program)(bodies, skipped)


@lru_cache(maxsize=256)
def _decoder(program: Program) -> BodyDecoder:
    return BodyDecoder(program.type, values.decoder(program.root), BulkDecoder(program) if program.in_bulk else None)
