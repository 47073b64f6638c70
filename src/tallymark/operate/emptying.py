"""Decides whether a reset may empty the tables of a group: no row may go that is not written again. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tallymark.core.claims import EMPTYING
from tallymark.core.journal import NoteLine
from tallymark.core.spans import Partition, Position
from tallymark.core.tables import WrittenTable
from tallymark.errors import BadInput
from tallymark.operate.repeats import check_repeats
from tallymark.operate.reset import Planned


@dataclass(frozen=True)
class Written:
    """What the ledger knows about the rows of a group: its tables, those of other groups, and how positions moved.

    ``notes`` are those that say that a position was moved back or made by hand, oldest first.
    """

    group: str
    tables: Mapping[str, Sequence[WrittenTable]]
    notes: Sequence[NoteLine] = ()

    @property
    def mine(self) -> Sequence[WrittenTable]:
        return self.tables.get(self.group, ())

    def others(self, name: str) -> list[str]:
        """Return the other groups that write to this table of the store, however the database compares names."""
        return [
            group
            for group, tables in sorted(self.tables.items())
            if group != self.group
            and any(table.store is None and table.name.casefold() == name.casefold() for table in tables)
        ]

    def begin(self, position: Position) -> int:
        """Return the first offset of which there may be rows."""
        notes = [line.note for line in self.notes if line.note.span.partition == position.partition]
        if not notes:
            return position.first_offset
        emptied = [at for at, note in enumerate(notes) if note.kind == EMPTYING]
        # Before a position was moved back, or made by hand beside tables with rows, the group may have begun anywhere.
        return min(note.span.start for note in notes[emptied[-1] :]) if emptied else 0


@dataclass(frozen=True)
class Consent:
    """What the operator accepts: to ``repeat`` rows, or to ``truncate`` tables and ``lose`` rows of so many offsets."""

    repeat: bool = False
    truncate: bool = False
    lose: int | None = None

    def __post_init__(self) -> None:
        if self.repeat and self.truncate:
            raise BadInput("--repeat keeps the rows, and --truncate deletes them; give one of the two")
        if self.lose is not None and not self.truncate:
            raise BadInput(
                "--lose says how many offsets --truncate may lose the rows of; leave it out, or add --truncate"
            )

    def check(self, plan: Sequence[Planned], positions: Mapping[Partition, Position], written: Written) -> list[str]:
        """Return the tables to empty. Raises if the plan needs a consent that was not given, or can't be performed."""
        if self.truncate:
            return check_emptying(plan, positions, written, self.lose or 0)
        if self.repeat and not any(planned.repeats for planned in plan):
            raise BadInput("--repeat accepts rows of a reset that goes back, and no partition goes back; leave it out")
        if not self.repeat:
            check_repeats(plan, written.mine)
        return []


def check_emptying(
    plan: Sequence[Planned], positions: Mapping[Partition, Position], written: Written, lose: int
) -> list[str]:
    """Return the tables of the group, whose rows all come back if it begins where the plan says."""
    if not written.mine:
        raise BadInput(
            f"--truncate: the ledger knows no table of group {written.group}, because it has written none since the "
            "ledger has version 5, or by SQL of its own; empty its tables by hand, and use --repeat"
        )
    for table in written.mine:
        _check_table(table, written)
    known = {planned.partition for planned in plan}
    for partition in sorted(positions.keys() - known):
        raise BadInput(
            f"--truncate: {partition} is not in the reset, and rows of its records would be lost; use --all-topics, or "
            "name all topics of the group"
        )
    for planned in plan:
        _check_place(planned, written)
    _check_lost(plan, written, lose)
    return sorted({table.name for table in written.mine})


def _check_table(table: WrittenTable, written: Written) -> None:
    if table.store is not None:
        raise BadInput(
            f"--truncate: table {table.name} is in {table.store}, and the ledger is not: no transaction changes "
            "both; stop the group, empty the table by hand, and use --repeat"
        )
    if others := written.others(table.name):
        raise BadInput(
            f"--truncate: group {others[0]} writes to table {table.name}, too, and its rows would be lost; delete the "
            "rows of this group by hand, and use --repeat"
        )


def _check_place(planned: Planned, written: Written) -> None:
    if planned.old is None or planned.new is None:
        return
    begin = written.begin(planned.old)
    if planned.new > max(begin, planned.log.start):
        why = "" if begin == planned.old.first_offset else ", because it was moved or placed by hand before"
        raise BadInput(
            f"--truncate: the reset goes to offset {planned.new} of {planned.partition}, and the tables may have rows "
            f"from offset {begin} on{why}, which would be lost; use --to-earliest"
        )


def _check_lost(plan: Sequence[Planned], written: Written, lose: int) -> None:
    """Refuse to delete rows of records that Kafka has deleted."""
    lost = {
        planned.partition: max(0, planned.log.start - written.begin(planned.old)) for planned in plan if planned.old
    }
    if (total := sum(lost.values())) > lose:
        partition = next(partition for partition, count in lost.items() if count)
        start = next(planned.log.start for planned in plan if planned.partition == partition)
        raise BadInput(
            f"--truncate: Kafka has deleted up to {total:,} offsets of which the tables may have rows, those of "
            f"{partition} before {start}; their rows would be gone for good: add --lose {total} if that is meant"
        )
