"""Remove history from the SQL ledger that nothing depends on."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, select

from tallymark.core.journal import SETTLED
from tallymark.core.retention import Cutoffs
from tallymark.stores.sql.deletions import prune_deletions
from tallymark.stores.sql.ledger.runs import read_runs, read_tables
from tallymark.stores.sql.ledger.tables import batches, dead_letters, positions, rebalances, runs

TABLES = {"batches": batches, "runs": runs, "rebalances": rebalances, "settled_letters": dead_letters}


def prune(connection: Connection, group: str, cutoffs: Cutoffs, *, execute: bool) -> dict[str, int]:
    """Return by table how many rows of a group are older than the cutoffs; delete them if ``execute``."""
    counts: dict[str, int] = {}
    for name, before in cutoffs.items():
        if name == "deletions":
            written = {each.name for each in read_tables(connection, group).get(group, [])}
            counts["deletions"] = prune_deletions(connection, written, before, execute=execute)
            continue
        table, old = TABLES[name], _old(connection, name, group, before)
        if table is dead_letters:
            # Ids first, then letters by id: a scan would wait for the letters of commits in progress.
            ids = list(connection.scalars(select(dead_letters.c.id).where(*old)))
            counts[table.name] = len(ids)
            if execute and ids:
                by_id = delete(dead_letters).where(dead_letters.c.id == bindparam("_id"))
                connection.execute(by_id, [{"_id": number} for number in ids])
        elif execute:
            counts[table.name] = connection.execute(delete(table).where(*old)).rowcount
        else:
            counts[table.name] = connection.scalar(select(func.count()).select_from(table).where(*old)) or 0
    return counts


def _old(connection: Connection, name: str, group: str, before: datetime) -> list[ColumnElement[bool]]:
    """Return the conditions for rows that may be removed."""
    here = TABLES[name].c.group_name == group
    if name == "batches":
        # Streaming queries and status look at the last commit.
        last = connection.scalar(select(func.max(batches.c.id)).where(here))
        return [here, batches.c.committed_at < before, batches.c.id < (last or 0)]
    if name == "runs":
        # An owner whose run is not recorded counts as alive.
        owners = select(positions.c.owner).where(positions.c.group_name == group, positions.c.owner.is_not(None))
        kept = {*connection.scalars(owners), *(run.name for run in read_runs(connection, group)[:1])}
        return [here, func.coalesce(runs.c.ended_at, runs.c.seen_at) < before, runs.c.run.not_in(kept)]
    if name == "rebalances":
        return [here, rebalances.c.happened_at < before]
    changed = func.coalesce(dead_letters.c.changed_at, dead_letters.c.recorded_at)
    return [here, dead_letters.c.state.in_(SETTLED), changed < before]
