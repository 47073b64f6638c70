"""What is specific to a ledger in Redis: its keys, and a script that decides at the last moment.

The rest is in test_contract_ledger.py.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tallymark.core.claims import Claim, FirstClaim, Note, PositionChanges, Restart
from tallymark.core.progress import Step
from tallymark.core.spans import GroupState, Partition, Position, Span, Tally
from tallymark.errors import CommitRefused, Fenced, PositionMoved, TallymarkError
from tallymark.stores.redis.ledger import VERSION
from tallymark.stores.redis.store import RedisStore
from tests.support.commits import EVENTS, SCHEMA, SINCE, owner, take, work
from tests.support.redis import client, dump, key

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
BOTH = [ZERO, ONE]
NOW = datetime(2026, 3, 1, 12, 0, 0, 123457, tzinfo=UTC)


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


def test_a_late_commit_is_refused_after_a_reclaim(store: RedisStore, group: str, redis_url: str) -> None:
    held = take(store, group, "one", BOTH)
    made = work(group, "one", held, 0, 5)

    def reclaim(_: Step) -> None:
        store.reclaim(group, held)

    with pytest.raises(Fenced):
        store.apply(made.changes, made.entry, reclaim)
    assert dump(redis_url, "events:") == {}
