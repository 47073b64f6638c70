"""Decodes Avro bodies into Arrow columns, as docs/reference/avro.md specifies.

Many bodies are decoded at once (``bulk.py``). Bodies that this refuses, and small batches, are decoded one by one
(``values.py``), which says why a body is dead.
"""

from __future__ import annotations

from functools import lru_cache

from tallymark.formats.avro import values
from tallymark.formats.avro.bulk import BulkDecoder
from tallymark.formats.avro.program import Program
from tallymark.formats.bodies import Bodies, BodyDecoder
from tallymark.formats.decoder import Decoded


def decode(program: Program, bodies: Bodies) -> Decoded:
    """Decode bodies, none of which is NULL."""
    return _decoder(program)(bodies)


@lru_cache(maxsize=256)
def _decoder(program: Program) -> BodyDecoder:
    one = values.decoder(program.root, program.skips)
    return BodyDecoder(program.type, one, BulkDecoder(program) if program.in_bulk else None)
