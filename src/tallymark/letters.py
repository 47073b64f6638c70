"""Dead letters of records that were decoded and then refused: which they are, and what is kept of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tallymark.read import DeadLetter, Reading, Record
from tallymark.shape import Refusal, TableSpec, null_keys
from tallymark.spans import Partition

Letters = Callable[[Sequence[Refusal]], list[DeadLetter]]
Records = Callable[[Mapping[Partition, list[int]]], Mapping[tuple[Partition, int], Record]]


def refused(reading: Reading, tables: Sequence[TableSpec]) -> list[Refusal]:
    """The records that are known to be refused before anything is written, each once."""
    nameless = [refusal for spec in tables for refusal in null_keys(spec, reading.rows[spec.name])]
    return list({refusal.record: refusal for refusal in [*nameless, *reading.refusals]}.values())


def fetched(refusals: Sequence[Refusal], records: Records) -> list[DeadLetter]:
    """Their letters, with what Kafka still has of them."""
    wanted: dict[Partition, list[int]] = {}
    for refusal in refusals:
        wanted.setdefault(refusal.partition, []).append(refusal.offset)
    found = records(wanted) if wanted else {}
    return [DeadLetter.of(refusal, found.get(refusal.record)) for refusal in refusals]
