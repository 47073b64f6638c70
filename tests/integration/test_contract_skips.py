"""Skips can be filled later, exactly once, while the group runs; the same in every store."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import pytest

from tallymark.core.claims import Advance, Claim, Fill, Note, PositionChanges, Restart, Skip
from tallymark.core.journal import Rebalance
from tallymark.core.progress import Step
from tallymark.core.spans import Partition, Position, Span, Tally
from tallymark.errors import CommitRefused, PositionMoved
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tests.support import databases, redis, truth
from tests.support.commits import EVENTS, SCHEMA, SEVERAL_WRITERS, SINCE, Work, moving, owner, take, work

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
BEHIND = "too far behind"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = opened(url)
    yield made
    made.close()


def opened(url: str) -> Store:
    store = open_store(url)
    store.create_ledger()
    store.create_tables([EVENTS], {"events": SCHEMA})
    return store


def skip(store: Store, group: str, held: dict[Partition, Claim], start: int, stop: int) -> None:
    steps = [Advance(one, start, stop, held[one].epoch, Tally(skipped=stop - start), None) for one in held]
    notes = [Note("skip", Span(one, start, stop), BEHIND) for one in held]
    made = moving(group)
    store.apply([], dataclasses.replace(made.entry, advances=steps, notes=notes))


def filling(group: str, writer: str, span: Span, done: int, *, dead: int = 0) -> Work:
    """Rows for the first ``done`` offsets of an open skip, the last ``dead`` of them without."""
    claims = {span.partition: Claim(span.partition, 0, None)}  # type: ignore[arg-type]
    made = work(group, writer, claims, span.start, span.start + done, dead=dead)
    fill = Fill(span, Span(span.partition, span.start, span.start + done), Tally(applied=done - dead, dead=dead))
    return Work(made.changes, dataclasses.replace(made.entry, advances=[], fills=[fill]))


def fill(store: Store, group: str, span: Span, done: int, *, dead: int = 0) -> str:
    made = filling(group, "filler", span, done, dead=dead)
    store.apply(made.changes, made.entry)
    return made.entry.batch


def position(store: Store, group: str, partition: Partition = ZERO) -> Position:
    return next(found for found in store.positions(group)[group] if found.partition == partition)


def check(store: Store, group: str) -> None:
    """Every offset has one outcome, and the open skips add up to ``skipped``."""
    open_: Counter[Partition] = Counter()
    first = {at.partition: at.first_offset for at in store.positions(group)[group]}
    for found in store.skips(group):
        # Skips before the tally are open and not counted.
        open_[found.span.partition] += len(found.span) if found.span.start >= first[found.span.partition] else 0
    for at in store.positions(group)[group]:
        assert at.balanced, at
        assert open_[at.partition] == at.tally.skipped


def journal(url: str) -> list[tuple[str, int, int]]:
    if url.startswith("redis"):
        (lines,) = redis.dump(url, "tallymark:exceptions:").values()
        found = [tuple(json.loads(line)[name] for name in ("kind", "start_offset", "stop_offset")) for line in lines]
    else:
        query = "SELECT kind, start_offset, stop_offset FROM tallymark_exceptions ORDER BY id"
        found = databases.query(url, query)
    return [(str(kind), int(str(start)), int(str(stop))) for kind, start, stop in found]


def offsets(url: str) -> list[int]:
    return sorted(offset for (offset,) in truth.rows(url, "events", "record_offset").elements())


# Open until filled


def test_a_skip_is_open_until_it_is_filled(store: Store, url: str, group: str) -> None:
    held = take(store, group, "a", [ZERO, ONE])
    skip(store, group, held, 0, 10)
    found = store.skips(group)
    assert [(one.span, one.reason) for one in found] == [(Span(ZERO, 0, 10), BEHIND), (Span(ONE, 0, 10), BEHIND)]
    batch = fill(store, group, Span(ZERO, 0, 10), 4, dead=1)
    assert [one.span for one in store.skips(group)] == [Span(ZERO, 4, 10), Span(ONE, 0, 10)]
    assert store.skips(group)[0] == Skip(Span(ZERO, 4, 10), BEHIND, found[0].recorded_at)
    before, after = held[ZERO].position, position(store, group)
    assert after.tally == Tally(applied=3, dead=1, skipped=6)
    assert (after.next_offset, after.epoch, after.owner) == (10, before.epoch, before.owner)
    check(store, group)
    fill(store, group, Span(ZERO, 4, 10), 6)
    assert [one.span for one in store.skips(group)] == [Span(ONE, 0, 10)]
    check(store, group)
    assert offsets(url) == [0, 1, 2, *range(4, 10)]
    assert ("backfill", 0, 4) in journal(url)
    assert ("backfill", 4, 10) in journal(url)
    assert store.recent(group, SINCE) == Tally(applied=9, dead=1, skipped=10), "the history adds up to the tallies"
    assert [json.loads(spans) for name, spans in truth.history(url, "batch", "spans") if name == batch] == [
        [["orders", 0, 0, 4]]
    ]
    again = work(group, "a", held, 10, 12)
    store.apply(again.changes, again.entry)
    check(store, group)


def test_it_can_be_asked_whether_a_fill_landed(store: Store, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    assert not store.filled(group, "nothing")
    skip(store, group, held, 0, 10)
    batch = fill(store, group, Span(ZERO, 0, 10), 4)
    made = work(group, "a", held, 10, 12)
    store.apply(made.changes, made.entry)
    assert store.filled(group, batch)
    assert not store.filled("other", batch)
    assert not store.filled(group, made.entry.batch), "it filled nothing"


def test_what_is_not_open_as_it_was_is_not_filled(store: Store, url: str, group: str) -> None:
    skip(store, group, take(store, group, "a", [ZERO]), 0, 10)
    before = position(store, group)
    for span in ((0, 9), (0, 11), (2, 10), (20, 30)):
        with pytest.raises(PositionMoved, match=r"orders\[0\] .* is no longer an open skip: another run has filled it"):
            fill(store, group, Span(ZERO, *span), 2)
    assert (offsets(url), position(store, group)) == ([], before)
    assert journal(url) == [("skip", 0, 10)]


@SEVERAL_WRITERS
def test_a_fill_that_is_overtaken_on_its_way_writes_nothing(store: Store, url: str, group: str) -> None:
    """The early check succeeds: the commit must refuse."""
    skip(store, group, take(store, group, "a", [ZERO]), 0, 10)
    other, made = opened(url), filling(group, "late", Span(ZERO, 0, 10), 6)

    def overtake(step: Step) -> None:
        if step is Step.WRITTEN:
            fill(other, group, Span(ZERO, 0, 10), 3)

    with pytest.raises(CommitRefused, match="another run has filled it"):
        store.apply(made.changes, made.entry, overtake)
    other.close()
    assert offsets(url) == [0, 1, 2]
    assert not store.filled(group, made.entry.batch)
    check(store, group)


@SEVERAL_WRITERS
def test_a_fill_in_the_middle_of_a_commit_disturbs_nobody(store: Store, url: str, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    skip(store, group, held, 0, 10)
    other, made = opened(url), work(group, "a", held, 10, 15, dead=1)

    def between(step: Step) -> None:
        if step is Step.WRITTEN:
            fill(other, group, Span(ZERO, 0, 10), 4, dead=2)

    store.apply(made.changes, made.entry, between)
    other.close()
    assert position(store, group).tally == Tally(applied=6, dead=3, skipped=6)
    check(store, group)


# Moved positions


def restart(store: Store, group: str, to: int, between: Callable[[], None] = lambda: None) -> None:
    def decide(_: object) -> PositionChanges:
        between()
        return PositionChanges({}, {ZERO: Restart(to, "because")})

    store.claim(group, owner("b"), [ZERO], decide, {})


@pytest.mark.parametrize(("to", "left"), [(0, []), (5, [Span(ZERO, 0, 5)]), (12, [Span(ZERO, 0, 10)])])
def test_whoever_is_sent_back_keeps_the_skips_before_that(
    store: Store, url: str, group: str, to: int, left: list[Span]
) -> None:
    held = take(store, group, "a", [ZERO, ONE])
    skip(store, group, held, 0, 10)
    made = work(group, "a", held, 10, 15)
    store.apply(made.changes, made.entry)
    restart(store, group, to)
    assert [one.span for one in store.skips(group)] == [*left, Span(ONE, 0, 10)]
    if to != 12:
        with pytest.raises(PositionMoved, match="or the group was reset"):
            fill(store, group, Span(ZERO, 0, 10), 4)
    check(store, group)


def test_whoever_is_sent_ahead_leaves_an_open_skip(store: Store, group: str) -> None:
    skip(store, group, take(store, group, "a", [ZERO]), 0, 10)
    restart(store, group, 25)
    assert [one.span for one in store.skips(group)] == [Span(ZERO, 0, 10), Span(ZERO, 10, 25)]
    fill(store, group, Span(ZERO, 10, 25), 5)
    assert [one.span for one in store.skips(group)] == [Span(ZERO, 0, 10), Span(ZERO, 15, 25)]
    check(store, group)


@pytest.mark.parametrize(("to", "left"), [(25, [(4, 10), (10, 25)]), (5, [(4, 5)])])
@SEVERAL_WRITERS
def test_a_fill_between_the_look_and_the_restart_is_seen(
    store: Store, url: str, group: str, to: int, left: list[tuple[int, int]]
) -> None:
    skip(store, group, take(store, group, "a", [ZERO]), 0, 10)
    other, once = opened(url), iter([True])

    def between() -> None:
        if next(once, False):
            fill(other, group, Span(ZERO, 0, 10), 4)

    restart(store, group, to, between)
    other.close()
    assert [one.span for one in store.skips(group)] == [Span(ZERO, *span) for span in left]
    check(store, group)


# All at once

CHUNK, SKIPPED, COMMITS = 20, 400, 200


@pytest.mark.faults_where(url=["mariadb", "sqlite"])
def test_one_commits_and_two_fill_at_once(store: Store, url: str, group: str) -> None:
    """Every record is there once, every part is filled by one filler, and every snapshot adds up."""
    held = take(store, group, "live", [ZERO])
    skip(store, group, held, 0, SKIPPED)
    start, ended = threading.Barrier(4, timeout=30), threading.Event()

    def live() -> None:
        own = opened(url)
        start.wait()
        for at in range(SKIPPED, SKIPPED + COMMITS):
            made = work(group, "live", held, at, at + 1)
            own.apply(made.changes, made.entry)
        own.close()

    def filler(name: str) -> list[Span]:
        own, filled = opened(url), []
        start.wait()
        while skips := own.skips(group):
            made = filling(group, name, skips[0].span, min(CHUNK, len(skips[0].span)))
            with suppress(PositionMoved):
                own.apply(made.changes, made.entry)
                filled.append(made.entry.fills[0].done)
        own.close()
        return filled

    def watch() -> int:
        own, looks = opened(url), 0
        start.wait()
        while not ended.is_set():
            assert position(own, group).balanced
            looks += 1
        own.close()
        return looks

    with ThreadPoolExecutor(4) as pool:
        watching, living = pool.submit(watch), pool.submit(live)
        fillers = {name: pool.submit(filler, name) for name in ("one", "two")}
        try:
            living.result()
            done = {name: found.result() for name, found in fillers.items()}
        finally:
            ended.set()
        assert watching.result() > 0
    chunks = [Span(ZERO, at, at + CHUNK) for at in range(0, SKIPPED, CHUNK)]
    assert sorted([*done["one"], *done["two"]]) == chunks
    expected = Counter((at, "live") for at in range(SKIPPED, SKIPPED + COMMITS))
    expected += Counter(
        (at, name) for name, spans in done.items() for span in spans for at in range(span.start, span.stop)
    )
    assert truth.rows(url, "events", "record_offset", "writer") == expected
    assert position(store, group).tally == Tally(applied=SKIPPED + COMMITS)
    assert store.skips(group) == []
    check(store, group)


# Rebalances


def rebalance(number: int) -> Rebalance:
    at = SINCE + timedelta(seconds=number, microseconds=1)
    return Rebalance(at, f"run-{number}", "höst", 0.25 * number, (ZERO, ONE), (Partition("ü:%", 7),), "assigned")


def test_the_last_rebalances_are_on_record(store: Store, group: str) -> None:
    assert store.rebalances(group) == []
    store.record_rebalances(group, [])
    store.record_rebalances(group, [rebalance(2), rebalance(1)])
    store.record_rebalances(group, [dataclasses.replace(rebalance(3), gained=(), kind="lost")])
    store.record_rebalances("other", [rebalance(9)])
    newest = dataclasses.replace(rebalance(3), gained=(), kind="lost")
    assert store.rebalances(group) == [newest, rebalance(2), rebalance(1)]
    assert store.rebalances(group, 1) == [newest]


def test_only_the_newest_rebalances_are_kept(store: Store, group: str) -> None:
    store.record_rebalances("other", [rebalance(0)])
    store.record_rebalances(group, [rebalance(number) for number in range(1_003)])
    kept = store.rebalances(group, 2_000)
    assert [one.run for one in kept] == [f"run-{number}" for number in range(1_002, 2, -1)]
    assert store.rebalances("other") == [rebalance(0)]
