"""The ledger in Redis: positions, claims, tallies and history, as in SQL."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest

from tallymark.core.claims import Advance, Claim, Entry, FirstClaim, Note, PositionChanges, Restart
from tallymark.core.progress import Step
from tallymark.core.spans import GroupState, Partition, Position, Span, Tally
from tallymark.errors import BadInput, CommitRefused, Fenced, PositionMoved, TallymarkError
from tallymark.stores.redis.ledger import VERSION
from tallymark.stores.redis.store import RedisStore
from tests.support.commits import EVENTS, SCHEMA, SINCE, owner, take, work
from tests.support.redis import client, dump, key

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
BOTH = [ZERO, ONE]
NOW = datetime(2026, 3, 1, 12, 0, 0, 123457, tzinfo=timezone.utc)


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    made = RedisStore(redis_url)
    made.create_ledger()
    made.create_tables([EVENTS], {"events": SCHEMA})
    yield made
    made.close()


def commit(
    store: RedisStore, group: str, held: dict[Partition, Claim], start: int, stop: int, *, dead: int = 0
) -> None:
    made = work(group, "run", held, start, stop, dead=dead)
    store.apply(made.changes, made.entry)


def position(store: RedisStore, group: str, partition: Partition = ZERO) -> Position:
    return next(found for found in store.positions(group)[group] if found.partition == partition)


# Making it


def test_the_ledger_can_be_made_twice_and_by_several_at_once(redis_url: str) -> None:
    stores = [RedisStore(redis_url) for _ in range(4)]
    assert not stores[0].has_ledger()
    with ThreadPoolExecutor() as pool:
        list(pool.map(RedisStore.create_ledger, stores))
    stores[0].create_ledger()
    assert stores[0].has_ledger()
    assert dump(redis_url)["tallymark:schema"][b"version"] == str(VERSION).encode()


def test_a_newer_ledger_is_refused(store: RedisStore, redis_url: str) -> None:
    client(redis_url).hset(key(redis_url, "tallymark:schema"), "version", VERSION + 1)
    with pytest.raises(BadInput, match=f"has version {VERSION + 1}.*upgrade tallymark"):
        store.create_ledger()


def test_a_ledger_of_version_1_is_brought_up_to_date(store: RedisStore, redis_url: str, group: str) -> None:
    """It has skips in its journal only."""
    take(store, group, "one", BOTH, at=10)
    for to in (20, 15, 25, 30):
        changes = PositionChanges({}, {ZERO: Restart(to, "jump")})
        store.claim(group, owner("two"), [ZERO], lambda _: changes, {})  # noqa: B023
    server, before = client(redis_url), store.skips(group)
    assert [skip.span for skip in before] == [Span(ZERO, 10, 15), Span(ZERO, 15, 25), Span(ZERO, 25, 30)]
    server.delete(key(redis_url, f"tallymark:skips:{group}"))
    server.hset(key(redis_url, "tallymark:schema"), "version", 1)
    store.create_ledger()
    assert store.skips(group) == before[1:]
    assert dump(redis_url)["tallymark:schema"][b"version"] == str(VERSION).encode()


def test_a_tally_that_is_no_number_is_seen_before_anything_is_written(
    store: RedisStore, group: str, redis_url: str
) -> None:
    held = take(store, group, "one", [ZERO])
    made = work(group, "run", held, 0, 3)

    def spoil(step: Step) -> None:
        if step is Step.MOVED:
            client(redis_url).hset(key(redis_url, f"tallymark:position:{group}:orders:0"), "applied", "many")

    with pytest.raises(TallymarkError, match=r"ledger key .* holds a hash without a number in applied"):
        store.apply(made.changes, made.entry, spoil)
    assert dump(redis_url, "events:") == {}


# Claims


def test_a_claim_starts_new_partitions_and_raises_the_epoch_of_others(store: RedisStore, group: str) -> None:
    first = take(store, group, "one", [ZERO], at=7)
    assert first[ZERO].epoch == 1
    assert first[ZERO].position == position(store, group)
    assert (first[ZERO].position.next_offset, first[ZERO].position.first_offset) == (7, 7)
    second = take(store, group, "two", BOTH, at=9)
    assert (second[ZERO].epoch, second[ONE].epoch) == (2, 1)
    assert (second[ZERO].position.next_offset, second[ONE].position.next_offset) == (7, 9)
    assert {found.owner for found in store.positions(group)[group]} == {owner("two")}


def test_what_decide_wishes_sees_the_saved_positions_in_order(store: RedisStore, group: str) -> None:
    take(store, group, "one", [ONE])
    take(store, group, "one", [ZERO])
    seen: list[Position] = []

    def decide(found: Sequence[Position]) -> PositionChanges:
        seen.extend(found)
        return PositionChanges({})

    assert store.claim(group, owner("two"), [Partition("orders", 9)], decide, {}) == {}
    assert [found.partition for found in seen] == BOTH


def test_a_claim_that_decide_refuses_changes_nothing(store: RedisStore, group: str, redis_url: str) -> None:
    take(store, group, "one", BOTH)
    before = dump(redis_url)

    def refuse(_: object) -> PositionChanges:
        raise BadInput("no")

    with pytest.raises(BadInput):
        store.claim(group, owner("two"), BOTH, refuse, {})
    assert dump(redis_url) == before


def test_who_was_fenced_takes_no_new_partition(store: RedisStore, group: str, redis_url: str) -> None:
    held = take(store, group, "one", [ZERO])
    take(store, group, "two", [ZERO])
    before = dump(redis_url)
    first = PositionChanges({ONE: FirstClaim(0, "topic-id", "cluster-id")})
    with pytest.raises(Fenced, match="run two on host-of-two"):
        store.claim(group, owner("one"), [ONE], lambda _: first, held)
    assert dump(redis_url) == before


def test_who_is_fenced_while_it_claims_is_told(store: RedisStore, redis_url: str, group: str) -> None:
    held = take(store, group, "one", [ZERO])
    first = PositionChanges({ONE: FirstClaim(0, "topic-id", "cluster-id")})

    def decide(_: object) -> PositionChanges:
        take(RedisStore(redis_url), group, "two", [ZERO])
        return first

    with pytest.raises(Fenced, match="run two on host-of-two"):
        store.claim(group, owner("one"), [ONE], decide, held)
    assert [found.partition for found in store.positions(group)[group]] == [ZERO]


def test_a_claim_takes_over_while_the_owner_commits(store: RedisStore, redis_url: str, group: str) -> None:
    held = take(store, group, "one", [ZERO])

    def decide(_: object) -> PositionChanges:
        commit(RedisStore(redis_url), group, held, 0, 5)
        return PositionChanges({})

    taken = store.claim(group, owner("two"), [ZERO], decide, {})
    assert (taken[ZERO].epoch, taken[ZERO].position.next_offset) == (2, 5)


def test_claims_of_several_threads_never_share_an_epoch(redis_url: str, group: str) -> None:
    start = threading.Barrier(8)
    stores = [RedisStore(redis_url) for _ in range(8)]

    def race(number: int) -> list[Claim]:
        start.wait()
        return [take(stores[number], group, f"run-{number}", BOTH)[ZERO] for _ in range(5)]

    with ThreadPoolExecutor(8) as pool:
        claims = [held for found in pool.map(race, range(8)) for held in found]
    assert sorted(held.epoch for held in claims) == list(range(1, 41))
    last = max(claims, key=lambda held: held.epoch)
    assert position(stores[0], group) == last.position


def test_a_restart_ahead_is_a_skip_and_one_back_begins_a_new_tally(
    store: RedisStore, group: str, redis_url: str
) -> None:
    commit(store, group, take(store, group, "one", BOTH), 0, 10)
    restarts = {ZERO: Restart(25, "jump"), ONE: Restart(4, "again")}
    held = store.claim(group, owner("two"), BOTH, lambda _: PositionChanges({}, restarts), {})
    assert [held[one].position for one in BOTH] == store.positions(group)[group]
    assert held[ZERO].position.tally == Tally(applied=10, skipped=15)
    assert (held[ONE].position.first_offset, held[ONE].position.tally) == (4, Tally())
    notes = [json.loads(note) for note in dump(redis_url)[f"tallymark:exceptions:{group}"]]
    assert [(note["kind"], note["partition_id"], note["start_offset"], note["stop_offset"]) for note in notes] == [
        ("skip", 0, 10, 25),
        ("reset", 1, 4, 10),
    ]
    assert all(found.balanced for found in store.positions(group)[group])
    commit(store, group, {ZERO: held[ZERO]}, 25, 26)


def test_a_release_leaves_the_position_and_no_owner(store: RedisStore, group: str) -> None:
    held = take(store, group, "one", BOTH)
    taken = take(store, group, "two", [ONE])
    store.release(group, held.values())
    assert position(store, group, ZERO) == dataclasses.replace(held[ZERO].position, owner=None)
    assert position(store, group, ONE) == taken[ONE].position


# Commits


def test_a_commit_moves_positions_with_all_that_explains_them(store: RedisStore, group: str, redis_url: str) -> None:
    held = take(store, group, "one", BOTH)
    made = work(group, "one", held, 0, 10, dead=2)
    steps: list[Step] = []
    entry = dataclasses.replace(made.entry, now=NOW, notes=[Note("loss", Span(ZERO, 3, 5), "gone")], pause="too many")
    store.apply(made.changes, entry, steps.append)
    assert steps == [Step.WRITTEN, Step.MOVED]
    moved = position(store, group)
    assert moved == dataclasses.replace(
        held[ZERO].position, next_offset=10, tally=Tally(applied=8, dead=2), record_time=SINCE, updated_at=NOW
    )
    assert len(dump(redis_url, "events:")) == 16
    assert store.state(group) == GroupState("paused", "too many", "budget", NOW)
    ledger = dump(redis_url, "tallymark:")
    [(batch, score)] = ledger[f"batches:{group}"]
    assert score == NOW.timestamp() * 1e6
    assert json.loads(batch)["spans"] == [["orders", 0, 0, 10], ["orders", 1, 0, 10]]
    assert json.loads(ledger[f"exceptions:{group}"][0])["reason"] == "gone"
    letters = [name for name, _ in ledger[f"letters:{group}"]]
    assert len(letters) == 4
    letter = client(redis_url).hgetall(letters[0])
    assert (letter[b"record_offset"], letter[b"record_key"], letter[b"record_value"]) == (b"8", b"key", b"\x00\xff")
    assert (letter[b"error"], letter[b"state"], b"table_name" in letter) == (b"garbage", b"dead", False)


def test_a_span_without_records_keeps_the_time_of_the_last_one(store: RedisStore, group: str) -> None:
    held = take(store, group, "one", [ZERO])
    commit(store, group, held, 0, 3)
    absent = Advance(ZERO, 3, 5, held[ZERO].epoch, Tally(absent=2), None)
    store.apply([], Entry(group, "batch", SINCE, NOW, [absent]))
    assert (position(store, group).next_offset, position(store, group).record_time) == (5, SINCE)


@pytest.mark.parametrize("start", [0, 3, 9])
def test_a_commit_that_does_not_start_at_the_position_writes_nothing(
    store: RedisStore, group: str, redis_url: str, start: int
) -> None:
    held = take(store, group, "one", BOTH)
    commit(store, group, held, 0, 5)
    before = dump(redis_url)
    with pytest.raises(PositionMoved, match="behind" if start > 5 else "ahead"):
        commit(store, group, held, start, start + 3)
    assert dump(redis_url) == before


def test_a_fenced_commit_writes_nothing(store: RedisStore, group: str, redis_url: str) -> None:
    held = take(store, group, "one", BOTH)
    take(store, group, "two", [ONE])
    before = dump(redis_url)
    with pytest.raises(Fenced, match=r"orders\[1\] was claimed by run two on host-of-two.*epoch 2, this run had 1"):
        commit(store, group, held, 0, 3, dead=1)
    assert dump(redis_url) == before


def test_a_commit_whose_position_is_gone_writes_nothing(store: RedisStore, group: str, redis_url: str) -> None:
    held = take(store, group, "one", BOTH)
    client(redis_url).delete(key(redis_url, f"tallymark:position:{group}:orders:1"))
    before = dump(redis_url)
    with pytest.raises(PositionMoved, match="the ledger has no position any more"):
        commit(store, group, held, 0, 3)
    assert dump(redis_url) == before


@pytest.mark.parametrize("disturb", ["claim", "commit"])
def test_a_commit_that_is_overtaken_on_its_way_writes_nothing(
    store: RedisStore, group: str, redis_url: str, disturb: str
) -> None:
    """The early check of the positions succeeds: the script must refuse."""
    held = take(store, group, "one", BOTH)
    made = work(group, "one", held, 0, 3, dead=1)
    after: dict[str, object] = {}

    def overtake(step: Step) -> None:
        if step is Step.MOVED:
            other = RedisStore(redis_url)
            take(other, group, "two", [ONE]) if disturb == "claim" else commit(other, group, {ONE: held[ONE]}, 0, 2)
            after.update(dump(redis_url))

    with pytest.raises(CommitRefused) as refused:
        store.apply(made.changes, made.entry, overtake)
    assert type(refused.value) is (Fenced if disturb == "claim" else PositionMoved)
    assert dump(redis_url) == after


def test_a_ledger_key_of_another_type_is_seen_before_anything_is_written(
    store: RedisStore, group: str, redis_url: str
) -> None:
    held = take(store, group, "one", [ZERO])
    client(redis_url).set(key(redis_url, f"tallymark:batches:{group}"), "mine")
    before = dump(redis_url)
    with pytest.raises(TallymarkError, match=r"ledger key .*batches.* holds a string"):
        commit(store, group, held, 0, 3)
    assert dump(redis_url) == before


# An unknown outcome


@pytest.mark.parametrize("landed", [True, False])
def test_a_reclaim_settles_a_commit_whose_answer_was_lost(
    store: RedisStore, group: str, redis_url: str, landed: bool
) -> None:
    held = take(store, group, "one", BOTH)
    made = work(group, "one", held, 0, 5)
    if landed:
        store.apply(made.changes, made.entry)
    again = store.reclaim(group, held)
    assert {claim.position.next_offset for claim in again.values()} == {5 if landed else 0}
    assert {claim.epoch for claim in again.values()} == {2}
    before = dump(redis_url)
    with pytest.raises(CommitRefused):
        store.apply(made.changes, made.entry)
    assert dump(redis_url) == before
    assert store.reclaim(group, held)[ZERO].epoch == 3


def test_a_late_commit_is_refused_after_a_reclaim(store: RedisStore, group: str, redis_url: str) -> None:
    held = take(store, group, "one", BOTH)
    made = work(group, "one", held, 0, 5)

    def reclaim(_: Step) -> None:
        store.reclaim(group, held)

    with pytest.raises(Fenced):
        store.apply(made.changes, made.entry, reclaim)
    assert dump(redis_url, "events:") == {}


def test_what_another_has_claimed_is_not_reclaimed(store: RedisStore, group: str, redis_url: str) -> None:
    held = take(store, group, "one", BOTH)
    take(store, group, "two", [ONE])
    before = dump(redis_url)
    with pytest.raises(Fenced, match="run two"):
        store.reclaim(group, held)
    assert dump(redis_url) == before


# Groups


def test_groups_and_topics_with_any_name_stay_apart(store: RedisStore) -> None:
    names = ["a", "a:b", "a%3Ab", "a:b:c", "{x}", "ü "]
    for number, name in enumerate(names):
        take(store, name, "one", [Partition("b:c", 0), Partition("c", 0)], at=number)
    assert {name: {found.next_offset for found in held} for name, held in store.positions().items()} == {
        name: {number} for number, name in enumerate(names)
    }
    assert list(store.positions()) == sorted(names)
    assert store.positions("nobody") == {}


def test_a_group_runs_until_somebody_pauses_it(store: RedisStore, group: str) -> None:
    assert store.state(group) is None
    take(store, group, "one", [ZERO])
    assert store.state(group) == GroupState("running", None, "host-of-one", SINCE)
    store.set_state(group, GroupState("paused", "lunch", "me", NOW))
    take(store, group, "two", [ZERO])
    assert store.state(group) == GroupState("paused", "lunch", "me", NOW)
    store.set_state(group, GroupState("running", None, None, NOW))
    assert store.state(group) == GroupState("running", None, None, NOW)


def test_recent_counts_and_prune_forgets_by_time(store: RedisStore, group: str, redis_url: str) -> None:
    held = take(store, group, "one", [ZERO])
    for number in range(4):
        made = work(group, "one", held, number * 10, number * 10 + 10, dead=number)
        store.apply(made.changes, dataclasses.replace(made.entry, now=NOW + timedelta(seconds=number)))
    assert store.recent(group, NOW + timedelta(seconds=2)) == Tally(applied=15, dead=5)
    assert store.recent(group, NOW + timedelta(seconds=2, microseconds=1)) == Tally(applied=7, dead=3)
    store.prune(group, {"batches": NOW + timedelta(seconds=1)})
    assert store.recent(group, SINCE) == Tally(applied=24, dead=6)
    assert position(store, group).tally == Tally(applied=34, dead=6)
    assert len(dump(redis_url)[f"tallymark:letters:{group}"]) == 6
