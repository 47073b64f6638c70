"""What one commit writes to the ledger, in the caller's transaction, and how it decides.

``advance`` is the decision: it moves the positions only if every one still has the offset and the epoch its caller
knows. It comes last in the transaction, so that a stuck loser holds no lock that the winner needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, update

from tallymark.errors import CommitRefused, Fenced, PositionMoved
from tallymark.ledger.read import read_positions
from tallymark.ledger.statements import key_condition, key_parameters
from tallymark.ledger.tables import batches, dead_letters, exceptions, positions
from tallymark.read import DeadLetter
from tallymark.spans import OUTCOMES, Partition, Position, Span, Tally


@dataclass(frozen=True)
class Advance:
    """One partition's step within a commit: compare with start and epoch, set stop and add the tally."""

    partition: Partition
    start: int
    stop: int
    epoch: int
    tally: Tally
    record_time: datetime | None

    def __post_init__(self) -> None:
        if self.tally.total != self.stop - self.start:
            raise ValueError(f"{self.partition}: {self.tally} does not account for {self.start}..{self.stop}")


def check_fence(connection: Connection, group: str, advances: Sequence[Advance]) -> None:
    """Fail early, before any work, when the commit can't succeed any more. The decision itself is ``advance``'s."""
    found = read_positions(connection, group, [step.partition for step in advances])
    if error := explain_refusal(found, advances):
        raise error


def advance(connection: Connection, group: str, advances: Sequence[Advance], now: datetime) -> None:
    """Compare and set: move every position from start to stop, or raise and leave the rollback to the caller."""
    values = {name: positions.c[name] + bindparam(f"_{name}") for name in OUTCOMES}
    values |= {"next_offset": bindparam("_stop"), "updated_at": bindparam("_now")}
    # A span without records says nothing about freshness: the time of the last record stays.
    values["record_time"] = func.coalesce(
        bindparam("_record_time", type_=positions.c.record_time.type), positions.c.record_time
    )
    statement = (
        update(positions)
        .where(
            *key_condition(), positions.c.epoch == bindparam("_epoch"), positions.c.next_offset == bindparam("_start")
        )
        .values(**values)
    )
    parameters = [_advance_parameters(group, step, now) for step in sorted(advances, key=lambda step: step.partition)]
    moved = connection.execute(statement, parameters).rowcount
    if moved != len(parameters):
        raise CommitRefused(f"group {group}: {len(parameters) - moved} of {len(parameters)} positions had moved")


def explain_refusal(found: Mapping[Partition, Position], advances: Sequence[Advance]) -> CommitRefused | None:
    """Why the positions found would refuse these steps: fenced by whom, ahead or behind. None if they would not."""
    for step in advances:
        position = found.get(step.partition)
        if position is None or position.epoch != step.epoch:
            return explain_loss(step.partition, step.epoch, position)
        if position.next_offset > step.start:
            return PositionMoved(
                f"{step.partition}: the ledger is ahead of this batch, at {position.next_offset} "
                f"instead of {step.start}; the span was committed already: start again to go on from there"
            )
        if position.next_offset < step.start:
            return PositionMoved(
                f"{step.partition}: the ledger is behind this batch, at {position.next_offset} "
                f"instead of {step.start}; the position was set back meanwhile: start again to go on from there"
            )
    return None


def explain_loss(partition: Partition, epoch: int, position: Position | None) -> CommitRefused:
    """Why a claim of this epoch holds no more: who has the partition now."""
    if position is None:
        return PositionMoved(f"{partition}: the position is gone from the ledger; was the group deleted?")
    holder = f"{position.owner}" if position.owner else "another owner, which has left since"
    return Fenced(
        f"{partition} was claimed by {holder} (epoch {position.epoch}, ours was {epoch}); "
        "this run has written nothing since and ends here"
    )


def record_batch(
    connection: Connection,
    group: str,
    batch: str,
    advances: Sequence[Advance],
    rows: Mapping[str, int],
    started: datetime,
    now: datetime,
) -> None:
    """One line of history for this commit."""
    spans = [[str(step.partition.topic), step.partition.number, step.start, step.stop] for step in advances]
    tally = Tally.sum(step.tally for step in advances)
    values = {"group_name": group, "batch": batch, "started_at": started, "committed_at": now}
    values |= {name: getattr(tally, name) for name in OUTCOMES}
    values |= {"table_rows": json.dumps(dict(rows)), "spans": json.dumps(spans)}
    connection.execute(insert(batches), values)


def record_dead_letters(
    connection: Connection, group: str, batch: str, letters: Sequence[DeadLetter], now: datetime
) -> None:
    """Keep what could not be applied, with the reason."""
    if letters:
        connection.execute(insert(dead_letters), [_letter(group, batch, letter, now) for letter in letters])


def record_exceptions(
    connection: Connection,
    group: str,
    kind: str,
    spans: Iterable[Span],
    reason: str,
    now: datetime,
    batch: str | None = None,
) -> None:
    """Write down spans that are not in the tables, or will be there again: kind is skip, loss or reset."""
    shared = {"group_name": group, "kind": kind, "reason": reason, "batch": batch, "recorded_at": now}
    rows = [
        shared
        | {"topic": span.partition.topic, "partition_id": span.partition.number}
        | {"start_offset": span.start, "stop_offset": span.stop}
        for span in spans
    ]
    if rows:
        connection.execute(insert(exceptions), rows)


def prune_batches(connection: Connection, group: str, now: datetime, keep: timedelta) -> None:
    """Forget history older than ``keep``. Positions, tallies, exceptions and dead letters stay."""
    connection.execute(delete(batches).where(batches.c.group_name == group, batches.c.committed_at < now - keep))


def _advance_parameters(group: str, step: Advance, now: datetime) -> dict[str, Any]:
    tally = {f"_{name}": getattr(step.tally, name) for name in OUTCOMES}
    moved = {"_start": step.start, "_stop": step.stop, "_epoch": step.epoch}
    return key_parameters(group, step.partition) | moved | tally | {"_record_time": step.record_time, "_now": now}


def _letter(group: str, batch: str, letter: DeadLetter, now: datetime) -> dict[str, Any]:
    headers = [[name, value.hex() if value is not None else None] for name, value in letter.headers]
    return {
        "group_name": group,
        "topic": letter.partition.topic,
        "partition_id": letter.partition.number,
        "record_offset": letter.offset,
        "record_time": letter.record_time,
        "record_key": letter.key,
        "record_value": letter.value,
        "headers": json.dumps(headers) if headers else None,
        "table_name": letter.table,
        # PostgreSQL's text can't hold a NUL, which an error may quote from the record.
        "error": letter.error.replace("\0", "\\0"),
        "state": "dead",
        "batch": batch,
        "recorded_at": now,
    }
