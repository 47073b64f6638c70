"""One commit, whole: the rows of every table, dead letters, losses and the positions, in a single transaction.

    check the fence   cheaply, before any work
    write             rows, dead letters, exceptions, history
    move              the positions, compare-and-set, last: whoever is stuck before this holds no lock others need

A connection that breaks in the middle leaves the outcome unknown until ``settle`` has asked the database.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import pyarrow as pa

from tallymark.errors import CommitRefused, TallymarkError, Unreachable
from tallymark.ledger.claim import Claim, check_claims, reclaim
from tallymark.ledger.commit import (
    Advance,
    advance,
    check_fence,
    explain_refusal,
    record_batch,
    record_dead_letters,
    record_exceptions,
)
from tallymark.ledger.read import read_positions
from tallymark.patience import patiently
from tallymark.plan import Move
from tallymark.read import DeadLetter, Reading, Seen
from tallymark.shape import TableSpec
from tallymark.spans import Partition, Span, Tally
from tallymark.steps import Step
from tallymark.stores.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Commit:
    """All that one transaction writes."""

    group: str
    batch: str
    started: datetime
    advances: Sequence[Advance]
    tables: Sequence[TableSpec]
    rows: Mapping[str, pa.Table]
    dead_letters: Sequence[DeadLetter]
    losses: Sequence[Span]


def account(move: Move, seen: Seen, epoch: int) -> Advance:
    """What became of every offset of a move. A reader that counted wrong is stopped here."""
    tally = Tally(applied=seen.records - seen.dead, dead=seen.dead, lost=move.lost, absent=move.read - seen.records)
    if min(tally.applied, tally.absent) < 0:
        raise TallymarkError(f"{move.read_span}: the reader counted {seen.records} records, {seen.dead} of them dead")
    return Advance(move.partition, move.start, move.stop, epoch, tally, seen.last_timestamp)


def check_letters(reading: Reading) -> None:
    """Every dead record must come with its letter, or it would be counted and gone."""
    counted = sum(seen.dead for seen in reading.seen.values())
    if counted != len(reading.dead_letters):
        raise TallymarkError(f"the reader counted {counted} dead records and kept {len(reading.dead_letters)} of them")


def commit(
    store: Store, work: Commit, claims: Mapping[Partition, Claim], on_step: Callable[[Step], None]
) -> dict[Partition, Claim]:
    """Write it all, or nothing. Returns the claims to go on with, which are new ones if the connection broke."""
    held, unknown = dict(claims), False

    def attempt() -> None:
        nonlocal held, unknown
        if unknown:
            held = settle(store, work.group, held)
            if _landed(work, held):
                log.warning("commit had reached the database group=%s batch=%s", work.group, work.batch)
                return
            unknown = False
        try:
            _transact(store, _with_epochs(work, held), on_step)
        except Unreachable as error:
            log.warning("commit outcome unknown group=%s batch=%s error=%s", work.group, work.batch, error)
            unknown = True
            raise

    patiently(attempt)
    on_step(Step.COMMITTED)
    return held


def _with_epochs(work: Commit, held: Mapping[Partition, Claim]) -> Commit:
    return replace(work, advances=[replace(step, epoch=held[step.partition].epoch) for step in work.advances])


def _transact(store: Store, work: Commit, on_step: Callable[[Step], None]) -> None:
    now = datetime.now(timezone.utc)
    try:
        with store.transaction() as connection:
            check_fence(connection, work.group, work.advances)
            for spec in work.tables:
                store.write(connection, spec, work.rows[spec.name])
            record_dead_letters(connection, work.group, work.batch, work.dead_letters, now)
            record_exceptions(
                connection, work.group, "loss", work.losses, "deleted before they were read", now, work.batch
            )
            rows = {spec.name: work.rows[spec.name].num_rows for spec in work.tables}
            record_batch(connection, work.group, work.batch, work.advances, rows, work.started, now)
            on_step(Step.WRITTEN)
            advance(connection, work.group, work.advances, now)
            on_step(Step.MOVED)
    except CommitRefused as refusal:
        raise _explained(store, work) or refusal from refusal


def _explained(store: Store, work: Commit) -> CommitRefused | None:
    with store.look() as connection:
        found = read_positions(connection, work.group, [step.partition for step in work.advances])
    return explain_refusal(found, work.advances)


def settle(store: Store, group: str, claims: Mapping[Partition, Claim]) -> dict[Partition, Claim]:
    """Find out where we stand after a broken connection, and shut out whatever of it is still under way."""
    with store.transaction() as connection:
        held = reclaim(connection, group, claims.values())
        check_claims(connection, group, (claim for partition, claim in claims.items() if partition not in held))
    return held


def _landed(work: Commit, held: Mapping[Partition, Claim]) -> bool:
    """Whether the commit happened after all: all positions at its stop, or all still at its start."""
    at_stop = [held[step.partition].position.next_offset == step.stop for step in work.advances]
    at_start = [held[step.partition].position.next_offset == step.start for step in work.advances]
    if not all(at_stop) and not all(at_start):
        raise CommitRefused(f"group {work.group}: positions moved while the connection was broken; start again")
    return all(at_stop)
