"""A batch is committed with its counts, within its budget, and in the order of its delivery mode."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.batch import BatchToCommit, account, check_letters
from tallymark.core.budget import Budget
from tallymark.core.claims import Claim, Decide, Entry, Note, Skip, explain_refusal, explain_unfillable
from tallymark.core.journal import Rebalance, Run
from tallymark.core.plan import Move, Plan
from tallymark.core.progress import Step
from tallymark.core.records import DeadLetter, PartitionCounts, Reading
from tallymark.core.retention import Cutoffs
from tallymark.core.spans import GroupState, Owner, Partition, Position, Span, Tally
from tallymark.core.tables import OFFSET, PARTITION, TIMESTAMP, TOPIC, Changes, Refusal, TableSpec, origin
from tallymark.errors import BadInput, BatchTooLarge, Fenced, PositionMoved, TallymarkError, TooManyDead, Unreachable
from tallymark.run.commit import Committer, Delivery, Destination
from tallymark.stores.contract import RowsRefused, Store
from tests.unit.strategies import NOON, position

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
ORDERS, LATEST = TableSpec("orders"), TableSpec("latest", ("id",), "upsert")
US = Owner("us", "here", NOON)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        (TOPIC, pa.string()),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (TIMESTAMP, pa.timestamp("us", "UTC")),
    ]
)
small = st.integers(0, 20)


# Counting


@given(st.builds(Move, st.just(ZERO), small, small, small, small), small, small)
def test_every_offset_of_a_move_is_accounted_for_once_or_the_count_is_refused(
    move: Move, records: int, dead: int
) -> None:
    if dead <= records <= move.read:
        step = account(move, PartitionCounts(records, 0, NOON), dead, epoch=4)
        assert step.tally == Tally(records - dead, dead, move.skipped, move.lost, move.read - records)
        assert step.tally.total == step.stop - step.start
        assert (step.start, step.stop, step.epoch, step.record_time) == (move.start, move.stop, 4, NOON)
    else:
        with pytest.raises(TallymarkError, match=rf"orders\[0\].*counted {records} records, {dead} of them dead"):
            account(move, PartitionCounts(records), dead, epoch=4)


def letter(offset: int, partition: Partition = ZERO) -> DeadLetter:
    return DeadLetter(partition, offset, None, None, b"x", [], None, "not JSON")


def test_every_dead_record_has_its_letter() -> None:
    seen = {ZERO: PartitionCounts(5, 1), ONE: PartitionCounts(5, 1)}
    check_letters(Reading(seen, {}, [letter(1), letter(2)]))
    for letters in ([], [letter(1)], [letter(1), letter(2), letter(3)]):
        with pytest.raises(TallymarkError, match=f"counted 2 dead records, but returned {len(letters)} dead letters"):
            check_letters(Reading(seen, {}, letters))


# A store in memory


class FakeStore(Store):
    """Tables and positions in memory; it refuses records, loses connections and records its calls."""

    name = "fake"

    def __init__(self, refused: Collection[int] = (), then: Collection[int] = (), at_once: int = sys.maxsize) -> None:
        self.tables: dict[str, list[int]] = {}
        self.saved: dict[Partition, Position] = {}
        self.letters: list[DeadLetter] = []
        self.entries: list[Entry] = []
        self.open: list[Skip] = []
        self.paused: str | None = None
        self.attempts = 0
        self.wanted: list[int] = []
        self.breaks: list[Step | None] = []
        """When the next calls fail: before anything, or at a step. At the last step everything is written."""
        self._refused = [set(refused), set(then)]
        self._at_once = at_once

    def apply(
        self,
        changes: Sequence[Changes],
        entry: Entry | None,
        on_step: Callable[[Step], None] = lambda _: None,
        refusals: int = sys.maxsize,
    ) -> None:
        self.attempts += 1
        self.wanted.append(refusals)
        broken = self.breaks.pop(0) if self.breaks else Step.DONE
        if broken is None:
            raise Unreachable("gone before anything was sent")
        if entry is not None and (
            error := explain_refusal(self.saved, entry.advances) or explain_unfillable(self.open, entry.fills)
        ):
            raise error
        self._check(changes, refusals)
        if changes:
            on_step(Step.WRITTEN)
        if broken is Step.WRITTEN:
            raise Unreachable("gone, and nothing was written")
        for change in changes:
            self.tables.setdefault(change.spec.name, []).extend(change.puts["id"].to_pylist())
        if entry is not None:
            self._advance(entry)
            on_step(Step.MOVED)
        if broken is Step.COMMITTED:
            raise Unreachable("gone, and everything was written")

    def try_out(self, changes: Sequence[Changes], refusals: int = sys.maxsize) -> None:
        self._check(changes, refusals)

    def _check(self, changes: Sequence[Changes], refusals: int) -> None:
        for round_ in self._refused:
            found = [
                Refusal(*origin(change.puts, at), change.spec.name, f"id {change.puts['id'][at]} is refused")
                for change in changes
                for at in range(change.puts.num_rows)
                if change.puts["id"][at].as_py() in round_
            ]
            if found:
                raise RowsRefused(found[: min(refusals, self._at_once)])

    def _advance(self, entry: Entry) -> None:
        for step in entry.advances:
            before = self.saved[step.partition]
            self.saved[step.partition] = replace(before, next_offset=step.stop, tally=before.tally + step.tally)
        for fill in entry.fills:
            self.open = [skip for skip in self.open if skip.span != fill.skip]
        self.entries.append(entry)
        self.letters += entry.dead_letters
        self.paused = entry.pause or self.paused

    def reclaim(self, group: str, claims: Mapping[Partition, Claim]) -> dict[Partition, Claim]:
        again = {partition: Claim.after(self.saved[partition]) for partition in claims}
        self.saved |= {partition: claim.position for partition, claim in again.items()}
        return again

    def state(self, group: str) -> GroupState | None:
        return None

    def recent(self, group: str, since: datetime) -> Tally:
        return Tally.sum(entry.tally for entry in self.entries)

    def skips(self, group: str) -> list[Skip]:
        return self.open

    def filled(self, group: str, batch: str) -> bool:
        return any(entry.batch == batch and entry.fills for entry in self.entries)

    def record_rebalances(self, group: str, rebalances: Sequence[Rebalance]) -> None: ...
    def rebalances(self, group: str, most: int = 100) -> list[Rebalance]:
        return []

    def begin(self, entry: Callable[[], Entry | None], on_step: Callable[[Step], None] = lambda _: None) -> Any:
        raise NotImplementedError

    def ping(self) -> None: ...
    def close(self) -> None: ...
    def ledger_version(self) -> int | None:
        return 1

    def create_ledger(self) -> None: ...
    def positions(self, group: str | None = None) -> dict[str, list[Position]]:
        return {}

    def set_state(self, group: str, state: GroupState) -> None: ...
    def prune(self, group: str, cutoffs: Cutoffs, *, execute: bool = True) -> dict[str, int]:
        return {}

    def write_run(self, group: str, run: Run, *, new: bool = False) -> None: ...
    def journal(self) -> Any:
        raise NotImplementedError

    def snapshot(self) -> Any:
        raise NotImplementedError

    def claim(
        self,
        group: str,
        owner: Owner,
        partitions: Collection[Partition],
        decide: Decide,
        held: Mapping[Partition, Claim],
    ) -> dict[Partition, Claim]:
        return {}

    def release(self, group: str, claims: Iterable[Claim]) -> None: ...
    def check_tables(self, specs: Sequence[TableSpec], schemas: Mapping[str, pa.Schema]) -> None: ...
    def create_tables(self, specs: Sequence[TableSpec], schemas: Mapping[str, pa.Schema]) -> None: ...


class Pair:
    """A batch of records 0..9 of one partition and 0..4 of another, with its store and its ledger."""

    def __init__(self, rows: FakeStore, ledger: FakeStore, delivery: Delivery, budget: Budget | None = None) -> None:
        self.rows, self.ledger = rows, ledger
        self.passed: list[Step] = []
        self.claims = {partition: Claim.after(replace(position(partition, 0), owner=US)) for partition in (ZERO, ONE)}
        ledger.saved = {partition: claim.position for partition, claim in self.claims.items()}
        self._committer = Committer(
            "shop", Destination(rows, ledger, delivery), budget or Budget(), self._letters, patience=5.0
        )

    def commit(self, letters: Sequence[DeadLetter] = ()) -> Entry:
        return self._committer.commit(batch(letters), self.claims, self.passed.append)

    def fill(self, letters: Sequence[DeadLetter] = ()) -> Entry:
        """Offsets 0..10 of the first partition, which were skipped."""
        return self._committer.commit(filling(letters), {}, self.passed.append)

    def _letters(self, refusals: Sequence[Refusal]) -> list[DeadLetter]:
        return [DeadLetter.of(refusal, None) for refusal in refusals]

    @property
    def offsets(self) -> list[int]:
        return [self.ledger.saved[partition].next_offset for partition in (ZERO, ONE)]

    @property
    def tally(self) -> Tally:
        return Tally.sum(found.tally for found in self.ledger.saved.values())


def batch(letters: Sequence[DeadLetter] = ()) -> BatchToCommit:
    """Offset n of the first partition has id n, of the second 100 + n; ``latest`` gets the ids of the first twice."""
    places = [(ZERO, n, n) for n in range(10)] + [(ONE, n, 100 + n) for n in range(5)]
    records: list[dict[str, Any]] = [
        {"id": number, TOPIC: place.topic, PARTITION: place.number, OFFSET: at, TIMESTAMP: NOON}
        for place, at, number in places
    ]
    by_five = [record | {"id": 200 + record["id"] % 5} for record in records[:10]]
    rows = {"orders": pa.Table.from_pylist(records, SCHEMA), "latest": pa.Table.from_pylist(by_five, SCHEMA)}
    plan = Plan((Move(ZERO, 0, 0, 10), Move(ONE, 0, 0, 5)))
    seen = {ZERO: PartitionCounts(10, len(letters), NOON), ONE: PartitionCounts(5, 0, NOON)}
    return BatchToCommit.shaped("us-1", NOON, plan, Reading(seen, rows, letters), [ORDERS, LATEST], letters)


SKIPPED = Skip(Span(ZERO, 0, 10), "too far behind", NOON)


def filling(letters: Sequence[DeadLetter] = ()) -> BatchToCommit:
    whole, plan = batch(letters), Plan((Move(ZERO, 0, 2, 8),))
    rows = {name: found.slice(2, 8) for name, found in whole.reading.rows.items()}
    reading = Reading({ZERO: PartitionCounts(7, len(letters), NOON)}, rows, letters)
    return BatchToCommit.shaped("us-fill-1", NOON, plan, reading, whole.tables, letters, SKIPPED)


def together(store: FakeStore, budget: Budget | None = None) -> Pair:
    return Pair(store, store, "exactly-once", budget)


ALL = [*range(10), *range(100, 105)]
FIVE = [200, 201, 202, 203, 204]


# In one transaction


def test_a_batch_is_written_with_its_positions_in_one_call() -> None:
    pair = together(FakeStore())
    entry = pair.commit()
    assert pair.rows.attempts == 1
    assert pair.rows.tables == {"orders": ALL, "latest": FIVE}
    assert (pair.offsets, pair.tally, entry.tally) == ([10, 5], Tally(applied=15), Tally(applied=15))
    assert entry.rows == {"orders": 15, "latest": 5}
    assert pair.passed == [Step.WRITTEN, Step.MOVED]


def test_records_that_were_dead_before_have_no_rows_and_are_counted() -> None:
    pair = together(FakeStore())
    pair.commit([letter(3), letter(4)])
    assert pair.rows.tables["orders"] == [n for n in ALL if n not in (3, 4)]
    assert pair.tally == Tally(applied=13, dead=2)


@given(st.sets(st.sampled_from(ALL)), st.sets(st.sampled_from(ALL)), st.integers(1, 20))
def test_refused_records_are_taken_out_until_the_rest_is_taken(first: set[int], then: set[int], at_once: int) -> None:
    pair = together(FakeStore(first, then, at_once))
    entry = pair.commit()
    bad = first | then
    assert pair.rows.tables["orders"] == [n for n in ALL if n not in bad]
    assert sorted((one.partition.number, one.offset) for one in pair.rows.letters) == sorted(
        (n // 100, n % 100) for n in bad
    )
    assert pair.tally == entry.tally == Tally(applied=15 - len(bad), dead=len(bad))
    assert pair.rows.entries == [entry], "one commit, and nothing before it"
    assert {one.table for one in pair.rows.letters} <= {"orders"}


def test_what_a_refused_record_hid_in_an_upsert_comes_to_light() -> None:
    """Ids of ``latest`` come twice: those of offsets 5..9 hide those of 0..4."""
    pair = together(FakeStore(refused=[7]))
    assert {origin(batch().changes[1].puts, at)[1] for at in range(5)} == {5, 6, 7, 8, 9}
    pair.commit()
    changed = batch([letter(7)]).changes[1].puts
    assert {origin(changed, at)[1] for at in range(5)} == {5, 6, 2, 8, 9}
    assert pair.rows.tables["latest"] == FIVE


def test_a_record_refused_by_two_tables_is_one_dead_letter_of_the_first() -> None:
    pair = together(FakeStore(refused=[7, 202]))
    pair.commit()
    assert sorted((one.offset, one.table) for one in pair.rows.letters) == [(2, "latest"), (7, "orders")]
    assert pair.tally == Tally(applied=13, dead=2)


# Within its budget


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once", "at-most-once"])
def test_a_batch_that_is_over_its_budget_writes_nothing(delivery: Delivery) -> None:
    store = FakeStore()
    pair = Pair(store, store, delivery, Budget(max_dead_per_batch=1))
    with pytest.raises(TooManyDead, match=r"max_dead_per_batch=1, for example: orders\[0\] offset 4: not JSON"):
        pair.commit([letter(3), letter(4)])
    assert (store.attempts, pair.offsets) == (0, [0, 0])


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_refused_records_count_against_the_same_budget(delivery: Delivery) -> None:
    store = FakeStore(refused=[5, 6])
    pair = Pair(store, store, delivery, Budget(max_dead_per_batch=2))
    with pytest.raises(TooManyDead, match=r"for example: orders\[0\] offset [56]: id [56] is refused"):
        pair.commit([letter(3)])
    assert (store.tables, store.letters, pair.offsets) == ({}, [], [0, 0])
    assert set(store.wanted) == {3}, "one more than allowed is all it has to look for"
    Pair(store, store, delivery, Budget(max_dead_per_batch=3)).commit([letter(3)])


def test_the_window_counts_this_batch_too_and_pauses_with_it() -> None:
    pair = together(FakeStore(refused=[5, 6]), Budget(max_dead_total=1))
    assert pair.commit().pause == "2 dead records within 1:00:00 are more than max_dead_total=1"
    assert pair.rows.paused is not None
    assert pair.offsets == [10, 5], "the batch that was one too many is committed"


def test_a_batch_without_dead_records_pauses_nobody() -> None:
    pair = together(FakeStore(), Budget(max_dead_total=0))
    assert pair.commit().pause is None


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once", "at-most-once"])
def test_a_batch_that_is_mostly_dead_fails_where_the_others_of_the_window_were_too(delivery: Delivery) -> None:
    store, dead = FakeStore(), [letter(offset) for offset in range(9)]
    pair = Pair(store, store, delivery, Budget())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "recent", lambda *_: Tally(applied=400, dead=600))
        with pytest.raises(TooManyDead, match=r"609 of the last 1,015 records are dead, .*: not JSON; this batch"):
            pair.commit(dead)
        assert (store.attempts, pair.offsets) == (0, [0, 0])
        pair.commit(dead[:7])
    assert pair.offsets == [10, 5], "most of that batch was fine"


def test_a_few_records_may_all_die() -> None:
    pair = together(FakeStore())
    pair.commit([letter(offset) for offset in range(9)])
    assert pair.offsets == [10, 5]


# An unknown outcome


@pytest.mark.parametrize("breaks", [[None], [Step.WRITTEN], [Step.COMMITTED], [None, Step.WRITTEN, Step.COMMITTED]])
def test_an_unknown_outcome_is_settled_and_applied_once(breaks: list[Step | None]) -> None:
    pair = together(FakeStore())
    pair.rows.breaks = list(breaks)
    pair.commit()
    assert pair.rows.tables["orders"] == ALL
    assert (pair.offsets, pair.tally) == ([10, 5], Tally(applied=15))
    assert pair.claims[ZERO].epoch == 1 + 1 + len(breaks)


def test_a_refusal_after_a_broken_connection_does_not_fence_the_run_itself() -> None:
    pair = together(FakeStore(refused=[7]))
    pair.rows.breaks = [None]
    pair.commit()
    assert (pair.offsets, pair.tally) == ([10, 5], Tally(applied=14, dead=1))


def test_what_ends_a_commit_after_a_broken_connection_leaves_claims_to_go_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair, failures = together(FakeStore()), [Unreachable("gone"), BatchTooLarge("too large")]

    def broken(*_: Any) -> None:
        raise failures.pop(0)

    with monkeypatch.context() as patched:
        patched.setattr(pair.rows, "apply", broken)
        with pytest.raises(BatchTooLarge):
            pair.commit()
    assert pair.claims[ZERO].epoch == pair.rows.saved[ZERO].epoch
    pair.commit()
    assert pair.offsets == [10, 5]


def test_who_is_fenced_writes_nothing_and_is_not_asked_again() -> None:
    pair = together(FakeStore())
    pair.rows.saved[ONE] = replace(pair.rows.saved[ONE], epoch=9)
    with pytest.raises(Fenced):
        pair.commit()
    assert (pair.rows.attempts, pair.rows.tables) == (1, {})


# What is skipped, and filled later


def test_what_a_move_skips_is_noted_and_counted() -> None:
    move = Move(ZERO, 0, 3, 10, 5, "too far behind")
    made = replace(batch(), plan=Plan((move,)))
    entry = made.entry("shop", {ZERO: Claim.after(position(ZERO, 0))})
    assert entry.notes == [
        Note("loss", Span(ZERO, 0, 3), "deleted before they were read"),
        Note("skip", Span(ZERO, 3, 8), "too far behind"),
    ]
    assert entry.tally == Tally(applied=10, skipped=5, lost=3)


def test_a_fill_moves_no_position_and_counts_what_became_of_its_offsets() -> None:
    pair = together(FakeStore(refused=[7]))
    pair.rows.open = [SKIPPED]
    entry = pair.fill([letter(3)])
    assert (pair.offsets, entry.advances, pair.rows.open) == ([0, 0], [], [])
    assert pair.rows.tables["orders"] == [2, 4, 5, 6, 8, 9]
    (fill,) = entry.fills
    assert (fill.skip, fill.done, fill.tally) == (SKIPPED.span, SKIPPED.span, Tally(5, 2, 0, 2, 1))
    assert entry.notes == [Note("loss", Span(ZERO, 0, 2), "deleted before they were read")]
    assert fill.reason == "fills the span skipped on 2026-01-31 12:00:00 UTC: too far behind"


def test_a_fill_is_within_the_budget_too() -> None:
    pair = together(FakeStore(refused=[7]), Budget(max_dead_per_batch=1))
    pair.rows.open = [SKIPPED]
    with pytest.raises(TooManyDead):
        pair.fill([letter(3)])
    assert pair.rows.tables == {}


@pytest.mark.parametrize("breaks", [[None], [Step.WRITTEN], [Step.COMMITTED], [None, Step.WRITTEN, Step.COMMITTED]])
def test_a_fill_whose_answer_was_lost_is_applied_once(breaks: list[Step | None]) -> None:
    pair = together(FakeStore())
    pair.rows.open, pair.rows.breaks = [SKIPPED], list(breaks)
    pair.fill()
    assert pair.rows.tables["orders"] == list(range(2, 10))
    assert len(pair.rows.entries) == 1
    assert pair.rows.saved[ZERO].epoch == 2, "nobody is fenced"


def test_a_fill_that_lands_late_is_known_for_our_own() -> None:
    """The connection breaks before the journal has the entry; the entry arrives before the second attempt."""
    pair = together(FakeStore())
    store, late = pair.rows, filling()
    store.open, store.breaks = [SKIPPED], [None]
    look = store.filled

    def filled(group: str, batch: str) -> bool:
        found = look(group, batch)
        if not store.entries:
            store.apply(late.changes, late.entry("shop", {}))
        return found

    store.filled = filled  # type: ignore[method-assign]
    pair.fill()
    assert store.tables["orders"] == list(range(2, 10))


def test_what_somebody_else_has_filled_is_refused() -> None:
    pair = together(FakeStore())
    with pytest.raises(PositionMoved, match="another run has filled it"):
        pair.fill()
    assert pair.rows.tables == {}


# In two


def test_exactly_once_is_refused_where_rows_and_ledger_can_not_share_a_transaction() -> None:
    with pytest.raises(BadInput, match=r"exactly-once' needs rows and ledger in one transaction.*leave out ledger="):
        Destination(FakeStore(), FakeStore())
    with pytest.raises(BadInput, match="delivery='twice' is not known; write exactly-once, at-least-once"):
        Destination(FakeStore(), FakeStore(), "twice")  # type: ignore[arg-type]


def apart(rows: FakeStore, delivery: Delivery, **settings: Any) -> Pair:
    return Pair(rows, FakeStore(), delivery, **settings)


def test_at_least_once_writes_the_rows_first() -> None:
    pair = apart(FakeStore(refused=[4]), "at-least-once")
    entry = pair.commit()
    assert pair.passed == [Step.WRITTEN, Step.HALFWAY, Step.MOVED]
    assert pair.rows.tables["orders"] == [n for n in ALL if n != 4]
    assert (pair.ledger.tables, pair.ledger.entries, pair.rows.entries) == ({}, [entry], [])
    assert pair.tally == Tally(applied=14, dead=1)


def test_at_least_once_may_repeat_rows_and_moves_the_positions_once() -> None:
    pair = apart(FakeStore(), "at-least-once")
    pair.rows.breaks, pair.ledger.breaks = [Step.COMMITTED], [Step.COMMITTED]
    pair.commit()
    assert pair.rows.tables["orders"] == [*ALL, *ALL]
    assert pair.tally == Tally(applied=15)


def test_at_most_once_moves_the_positions_first() -> None:
    pair = apart(FakeStore(), "at-most-once")
    pair.commit()
    assert pair.passed == [Step.MOVED, Step.HALFWAY, Step.WRITTEN]
    assert pair.rows.tables["orders"] == ALL


@pytest.mark.parametrize(("broken", "written"), [(None, ALL), (Step.WRITTEN, None), (Step.COMMITTED, ALL)])
def test_at_most_once_never_sends_rows_again_that_may_have_arrived(broken: Step | None, written: Any) -> None:
    pair = apart(FakeStore(), "at-most-once")
    pair.rows.breaks = [broken]
    pair.commit()
    assert pair.rows.tables.get("orders") == written
    assert pair.rows.attempts == (2 if broken is None else 1)
    assert pair.offsets == [10, 5]


def test_at_most_once_knows_what_a_table_refuses_before_the_positions_move() -> None:
    pair = apart(FakeStore(refused=[4, 103], then=[5]), "at-most-once")
    pair.commit([letter(3)])
    assert pair.rows.tables["orders"] == [n for n in ALL if n not in (3, 4, 5, 103)]
    assert (pair.offsets, pair.tally) == ([10, 5], Tally(applied=11, dead=4))
    assert sorted((one.partition.number, one.offset) for one in pair.ledger.letters) == [(0, 3), (0, 4), (0, 5), (1, 3)]
    assert len({(one.partition, one.offset) for one in pair.ledger.letters}) == len(pair.ledger.letters)
