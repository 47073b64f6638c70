"""Dead letters in SQL: read them and change their states.

Changes to letters that are counted in a tally require the locks of their positions, so that both agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, func, select, update

from tallymark.core.claims import Entry, explain_settled
from tallymark.core.journal import DEAD, REPLAYED, UNAPPLIED, VOID, Letter, LetterQuery
from tallymark.core.records import DeadLetter, headers_from_json, storable
from tallymark.core.spans import Partition
from tallymark.errors import CommitRefused
from tallymark.stores.sql.ledger.read import key_condition, key_parameters, lock_positions
from tallymark.stores.sql.ledger.tables import dead_letters, positions


def read_letters(connection: Connection, query: LetterQuery) -> list[Letter]:
    """Return dead letters, oldest first."""
    return [_letter(row) for row in connection.execute(_select(query))]


def count_letters(connection: Connection, group: str) -> dict[str, int]:
    by_state = select(dead_letters.c.state, func.count()).group_by(dead_letters.c.state)
    rows = connection.execute(by_state.where(dead_letters.c.group_name == group).order_by(dead_letters.c.state))
    return {state: int(count) for state, count in rows}


def letter_states(connection: Connection, ids: Collection[str]) -> dict[str, str]:
    numbers = _numbers(ids)
    rows = connection.execute(select(dead_letters.c.id, dead_letters.c.state).where(dead_letters.c.id.in_(numbers)))
    return {str(row.id): row.state for row in rows}


def settle(connection: Connection, ids: Sequence[str], state: str, by: str, now: datetime) -> None:
    """Compare and set: change the state of open letters, or raise if any is settled; the caller rolls back."""
    if not ids:
        return
    if error := explain_settled(letter_states(connection, ids), ids):
        raise error
    statement = update(dead_letters).where(dead_letters.c.id == bindparam("_id"), dead_letters.c.state == DEAD)
    values = {"state": state, "changed_at": now, "changed_by": by}
    changed = connection.execute(statement.values(values), [{"_id": int(number)} for number in ids]).rowcount
    if changed != len(ids):
        raise CommitRefused(
            f"{len(ids) - changed} of {len(ids)} dead letters were already settled; nothing was changed"
        )


def replay(connection: Connection, entry: Entry) -> None:
    """Settle the letters that were applied and update the tallies; store the new error of the others."""
    found = lock_positions(connection, entry.group, {each.partition for each in entry.replays})
    applied = [each for each in entry.replays if each.error is None]
    if applied:
        settle(connection, [each.letter for each in applied], REPLAYED, entry.batch, entry.now)
    for each in entry.replays:
        if each.error is not None:
            words = {"error": storable(each.error), "changed_at": entry.now, "changed_by": entry.batch}
            here = dead_letters.c.id == int(each.letter), dead_letters.c.state == DEAD
            connection.execute(update(dead_letters).where(*here).values(words))
    counted = Counter(
        each.partition for each in applied if each.partition in found and found[each.partition].counts(each.offset)
    )
    for partition, count in sorted(counted.items()):
        _recount(connection, entry.group, partition, count)


def void_letters(connection: Connection, group: str, partition: Partition, start: int, now: datetime) -> None:
    """Void the letters of records that will be read again: replaying them would apply the records twice."""
    here = dead_letters.c.group_name == group, dead_letters.c.topic == partition.topic
    ahead = dead_letters.c.partition_id == partition.number, dead_letters.c.record_offset >= start
    query = select(dead_letters.c.id).where(*here, *ahead, dead_letters.c.state.in_(UNAPPLIED))
    # Select ids first, then update by id: a scan would wait for letters of commits that wait for this lock.
    ids = list(connection.scalars(query))
    if ids:
        values = {"state": VOID, "changed_at": now, "changed_by": "reset"}
        statement = update(dead_letters).where(dead_letters.c.id == bindparam("_id"))
        connection.execute(statement.values(values), [{"_id": number} for number in ids])


def _numbers(ids: Collection[str]) -> list[int]:
    """Return the ids that are valid row ids."""
    return [int(number) for number in ids if number.isdecimal() and len(number) < 19]


def _recount(connection: Connection, group: str, partition: Partition, count: int) -> None:
    statement = update(positions).where(*key_condition(), positions.c.dead >= count)
    values = {"applied": positions.c.applied + count, "dead": positions.c.dead - count}
    if connection.execute(statement.values(values), key_parameters(group, partition)).rowcount != 1:
        raise CommitRefused(f"group {group}: {partition} counts fewer dead records than letters; run tallymark audit")


def _select(query: LetterQuery) -> Select[Any]:
    table, found = dead_letters.c, select(dead_letters)
    for column, value in (
        (table.group_name, query.group),
        (table.topic, query.topic),
        (table.partition_id, query.partition),
        (table.table_name, query.table),
    ):
        found = found if value is None else found.where(column == value)
    if query.states is not None:
        found = found.where(table.state.in_(list(query.states)))
    if query.error is not None:
        found = found.where(table.error.icontains(query.error, autoescape=True))
    if query.since is not None:
        found = found.where(table.recorded_at >= query.since)
    if query.until is not None:
        found = found.where(table.recorded_at < query.until)
    if query.ids is not None:
        found = found.where(table.id.in_(_numbers(query.ids)))
    return found.order_by(table.id).limit(query.most)


def _letter(row: Row[Any]) -> Letter:
    record = DeadLetter(
        Partition(row.topic, row.partition_id),
        row.record_offset,
        row.record_time,
        row.record_key,
        row.record_value,
        headers_from_json(row.headers),
        row.table_name,
        row.error,
    )
    return Letter(
        str(row.id), row.group_name, record, row.state, row.batch, row.recorded_at, row.changed_at, row.changed_by
    )
