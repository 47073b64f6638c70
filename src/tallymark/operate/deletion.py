"""Deletes everything that the ledger holds of a group; the rows of its tables stay."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from tallymark.core.journal import DEAD, Run, owners_alive
from tallymark.core.spans import Partition, Position, Tally
from tallymark.core.tables import WrittenTable
from tallymark.errors import BadInput, PositionMoved, TallymarkError
from tallymark.operate.repeats import ADDING, tables_named
from tallymark.stores.contract import Store

log = logging.getLogger(__name__)

MOST_BATCHES = 1000
"""Maximum number of batches that are counted."""


@dataclass(frozen=True)
class Deletion:
    """What the ledger holds of a group, and whether it may be deleted."""

    group: str
    positions: Sequence[Position]
    batches: str
    letters: Mapping[str, int]
    skips: int
    runs: Sequence[Run]
    tables: Sequence[WrittenTable] = ()
    take_over: bool = False
    with_letters: bool = False

    @classmethod
    def of(cls, store: Store, group: str, *, take_over: bool, with_letters: bool) -> Deletion:
        books = store.journal()
        batches = len(books.history(group, most=MOST_BATCHES))
        return cls(
            group,
            store.positions(group).get(group, []),
            f"{batches}+" if batches == MOST_BATCHES else str(batches),
            books.letter_counts(group),
            len(store.skips(group)),
            books.runs(group),
            books.tables(group).get(group, []),
            take_over,
            with_letters,
        )

    @property
    def refusal(self) -> str | None:
        """The reason for which ``execute`` would fail now."""
        try:
            self._check({one.partition: one for one in self.positions}, self.runs)
        except TallymarkError as error:
            return str(error)
        return None

    def execute(self, store: Store, by: str) -> None:
        store.journal().delete(self.group, self._check)
        store.clear_stages(self.group)
        log.warning("deleted group=%s by=%s store=%s", self.group, by, store.name)

    def _check(self, positions: Mapping[Partition, Position], runs: Sequence[Run]) -> None:
        """Raise if the group must not be deleted, given its present positions and runs."""
        alive = owners_alive(list(positions.values()), runs, datetime.now(UTC))
        if alive and not self.take_over:
            raise BadInput(
                f"{alive[0].partition} of group {self.group} belongs to {alive[0].owner}; stop that run, or delete the "
                "group with --take-over, and its next commit is refused"
            )
        if self.letters.get(DEAD) and not self.with_letters:
            raise BadInput(
                f"group {self.group} has {self.letters[DEAD]} open dead letters, and their records may be nowhere "
                "else; replay or discard them (tallymark dead-letters), or add --with-dead-letters"
            )
        dead = Tally.sum(position.tally for position in positions.values()).dead
        if dead > self._tally.dead and not self.with_letters:
            raise PositionMoved(
                f"group {self.group} has got more dead letters meanwhile; nothing was deleted: look again"
            )

    @property
    def _tally(self) -> Tally:
        return Tally.sum(position.tally for position in self.positions)

    def words(self) -> list[str]:
        tally = ", ".join(f"{count} {outcome}" for outcome, count in asdict(self._tally).items())
        letters = ", ".join(f"{count} {state}" for state, count in sorted(self.letters.items())) or "none"
        words = [
            f"{len(self.positions)} positions, with their tally: {tally}",
            f"{self.batches} batches of the history, {len(self.runs)} runs",
            f"dead letters: {letters}",
            f"{self.skips} open skips",
        ]
        if adding := [f"{table.name} ({table.write})" for table in self.tables if table.write in ADDING]:
            words.append(f"a run that starts again would add rows once more to {tables_named(adding)}, unless emptied")
        return words

    def as_json(self) -> dict[str, Any]:
        positions = [
            {**asdict(one.partition), "current_offset": one.next_offset, **asdict(one.tally)} for one in self.positions
        ]
        counts = {"batches": self.batches, "dead_letters": dict(self.letters), "open_skips": self.skips}
        tables = [asdict(table) for table in self.tables]
        return {"group": self.group, "positions": positions, **counts, "runs": len(self.runs), "tables": tables}
