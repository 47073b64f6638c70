"""The last runs of a group in SQL."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select, update

from tallymark.books import Run
from tallymark.ledger.statements import insert_if_absent
from tallymark.ledger.tables import runs
from tallymark.read import storable

KEEP_RUNS = 100


def write_run(connection: Connection, group: str, run: Run, new: bool) -> None:
    """Say what is known of it now; a new one pushes the oldest out."""
    values = {"host": run.host, "started_at": run.started, "seen_at": run.seen, "ended_at": run.ended}
    values |= {"error": storable(run.error) if run.error else None}
    # A beat that comes late must not bring back a run that has ended.
    here = runs.c.group_name == group, runs.c.run == run.name, runs.c.ended_at.is_(None)
    if connection.execute(update(runs).where(*here).values(values)).rowcount or not new:
        return
    connection.execute(insert_if_absent(connection, runs), values | {"group_name": group, "run": run.name})
    for old in read_runs(connection, group)[KEEP_RUNS:]:
        if old.alive(run.seen):
            continue
        connection.execute(delete(runs).where(runs.c.group_name == group, runs.c.run == old.name))


def read_runs(connection: Connection, group: str) -> list[Run]:
    """The newest first."""
    query = select(runs).where(runs.c.group_name == group).order_by(runs.c.started_at.desc(), runs.c.run)
    return [
        Run(row.run, row.host, row.started_at, row.seen_at, row.ended_at, row.error)
        for row in connection.execute(query)
    ]
