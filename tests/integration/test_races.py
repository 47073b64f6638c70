"""Two owners at once: in every round exactly one of them writes, and the other gets the reason."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty
from typing import Any

import pytest

from tallymark.core.claims import Claim
from tallymark.core.spans import Partition
from tallymark.errors import CommitRefused
from tallymark.stores.opening import open_sql
from tallymark.stores.sql.ledger.read import read_positions
from tallymark.stores.sql.store import SqlStore
from tests.support.children import PROCESSES
from tests.support.commits import EVENTS, SCHEMA, apply, ready_store, take, work
from tests.support.databases import query
from tests.support.truth import check_accounts

PARTITIONS = [Partition("orders", number) for number in range(3)]
STEP = 4
"""Offsets of each partition in one round."""
TIMEOUT = 60

Claims = dict[Partition, Claim]
Outcome = tuple[int, str, str, int]
"""Round, process, error of the commit ('' is success), and its epoch."""


def compete(play: Any, url: str, name: str, start: Any, results: Any) -> None:
    """One of the processes of a race."""
    store = open_sql(url)
    store.create_tables([EVENTS], {"events": SCHEMA})
    play(store, name, start, results)


def race(url: str, play: Callable[..., None], names: tuple[str, ...] = ("a", "b")) -> list[Outcome]:
    start, results = PROCESSES.Barrier(len(names), timeout=TIMEOUT), PROCESSES.Queue()
    children = [PROCESSES.Process(target=compete, args=(play, url, name, start, results)) for name in names]
    for child in children:
        child.start()
    outcomes: list[Outcome] = []
    while any(child.is_alive() for child in children) or not results.empty():
        try:
            outcomes.append(results.get(timeout=0.2))
        except Empty:
            continue
    assert [child.exitcode for child in children] == [0] * len(names)
    return outcomes


def attempt(store: SqlStore, group: str, name: str, claims: Claims, at: int) -> str:
    try:
        apply(store, work(group, name, claims, at, at + STEP, dead=1), claims)
    except CommitRefused as refusal:
        return f"{type(refusal).__name__}: {refusal}"
    return ""


def check_rows(url: str, rounds: int) -> None:
    """Every offset is there once: all rows and dead letters of a round come from one writer."""
    wanted = {(p.number, at) for p in PARTITIONS for at in range(rounds * STEP) if at % STEP != STEP - 1}
    rows: Any = query(url, "SELECT partition_id, record_offset, writer FROM events")
    assert len(rows) == len(wanted)
    assert {(number, at) for number, at, _ in rows} == wanted
    assert len({(at // STEP, writer) for _, at, writer in rows}) == rounds
    ((letters,),) = query(url, "SELECT count(*) FROM tallymark_dead_letters")
    assert letters == rounds * len(PARTITIONS)
    assert len(query(url, "SELECT batch FROM tallymark_batches")) == rounds
    assert query(url, "SELECT DISTINCT next_offset FROM tallymark_positions") == [(rounds * STEP,)]
    check_accounts(url)


SAME_SPAN_ROUNDS = 50


def commit_the_same_span(store: SqlStore, name: str, start: Any, results: Any) -> None:
    """Both act as the owner with the same epoch, as a copied process would."""
    claims = take(store, "race", "twin", PARTITIONS) if name == "a" else {}
    start.wait()
    if not claims:
        claims = held_by(store)
    for number in range(SAME_SPAN_ROUNDS):
        start.wait()
        said = attempt(store, "race", name, claims, number * STEP)
        results.put((number, name, said, claims[PARTITIONS[0]].epoch))


def held_by(store: SqlStore) -> Claims:
    """The claims in the memory of their owner."""
    with store.look() as connection:
        found = read_positions(connection, "race", PARTITIONS)
    return {partition: Claim(partition, position.epoch, position) for partition, position in found.items()}


@pytest.mark.faults_where(store_url="mariadb")
def test_of_two_that_commit_the_same_span_one_wins(store_url: str) -> None:
    ready_store(store_url).close()
    outcomes = race(store_url, commit_the_same_span)
    for number in range(SAME_SPAN_ROUNDS):
        won, lost = sorted(said for at, _, said, _ in outcomes if at == number)
        assert won == ""
        assert lost.startswith("PositionMoved: orders[0]: the ledger is ahead of this batch")
    check_rows(store_url, SAME_SPAN_ROUNDS)


CLAIM_ROUNDS = 20


def claim_and_commit(store: SqlStore, name: str, start: Any, results: Any) -> None:
    """Both start at the same moment and claim the same partitions."""
    for number in range(CLAIM_ROUNDS):
        start.wait()
        claims = take(store, "race", f"{name}-{number}", PARTITIONS)
        start.wait()
        said = attempt(store, "race", name, claims, number * STEP)
        results.put((number, f"{name}-{number}", said, claims[PARTITIONS[0]].epoch))
        start.wait()


@pytest.mark.faults_where(store_url="mariadb")
def test_of_two_that_claim_at_once_the_last_one_may_commit(store_url: str) -> None:
    ready_store(store_url).close()
    outcomes = race(store_url, claim_and_commit)
    for number in range(CLAIM_ROUNDS):
        first, last = sorted((epoch, name, said) for at, name, said, epoch in outcomes if at == number)
        assert last[0] == first[0] + 1
        assert last[2] == ""
        assert first[2].startswith(f"Fenced: orders[0] was claimed by run {last[1]} on host-of-{last[1]} since")
    check_rows(store_url, CLAIM_ROUNDS)


def claim_under_a_commit(store: SqlStore, name: str, start: Any, results: Any) -> None:
    """One commits while the other takes over and continues from the positions that it finds."""
    at = 0
    for number in range(CLAIM_ROUNDS):
        claims = take(store, "race", f"{name}-{number}", PARTITIONS) if name == "a" else {}
        start.wait()
        if name == "a":
            said = attempt(store, "race", f"{name}-{number}", claims, at)
            results.put((number, name, said, claims[PARTITIONS[0]].epoch))
        else:
            claims = take(store, "race", f"{name}-{number}", PARTITIONS)
            (at,) = {held.position.next_offset for held in claims.values()}
            said = attempt(store, "race", f"{name}-{number}", claims, at)
            results.put((number, name, said, at))
        start.wait()
        (at,) = {held.position.next_offset for held in held_by(store).values()}
        start.wait()


@pytest.mark.faults_where(store_url="mariadb")
def test_who_takes_over_in_the_middle_of_a_commit_goes_on_where_it_ended(store_url: str) -> None:
    ready_store(store_url).close()
    outcomes = race(store_url, claim_under_a_commit)
    done = 0
    for number in range(CLAIM_ROUNDS):
        old, new = sorted(outcome for outcome in outcomes if outcome[0] == number)
        assert new[2] == ""
        assert old[2] == "" or old[2].startswith("Fenced: orders[0] was claimed by run b-")
        done += old[2] == ""
        assert new[3] == done * STEP
        done += 1
    check_rows(store_url, done)
