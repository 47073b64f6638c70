"""Runs, batches, tables, state and rebalances of a group in the SQL ledger."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, func, insert, select, update

from tallymark.core.claims import Note
from tallymark.core.journal import BatchLine, NoteLine, Rebalance, Run
from tallymark.core.records import storable
from tallymark.core.spans import OUTCOMES, GroupState, Partition, Span, Tally
from tallymark.core.tables import WrittenTable
from tallymark.stores.sql.ledger.read import insert_if_absent
from tallymark.stores.sql.ledger.tables import batches, exceptions, groups, rebalances, runs, tables

KEEP_RUNS = 100


def write_run(connection: Connection, group: str, run: Run, new: bool) -> None:
    """Update the run unless it has ended, or insert a new run; the oldest runs are deleted."""
    values = {"host": run.host, "started_at": run.started, "seen_at": run.seen, "ended_at": run.ended}
    values |= {"error": storable(run.error) if run.error else None}
    # A late heartbeat must not revive a run that has ended.
    here = runs.c.group_name == group, runs.c.run == run.name, runs.c.ended_at.is_(None)
    if connection.execute(update(runs).where(*here).values(values)).rowcount or not new:
        return
    connection.execute(insert_if_absent(connection, runs), values | {"group_name": group, "run": run.name})
    for old in read_runs(connection, group)[KEEP_RUNS:]:
        if old.alive(run.seen):
            continue
        connection.execute(delete(runs).where(runs.c.group_name == group, runs.c.run == old.name))


def read_runs(connection: Connection, group: str) -> list[Run]:
    """Return the runs of a group, newest first."""
    query = select(runs).where(runs.c.group_name == group).order_by(runs.c.started_at.desc(), runs.c.run)
    return [
        Run(row.run, row.host, row.started_at, row.seen_at, row.ended_at, row.error)
        for row in connection.execute(query)
    ]


def read_groups(connection: Connection) -> dict[str, GroupState]:
    rows = connection.execute(select(groups).order_by(groups.c.group_name))
    return {row.group_name: GroupState(row.desired_state, row.reason, row.changed_by, row.changed_at) for row in rows}


def read_history(connection: Connection, group: str, since: datetime | None, most: int) -> list[BatchLine]:
    """Return the latest commits, newest first."""
    query = select(batches).where(batches.c.group_name == group)
    if since is not None:
        query = query.where(batches.c.committed_at >= since)
    newest = query.order_by(batches.c.id.desc()).limit(most)
    return [
        BatchLine(
            row.batch,
            row.started_at,
            row.committed_at,
            Tally(*(getattr(row, name) for name in OUTCOMES)),
            json.loads(row.table_rows),
            [Span(Partition(topic, number), start, stop) for topic, number, start, stop in json.loads(row.spans)],
        )
        for row in connection.execute(newest)
    ]


def record_tables(connection: Connection, group: str, written: Sequence[WrittenTable], now: datetime) -> None:
    shared = {"group_name": group, "recorded_at": now}
    rows = [{"table_name": each.name, "write_mode": each.write, "store": each.store} for each in sorted(written)]
    if rows:
        connection.execute(insert_if_absent(connection, tables), [shared | row for row in rows])


def read_tables(connection: Connection, group: str | None) -> dict[str, list[WrittenTable]]:
    """Return the tables of one group or of all groups."""
    query = select(tables).order_by(tables.c.group_name, tables.c.table_name, tables.c.write_mode)
    found: dict[str, list[WrittenTable]] = {}
    for row in connection.execute(query if group is None else query.where(tables.c.group_name == group)):
        found.setdefault(row.group_name, []).append(WrittenTable(row.table_name, row.write_mode, row.store))
    return found


def read_notes(connection: Connection, group: str, kinds: Collection[str]) -> list[NoteLine]:
    """Return notes in the order of writing, not by time: the clocks of hosts may differ."""
    query = select(exceptions).where(exceptions.c.group_name == group, exceptions.c.kind.in_(list(kinds)))
    found = []
    for row in connection.execute(query.order_by(exceptions.c.id)):
        span = Span(Partition(row.topic, row.partition_id), row.start_offset, row.stop_offset)
        found.append(NoteLine(Note(row.kind, span, row.reason), row.batch, row.recorded_at))
    return found


def read_state(connection: Connection, group: str) -> GroupState | None:
    """Return the desired state of the group; None if the group is unknown."""
    row = connection.execute(select(groups).where(groups.c.group_name == group)).one_or_none()
    return None if row is None else GroupState(row.desired_state, row.reason, row.changed_by, row.changed_at)


def write_state(connection: Connection, group: str, state: GroupState) -> None:
    reason = None if state.reason is None else storable(state.reason)
    values = {"desired_state": state.desired, "reason": reason, "changed_by": state.by, "changed_at": state.since}
    if not connection.execute(update(groups).where(groups.c.group_name == group).values(values)).rowcount:
        connection.execute(insert(groups), values | {"group_name": group})


def recent_tally(connection: Connection, group: str, since: datetime) -> Tally:
    """Return the tally of all batches since then. Replays, which count dead records down, are left out."""
    sums = (func.coalesce(func.sum(batches.c[name]), 0) for name in OUTCOMES)
    read = batches.c.group_name == group, batches.c.committed_at >= since, batches.c.dead >= 0
    query = select(*sums).where(*read)
    return Tally(*(int(count) for count in connection.execute(query).one()))


KEEP_REBALANCES = 1_000


def record_rebalances(connection: Connection, group: str, happened: Sequence[Rebalance]) -> None:
    """Record rebalances, and delete all but the newest."""
    if not happened:
        return
    connection.execute(insert(rebalances), [_row(group, rebalance) for rebalance in happened])
    old = list(connection.scalars(_newest_first(group).with_only_columns(rebalances.c.id).offset(KEEP_REBALANCES)))
    if old:
        connection.execute(delete(rebalances).where(rebalances.c.id.in_(old)))


def read_rebalances(connection: Connection, group: str, most: int) -> list[Rebalance]:
    """Return the latest rebalances, newest first."""
    return [_rebalance(row) for row in connection.execute(_newest_first(group).limit(most))]


def partitions_as_json(partitions: Sequence[Partition]) -> str:
    return json.dumps([[partition.topic, partition.number] for partition in partitions])


def partitions_from_json(text: str) -> tuple[Partition, ...]:
    return tuple(Partition(topic, number) for topic, number in json.loads(text))


def _newest_first(group: str) -> Select[Any]:
    order = rebalances.c.happened_at.desc(), rebalances.c.id.desc()
    return select(rebalances).where(rebalances.c.group_name == group).order_by(*order)


def _row(group: str, rebalance: Rebalance) -> dict[str, Any]:
    return {
        "group_name": group,
        "happened_at": rebalance.at,
        "kind": rebalance.kind,
        "run": rebalance.run,
        "host": rebalance.host,
        "seconds": rebalance.seconds,
        "gained": partitions_as_json(rebalance.gained),
        "lost": partitions_as_json(rebalance.lost),
    }


def _rebalance(row: Row[Any]) -> Rebalance:
    gained, lost = partitions_from_json(row.gained), partitions_from_json(row.lost)
    return Rebalance(row.happened_at, row.run, row.host, row.seconds, gained, lost, row.kind)
