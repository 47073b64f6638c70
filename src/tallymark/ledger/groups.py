"""A group's desired state, and what it did lately."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, func, insert, select, update

from tallymark.ledger.tables import batches, groups
from tallymark.read import storable
from tallymark.spans import OUTCOMES, GroupState, Tally


def read_state(connection: Connection, group: str) -> GroupState | None:
    """What the group is meant to do; None if nobody has heard of it."""
    row = connection.execute(select(groups).where(groups.c.group_name == group)).one_or_none()
    return None if row is None else GroupState(row.desired_state, row.reason, row.changed_by, row.changed_at)


def write_state(connection: Connection, group: str, state: GroupState) -> None:
    reason = None if state.reason is None else storable(state.reason)
    values = {"desired_state": state.desired, "reason": reason, "changed_by": state.by, "changed_at": state.since}
    if not connection.execute(update(groups).where(groups.c.group_name == group).values(values)).rowcount:
        connection.execute(insert(groups), values | {"group_name": group})


def recent_tally(connection: Connection, group: str, since: datetime) -> Tally:
    """What became of the records of all batches since then; replays of what was dead before do not make up for it."""
    sums = (func.coalesce(func.sum(batches.c[name]), 0) for name in OUTCOMES)
    read = batches.c.group_name == group, batches.c.committed_at >= since, batches.c.dead >= 0
    query = select(*sums).where(*read)
    return Tally(*(int(count) for count in connection.execute(query).one()))
