"""The last runs of a group in SQL."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select, update

from tallymark.books import Run
from tallymark.ledger.tables import runs

KEEP_RUNS = 100


def write_run(connection: Connection, group: str, run: Run, new: bool) -> None:
    """Say what is known of it now; a new one pushes the oldest out."""
    values = {"host": run.host, "started_at": run.started, "seen_at": run.seen, "ended_at": run.ended}
    values |= {"error": run.error.replace("\0", "\\0") if run.error else None}
    here = runs.c.group_name == group, runs.c.run == run.name
    if connection.execute(update(runs).where(*here).values(values)).rowcount or not new:
        return
    connection.execute(insert(runs), values | {"group_name": group, "run": run.name})
    for old in read_runs(connection, group)[KEEP_RUNS:]:
        connection.execute(delete(runs).where(runs.c.group_name == group, runs.c.run == old.name))


def read_runs(connection: Connection, group: str) -> list[Run]:
    """The newest first."""
    query = select(runs).where(runs.c.group_name == group).order_by(runs.c.started_at.desc(), runs.c.run)
    return [
        Run(row.run, row.host, row.started_at, row.seen_at, row.ended_at, row.error)
        for row in connection.execute(query)
    ]
