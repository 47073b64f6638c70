"""``tallymark delete-group``: all that the ledger knows of a group goes; the rows of its tables stay."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Annotated, Any

import typer
from rich.console import Console

from tallymark.cli.groups import Group, operator
from tallymark.cli.target import AsJson, FileOption, StoreUrl, target
from tallymark.core.journal import DEAD, Run, owners_alive
from tallymark.core.spans import Partition, Position, Tally
from tallymark.errors import BadInput, PositionMoved, TallymarkError
from tallymark.operate.survey import ledger
from tallymark.stores.contract import Store

log = logging.getLogger(__name__)

Execute = Annotated[bool, typer.Option("--execute", help="Do it; without, it only says what would go.")]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Even while it runs: its next commit is refused.")]
WithLetters = Annotated[bool, typer.Option("--with-dead-letters", help="Even if dead letters are open.")]

MOST_BATCHES = 1000
"""Batches that are counted, at the most."""


@dataclass(frozen=True)
class Holdings:
    """What the ledger has of a group, and goes with it."""

    group: str
    positions: Sequence[Position]
    batches: str
    letters: Mapping[str, int]
    skips: int
    runs: Sequence[Run]

    @classmethod
    def of(cls, store: Store, group: str) -> Holdings:
        journal = store.journal()
        batches = len(journal.history(group, most=MOST_BATCHES))
        return cls(
            group,
            store.positions(group).get(group, []),
            f"{batches}+" if batches == MOST_BATCHES else str(batches),
            journal.letter_counts(group),
            len(store.skips(group)),
            journal.runs(group),
        )

    def words(self) -> list[str]:
        tally = Tally.sum(position.tally for position in self.positions)
        letters = ", ".join(f"{count} {state}" for state, count in sorted(self.letters.items())) or "none"
        return [
            f"{len(self.positions)} positions, with what they count: {tally.applied} applied, {tally.dead} dead, "
            f"{tally.skipped} skipped, {tally.lost} lost, {tally.absent} absent",
            f"{self.batches} batches of the history, {len(self.runs)} runs",
            f"dead letters: {letters}",
            f"{self.skips} open skips",
        ]

    def as_json(self) -> dict[str, Any]:
        positions = [
            {**asdict(one.partition), "current_offset": one.next_offset, **asdict(one.tally)} for one in self.positions
        ]
        counts = {"batches": self.batches, "dead_letters": dict(self.letters), "open_skips": self.skips}
        return {"group": self.group, "positions": positions, **counts, "runs": len(self.runs)}


def delete_group(
    group: Group = None,
    execute: Execute = False,
    take_over: TakeOver = False,
    with_dead_letters: WithLetters = False,
    store: StoreUrl = None,
    file: FileOption = None,
    as_json: AsJson = False,
) -> None:
    """Forget a group: positions, tallies, history, dead letters, skips. The rows of its tables stay.

    Shows what would go; --execute does it, and then nothing in the ledger tells of it. A run that comes later starts
    as a new group does.
    """
    of = target(file, group, store)
    if of.group is None or of.store is None:
        raise BadInput("name the group and --store (or TALLYMARK_STORE), or --file with a pipeline")
    with ledger(of.store, of.group) as opened:
        held = Holdings.of(opened, of.group)
        refused = None if execute else _refusal(held, take_over, with_dead_letters)
        if execute:
            _delete(opened, held, take_over, with_dead_letters)
    if as_json:
        print(json.dumps(held.as_json() | {"deleted": execute, "refused": refused}, indent=2))
    else:
        _say(held, opened.name, refused, done=execute)


def _refusal(held: Holdings, take_over: bool, with_letters: bool) -> str | None:
    """Why --execute would do nothing now."""
    positions = {position.partition: position for position in held.positions}
    try:
        check(held, positions, held.runs, take_over=take_over, with_letters=with_letters)
    except TallymarkError as error:
        return str(error)
    return None


def _delete(store: Store, held: Holdings, take_over: bool, with_letters: bool) -> None:
    group, by = held.group, operator()

    def consent(positions: Mapping[Partition, Position], runs: Sequence[Run]) -> None:
        check(held, positions, runs, take_over=take_over, with_letters=with_letters)

    store.journal().delete(group, consent)
    store.clear_stages(group)
    log.warning("deleted group=%s by=%s store=%s", group, by, store.name)


def check(
    held: Holdings,
    positions: Mapping[Partition, Position],
    runs: Sequence[Run],
    *,
    take_over: bool,
    with_letters: bool,
) -> None:
    """Raise if the group, as it is now, must not go."""
    alive = owners_alive(list(positions.values()), runs, datetime.now(timezone.utc))
    if alive and not take_over:
        raise BadInput(
            f"{alive[0].partition} of group {held.group} belongs to {alive[0].owner}; end that, or delete the group "
            "with --take-over, and its next commit is refused"
        )
    if held.letters.get(DEAD) and not with_letters:
        raise BadInput(
            f"group {held.group} has {held.letters[DEAD]} open dead letters, and their records may be nowhere else; "
            "replay or discard them (tallymark dead-letters), or add --with-dead-letters"
        )
    before = Tally.sum(position.tally for position in held.positions)
    if Tally.sum(position.tally for position in positions.values()).dead > before.dead and not with_letters:
        raise PositionMoved(f"group {held.group} has got more dead letters meanwhile; nothing was deleted: look again")


def _say(held: Holdings, store: str, refused: str | None, *, done: bool) -> None:
    out = Console(soft_wrap=True, highlight=False, markup=False)
    out.print(f"{'deleted' if done else 'would delete'} from {store}, of group {held.group}:")
    for words in held.words():
        out.print(f"  {words}")
    if done:
        out.print("the rows of its tables stay, and the ledger keeps nothing of this")
    elif refused:
        out.print(f"--execute would be refused: {refused}")
    else:
        out.print("the rows of its tables stay; --execute deletes, and the ledger keeps nothing of it")
