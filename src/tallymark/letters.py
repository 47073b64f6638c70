"""Dead letters of records that were decoded and then refused: which they are, what is kept of them, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tallymark.read import DeadLetter, Reading, Record
from tallymark.shape import Refusal, TableSpec, null_keys
from tallymark.spans import Partition

NOT_KEPT = ("only in Kafka", "Kafka has deleted the record meanwhile")
"""How the words of a letter end whose value the ledger does not have."""
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


def is_kept(letter: DeadLetter) -> bool:
    """Whether the letter holds its record: without a value it may also be a tombstone that died."""
    return letter.value is not None or not letter.error.endswith(NOT_KEPT)


def still_dead(stored: DeadLetter, error: str) -> str:
    """The words of a letter that died again; where its value is stays in them."""
    return error if is_kept(stored) or error.endswith(NOT_KEPT) else f"{error}; its value is {NOT_KEPT[0]}"
