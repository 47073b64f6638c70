"""``tallymark groups``: a line for each group of a store."""

from __future__ import annotations

import typer

from tallymark.cli.output import FAILED, Rows, note, say, show, show_json
from tallymark.cli.target import AsJson, Target, targeted
from tallymark.operate.survey import look

COLUMNS = (
    *("GROUP", "STATE", "PARTITIONS", "LAG", "LAG-SECONDS"),
    *("DEAD-LETTERS:open_dead_letters", "SKIPS:open_skips", "LAST-COMMIT", "REASON"),
)
DISPENSABLE = ("REASON", "LAST-COMMIT", "SKIPS", "PARTITIONS", "DEAD-LETTERS", "LAG-SECONDS")


@targeted(None)
def groups(target: Target, as_json: AsJson = False) -> None:
    """List the groups of a store: state, lag, dead letters, skips, last commit, and the reason of the state.

    Brokers that do not answer are named on stderr, and the exit code is 2.
    """
    with target.any_ledger() as store:
        sight = look(store, None, target.optional_brokers)
    rows = [one.as_json() | {"partitions": len(one.facts.positions), "store": sight.store} for one in sight.groups]
    if as_json:
        show_json(rows)
    elif rows:
        show(Rows(COLUMNS, rows, DISPENSABLE))
    else:
        say(f"no group has run into {sight.store} yet")
    if sight.trouble:
        note(f"lag is not known: {sight.trouble}")
        raise typer.Exit(FAILED)
