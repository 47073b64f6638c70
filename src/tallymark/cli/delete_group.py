"""``tallymark delete-group``: delete all that the ledger holds of a group; the rows of its tables stay."""

from __future__ import annotations

from typing import Annotated

import typer

from tallymark.cli.output import say, show_json
from tallymark.cli.target import AsJson, Execute, TakeOver, Target, operator, targeted
from tallymark.operate.deletion import Deletion

WithLetters = Annotated[bool, typer.Option("--with-dead-letters", help="Even if dead letters are open.")]


@targeted(brokers=False)
def delete_group(
    target: Target,
    execute: Execute = False,
    take_over: TakeOver = False,
    with_dead_letters: WithLetters = False,
    as_json: AsJson = False,
) -> None:
    """Show what the ledger holds of a group; with --execute, delete it. The rows of its tables stay.

    The ledger keeps no trace of the deletion. A later run starts as a new group does.
    """
    with target.ledger() as store:
        deletion = Deletion.of(store, target.group, take_over=take_over, with_letters=with_dead_letters)
        refused = None if execute else deletion.refusal
        if execute:
            deletion.execute(store, operator())
    if as_json:
        show_json(deletion.as_json() | {"deleted": execute, "refused": refused})
        return
    say(f"{'deleted' if execute else 'would delete'} from {store.name}, of group {deletion.group}:")
    for words in deletion.words():
        say(f"  {words}")
    if execute:
        say("the rows of its tables stay, and the ledger keeps nothing of this")
    elif refused:
        say(f"--execute would be refused: {refused}")
    else:
        say("the rows of its tables stay; --execute deletes, and the ledger keeps nothing of it")
