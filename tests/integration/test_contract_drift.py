"""The contract of every store for drift: it is counted by the commit that applies the records, or not at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from tallymark.core.claims import Claim, Fill, Note, PositionChanges, Replay, Restart
from tallymark.core.drift import LONGEST_NAME, MOST, OTHERS, Fields, Found, Seen, short, total
from tallymark.core.journal import LetterQuery
from tallymark.core.progress import Step
from tallymark.core.spans import Partition, Position, Span, Tally
from tallymark.errors import Fenced, PositionMoved
from tallymark.stores.contract import Store
from tallymark.stores.sql.ledger.tables import VERSION
from tests.support import databases
from tests.support.commits import SEVERAL_WRITERS, Work, apply, owner, ready, take, work

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
FIRST = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = FIRST + timedelta(minutes=1)
Drift = Mapping[Partition, Fields]


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = ready(url)
    yield made
    made.close()


def position(store: Store, group: str, partition: Partition = ZERO) -> Position:
    return next(one for one in store.positions(group)[group] if one.partition == partition)


def drifting(made: Work, drift: Drift, now: datetime = FIRST) -> Work:
    return dataclasses.replace(made, entry=dataclasses.replace(made.entry, drift=drift, now=now))


def commit(
    store: Store, group: str, held: Mapping[Partition, Claim], start: int, stop: int, drift: Drift, now: datetime
) -> dict[Partition, Claim]:
    return apply(store, drifting(work(group, "a", held, start, stop), drift, now), held)


def test_fields_are_counted_by_partition_with_the_times_of_their_commits(store: Store, group: str) -> None:
    held = take(store, group, "a", [ZERO, ONE])
    commit(
        store,
        group,
        held,
        0,
        10,
        {ZERO: {"note": Found(3, 4), "a:b.é": Found(1, 0)}, ONE: {"note": Found(1, 9)}},
        FIRST,
    )
    commit(store, group, held, 10, 20, {}, FIRST)
    commit(store, group, held, 20, 30, {ZERO: {"note": Found(2, 25)}}, LATER)
    both = {"note": Seen(5, FIRST, LATER), "a:b.é": Seen(1, FIRST, FIRST)}
    assert position(store, group).drift == both
    assert position(store, group, ONE).drift == {"note": Seen(1, FIRST, FIRST)}
    assert list(total(one.drift for one in store.positions(group)[group])) == ["note", "a:b.é"]
    assert position(store, group).tally == Tally(applied=30)
    assert take(store, group, "b", [ZERO])[ZERO].position.drift == both, "the next owner keeps it"
    assert store.positions(group) == store.positions()


def test_a_commit_that_is_rolled_back_counts_nothing(store: Store, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    made = drifting(work(group, "a", held, 0, 10), {ZERO: {"note": Found(3, 4)}})

    def fail(step: Step) -> None:
        if step is Step.WRITTEN:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        store.apply(made.changes, made.entry, fail)
    take(store, group, "b", [ZERO])
    with pytest.raises(Fenced):
        store.apply(made.changes, made.entry)
    assert position(store, group).drift == {}
    again = take(store, group, "b", [ZERO])
    twice = drifting(work(group, "b", again, 0, 10), {ZERO: {"note": Found(3, 4)}})
    store.apply(twice.changes, twice.entry)
    with pytest.raises(PositionMoved):
        store.apply(twice.changes, twice.entry)
    assert position(store, group).drift == {"note": Seen(3, FIRST, FIRST)}


@pytest.mark.parametrize(("offset", "kept"), [(20, True), (5, False)])
def test_a_reset_that_begins_a_new_tally_begins_a_new_count(store: Store, group: str, offset: int, kept: bool) -> None:
    held = take(store, group, "a", [ZERO, ONE])
    found = {"note": Found(3, 4)}
    commit(store, group, held, 0, 10, {ZERO: found, ONE: found}, FIRST)
    moved = PositionChanges({}, {ZERO: Restart(offset, "by hand")})
    store.journal().move(group, [ZERO], lambda *_: moved, "op", FIRST)
    assert position(store, group).drift == ({"note": Seen(3, FIRST, FIRST)} if kept else {})
    assert position(store, group, ONE).drift == {"note": Seen(3, FIRST, FIRST)}
    held = take(store, group, "a", [ZERO])
    commit(store, group, held, offset, offset + 1, {ZERO: {"note": Found(1, offset)}}, LATER)
    expected = Seen(4, FIRST, LATER) if kept else Seen(1, LATER, LATER)
    assert position(store, group).drift == {"note": expected}
    back = PositionChanges({}, {ZERO: Restart(0, "again")})
    store.claim(group, owner("c"), [ZERO], lambda _: back, {})
    assert position(store, group).drift == {}


def skipped(store: Store, group: str) -> dict[Partition, Claim]:
    """The first ten offsets are an open skip."""
    held = take(store, group, "a", [ZERO])
    made = work(group, "a", held, 0, 10)
    steps = [dataclasses.replace(step, tally=Tally(skipped=10)) for step in made.entry.advances]
    note = Note("skip", Span(ZERO, 0, 10), "behind")
    store.apply((), dataclasses.replace(made.entry, advances=steps, notes=[note]))
    return held


def filling(group: str, held: Mapping[Partition, Claim], start: int, drift: Drift) -> Work:
    made = work(group, "filler", held, start, start + 1)
    fill = Fill(Span(ZERO, start, 10), Span(ZERO, start, start + 1), Tally(applied=1))
    return drifting(Work(made.changes, dataclasses.replace(made.entry, advances=[], fills=[fill])), drift)


def test_backfills_and_replays_count_what_they_apply(store: Store, group: str) -> None:
    held = skipped(store, group)
    made = filling(group, held, 0, {ZERO: {"note": Found(1, 0)}})
    store.apply(made.changes, made.entry)
    assert position(store, group).drift == {"note": Seen(1, FIRST, FIRST)}
    dead = work(group, "a", held, 10, 12, dead=1)
    store.apply(dead.changes, dead.entry)
    (letter,) = store.journal().letters(LetterQuery(group))
    replay = [Replay(letter.id, ZERO, 11)]
    again = dataclasses.replace(dead.entry, advances=[], dead_letters=[], batch="replay", replays=replay)
    store.apply((), dataclasses.replace(again, drift={ZERO: {"note": Found(1, 11)}}, now=LATER))
    assert position(store, group).drift == {"note": Seen(2, FIRST, LATER)}
    assert (position(store, group).next_offset, position(store, group).balanced) == (12, True)


@SEVERAL_WRITERS
def test_a_run_and_a_backfill_count_at_the_same_time(url: str, store: Store, group: str) -> None:
    held = skipped(store, group)

    def fill() -> None:
        other = ready(url)
        for start in range(10):
            made = filling(group, held, start, {ZERO: {"note": Found(1, start), f"filled{start}": Found(1, start)}})
            other.apply(made.changes, made.entry)
        other.close()

    with ThreadPoolExecutor() as pool:
        filled = pool.submit(fill)
        claims = held
        for start in range(10, 40):
            claims = commit(store, group, claims, start, start + 1, {ZERO: {"note": Found(1, start)}}, FIRST)
        filled.result()
    assert position(store, group).drift["note"].records == 40
    assert position(store, group).drift.keys() == {"note", *(f"filled{start}" for start in range(10))}


def test_names_are_limited(store: Store, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    names = {short(f"{'x' * 300}{n:03}"): Found(1, 0) for n in range(5)}
    assert list(names) == ["x" * LONGEST_NAME + OTHERS]
    commit(store, group, held, 0, 1, {ZERO: names}, FIRST)
    many = {f"user{n:04}": Found(2, 0) for n in range(MOST + 50)}
    commit(store, group, held, 1, 2, {ZERO: many}, FIRST)
    commit(store, group, held, 2, 3, {ZERO: {"user0000": Found(1, 0), "other": Found(1, 0)}}, LATER)
    found = position(store, group).drift
    assert len(found) == MOST + 1
    assert (found["user0000"].records, found[OTHERS]) == (3, Seen(2 * 51 + 1, FIRST, LATER))


@pytest.mark.parametrize("url", databases.KINDS, indirect=True)
def test_a_ledger_of_version_5_gets_the_column(url: str, store: Store, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    commit(store, group, held, 0, 5, {}, FIRST)
    drop = "ALTER TABLE tallymark_positions DROP COLUMN drift"
    databases.execute(url, drop, f"UPDATE tallymark_schema SET version = 5 WHERE version = {VERSION}")
    upgraded = ready(url)
    assert databases.query(url, "SELECT MAX(version) FROM tallymark_schema") == [(VERSION,)]
    assert position(upgraded, group).drift == {}
    commit(upgraded, group, held, 5, 6, {ZERO: {"note": Found(1, 5)}}, FIRST)
    assert position(upgraded, group).drift == {"note": Seen(1, FIRST, FIRST)}
    upgraded.close()
