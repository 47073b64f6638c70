"""The operator's part of the ledger: runs, history, dead letters, positions moved by hand; the same in every store."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import pytest

from tallymark.core.claims import Advance, Fill, FirstClaim, PositionChanges, Replay, Restart
from tallymark.core.journal import DEAD, DISCARDED, REPLAYED, VOID, LetterQuery, Rebalance, Run, owners_alive
from tallymark.core.records import DeadLetter
from tallymark.core.retention import Cutoffs
from tallymark.core.spans import Partition, Position, Span, Tally
from tallymark.core.tables import WrittenTable
from tallymark.errors import CommitRefused, Fenced, PositionMoved
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tests.support.commits import SEVERAL_WRITERS, SINCE, moving, take

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
OPERATOR = "op@host"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = open_store(url)
    made.create_ledger()
    yield made
    made.close()


def letter(offset: int, error: str = "no number") -> DeadLetter:
    headers = [("trace", b"\xff\x00"), ("none", None)]
    return DeadLetter(ZERO, offset, SINCE, b"\x00k", b"\xfe\x00value", headers, "events", error)


def commit(store: Store, group: str, stop: int = 10, dead: tuple[int, ...] = (3, 7)) -> None:
    """The first ten offsets of partition 0, two of them dead."""
    claims = take(store, group, "first", [ZERO, ONE])
    tally = Tally(applied=stop - len(dead), dead=len(dead))
    step = Advance(ZERO, 0, stop, claims[ZERO].epoch, tally, SINCE)
    entry = dataclasses.replace(moving(group).entry, advances=[step], dead_letters=[letter(one) for one in dead])
    store.apply((), entry)


def position(store: Store, group: str, partition: Partition = ZERO) -> Position:
    return next(one for one in store.positions(group)[group] if one.partition == partition)


def sent_to(offset: int) -> Callable[..., PositionChanges]:
    return lambda *_: PositionChanges({}, {ZERO: Restart(offset, "by hand")})


def replaying(group: str, store: Store, *letters: str, error: str | None = None) -> None:
    found = {one.id: one for one in store.journal().letters(LetterQuery(group, states=None))}
    tried = [Replay(one, found[one].record.partition, found[one].record.offset, error) for one in letters]
    store.apply((), dataclasses.replace(moving(group).entry, advances=[], batch="replay-1", replays=tried))


def test_a_run_is_seen_and_its_end_is_kept(store: Store, group: str) -> None:
    run = Run("run-1", "here", SINCE, SINCE)
    store.write_run(group, run, new=True)
    store.write_run(group, dataclasses.replace(run, seen=SINCE + timedelta(seconds=5)))
    later = Run("run-2", "there", SINCE + timedelta(hours=1), SINCE, SINCE + timedelta(hours=2), "it broke\0")
    store.write_run(group, later, new=True)
    newest, first = store.journal().runs(group)
    assert (newest.name, newest.ended) == ("run-2", later.ended)
    assert newest.error is not None
    assert newest.error.startswith("it broke")
    assert first == dataclasses.replace(run, seen=SINCE + timedelta(seconds=5))
    assert first.alive(SINCE + timedelta(seconds=20))
    assert not first.alive(SINCE + timedelta(seconds=40))
    assert not newest.alive(SINCE)


def test_only_the_newest_runs_are_kept(store: Store, group: str) -> None:
    for number in range(105):
        store.write_run(group, Run(f"run-{number}", "here", SINCE + timedelta(seconds=number), SINCE, SINCE), new=True)
    assert [run.name for run in store.journal().runs(group)] == [f"run-{number}" for number in range(104, 4, -1)]


def test_a_live_run_is_kept_however_many_come_after_it(store: Store, group: str) -> None:
    now = SINCE + timedelta(hours=1)
    store.write_run(group, Run("old and well", "here", SINCE, now), new=True)
    for number in range(101):
        start = SINCE + timedelta(seconds=1 + number)
        store.write_run(group, Run(f"run-{number}", "here", start, now, now, "crashed"), new=True)
    found = {run.name for run in store.journal().runs(group)}
    assert "old and well" in found
    assert "run-0" not in found


def test_a_beat_that_comes_late_does_not_undo_the_end(store: Store, group: str) -> None:
    run = Run("run-1", "here", SINCE, SINCE)
    store.write_run(group, run, new=True)
    store.write_run(group, dataclasses.replace(run, ended=SINCE, error="it broke"))
    store.write_run(group, dataclasses.replace(run, seen=SINCE + timedelta(seconds=5)))
    (found,) = store.journal().runs(group)
    assert (found.ended, found.error) == (SINCE, "it broke")


def test_words_that_no_database_can_hold_are_written_differently(store: Store, group: str) -> None:
    claims = take(store, group, "first", [ZERO])
    step = Advance(ZERO, 0, 1, claims[ZERO].epoch, Tally(dead=1), SINCE)
    bad = letter(0, error="half \ud800 and \0")
    store.apply((), dataclasses.replace(moving(group).entry, advances=[step], dead_letters=[bad]))
    store.write_run(group, Run("run-1", "here", SINCE, SINCE, SINCE, bad.error), new=True)
    (found,) = store.journal().letters(LetterQuery(group))
    assert found.record.error == "half \\ud800 and \\0"
    assert store.journal().runs(group)[0].error == found.record.error


def test_the_last_commit_is_never_pruned(store: Store, group: str) -> None:
    commit(store, group)
    store.prune(group, {"batches": SINCE + timedelta(days=10_000)})
    assert len(store.journal().history(group)) == 1


def test_pruning_that_is_not_executed_counts_and_removes_nothing(store: Store, group: str) -> None:
    commit(store, group)
    for number in range(2):
        entry = dataclasses.replace(moving(group).entry, advances=[], batch=f"later-{number}")
        store.apply((), dataclasses.replace(entry, now=SINCE + timedelta(hours=1 + number)))
    replaying(group, store, *(one.id for one in store.journal().letters(LetterQuery(group))))
    for name in ("old", "older", "last"):
        store.write_run(group, Run(name, "here", SINCE, SINCE, SINCE), new=True)
    store.record_rebalances(group, [Rebalance(SINCE, "old", "here", 1.0, (ZERO,), (), "assigned")])

    def there() -> list[int]:
        journal = store.journal()
        letters = len(journal.letters(LetterQuery(group, states=None)))
        return [len(journal.history(group)), len(journal.runs(group)), len(store.rebalances(group)), letters]

    before, cutoff = there(), SINCE + timedelta(days=10_000)
    cutoffs: Cutoffs = dict.fromkeys(("batches", "runs", "rebalances", "settled_letters"), cutoff)
    counted = store.prune(group, cutoffs, execute=False)
    assert there() == before
    assert store.prune(group, cutoffs) == counted
    assert [old - new for old, new in zip(before, there(), strict=True)] == list(counted.values())
    assert all(counted.values())


def test_a_replay_does_not_make_up_for_what_dies_later(store: Store, group: str) -> None:
    commit(store, group)
    first, second = (one.id for one in store.journal().letters(LetterQuery(group)))
    replaying(group, store, first, second)
    assert store.recent(group, SINCE) == Tally(applied=8, dead=2)


def test_an_owner_counts_as_alive_while_its_run_is_seen(store: Store, group: str) -> None:
    take(store, group, "first", [ZERO])
    positions, now = store.positions(group)[group], SINCE + timedelta(minutes=5)
    assert owners_alive(positions, [], now) == positions
    assert owners_alive(positions, [Run("first", "here", SINCE, now)], now) == positions
    assert owners_alive(positions, [Run("first", "here", SINCE, SINCE)], now) == []
    assert owners_alive(positions, [Run("first", "here", SINCE, now, now)], now) == []


def test_history_and_letters_read_as_they_were_written(store: Store, group: str) -> None:
    commit(store, group)
    (line,) = store.journal().history(group)
    assert (line.tally, line.spans) == (Tally(applied=8, dead=2), [Span(ZERO, 0, 10)])
    assert store.journal().history(group, since=line.committed) == [line]
    assert store.journal().history(group, since=line.committed + timedelta(seconds=1)) == []
    first, second = store.journal().letters(LetterQuery(group))
    assert (first.record, first.state, first.group) == (letter(3), DEAD, group)
    assert second.record.offset == 7
    assert list(store.journal().groups()) == [group]


def test_letters_are_chosen_by_what_is_known_of_them(store: Store, group: str) -> None:
    commit(store, group)
    for query, found in (
        (LetterQuery(topic="orders", error="NO NUM"), [3, 7]),
        (LetterQuery(error="n_ number"), []),
        (LetterQuery(topic="other"), []),
        (LetterQuery(partition=1), []),
        (LetterQuery(table="events", most=1), [3]),
        (LetterQuery(since=SINCE + timedelta(days=10_000)), []),
        (LetterQuery(until=SINCE), []),
        (LetterQuery(states=[DISCARDED]), []),
        (LetterQuery(ids=["nonsense"]), []),
    ):
        chosen = store.journal().letters(dataclasses.replace(query, group=group))
        assert [one.record.offset for one in chosen] == found, query


def test_letters_are_chosen_from_a_time_on_and_before_another(store: Store, group: str) -> None:
    commit(store, group)
    died = store.journal().letters(LetterQuery(group))[0].recorded_at
    moment = timedelta(microseconds=1)
    for query, found in (
        (LetterQuery(group, since=died), 2),
        (LetterQuery(group, since=died + moment), 0),
        (LetterQuery(group, until=died), 0),
        (LetterQuery(group, until=died + moment), 2),
    ):
        assert len(store.journal().letters(query)) == found, query


def test_a_letter_is_settled_once(store: Store, group: str) -> None:
    commit(store, group)
    both = store.journal().letters(LetterQuery(group))
    store.journal().settle(both[:1], DISCARDED, OPERATOR, SINCE)
    with pytest.raises(PositionMoved, match="is already discarded; nothing was changed"):
        store.journal().settle(both, DISCARDED, OPERATOR, SINCE)
    (left,) = store.journal().letters(LetterQuery(group))
    assert left.record.offset == 7
    (gone,) = store.journal().letters(LetterQuery(group, states=[DISCARDED]))
    assert (gone.changed_by, gone.changed_at) == (OPERATOR, SINCE)
    assert position(store, group).tally.dead == 2


def test_a_replayed_letter_is_applied_and_one_that_dies_again_stays(store: Store, group: str) -> None:
    commit(store, group)
    first, second = (one.id for one in store.journal().letters(LetterQuery(group)))
    replaying(group, store, first)
    replaying(group, store, second, error="still\0 no number")
    assert position(store, group).tally == Tally(applied=9, dead=1)
    assert position(store, group).balanced
    (left,) = store.journal().letters(LetterQuery(group))
    assert left.record.error.startswith("still")
    assert store.filled(group, "replay-1")
    assert [line.note.span for line in store.journal().notes(group, ["replay"])] == [Span(ZERO, 3, 4)]
    with pytest.raises(PositionMoved, match="is already replayed"):
        replaying(group, store, first)


def test_a_letter_that_was_applied_meanwhile_does_not_get_the_error_of_another_replay(store: Store, group: str) -> None:
    commit(store, group)
    first, _ = (one.id for one in store.journal().letters(LetterQuery(group)))
    replaying(group, store, first)
    with suppress(CommitRefused):
        replaying(group, store, first, error="still no number")
    (applied,) = store.journal().letters(LetterQuery(group, states=[REPLAYED]))
    assert (applied.id, applied.record.error) == (first, "no number")


def test_of_two_replays_of_a_letter_one_wins(store: Store, url: str, group: str) -> None:
    commit(store, group)
    (first, _), start = store.journal().letters(LetterQuery(group)), threading.Barrier(4)

    def attempt(_: int) -> bool:
        other = open_store(url)
        try:
            start.wait()
            replaying(group, other, first.id)
        except CommitRefused:
            return False
        finally:
            other.close()
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(attempt, range(4))) == [False, False, False, True]
    assert position(store, group).tally == Tally(applied=9, dead=1)


def test_sent_back_a_position_counts_anew_and_its_letters_are_void(store: Store, group: str) -> None:
    commit(store, group)
    store.journal().move(group, [ZERO], sent_to(5), OPERATOR, SINCE)
    moved = position(store, group)
    assert (moved.next_offset, moved.first_offset, moved.tally, moved.owner) == (5, 5, Tally(), None)
    states = {one.record.offset: one.state for one in store.journal().letters(LetterQuery(group, states=None))}
    assert states == {3: DEAD, 7: VOID}
    assert [line.note.span for line in store.journal().notes(group, ["reset"])] == [Span(ZERO, 5, 10)]
    # Letters before the tally can be replayed, and do not change it.
    (old,) = store.journal().letters(LetterQuery(group))
    replaying(group, store, old.id)
    assert position(store, group).tally == Tally()
    assert store.journal().letters(LetterQuery(group, states=[REPLAYED]))[0].id == old.id


def test_sent_back_what_was_given_up_counts_no_more_and_earlier_skips_stay_open(store: Store, group: str) -> None:
    commit(store, group)
    store.journal().settle(store.journal().letters(LetterQuery(group)), DISCARDED, OPERATOR, SINCE)
    store.journal().move(group, [ZERO], sent_to(20), OPERATOR, SINCE)
    store.journal().move(group, [ZERO], sent_to(30), OPERATOR, SINCE)
    store.journal().move(group, [ZERO], sent_to(25), OPERATOR, SINCE)
    assert [skip.span for skip in store.skips(group)] == [Span(ZERO, 10, 20), Span(ZERO, 20, 25)]
    store.journal().move(group, [ZERO], sent_to(5), OPERATOR, SINCE)
    assert store.skips(group) == []
    assert store.journal().letter_counts(group) == {DISCARDED: 1, VOID: 1}


def test_a_skip_from_before_the_tally_is_filled_and_not_counted(store: Store, group: str) -> None:
    commit(store, group)
    store.journal().move(group, [ZERO], sent_to(20), OPERATOR, SINCE)
    store.journal().move(group, [ZERO], sent_to(15), OPERATOR, SINCE)
    (skip,) = store.skips(group)
    filled = Fill(skip.span, Span(ZERO, 10, 12), Tally(applied=2))
    store.apply((), dataclasses.replace(moving(group).entry, advances=[], fills=[filled]))
    assert [one.span for one in store.skips(group)] == [Span(ZERO, 12, 15)]
    assert (position(store, group).tally, position(store, group).first_offset) == (Tally(), 15)


def test_nothing_to_settle_is_nothing_done(store: Store, group: str) -> None:
    store.journal().settle([], DISCARDED, OPERATOR, SINCE)


def test_sent_ahead_a_position_leaves_an_open_skip_and_its_letters(store: Store, group: str) -> None:
    commit(store, group)
    store.journal().move(group, [ZERO], sent_to(15), OPERATOR, SINCE)
    moved = position(store, group)
    assert (moved.next_offset, moved.tally, moved.balanced) == (15, Tally(applied=8, dead=2, skipped=5), True)
    assert [skip.span for skip in store.skips(group)] == [Span(ZERO, 10, 15)]
    assert [line.note.reason for line in store.journal().notes(group, ["skip"])] == ["by hand"]
    assert len(store.journal().letters(LetterQuery(group))) == 2


def test_who_held_a_position_that_was_moved_is_fenced(store: Store, group: str) -> None:
    claims = take(store, group, "first", [ZERO])
    store.journal().move(group, [ZERO], sent_to(5), OPERATOR, SINCE)
    step = Advance(ZERO, 0, 1, claims[ZERO].epoch, Tally(applied=1), None)
    with pytest.raises(Fenced, match="another owner, which has released it since"):
        store.apply((), dataclasses.replace(moving(group).entry, advances=[step]))
    assert position(store, group).next_offset == 5


def test_a_wish_that_raises_changes_nothing(store: Store, group: str) -> None:
    commit(store, group)
    before = position(store, group)

    def refuse(*_: object) -> PositionChanges:
        raise PositionMoved("no")

    with pytest.raises(PositionMoved):
        store.journal().move(group, [ZERO], refuse, OPERATOR, SINCE)
    assert position(store, group) == before


def test_positions_are_made_for_a_group_that_has_none(store: Store, group: str) -> None:
    changes = PositionChanges(
        {ZERO: FirstClaim(42, "id", "cluster", "taken over"), ONE: FirstClaim(7, "id", "cluster")}
    )
    store.journal().move(group, [ZERO, ONE], lambda *_: changes, OPERATOR, SINCE)
    made = position(store, group)
    assert (made.next_offset, made.first_offset, made.owner, made.tally) == (42, 42, None, Tally())
    state = store.state(group)
    assert state is not None
    assert state.by == OPERATOR
    (line,) = store.journal().notes(group, ["begin"])
    assert (line.note.span, line.note.reason) == (Span(ZERO, 42, 42), "taken over")


@SEVERAL_WRITERS
def test_a_position_that_somebody_else_makes_meanwhile_is_left_alone(store: Store, url: str, group: str) -> None:
    commit(store, group)
    two, other = Partition("orders", 2), open_store(url)
    before = position(store, group)

    def decide(found: Mapping[Partition, Position], _: object) -> PositionChanges:
        if two in found:
            raise PositionMoved("there is one now")
        take(other, group, "late", [two], at=3)
        return PositionChanges({two: FirstClaim(42, "id", "cluster")}, {ZERO: Restart(5, "by hand")})

    with pytest.raises(PositionMoved):
        store.journal().move(group, [ZERO, two], decide, OPERATOR, SINCE)
    other.close()
    assert position(store, group) == before
    assert position(store, group, two).next_offset == 3


def test_a_group_is_forgotten_whole_and_alone(store: Store, group: str) -> None:
    for each in (group, f"{group}-other"):
        commit(store, each)
        store.write_run(each, Run("first", "here", SINCE, SINCE), new=True)
        store.record_rebalances(each, [Rebalance(SINCE, "first", "here", 1.0, (ZERO,), (), "assigned")])
        store.journal().move(each, [ZERO], sent_to(15), OPERATOR, SINCE)
    seen: list[int] = []
    ids = [one.id for one in store.journal().letters(LetterQuery(group))]
    store.journal().delete(group, lambda positions, runs: seen.append(len(positions) + len(runs)))
    assert seen == [3]
    assert store.positions(group) == {}
    assert store.state(group) is None
    assert store.skips(group) == []
    journal = store.journal()
    assert (journal.runs(group), journal.history(group), journal.letters(LetterQuery(group, states=None))) == (
        [],
        [],
        [],
    )
    assert journal.letters(LetterQuery(group, states=None, ids=ids)) == []
    assert (len(store.rebalances(group)), len(store.rebalances(f"{group}-other"))) == (0, 1)
    assert list(journal.groups()) == [f"{group}-other"]
    store.write_run(group, Run("first", "here", SINCE, SINCE))
    assert journal.runs(group) == []
    assert len(store.positions()[f"{group}-other"]) == 2
    assert journal.letter_counts(f"{group}-other") == {DEAD: 2}


def test_who_does_not_consent_keeps_the_group(store: Store, group: str) -> None:
    commit(store, group)

    def refuse(*_: object) -> None:
        raise PositionMoved("no")

    with pytest.raises(PositionMoved):
        store.journal().delete(group, refuse)
    assert position(store, group).tally.total == 10


def test_the_tables_of_a_group_are_recorded_once_and_go_with_the_group(store: Store, group: str) -> None:
    claims = take(store, group, "first", [ZERO, ONE])
    tables = [WrittenTable("events", "append"), WrittenTable("totals", "merge", "redis://elsewhere")]
    for start in (0, 10):
        step = Advance(ZERO, start, start + 10, claims[ZERO].epoch, Tally(applied=10), SINCE)
        store.apply((), dataclasses.replace(moving(group).entry, advances=[step], tables=tables))
    assert store.journal().tables(group) == {group: tables}
    assert store.journal().tables()[group] == tables
    store.journal().delete(group, lambda *_: None)
    assert store.journal().tables(group) == {}
