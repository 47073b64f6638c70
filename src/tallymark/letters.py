"""Dead letters of records that were decoded and then refused: which they are, what is kept of them, and what is not.

A row that comes from a single record goes with it. Where a table merges records, one that is refused can't be taken out
of its rows any more, and the batch is read again as if the record were not there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tallymark.errors import TallymarkError
from tallymark.read import DeadLetter, Reading, Record, Seen
from tallymark.shape import Refusal, TableSpec, has_origin, null_keys
from tallymark.spans import Partition

NUMBER = re.compile(r"\d+")
MISFIT = re.compile(r"\A([^:]*): .* does not fit ([A-Z_]+(?:\([0-9,]+\))?)\Z", re.DOTALL)
NOT_KEPT = ("only in Kafka", "Kafka has deleted the record meanwhile")
"""How the words of a letter end whose value the ledger does not have."""
Letters = Callable[[Sequence[Refusal]], list[DeadLetter]]
Again = Callable[[Collection[tuple[Partition, int]]], Reading]
"""Reads a batch as if these records were not there."""
Records = Callable[[Mapping[Partition, list[int]]], Mapping[tuple[Partition, int], Record]]


def refused(reading: Reading, tables: Sequence[TableSpec]) -> list[Refusal]:
    """The records that are known to be refused before anything is written, each once."""
    nameless = [refusal for spec in tables for refusal in null_keys(spec, reading.rows[spec.name])]
    return list({refusal.record: refusal for refusal in [*nameless, *reading.refusals]}.values())


def parted(
    reading: Reading, refusals: Sequence[Refusal], tables: Sequence[TableSpec], again: Again | None
) -> tuple[Reading, Sequence[Refusal]]:
    """The batch with nothing of these refused records in rows that several records were merged to.

    Also all that is refused then: what is read again may have more of it.
    """
    while merged := [name for name, rows in reading.rows.items() if rows.num_rows and not has_origin(rows)]:
        out = {refusal.record for refusal in reading.refusals}
        mixed = [refusal for refusal in refusals if refusal.record not in out]
        if not mixed:
            break
        if again is None:
            raise TallymarkError(
                f"table {merged[0]} merges records, and {mixed[0].partition} offset {mixed[0].offset}, which table "
                f"{mixed[0].table} refused, can't be taken out of its rows: fill it by a pipeline of its own"
            )
        reading = _read_again(reading, refusals, again)
        refusals = refused(reading, tables)
    return reading, refusals


def _read_again(reading: Reading, refusals: Sequence[Refusal], again: Again) -> Reading:
    """Without what is dead, which is counted as it was: Kafka may have deleted some of it meanwhile."""
    dead = places(reading.dead_letters) | {refusal.record for refusal in refusals}
    rest, left = again(dead), Counter(partition for partition, _ in dead)

    def seen(partition: Partition) -> Seen:
        first, others = (one.seen.get(partition, Seen()) for one in (reading, rest))
        time = first.last_timestamp or others.last_timestamp
        return Seen(others.records + left[partition], first.dead + others.dead, time)

    return replace(
        rest,
        seen={partition: seen(partition) for partition in reading.seen.keys() | rest.seen.keys()},
        dead_letters=[*reading.dead_letters, *rest.dead_letters],
        refusals=[*refusals, *rest.refusals],
    )


def places(letters: Iterable[DeadLetter]) -> set[tuple[Partition, int]]:
    """The records that they are about."""
    return {(letter.partition, letter.offset) for letter in letters}


def check_letters(reading: Reading) -> None:
    """Every dead record must come with its letter, or it would be counted and gone."""
    counted = sum(seen.dead for seen in reading.seen.values())
    if counted != len(reading.dead_letters):
        raise TallymarkError(f"the reader counted {counted} dead records and kept {len(reading.dead_letters)} of them")


def fetched(refusals: Sequence[Refusal], records: Records) -> list[DeadLetter]:
    """Their letters, with what Kafka still has of them."""
    wanted: dict[Partition, list[int]] = {}
    for refusal in refusals:
        wanted.setdefault(refusal.partition, []).append(refusal.offset)
    found = records(wanted) if wanted else {}
    return [DeadLetter.of(refusal, found.get(refusal.record)) for refusal in refusals]


def alike(error: str) -> str:
    """What errors have in common that differ in numbers, or in the value of a field, only."""
    return NUMBER.sub("N", MISFIT.sub(r"\1: does not fit \2", error))


def most_frequent(letters: Sequence[DeadLetter]) -> str:
    """The error that most of them have, in the words of the first."""
    found: dict[str, list[str]] = {}
    for letter in letters:
        found.setdefault(alike(letter.error), []).append(letter.error)
    return max(found.values(), key=len)[0]


def is_kept(letter: DeadLetter) -> bool:
    """Whether the letter holds its record: without a value it may also be a tombstone that died."""
    return letter.value is not None or not letter.error.endswith(NOT_KEPT)


def still_dead(stored: DeadLetter, error: str) -> str:
    """The words of a letter that died again; where its value is stays in them."""
    return error if is_kept(stored) or error.endswith(NOT_KEPT) else f"{error}; its value is {NOT_KEPT[0]}"
