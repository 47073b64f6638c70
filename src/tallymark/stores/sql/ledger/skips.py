"""Open skips in SQL: the rows of kind 'skip' in the journal. Filling shrinks them; a filled skip is deleted.

Changes to the open skips of a partition require the lock of its position, so that skips and tally agree. Skips are
selected first and changed by id: a scan would wait for the notes of commits that wait for that lock.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, Select, Update, delete, select, update

from tallymark.core.claims import Entry, Fill, Skip, explain_unfillable
from tallymark.core.spans import OUTCOMES, Partition, Span
from tallymark.errors import CommitRefused
from tallymark.stores.sql.ledger.read import lock_positions
from tallymark.stores.sql.ledger.tables import exceptions, positions


def read_skips(connection: Connection, group: str) -> list[Skip]:
    """Return the open skips of a group, in order."""
    return [_skip(row) for row in connection.execute(_open(group))]


def was_filled(connection: Connection, group: str, batch: str) -> bool:
    """Whether this backfill or replay batch was committed."""
    there = exceptions.c.group_name == group, exceptions.c.batch == batch, exceptions.c.kind.in_(["backfill", "replay"])
    return connection.execute(select(exceptions.c.id).where(*there).limit(1)).first() is not None


def fill(connection: Connection, entry: Entry) -> None:
    """Compare and set: shrink the filled skips and update the tallies, or raise; the caller rolls back.

    Offsets and owners of the positions do not change.
    """
    held = lock_positions(connection, entry.group, {span.partition for span in entry.spans})
    rows = {_span(row): row for row in connection.execute(_open(entry.group))}
    if error := explain_unfillable(map(_skip, rows.values()), entry.fills):
        raise error
    for each in entry.fills:
        _shrink(connection, rows[each.skip].id, each.rest)
        if each.skip.partition not in held or held[each.skip.partition].counts(each.done.start):
            _recount(connection, entry.group, each)


def void_skips(connection: Connection, group: str, partition: Partition, start: int) -> None:
    """Void skips from ``start`` on, which will be read again. The part before stays open, outside the tally."""
    here = exceptions.c.topic == partition.topic, exceptions.c.partition_id == partition.number
    rows = list(connection.execute(_open(group).where(*here, exceptions.c.stop_offset > start)))
    _void(connection, [row.id for row in rows if row.start_offset >= start])
    for row in rows:
        if row.start_offset < start:
            connection.execute(update(exceptions).where(exceptions.c.id == row.id).values(stop_offset=start))


def void_before_resets() -> Update:
    """Return the statement that voids all skips that were recorded before a reset of their partition."""
    later = exceptions.alias()
    same = (later.c[name] == exceptions.c[name] for name in ("group_name", "topic", "partition_id"))
    stale = select(exceptions.c.id).where(
        exceptions.c.kind == "skip", later.c.kind == "reset", later.c.id > exceptions.c.id, *same
    )
    # MySQL does not update a table that the same statement reads, unless DISTINCT makes it read first.
    ids = select(stale.distinct().subquery("stale"))
    return update(exceptions).where(exceptions.c.id.in_(ids)).values(kind="void")


def _void(connection: Connection, ids: list[int]) -> None:
    if ids:
        connection.execute(update(exceptions).where(exceptions.c.id.in_(ids)).values(kind="void"))


def _open(group: str) -> Select[Any]:
    order = exceptions.c.topic, exceptions.c.partition_id, exceptions.c.start_offset
    return select(exceptions).where(exceptions.c.group_name == group, exceptions.c.kind == "skip").order_by(*order)


def _span(row: Row[Any]) -> Span:
    return Span(Partition(row.topic, row.partition_id), row.start_offset, row.stop_offset)


def _skip(row: Row[Any]) -> Skip:
    return Skip(_span(row), row.reason, row.recorded_at)


def _shrink(connection: Connection, number: int, rest: Span) -> None:
    row = exceptions.c.id == number
    if len(rest):
        connection.execute(update(exceptions).where(row).values(start_offset=rest.start))
    else:
        connection.execute(delete(exceptions).where(row))


def _recount(connection: Connection, group: str, fill: Fill) -> None:
    partition, change = fill.skip.partition, fill.change
    statement = update(positions).where(
        positions.c.group_name == group,
        positions.c.topic == partition.topic,
        positions.c.partition_id == partition.number,
        positions.c.skipped >= len(fill.done),
        positions.c.first_offset <= fill.done.start,
        positions.c.next_offset >= fill.done.stop,
    )
    moved = connection.execute(statement.values({name: positions.c[name] + getattr(change, name) for name in OUTCOMES}))
    if moved.rowcount != 1:
        raise CommitRefused(f"group {group}: {fill.done} is not in the tally of its position; run tallymark audit")
