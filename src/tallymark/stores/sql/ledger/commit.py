"""Write one commit to the ledger, in the caller's transaction, and decide whether the commit may happen.

``advance`` is the decision: it moves the positions only if each still has the offset and the epoch that the caller
knows. It comes last in the transaction, so that a fenced owner that hangs holds no lock that the new owner needs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, Update, bindparam, func, insert, select, update
from sqlalchemy.dialects.postgresql import psycopg

from tallymark.core.claims import Advance, Entry, Note, explain_refusal, explain_settled, explain_unfillable
from tallymark.core.drift import added, to_json
from tallymark.core.records import DeadLetter, storable
from tallymark.core.spans import OUTCOMES, GroupState
from tallymark.errors import CommitRefused
from tallymark.stores.sql.ledger.letters import letter_states, replay
from tallymark.stores.sql.ledger.read import by_driver, key_condition, key_parameters, lock_positions, read_positions
from tallymark.stores.sql.ledger.runs import record_tables, write_state
from tallymark.stores.sql.ledger.skips import fill, read_skips
from tallymark.stores.sql.ledger.tables import batches, dead_letters, exceptions, positions


def check_fence(connection: Connection, entry: Entry) -> None:
    """Fail before any work if the commit can no longer succeed. The decision itself is made by ``advance``."""
    found = read_positions(connection, entry.group, [step.partition for step in entry.advances])
    skips = read_skips(connection, entry.group) if entry.fills else []
    applied = [each.letter for each in entry.replays if each.error is None]
    states = letter_states(connection, applied) if applied else {}
    if error := (
        explain_refusal(found, entry.advances)
        or explain_unfillable(skips, entry.fills)
        or explain_settled(states, applied)
    ):
        raise error


def write_entry(connection: Connection, entry: Entry, written: Callable[[], None]) -> None:
    """Write the entry, the positions last; ``written`` is called before the positions move."""
    if connection.dialect.name == "postgresql" and _is_plain(entry):
        written()
        _record_and_advance(connection, entry)
    else:
        record(connection, entry)
        written()
        advance(connection, entry)


def record(connection: Connection, entry: Entry) -> None:
    """Write the entry except the positions: dead letters, notes, a line of history and the pause."""
    if entry.dead_letters:
        most = _most_bytes(connection)
        connection.execute(insert(dead_letters), [_letter(entry, letter, most) for letter in entry.dead_letters])
    record_notes(connection, entry.group, entry.journal, entry.now, entry.batch)
    record_tables(connection, entry.group, entry.tables, entry.now)
    connection.execute(insert(batches), _batch(entry))
    if entry.pause is not None:
        write_state(connection, entry.group, GroupState("paused", entry.pause, "budget", entry.now))


def advance(connection: Connection, entry: Entry) -> None:
    """Compare and set: move every position from start to stop, or raise; the caller rolls back."""
    if entry.fills:
        fill(connection, entry)
    if entry.replays:
        replay(connection, entry)
    if entry.advances:
        _advance(connection, entry)
    if entry.drift:
        _record_drift(connection, entry)


def _advance_statement() -> Update:
    values = {name: positions.c[name] + bindparam(f"_{name}") for name in OUTCOMES}
    values |= {"next_offset": bindparam("_stop"), "updated_at": bindparam("_now")}
    # A span without records has no record time: keep the time of the last record.
    values["record_time"] = func.coalesce(
        bindparam("_record_time", type_=positions.c.record_time.type), positions.c.record_time
    )
    values["leader_epoch"] = func.coalesce(
        bindparam("_leader_epoch", type_=positions.c.leader_epoch.type), positions.c.leader_epoch
    )
    return (
        update(positions)
        .where(
            *key_condition(), positions.c.epoch == bindparam("_epoch"), positions.c.next_offset == bindparam("_start")
        )
        .values(**values)
    )


_ADVANCE = _advance_statement()
"""Built once: SQLAlchemy needs longer to build it than the database to execute it."""


def _record_and_advance_statement() -> Select[Any]:
    moved = _ADVANCE.returning(positions.c.partition_id).cte("moved")
    line: dict[str, Any] = {
        column.name: bindparam(f"_line_{column.name}") for column in batches.c if not column.primary_key
    }
    return select(func.count()).select_from(moved).add_cte(insert(batches).values(line).cte("noted"))


_RECORD_AND_ADVANCE = str(_record_and_advance_statement().compile(dialect=psycopg.dialect()))  # type: ignore[no-untyped-call]
"""Both in one statement, to save a round trip for small commits. Only PostgreSQL supports this."""


def _is_plain(entry: Entry) -> bool:
    """Whether the entry only moves one position and adds a line of history."""
    more = (entry.dead_letters, entry.journal, entry.fills, entry.replays, entry.tables, entry.drift)
    return len(entry.advances) == 1 and not any(more) and entry.pause is None


def _record_and_advance(connection: Connection, entry: Entry) -> None:
    line = {f"_line_{name}": value for name, value in _batch(entry).items()}
    (step,) = entry.advances
    # SQLAlchemy needs longer for so many parameters than PostgreSQL for the statement.
    with by_driver(connection, _RECORD_AND_ADVANCE) as cursor:
        (moved,) = cursor.execute(_RECORD_AND_ADVANCE, _advance_parameters(entry, step) | line).fetchone()
    if not moved:
        raise CommitRefused(f"group {entry.group}: 1 of 1 positions had changed; nothing was written")


def _advance(connection: Connection, entry: Entry) -> None:
    steps = sorted(entry.advances, key=lambda step: step.partition)
    moved = connection.execute(_ADVANCE, [_advance_parameters(entry, step) for step in steps]).rowcount
    if moved != len(steps):
        stale = len(steps) - moved
        raise CommitRefused(f"group {entry.group}: {stale} of {len(steps)} positions had changed; nothing was written")


def _record_drift(connection: Connection, entry: Entry) -> None:
    """Add to the drift of positions that this transaction has locked."""
    found = lock_positions(connection, entry.group, entry.drift)
    parameters = [
        key_parameters(entry.group, partition)
        | {"_drift": to_json(added(position.drift, entry.drift[partition], entry.now))}
        for partition, position in found.items()
    ]
    if parameters:
        connection.execute(update(positions).where(*key_condition()).values(drift=bindparam("_drift")), parameters)


def record_notes(
    connection: Connection, group: str, notes: Sequence[Note], now: datetime, batch: str | None = None
) -> None:
    """Record spans that are missing from the tables or will be written again."""
    shared = {"group_name": group, "batch": batch, "recorded_at": now}
    rows = [
        shared
        | {"topic": note.span.partition.topic, "partition_id": note.span.partition.number}
        | {
            "start_offset": note.span.start,
            "stop_offset": note.span.stop,
            "kind": note.kind,
            "reason": storable(note.reason),
        }
        for note in notes
    ]
    if rows:
        connection.execute(insert(exceptions), rows)


def _batch(entry: Entry) -> dict[str, Any]:
    spans = [[span.partition.topic, span.partition.number, span.start, span.stop] for span in entry.spans]
    values = {"group_name": entry.group, "batch": entry.batch, "started_at": entry.started, "committed_at": entry.now}
    values |= {name: getattr(entry.tally, name) for name in OUTCOMES}
    return values | {"table_rows": json.dumps(dict(entry.rows)), "spans": json.dumps(spans)}


def _advance_parameters(entry: Entry, step: Advance) -> dict[str, Any]:
    tally = {f"_{name}": getattr(step.tally, name) for name in OUTCOMES}
    moved = {"_start": step.start, "_stop": step.stop, "_epoch": step.epoch}
    last = {"_record_time": step.record_time, "_leader_epoch": step.leader_epoch, "_now": entry.now}
    return key_parameters(entry.group, step.partition) | moved | tally | last


def _most_bytes(connection: Connection) -> int:
    """Return the size of the largest value that fits into a statement. MySQL closes the connection on larger values."""
    if connection.dialect.name not in ("mysql", "mariadb"):
        return sys.maxsize
    # Escaping may double the size of a value.
    return int(connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one()) // 2 - 64 * 1024


def _letter(entry: Entry, letter: DeadLetter, most: int) -> dict[str, Any]:
    if letter.value is not None and len(letter.value) > most:
        words = (
            f"{letter.error}; its value of {len(letter.value)} bytes is too large for the database and only in Kafka"
        )
        letter = replace(letter, value=None, error=words)
    return {
        "group_name": entry.group,
        "topic": letter.partition.topic,
        "partition_id": letter.partition.number,
        "record_offset": letter.offset,
        "record_time": letter.record_time,
        "record_key": letter.key,
        "record_value": letter.value,
        "headers": letter.headers_as_json(),
        "table_name": letter.table,
        "error": storable(letter.error),
        "state": "dead",
        "batch": entry.batch,
        "recorded_at": entry.now,
    }
