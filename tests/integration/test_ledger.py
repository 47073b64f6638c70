"""The ledger on every SQL database: positions, claims, tallies and history."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import insert

from tallymark.core.claims import Advance, Claim, Note, PositionChanges, Restart
from tallymark.core.progress import Step
from tallymark.core.spans import GroupState, Partition, Position, Span, Tally
from tallymark.errors import BadInput, CommitRefused, Fenced, PositionMoved
from tallymark.stores.opening import open_sql
from tallymark.stores.sql.ledger.commit import write_entry
from tallymark.stores.sql.ledger.read import read_positions
from tallymark.stores.sql.ledger.tables import VERSION, schema
from tallymark.stores.sql.store import SqlStore
from tests.support.commits import SINCE, apply, moving, owner, ready_store, take, work
from tests.support.crash import PROCESSES
from tests.support.databases import execute, query

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
BOTH = [ZERO, ONE]
LEFT_BEHIND = {"events": 0, "tallymark_dead_letters": 0, "tallymark_batches": 0, "tallymark_exceptions": 0}


@pytest.fixture
def store(store_url: str) -> Iterator[SqlStore]:
    made = ready_store(store_url)
    yield made
    made.close()


def position(store: SqlStore, group: str, partition: Partition = ZERO) -> Position:
    with store.look() as connection:
        return read_positions(connection, group, [partition])[partition]


def counts(url: str) -> dict[str, int]:
    found: Any = {table: query(url, f"SELECT count(*) FROM {table}")[0][0] for table in LEFT_BEHIND}
    return dict(found)


# Making it


def test_the_ledger_can_be_made_twice(store: SqlStore, store_url: str) -> None:
    store.create_ledger()
    assert query(store_url, "SELECT version FROM tallymark_schema") == [(VERSION,)]
    assert store.has_ledger()


def test_a_database_without_a_ledger_has_none(store_url: str) -> None:
    store = open_sql(store_url)
    assert not store.has_ledger()
    store.close()


def make_at_once(url: str, start: Any) -> None:
    store = open_sql(url)
    start.wait()
    store.create_ledger()


def test_several_processes_may_make_the_ledger_at_once(store_url: str) -> None:
    start = PROCESSES.Barrier(4)
    children = [PROCESSES.Process(target=make_at_once, args=(store_url, start)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 4
    assert query(store_url, "SELECT version FROM tallymark_schema") == [(VERSION,)]
    assert query(store_url, "SELECT * FROM tallymark_status") == []


def test_several_threads_may_make_the_tables_at_once(store_url: str) -> None:
    start = threading.Barrier(4)

    def make(_: int) -> None:
        start.wait()
        ready_store(store_url).close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, range(4)))
    assert counts(store_url) == LEFT_BEHIND


def test_a_ledger_of_a_newer_version_is_refused(store: SqlStore) -> None:
    with store.transaction() as connection:
        connection.execute(insert(schema), {"version": VERSION + 1, "applied_at": SINCE})
    with pytest.raises(BadInput, match=f"version {VERSION + 1}, this tallymark supports {VERSION}: upgrade"):
        store.create_ledger()


def test_a_ledger_of_version_1_is_brought_up_to_date(store: SqlStore, store_url: str, group: str) -> None:
    """It has no table of rebalances, and skips that were not voided when their partition was moved back."""
    take(store, group, "a", BOTH, at=10)
    restarted(store, group, 20)
    restarted(store, group, 15)
    restarted(store, group, 25)
    execute(
        store_url,
        "UPDATE tallymark_exceptions SET stop_offset = 20 WHERE kind = 'skip' AND start_offset = 10",
        "DROP TABLE tallymark_rebalances",
        f"UPDATE tallymark_schema SET version = 1 WHERE version = {VERSION}",
    )
    assert [skip.span for skip in store.skips(group)] == [Span(ZERO, 10, 20), Span(ZERO, 15, 25)]
    store.create_ledger()
    assert query(store_url, "SELECT version FROM tallymark_schema ORDER BY version") == [(1,), (VERSION,)]
    assert [skip.span for skip in store.skips(group)] == [Span(ZERO, 15, 25)]
    assert position(store, group).tally == Tally(skipped=10)
    assert query(store_url, f"{EXCEPTIONS} ORDER BY id") == [
        ("void", 10, 20, "because"),
        ("reset", 15, 20, "because"),
        ("skip", 15, 25, "because"),
    ]
    assert store.rebalances(group) == []
    store.create_ledger()


# Positions and names


def test_only_partitions_with_a_position_are_found(store: SqlStore, group: str) -> None:
    take(store, group, "a", [ZERO], at=7)
    with store.look() as connection:
        found = read_positions(connection, group, [ZERO, ONE, Partition("other", 0)])
        assert set(found) == {ZERO}
        assert read_positions(connection, "other-group", BOTH) == {}
        assert read_positions(connection, group, []) == {}
    assert store.positions(group) == {group: [found[ZERO]]}
    assert store.positions("other-group") == {}
    assert (found[ZERO].first_offset, found[ZERO].next_offset, found[ZERO].tally) == (7, 7, Tally())
    assert (found[ZERO].topic_id, found[ZERO].cluster_id) == ("topic-id", "cluster-id")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Orders", "orders"),
        ("o'rd\"ers", "o`rders"),
        ("größe", "grosse"),
        ("🐘", "🐬"),
        ("%s", "%(x)s"),
    ],
)
def test_names_that_look_alike_are_kept_apart(one: str, other: str, store: SqlStore, store_url: str) -> None:
    for offset, (group, topic) in enumerate([(one, one), (one, other), (other, one), (other, other)], start=1):
        held = take(store, group, "a", [Partition(topic, 0)])
        apply(store, work(group, f"{group} {topic}", held, 0, offset), held)
    found = store.positions()
    reached = {(group, at.partition.topic): at.next_offset for group, all_ in found.items() for at in all_}
    assert reached == {(one, one): 1, (one, other): 2, (other, one): 3, (other, other): 4}
    assert len(query(store_url, "SELECT * FROM tallymark_batches")) == 4


# Claims


def test_a_claim_raises_the_epoch_and_names_its_owner(store: SqlStore, group: str) -> None:
    first = take(store, group, "a", BOTH)
    second = take(store, group, "b", [ZERO])
    assert {held.epoch for held in first.values()} == {1}
    assert second[ZERO].epoch == 2
    assert (position(store, group).epoch, position(store, group).owner) == (2, owner("b"))
    assert (position(store, group, ONE).epoch, position(store, group, ONE).owner) == (1, owner("a"))
    assert str(owner("b")) == "run b on host-of-b since 2026-01-31 12:30:00 UTC"
    assert second[ZERO].position == position(store, group)


def test_a_claim_leaves_an_existing_position_where_it_is(store: SqlStore, group: str) -> None:
    held = take(store, group, "a", [ZERO], at=5)
    apply(store, work(group, "a", held, 5, 9), held)
    again = take(store, group, "b", [ZERO], at=100)
    assert again[ZERO].position.next_offset == 9
    assert position(store, group).first_offset == 5


def test_whoever_is_fenced_is_told_by_whom_and_leaves_nothing_behind(
    store: SqlStore, store_url: str, group: str
) -> None:
    held = take(store, group, "a", BOTH)
    take(store, group, "b", [ONE])
    made = work(group, "a", held, 0, 3, dead=1)
    lost = Note("loss", Span(ZERO, 0, 1), "deleted before they were read")
    made = dataclasses.replace(made, entry=dataclasses.replace(made.entry, notes=[lost], pause="too many"))
    with pytest.raises(Fenced, match=r"orders\[1\] was claimed by run b on host-of-b since 2026-01-31 12:30:00 UTC"):
        apply(store, made, held)
    assert counts(store_url) == LEFT_BEHIND
    assert position(store, group).next_offset == 0
    state = store.state(group)
    assert state is not None
    assert not state.paused


def test_whoever_is_fenced_in_the_middle_of_a_transaction_leaves_nothing_behind(
    store: SqlStore, store_url: str, group: str
) -> None:
    """The rows are written when the rival claims; the last statement decides. (On SQLite, writers queue.)"""
    if store.dialect.name == "sqlite":
        pytest.skip("a second writer has to wait")
    held = take(store, group, "a", BOTH)
    rival = ready_store(store_url)
    made = work(group, "a", held, 0, 3, dead=1)

    def on_step(step: Step) -> None:
        if step is Step.WRITTEN:
            take(rival, group, "b", BOTH)

    with pytest.raises(Fenced, match=r"orders\[0\] was claimed by run b on host-of-b"):
        store.apply(made.changes, made.entry, on_step)
    rival.close()
    assert counts(store_url) == LEFT_BEHIND


def test_an_owner_that_has_left_is_still_known_to_have_been_there(store: SqlStore, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    rival = take(store, group, "b", [ZERO])
    store.release(group, rival.values())
    with pytest.raises(Fenced, match="another owner, which has released it since"):
        apply(store, work(group, "a", held, 0, 1), held)


def test_a_claim_is_released_only_by_its_holder(store: SqlStore, group: str) -> None:
    first = take(store, group, "a", BOTH)
    second = take(store, group, "b", [ZERO])
    store.release(group, first.values())
    assert position(store, group).owner == owner("b")
    assert position(store, group, ONE).owner is None
    store.release(group, second.values())
    assert position(store, group).owner is None
    assert position(store, group).epoch == 2


def test_a_reclaim_shuts_out_our_own_late_commit(store: SqlStore, group: str) -> None:
    held = take(store, group, "a", BOTH)
    again = store.reclaim(group, held)
    assert {partition: claim.epoch for partition, claim in again.items()} == {ZERO: 2, ONE: 2}
    assert again[ZERO].position == position(store, group)
    with pytest.raises(Fenced):
        apply(store, work(group, "a", held, 0, 1), held)
    apply(store, work(group, "a", again, 0, 1), again)
    assert position(store, group).next_offset == 1


def test_a_reclaim_takes_nothing_back_from_who_has_it_now(store: SqlStore, group: str) -> None:
    held = take(store, group, "a", BOTH)
    take(store, group, "b", [ONE])
    with pytest.raises(Fenced, match=r"orders\[1\] was claimed by run b on host-of-b"):
        store.reclaim(group, held)
    assert (position(store, group, ONE).epoch, position(store, group, ONE).owner) == (2, owner("b"))
    assert position(store, group).epoch == 1, "and of the others nothing either"


def test_a_reclaim_whose_answer_was_lost_can_be_repeated(store: SqlStore, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    for epoch in (2, 3):
        assert store.reclaim(group, held)[ZERO].epoch == epoch


def test_who_was_fenced_takes_no_new_partition(store: SqlStore, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    take(store, group, "b", [ZERO])
    with pytest.raises(Fenced, match=r"orders\[0\] was claimed by run b"):
        take(store, group, "a", [ONE], held=held)
    assert store.positions(group)[group] == [position(store, group)]


def test_a_claim_decides_by_the_positions_that_are_there(store: SqlStore, group: str) -> None:
    take(store, group, "a", [ONE], at=3)
    seen: list[Position] = []

    def decide(saved: Sequence[Position]) -> PositionChanges:
        seen.extend(saved)
        raise BadInput("no")

    with pytest.raises(BadInput, match="no"):
        store.claim(group, owner("b"), BOTH, decide, {})
    assert seen == [position(store, group, ONE)]
    assert seen[0].owner == owner("a"), "whoever runs is left alone by a claim that fails"


# Compare and set


def test_ahead_and_behind_are_told_apart(store: SqlStore, store_url: str, group: str) -> None:
    held = take(store, group, "a", [ZERO], at=5)
    with pytest.raises(PositionMoved, match=r"orders\[0\]: the ledger is ahead of this batch, at 5 instead of 3"):
        apply(store, work(group, "a", held, 3, 6), held)
    with pytest.raises(PositionMoved, match=r"orders\[0\]: the ledger is behind this batch, at 5 instead of 8"):
        apply(store, work(group, "a", held, 8, 9), held)
    assert counts(store_url) == LEFT_BEHIND


def test_a_position_that_was_deleted_is_missed(store: SqlStore, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    with store.transaction() as connection:
        connection.exec_driver_sql("DELETE FROM tallymark_positions")
    with pytest.raises(PositionMoved, match="the ledger has no position"):
        apply(store, work(group, "a", held, 0, 1), held)


@pytest.mark.parametrize("wrong", ["epoch", "start"])
@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_one_wrong_step_refuses_all(wrong: str, partitions: int, store: SqlStore, group: str) -> None:
    """The count of moved positions is right for one and for many, although drivers count executemany differently."""
    claims = take(store, group, "a", [Partition("orders", number) for number in range(partitions)])
    entry = work(group, "a", claims, 0, 4).entry
    *steps, last = entry.advances
    bad = (
        dataclasses.replace(last, epoch=last.epoch - 1)
        if wrong == "epoch"
        else Advance(last.partition, 1, 5, last.epoch, last.tally, None)
    )
    with pytest.raises(CommitRefused, match=f"1 of {partitions} positions"), store.transaction() as connection:
        write_entry(connection, dataclasses.replace(entry, advances=[*steps, bad]), lambda: None)
    assert all(position(store, group, partition).next_offset == 0 for partition in claims)


def test_a_batch_without_rows_advances(store: SqlStore, store_url: str, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    absent = Advance(ZERO, 0, 4, held[ZERO].epoch, Tally(absent=4), None)
    apply(store, moving(group, absent), held)
    assert position(store, group).next_offset == 4
    assert position(store, group).tally == Tally(absent=4)
    assert position(store, group).record_time is None
    assert query(store_url, "SELECT absent FROM tallymark_batches") == [(4,)]


def test_the_time_of_the_last_record_survives_a_batch_without_records(store: SqlStore, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    apply(store, work(group, "a", held, 0, 2), held)
    apply(store, moving(group, Advance(ZERO, 2, 3, held[ZERO].epoch, Tally(absent=1), None)), held)
    assert position(store, group).record_time == SINCE


def test_offsets_and_tallies_beyond_32_bits_are_kept(store: SqlStore, group: str) -> None:
    far = 2**62
    held = take(store, group, "a", [ZERO], at=far)
    apply(store, moving(group, Advance(ZERO, far, far + 2**40, 1, Tally(lost=2**40), None)), held)
    found = position(store, group)
    assert (found.first_offset, found.next_offset, found.tally.lost) == (far, far + 2**40, 2**40)
    assert held[ZERO].position.next_offset == far


def test_dead_letters_are_kept_as_they_came(store: SqlStore, store_url: str, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    apply(store, work(group, "a", held, 0, 1, dead=1), held)
    columns = "record_offset, record_key, record_value, headers, error, state"
    ((offset, key, value, *rest),) = query(store_url, f"SELECT {columns} FROM tallymark_dead_letters")
    assert (offset, bytes(key), bytes(value)) == (0, b"key", b"\x00\xff")  # type: ignore[call-overload]
    assert rest == ['[["h", null]]', "garbage", "dead"]


def test_a_dead_letter_whose_error_quotes_a_nul_is_kept(store: SqlStore, store_url: str, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    made = work(group, "a", held, 0, 1, dead=1)
    letter = dataclasses.replace(made.entry.dead_letters[0], error="unexpected a\x00b", headers=[("\x00", b"\x00")])
    entry = dataclasses.replace(made.entry, dead_letters=[letter])
    apply(store, dataclasses.replace(made, entry=entry), held)
    ((error,),) = query(store_url, "SELECT error FROM tallymark_dead_letters")
    assert error == "unexpected a\\0b"


# Moving positions


def restarted(store: SqlStore, group: str, offset: int) -> Claim:
    """Claimed again, and moved."""
    changes = PositionChanges({}, {ZERO: Restart(offset, "because")})
    return store.claim(group, owner("b"), [ZERO], lambda _: changes, {})[ZERO]


EXCEPTIONS = "SELECT kind, start_offset, stop_offset, reason FROM tallymark_exceptions"


def test_a_restart_ahead_is_a_skip_on_the_record(store: SqlStore, store_url: str, group: str) -> None:
    held = take(store, group, "a", [ZERO], at=10)
    apply(store, work(group, "a", held, 10, 14, dead=1), held)
    moved = restarted(store, group, 20)
    assert moved.position == position(store, group)
    assert moved.position.next_offset == 20
    assert moved.position.tally == Tally(applied=3, dead=1, skipped=6)
    assert moved.position.balanced
    assert query(store_url, EXCEPTIONS) == [("skip", 14, 20, "because")]


def test_a_restart_back_begins_a_new_tally(store: SqlStore, store_url: str, group: str) -> None:
    held = take(store, group, "a", [ZERO], at=10)
    apply(store, work(group, "a", held, 10, 14, dead=1), held)
    moved = restarted(store, group, 12)
    assert (moved.position.first_offset, moved.position.next_offset, moved.position.tally) == (12, 12, Tally())
    assert moved.position.balanced
    assert query(store_url, EXCEPTIONS) == [("reset", 12, 14, "because")]
    apply(store, work(group, "a", {ZERO: moved}, 12, 15), {ZERO: moved})
    assert position(store, group).balanced


def test_a_restart_where_it_is_leaves_no_trace(store: SqlStore, store_url: str, group: str) -> None:
    take(store, group, "a", [ZERO], at=10)
    restarted(store, group, 10)
    assert query(store_url, EXCEPTIONS) == []
    assert position(store, group).tally == Tally()


# History and status


def test_only_old_history_of_the_group_is_forgotten(store: SqlStore, store_url: str, group: str) -> None:
    for name in (group, "other"):
        held = take(store, name, "a", [ZERO])
        apply(store, work(name, "a", held, 0, 2, dead=1), held)
    now = datetime.now(timezone.utc)
    store.prune(group, {"batches": now - timedelta(days=1)})
    assert counts(store_url)["tallymark_batches"] == 2
    held = take(store, group, "a", [ZERO])
    apply(store, work(group, "last", held, 2, 3), held)
    store.prune(group, {"batches": now + timedelta(days=1)})
    left = query(store_url, "SELECT group_name, applied FROM tallymark_batches ORDER BY group_name, applied")
    assert left == [(group, 1), ("other", 1)]
    ((last,),) = query(store_url, f"SELECT spans FROM tallymark_batches WHERE group_name = '{group}'")
    assert json.loads(str(last)) == [["orders", 0, 2, 3]]
    assert counts(store_url)["tallymark_dead_letters"] == 2
    assert position(store, group).tally == Tally(applied=2, dead=1)


def test_the_status_can_be_read_with_sql_alone(store: SqlStore, store_url: str, group: str) -> None:
    held = take(store, group, "a", BOTH)
    apply(store, work(group, "a", held, 0, 3, dead=1), held)
    columns = "partition_id, desired_state, next_offset, applied, dead, owner, owner_host, epoch"
    found = query(store_url, f"SELECT {columns} FROM tallymark_status WHERE balanced ORDER BY partition_id")
    assert found == [(number, "running", 3, 2, 1, "a", "host-of-a", 1) for number in (0, 1)]
    ((age,),) = query(store_url, "SELECT record_age_seconds FROM tallymark_status WHERE partition_id = 0")
    expected = (datetime.now(timezone.utc) - SINCE).total_seconds()
    assert float(str(age)) == pytest.approx(expected, abs=60)


def test_a_tally_that_does_not_add_up_shows_in_the_status(store: SqlStore, store_url: str, group: str) -> None:
    take(store, group, "a", BOTH)
    with store.transaction() as connection:
        connection.exec_driver_sql("UPDATE tallymark_positions SET applied = 1 WHERE partition_id = 1")
    assert query(store_url, "SELECT partition_id FROM tallymark_status WHERE NOT balanced") == [(1,)]


def test_looking_waits_for_no_writer(store: SqlStore, store_url: str, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    looking = open_sql(store_url)
    with store.transaction() as connection:
        write_entry(connection, work(group, "a", held, 0, 5).entry, lambda: None)
        with looking.look() as other:
            assert read_positions(other, group, [ZERO])[ZERO].next_offset == 0
    looking.close()
    assert position(store, group).next_offset == 5


def test_a_claim_for_nothing_does_nothing(store: SqlStore, group: str) -> None:
    assert store.claim(group, owner("a"), [ZERO], lambda _: PositionChanges({}), {}) == {}
    assert store.reclaim(group, {}) == {}
    store.release(group, [])


# Running and paused


def test_a_group_runs_from_its_first_claim_and_does_what_it_is_told(store: SqlStore, group: str) -> None:
    assert store.state(group) is None
    take(store, group, "a", [ZERO])
    assert store.state(group) == GroupState("running", None, "host-of-a", SINCE)
    paused = GroupState("paused", "größe 🐘", "me", SINCE + timedelta(microseconds=1))
    store.set_state(group, paused)
    take(store, group, "b", [ZERO])
    assert store.state(group) == paused, "a claim leaves it as it is"
    store.set_state("never-claimed", paused)
    assert store.state("never-claimed") == paused


def test_a_commit_that_pauses_the_group_does_both_or_neither(store: SqlStore, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    made = work(group, "a", held, 0, 2, dead=1)
    pausing = dataclasses.replace(made.entry, pause="too many")
    stale = dataclasses.replace(pausing, advances=[dataclasses.replace(pausing.advances[0], epoch=0)])
    with pytest.raises(Fenced):
        store.apply(made.changes, stale)
    state = store.state(group)
    assert state is not None
    assert not state.paused
    store.apply(made.changes, pausing)
    assert store.state(group) == GroupState("paused", "too many", "budget", pausing.now)


def test_what_became_of_records_lately_is_that_of_the_batches_since(store: SqlStore, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    assert store.recent(group, SINCE) == Tally()
    for number in range(3):
        made = work(group, "a", held, number * 4, number * 4 + 4, dead=1)
        entry = dataclasses.replace(made.entry, now=SINCE + timedelta(minutes=number))
        apply(store, dataclasses.replace(made, entry=entry), held)
    other = take(store, "other", "a", [ZERO])
    apply(store, work("other", "a", other, 0, 9), other)
    assert store.recent(group, SINCE) == Tally(applied=9, dead=3)
    assert store.recent(group, SINCE + timedelta(minutes=1)) == Tally(applied=6, dead=2)
    assert store.recent(group, SINCE + timedelta(minutes=1, microseconds=1)) == Tally(applied=3, dead=1)
    assert store.recent(group, SINCE + timedelta(minutes=3)) == Tally()
