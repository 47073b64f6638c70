"""The contract of every store for the ledger: claims, commits, positions, states and history.

Dead letters and operators' commands are in test_contract_journal.py, skips in test_contract_skips.py.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tallymark.core.claims import Advance, Claim, FirstClaim, Note, PositionChanges, Restart
from tallymark.core.progress import Step
from tallymark.core.spans import GroupState, Partition, Position, Span, Tally
from tallymark.errors import BadInput, CommitRefused, Fenced, PositionMoved, Unreachable
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tests.support import truth
from tests.support.children import PROCESSES
from tests.support.commits import SEVERAL_WRITERS, SINCE, apply, moving, owner, ready, take, work
from tests.support.truth import everything

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
BOTH = [ZERO, ONE]
NOW = datetime(2026, 3, 1, 12, 0, 0, 123457, tzinfo=UTC)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = ready(url)
    yield made
    made.close()


def position(store: Store, group: str, partition: Partition = ZERO) -> Position:
    return next(one for one in store.positions(group)[group] if one.partition == partition)


def notes_of(store: Store, group: str) -> list[tuple[str, int, int, int, str]]:
    lines = [line.note for line in store.journal().notes(group, ["loss", "skip", "reset"])]
    return [(one.kind, one.span.partition.number, one.span.start, one.span.stop, one.reason) for one in lines]


# Making it


def test_a_ledger_is_there_once_it_was_made_and_can_be_made_twice(url: str) -> None:
    store = open_store(url)
    assert not store.has_ledger()
    for _ in range(2):
        store.create_ledger()
        assert store.has_ledger()
    assert store.positions() == {}
    assert truth.versions(url) == [truth.newest_version(url)]
    store.close()


def make_at_once(url: str, start: Any) -> None:
    store = open_store(url)
    start.wait()
    store.create_ledger()


def test_several_processes_may_make_the_ledger_at_once(url: str) -> None:
    start = PROCESSES.Barrier(4)
    children = [PROCESSES.Process(target=make_at_once, args=(url, start)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 4
    assert truth.versions(url) == [truth.newest_version(url)]


def test_several_threads_may_make_the_tables_at_once(url: str) -> None:
    start = threading.Barrier(4)

    def make(_: int) -> None:
        start.wait()
        ready(url).close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, range(4)))
    assert truth.versions(url) == [truth.newest_version(url)]
    assert truth.rows(url, "events", "writer").total() == 0


def test_a_ledger_of_a_newer_version_is_refused(store: Store, url: str) -> None:
    truth.set_version(url, truth.newest_version(url) + 1)
    with pytest.raises(BadInput, match=rf"version {truth.newest_version(url) + 1}\b.*upgrade"):
        store.create_ledger()


# Positions and names


def test_only_partitions_with_a_position_are_found_in_order(store: Store, group: str) -> None:
    take(store, group, "a", [ONE])
    claim = take(store, group, "a", [ZERO], at=7)[ZERO]
    assert store.positions("other-group") == {}
    assert store.positions() == store.positions(group)
    first, second = store.positions(group)[group]
    assert first == claim.position
    assert (first.partition, second.partition) == (ZERO, ONE)
    assert (first.first_offset, first.next_offset, first.tally) == (7, 7, Tally())
    assert (first.topic_id, first.cluster_id) == ("topic-id", "cluster-id")


NAMES = [["Orders", "orders"], ["o'rd\"ers", "o`rders"], ["größe", "grosse"], ["🐘", "🐬"], ["%s", "%(x)s"]]
NAMES += [["a", "a:b", "a%3Ab", "a:b:c", "{x}", "ü "]]


@pytest.mark.parametrize("names", NAMES, ids=" ".join)
def test_groups_and_topics_whose_names_look_alike_are_kept_apart(names: list[str], store: Store, url: str) -> None:
    expected = {(group, topic): at for at, (group, topic) in enumerate((x, y) for x in names for y in names)}
    for (group, topic), offset in expected.items():
        held = take(store, group, "a", [Partition(topic, 0)])
        apply(store, work(group, f"{group} {topic}", held, 0, offset + 1), held)
    found = store.positions()
    assert list(found) == sorted(names)
    reached = {(group, at.partition.topic): at.next_offset - 1 for group, all_ in found.items() for at in all_}
    assert reached == expected
    assert [len(store.journal().history(name)) for name in names] == [len(names)] * len(names)


# Claims


def test_a_claim_starts_new_partitions_and_raises_the_epoch_of_others(store: Store, group: str) -> None:
    first = take(store, group, "a", BOTH, at=7)
    second = take(store, group, "b", [ZERO, Partition("orders", 2)], at=9)
    assert {held.epoch for held in first.values()} == {1}
    assert [(held.epoch, held.position.next_offset) for held in second.values()] == [(2, 7), (1, 9)]
    assert (position(store, group).epoch, position(store, group).owner) == (2, owner("b"))
    assert (position(store, group, ONE).epoch, position(store, group, ONE).owner) == (1, owner("a"))
    assert str(owner("b")) == "run b on host-of-b since 2026-01-31 12:30:00 UTC"
    assert second[ZERO].position == position(store, group)


def test_a_claim_leaves_an_existing_position_where_it_is(store: Store, group: str) -> None:
    held = take(store, group, "a", [ZERO], at=5)
    apply(store, work(group, "a", held, 5, 9), held)
    again = take(store, group, "b", [ZERO], at=100)
    assert again[ZERO].position.next_offset == 9
    assert position(store, group).first_offset == 5


def test_a_claim_for_nothing_does_nothing(store: Store, group: str) -> None:
    assert store.claim(group, owner("a"), [ZERO], lambda _: PositionChanges({}), {}) == {}
    assert store.reclaim(group, {}) == {}
    store.release(group, [])


def test_a_claim_decides_by_all_positions_and_a_refusal_changes_nothing(store: Store, url: str, group: str) -> None:
    take(store, group, "a", [ONE], at=3)
    take(store, group, "a", [ZERO])
    before, seen = everything(url), list[Position]()

    def refuse(saved: Sequence[Position]) -> PositionChanges:
        seen.extend(saved)
        raise BadInput("no")

    with pytest.raises(BadInput, match="no"):
        store.claim(group, owner("b"), [*BOTH, Partition("orders", 9)], refuse, {})
    assert seen == store.positions(group)[group]
    assert [one.owner for one in seen] == [owner("a")] * 2
    assert everything(url) == before


def test_an_owner_that_was_fenced_claims_no_new_partition(store: Store, url: str, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    take(store, group, "b", [ZERO])
    before = everything(url)
    with pytest.raises(Fenced, match=r"orders\[0\] was claimed by run b on host-of-b"):
        take(store, group, "a", [ONE], held=held)
    assert everything(url) == before


@SEVERAL_WRITERS
def test_an_owner_that_is_fenced_while_it_claims_gets_no_new_partition(store: Store, url: str, group: str) -> None:
    held, rival = take(store, group, "a", [ZERO]), ready(url)

    def decide(_: object) -> PositionChanges:
        if position(store, group).owner == owner("a"):
            take(rival, group, "b", [ZERO])
        return PositionChanges({ONE: FirstClaim(0, "topic-id", "cluster-id")})

    with pytest.raises(Fenced):
        store.claim(group, owner("a"), [ONE], decide, held)
    rival.close()
    assert [(one.partition, one.owner) for one in store.positions(group)[group]] == [(ZERO, owner("b"))]


@SEVERAL_WRITERS
def test_a_restart_is_decided_by_the_position_that_it_moves(store: Store, url: str, group: str) -> None:
    """Another run claims the partition after the decision: the claim fails, or decides again."""
    take(store, group, "a", [ZERO], at=10)
    rival, epochs = ready(url), list[int]()

    def decide(saved: Sequence[Position]) -> PositionChanges:
        epochs.append(saved[0].epoch)
        if len(epochs) == 1:
            take(rival, group, "rival", [ZERO])
        return PositionChanges({}, {ZERO: Restart(5, "because")})

    with suppress(Unreachable):
        store.claim(group, owner("late"), [ZERO], decide, {})
    rival.close()
    now = position(store, group)
    assert (now.owner, now.next_offset, epochs) in [(owner("rival"), 10, [1]), (owner("late"), 5, [1, 2])]


def test_claims_of_several_threads_never_share_an_epoch(store: Store, url: str, group: str) -> None:
    start, stores = threading.Barrier(4), [ready(url) for _ in range(4)]

    def race(number: int) -> list[Claim]:
        start.wait()
        return [take(stores[number], group, f"run-{number}", BOTH)[ZERO] for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        claims = [held for found in pool.map(race, range(4)) for held in found]
    assert sorted(held.epoch for held in claims) == list(range(1, 21))
    last = max(claims, key=lambda held: held.epoch)
    assert position(store, group) == last.position
    for one in stores:
        one.close()


def test_a_claim_is_released_only_by_its_holder(store: Store, group: str) -> None:
    first = take(store, group, "a", BOTH)
    second = take(store, group, "b", [ZERO])
    store.release(group, first.values())
    assert position(store, group) == second[ZERO].position
    assert position(store, group, ONE) == dataclasses.replace(first[ONE].position, owner=None)
    store.release(group, second.values())
    assert (position(store, group).owner, position(store, group).epoch) == (None, 2)


def test_an_owner_that_has_left_is_still_known_to_have_been_there(store: Store, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    rival = take(store, group, "b", [ZERO])
    store.release(group, rival.values())
    with pytest.raises(Fenced, match="another owner, which has released it since"):
        apply(store, work(group, "a", held, 0, 1), held)


# Commits


def test_a_commit_moves_positions_with_all_that_explains_them(store: Store, url: str, group: str) -> None:
    held = take(store, group, "one", BOTH)
    made, steps = work(group, "one", held, 0, 10, dead=2), list[Step]()
    entry = dataclasses.replace(made.entry, now=NOW, notes=[Note("loss", Span(ZERO, 3, 5), "gone")], pause="too many")
    store.apply(made.changes, entry, steps.append)
    assert steps == [Step.WRITTEN, Step.MOVED]
    assert position(store, group) == dataclasses.replace(
        held[ZERO].position, next_offset=10, tally=Tally(applied=8, dead=2), record_time=SINCE, updated_at=NOW
    )
    assert truth.rows(url, "events", "record_offset").total() == 16
    assert truth.letters(url).total() == 4
    assert store.state(group) == GroupState("paused", "too many", "budget", NOW)
    assert notes_of(store, group) == [("loss", 0, 3, 5, "gone")]
    assert truth.history(url, "applied", "dead") == [(16, 4)]


def test_a_batch_without_rows_advances_and_keeps_the_time_of_the_last_record(
    store: Store, url: str, group: str
) -> None:
    held = take(store, group, "a", [ZERO])
    apply(store, moving(group, Advance(ZERO, 0, 4, held[ZERO].epoch, Tally(absent=4), None)), held)
    found = position(store, group)
    assert (found.next_offset, found.tally, found.record_time) == (4, Tally(absent=4), None)
    assert truth.history(url, "absent") == [(4,)]
    apply(store, work(group, "a", held, 4, 6), held)
    apply(store, moving(group, Advance(ZERO, 6, 7, held[ZERO].epoch, Tally(absent=1), None)), held)
    assert position(store, group).record_time == SINCE


def test_offsets_and_tallies_beyond_32_bits_are_kept(store: Store, group: str) -> None:
    far = 2**62
    held = take(store, group, "a", [ZERO], at=far)
    apply(store, moving(group, Advance(ZERO, far, far + 2**40, 1, Tally(lost=2**40), None)), held)
    found = position(store, group)
    assert (found.first_offset, found.next_offset, found.tally.lost) == (far, far + 2**40, 2**40)
    assert held[ZERO].position.next_offset == far


@pytest.mark.parametrize(("start", "where"), [(0, "ahead of"), (3, "ahead of"), (9, "behind")])
def test_a_commit_that_does_not_start_at_the_position_writes_nothing(
    start: int, where: str, store: Store, url: str, group: str
) -> None:
    held = take(store, group, "a", BOTH)
    apply(store, work(group, "a", held, 0, 5), held)
    before = everything(url)
    with pytest.raises(PositionMoved, match=rf"orders\[0\]: the ledger is {where} this batch, at 5 instead of {start}"):
        apply(store, work(group, "a", held, start, start + 3), held)
    assert everything(url) == before


def test_an_owner_that_was_fenced_is_told_by_whom_and_writes_nothing(store: Store, url: str, group: str) -> None:
    held = take(store, group, "a", BOTH)
    take(store, group, "b", [ONE])
    before, made = everything(url), work(group, "a", held, 0, 3, dead=1)
    lost = Note("loss", Span(ZERO, 0, 1), "deleted before they were read")
    made = dataclasses.replace(made, entry=dataclasses.replace(made.entry, notes=[lost], pause="too many"))
    with pytest.raises(
        Fenced,
        match=r"orders\[1\] was claimed by run b on host-of-b since 2026-01-31 12:30:00 UTC.*epoch 2, this run had 1",
    ):
        apply(store, made, held)
    assert everything(url) == before


@SEVERAL_WRITERS
@pytest.mark.parametrize("disturb", ["claim", "commit"])
def test_a_commit_that_is_overtaken_in_the_middle_writes_nothing(
    disturb: str, store: Store, url: str, group: str
) -> None:
    """The rival comes after the rows are written; the last statement decides."""
    held, rival = take(store, group, "a", BOTH), ready(url)
    made, after = work(group, "a", held, 0, 3, dead=1), dict[str, object]()

    def overtake(step: Step) -> None:
        if step is Step.WRITTEN:
            if disturb == "claim":
                take(rival, group, "b", [ONE])
            else:
                theirs = work(group, "a", {ONE: held[ONE]}, 0, 2)
                rival.apply(theirs.changes, theirs.entry)
            after.update(everything(url))

    with pytest.raises(CommitRefused, match=r"orders\[1\]") as refused:
        store.apply(made.changes, made.entry, overtake)
    rival.close()
    assert type(refused.value) is (Fenced if disturb == "claim" else PositionMoved)
    assert everything(url) == after


def test_a_commit_whose_position_is_gone_writes_nothing(store: Store, url: str, group: str) -> None:
    held = take(store, group, "a", BOTH)
    truth.delete_position(url, group, ONE)
    before = everything(url)
    with pytest.raises(PositionMoved, match="the ledger has no position any more"):
        apply(store, work(group, "a", held, 0, 1), held)
    assert everything(url) == before


# An unknown outcome


@pytest.mark.parametrize("landed", [True, False])
def test_a_reclaim_settles_a_commit_whose_answer_was_lost(landed: bool, store: Store, url: str, group: str) -> None:
    held = take(store, group, "a", BOTH)
    made = work(group, "a", held, 0, 5)
    if landed:
        store.apply(made.changes, made.entry)
    again = store.reclaim(group, held)
    assert {claim.position.next_offset for claim in again.values()} == {5 if landed else 0}
    assert {claim.epoch for claim in again.values()} == {2}
    assert again[ZERO].position == position(store, group)
    before = everything(url)
    with pytest.raises(Fenced):
        store.apply(made.changes, made.entry)
    assert everything(url) == before
    assert store.reclaim(group, held)[ZERO].epoch == 3, "a reclaim whose answer was lost can be repeated"


def test_what_was_reclaimed_goes_on(store: Store, group: str) -> None:
    held = store.reclaim(group, take(store, group, "a", BOTH))
    apply(store, work(group, "a", held, 0, 1), held)
    assert position(store, group).next_offset == 1


def test_what_another_has_claimed_is_not_reclaimed(store: Store, url: str, group: str) -> None:
    held = take(store, group, "a", BOTH)
    take(store, group, "b", [ONE])
    before = everything(url)
    with pytest.raises(Fenced, match=r"orders\[1\] was claimed by run b on host-of-b"):
        store.reclaim(group, held)
    assert everything(url) == before


# Restarting elsewhere


def restarted(store: Store, group: str, offset: int) -> Claim:
    """Claim the partition again, and restart it at the offset."""
    changes = PositionChanges({}, {ZERO: Restart(offset, "because")})
    return store.claim(group, owner("b"), [ZERO], lambda _: changes, {})[ZERO]


@pytest.mark.parametrize(
    ("to", "first", "tally", "note"),
    [
        (20, 10, Tally(applied=3, dead=1, skipped=6), [("skip", 0, 14, 20, "because")]),
        (12, 12, Tally(), [("reset", 0, 12, 14, "because")]),
        (14, 10, Tally(applied=3, dead=1), []),
    ],
    ids=["ahead", "back", "where it is"],
)
def test_a_restart_is_on_the_record_and_its_tally_adds_up(
    to: int, first: int, tally: Tally, note: list[tuple[str, int, int, int, str]], store: Store, group: str
) -> None:
    held = take(store, group, "a", [ZERO], at=10)
    apply(store, work(group, "a", held, 10, 14, dead=1), held)
    moved = restarted(store, group, to)
    found = moved.position
    assert found == position(store, group)
    assert (found.first_offset, found.next_offset, found.tally) == (first, to, tally)
    assert found.balanced
    assert notes_of(store, group) == note
    apply(store, work(group, "b", {ZERO: moved}, to, to + 3), {ZERO: moved})
    assert position(store, group).balanced


def test_a_restart_forgets_the_leader_of_the_records_that_it_leaves(store: Store, group: str) -> None:
    held = take(store, group, "a", [ZERO], at=10)
    step = Advance(ZERO, 10, 14, held[ZERO].epoch, Tally(applied=4), SINCE, leader_epoch=7)
    store.apply((), moving(group, step).entry)
    assert position(store, group).leader_epoch == 7
    moved = restarted(store, group, 12).position
    assert moved.leader_epoch != 7
    assert position(store, group) == moved


# Running and paused


def test_a_group_runs_from_its_first_claim_and_does_what_it_is_told(store: Store, group: str) -> None:
    assert store.state(group) is None
    take(store, group, "a", [ZERO])
    assert store.state(group) == GroupState("running", None, "host-of-a", SINCE)
    paused = GroupState("paused", "größe 🐘", "me", SINCE + timedelta(microseconds=1))
    store.set_state(group, paused)
    take(store, group, "b", [ZERO])
    assert store.state(group) == paused, "a claim leaves it as it is"
    store.set_state(group, GroupState("running", None, None, NOW))
    assert store.state(group) == GroupState("running", None, None, NOW)
    store.set_state("never-claimed", paused)
    assert store.state("never-claimed") == paused


# History


def test_what_became_of_records_lately_is_that_of_the_batches_since(store: Store, group: str) -> None:
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


def test_only_old_history_of_the_group_is_forgotten(store: Store, url: str, group: str) -> None:
    for name in (group, "other"):
        held = take(store, name, "a", [ZERO])
        for number in range(3):
            made = work(name, "a", held, number * 2, number * 2 + 2, dead=1)
            store.apply(made.changes, dataclasses.replace(made.entry, now=NOW + timedelta(seconds=number)))
    store.prune(group, {"batches": NOW + timedelta(seconds=1)})
    assert store.recent(group, SINCE) == Tally(applied=2, dead=2)
    store.prune(group, {"batches": NOW + timedelta(days=1)})
    assert store.recent(group, SINCE) == Tally(applied=1, dead=1), "the last commit stays"
    assert [list(one.spans) for one in store.journal().history(group)] == [[Span(ZERO, 4, 6)]]
    assert store.recent("other", SINCE) == Tally(applied=3, dead=3)
    assert truth.letters(url).total() == 6
    assert position(store, group).tally == Tally(applied=3, dead=3)
