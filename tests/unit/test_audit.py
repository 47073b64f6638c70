"""The identities of the ledger hold after any history of a group, and break when anything is changed by hand.

Every offset of a table is classified: correct, explained or wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.core.claims import Note
from tallymark.core.journal import BatchLine
from tallymark.core.spans import Log, Partition, Position, Span, Tally
from tallymark.core.tables import TableSpec
from tallymark.operate.audit.accounts import accounts, check, check_log
from tallymark.operate.audit.compare import BAD, Compared
from tallymark.operate.audit.scope import MADE, RECORDS, Difference, Origins, Scope, chunks
from tallymark.stores.contract import ORIGIN, Moment, SnapshotMark
from tests.support.newest import Made, Oracle

ZERO = Partition("orders", 0)
NOW = datetime(2026, 1, 31, tzinfo=UTC)


class Ledger:
    """A model of the ledger of one partition after each of these operations, each at a later time."""

    def __init__(self, first: int = 0) -> None:
        self.first = self.next = first
        self.tally, self.time = Tally(), NOW
        self.skips: list[Span] = []
        self.notes: list[tuple[Note, datetime]] = []
        self.letters: list[SnapshotMark] = []
        self.lines: list[BatchLine] = []

    def _note(self, kind: str, start: int, stop: int) -> None:
        self.time += timedelta(seconds=1)
        if stop > start:
            self.notes.append((Note(kind, Span(ZERO, start, stop), ""), self.time))

    def commit(self, *, lost: int = 0, skipped: int = 0, dead: int = 0, applied: int = 1, absent: int = 0) -> None:
        start, self.time = self.next, self.time + timedelta(seconds=1)
        self._note("loss", start, start + lost)
        at = start + lost
        if skipped:
            self.skips.append(Span(ZERO, at, at + skipped))
        at += skipped
        self.letters += [SnapshotMark(ZERO, at + number, "dead", self.time) for number in range(dead)]
        tally = Tally(applied, dead, skipped, lost, absent)
        self.tally, self.next = self.tally + tally, start + tally.total
        self._line(tally, Span(ZERO, start, self.next))

    def fill(self, most: int) -> None:
        """Fill the first part of the first open skip: half of it is lost, one record is dead."""
        if not self.skips:
            return
        skip = self.skips.pop(0)
        done = Span(ZERO, skip.start, min(skip.start + most, skip.stop))
        lost, dead = len(done) // 2, min(1, len(done) - len(done) // 2)
        self._note("loss", done.start, done.start + lost)
        self._note("backfill", done.start, done.stop)
        self.letters += [SnapshotMark(ZERO, done.start + lost, "dead", self.time)] if dead else []
        if done.stop < skip.stop:
            self.skips.insert(0, Span(ZERO, done.stop, skip.stop))
        if done.start >= self.first:
            self.tally += Tally(len(done) - lost - dead, dead, -len(done), lost)
        self._line(Tally(len(done) - lost - dead, dead, -len(done), lost), done)

    def settle(self, state: str) -> None:
        for at, mark in enumerate(self.letters):
            if mark.state == "dead":
                self.letters[at] = replace(mark, state=state)
                if state == "replayed" and self.first <= mark.offset < self.next:
                    self._note("replay", mark.offset, mark.offset + 1)
                    self.tally += Tally(applied=1, dead=-1)
                    self._line(Tally(1, -1), Span(ZERO, mark.offset, mark.offset + 1))
                return

    def restart(self, to: int, *, noted: bool = True) -> None:
        self._note("reset", to, self.next) if to < self.next and noted else None
        if to >= self.next:
            self.skips += [Span(ZERO, self.next, to)] if to > self.next else []
            self.tally += Tally(skipped=to - self.next)
        else:
            before = [skip for skip in self.skips if skip.start < to]
            self.skips = [Span(ZERO, skip.start, min(skip.stop, to)) for skip in before]
            self.tally, self.first = Tally(), to
            self.letters = [
                replace(one, state="void") if one.offset >= to and one.state != "replayed" else one
                for one in self.letters
            ]
        self.next = to

    def empty(self, to: int) -> None:
        """Start over with empty tables."""
        self.time += timedelta(seconds=1)
        self.notes.append((Note("emptying", Span(ZERO, to, max(to, self.next)), ""), self.time))
        if to >= self.next:
            # No records are left from before.
            self.skips, self.tally, self.first, self.next = [], Tally(), to, to
            return
        self.restart(to, noted=False)

    def _line(self, tally: Tally, *spans: Span) -> None:
        self.time += timedelta(seconds=1)
        self.lines.append(BatchLine(f"b{len(self.lines)}", self.time, self.time, tally, {}, spans))

    def position(self) -> Position:
        return Position(ZERO, self.next, self.first, "topic", "cluster", 1, None, self.tally, None, NOW)

    def moment(self, kept: int | None = None) -> Moment:
        unapplied = [mark for mark in self.letters if mark.state in ("dead", "discarded", "sent")]
        newest = self.lines[::-1][:kept]
        return Moment([self.position()], sorted(self.skips), self.notes, unapplied, newest)


def broken(moment: Moment) -> dict[str, str]:
    """The findings of each failed check."""
    (account,) = accounts(moment)
    return {one.check: one.found for one in check("shop", account) if one.verdict != "ok"}


SMALL = st.integers(0, 5)
STEPS = st.one_of(
    st.builds(lambda *counts: ("commit", counts), SMALL, SMALL, SMALL, SMALL, SMALL),
    st.tuples(st.just("fill"), st.integers(1, 6)),
    st.tuples(st.just("settle"), st.sampled_from(["replayed", "discarded", "sent"])),
    st.tuples(st.just("ahead"), SMALL),
    st.tuples(st.just("back"), st.integers(1, 20)),
    st.tuples(st.just("empty"), st.integers(0, 3)),
)


def lived(steps: Sequence[tuple[str, Any]], first: int = 3) -> Ledger:
    ledger = Ledger(first)
    for step, how in steps:
        if step == "commit":
            lost, skipped, dead, applied, absent = how
            ledger.commit(lost=lost, skipped=skipped, dead=dead, applied=applied, absent=absent)
        elif step == "ahead":
            ledger.restart(ledger.next + how)
        elif step == "back":
            ledger.restart(max(0, ledger.next - how))
        else:
            getattr(ledger, step)(how)
    return ledger


@given(st.lists(STEPS, max_size=30), st.one_of(st.none(), st.integers(0, 10)))
def test_whatever_a_group_has_been_through_its_ledger_adds_up(steps: list[tuple[str, Any]], kept: int | None) -> None:
    assert broken(lived(steps).moment(kept)) == {}


def busy() -> Ledger:
    ledger = Ledger()
    ledger.commit(applied=8, dead=2)
    ledger.commit(lost=5, skipped=10, applied=5)
    ledger.commit(applied=6, absent=4)
    return ledger


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        ({"next": 39}, {"tally", "history"}),
        ({"next": 41}, {"tally", "history"}),
        ({"first": 1}, {"tally", "dead letters"}),
        ({"tally": Tally(19, 1, 10, 5, 4)}, {"tally", "dead letters"}),
        ({"tally": Tally(19, 2, 10, 4, 4)}, {"tally", "losses"}),
        ({"tally": Tally(18, 3, 10, 5, 4)}, {"dead letters"}),
        ({"letters": []}, {"dead letters"}),
        ({"skips": []}, {"skips"}),
        ({"skips": [Span(ZERO, 15, 20), Span(ZERO, 18, 23)]}, {"skips"}),
        ({"skips": [Span(ZERO, 35, 45)]}, {"skips"}),
        ({"notes": []}, {"losses"}),
        ({"next": 50, "tally": Tally(29, 2, 10, 5, 4)}, {"history"}),
        ({"next": 30, "tally": Tally(13, 2, 10, 5, 0)}, {"history"}),
    ],
)
def test_what_was_changed_by_hand_is_noticed(change: dict[str, Any], checks: set[str]) -> None:
    ledger = busy()
    assert broken(ledger.moment()) == {}
    for name, value in change.items():
        setattr(ledger, name, value)
    assert broken(ledger.moment()).keys() == checks


def test_a_commit_that_was_removed_or_repeated_is_noticed() -> None:
    ledger = busy()
    second = ledger.lines.pop(1)
    assert broken(ledger.moment()) == {"history": "2 commits of 0..40; 10..30 is in no commit"}
    ledger.lines += [second, second]
    assert broken(ledger.moment()) == {"history": "4 commits of 0..40; 10..30 is committed twice"}


def test_what_was_skipped_by_hand_is_no_gap_also_when_it_is_filled() -> None:
    ledger = Ledger()
    ledger.commit(applied=5)
    ledger.restart(12)
    ledger.commit(applied=3)
    for _ in range(3):
        assert broken(ledger.moment()) == {}
        ledger.fill(4)
    assert ledger.skips == []


def test_a_loss_from_before_a_reset_does_not_count_after_it() -> None:
    ledger = Ledger()
    ledger.commit(lost=5, applied=5)
    ledger.restart(2)
    ledger.commit(lost=3, applied=5)
    assert broken(ledger.moment()) == {}


@pytest.mark.parametrize("state", ["dead", "discarded", "sent"])
def test_whatever_the_clock_of_its_writer_said_a_letter_counts_until_a_reset_voids_it(state: str) -> None:
    ledger = Ledger()
    ledger.commit(applied=8, dead=2)
    ledger.settle("discarded")
    ledger.restart(0)
    ledger.commit(applied=9, dead=1)
    ledger.letters[-1] = replace(ledger.letters[-1], state=state, recorded_at=NOW - timedelta(hours=1))
    assert broken(ledger.moment()) == {}
    ledger.letters.append(SnapshotMark(ZERO, 5, "discarded", ledger.time))
    assert broken(ledger.moment()).keys() == {"dead letters"}


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (Log(ZERO, "topic", "cluster", 0, 50, 50), ""),
        (Log(ZERO, "topic", "cluster", 45, 50, 50), "40..45 were deleted before they were read"),
        (Log(ZERO, "topic", "cluster", 0, 30, 30), "past the end of the log at 30"),
        (Log(ZERO, "another", "cluster", 0, 50, 50), "was deleted and created again"),
        (Log(ZERO, "topic", "another", 0, 50, 50), "belongs to cluster cluster"),
        (None, "the brokers do not have the partition; to forget it: tallymark delete-group shop"),
    ],
)
def test_the_position_is_held_against_the_log(log: Log | None, words: str) -> None:
    found = check_log("shop", busy().position(), log)
    assert words in found.advice
    assert (found.verdict == "ok") is (words == "")


# Tables against Kafka

APPEND = TableSpec("rows", provenance=True)
UPSERT = TableSpec("rows", ("id",), "upsert", provenance=True)
IGNORE = TableSpec("rows", ("id",), "ignore", provenance=True)
VERSION = TableSpec("rows", ("id",), "upsert", version="v", delete="tombstone", provenance=True)


def scope(ledger: Ledger, log_start: int = 0, *, compacts: bool = False) -> Scope:
    (account,) = accounts(ledger.moment())
    return Scope(account, Log(ZERO, "topic", "cluster", log_start, 100, 100), compacts)


def compared(
    spec: TableSpec,
    there: Sequence[int | None],
    made: Sequence[tuple[int, ...]],
    *,
    absent: Sequence[int] = (),
    ledger: Ledger | None = None,
    undecoded: Sequence[int] = (),
    at_once: int = 1000,
    versions: Mapping[int, int | None] | None = None,
    **settings: Any,
) -> Compared:
    """Rows at these offsets against ``made``, with records all around.

    ``made`` is (offset, key, rows), where 0 rows are a deletion, and -1 are one that has a version. All versions
    are the same unless they are given.
    """
    if ledger is None:
        ledger = Ledger()
        ledger.commit(applied=10)
    whole = scope(ledger, **settings)
    rows = pa.table([["orders" if one is not None else None for one in there], [0] * len(there), there], schema=ORIGIN)
    table = Compared(spec, Origins.of([rows], [ZERO]), {ZERO: whole})
    for chunk in chunks(whole.pieces(), at_once):
        for span in chunk:
            offsets = [one for one in range(span.start, span.stop) if one not in absent]
            marks = [one in undecoded for one in offsets]
            records = pa.table([offsets, marks], schema=pa.schema(list(RECORDS)[2:]))
            here = [one for one in made if span.start <= one[0] < span.stop]
            some = [(at, key, rows <= 0, rows == 0, max(rows, 1)) for at, key, rows in here]
            columns = [[one[at] for one in some] for at in range(5)]
            rows = pa.table(columns, schema=pa.schema(list(MADE)[2:]))
            chosen = [versions.get(one[0]) if versions else 1 for one in some]
            table.compare(span, records, rows.append_column("version", pa.array(chosen, pa.int64())))
    table.conclude()
    return table


def kinds(table: Compared) -> dict[str, int]:
    return {kind: count for kind, count in table.counts[ZERO].items() if count}


ONES = [(offset, 0, 1) for offset in range(10)]
TEN = list(range(10))


@pytest.mark.parametrize("at_once", [1000, 3])
@pytest.mark.parametrize(
    ("there", "made", "found", "bad"),
    [
        (TEN, ONES, {"applied": 10}, []),
        (TEN[:8], ONES[:8], {"applied": 8, "filtered": 2}, []),
        (TEN * 2, [(one, 0, 2) for one in TEN], {"applied": 10}, []),
        (TEN[1:], ONES, {"applied": 9, "missing": 1}, [(0, "missing", 0, 1)]),
        ([*TEN, 4], ONES, {"applied": 9, "duplicated": 1}, [(4, "duplicated", 2, 1)]),
        (
            [*TEN[:9], 3],
            ONES,
            {"applied": 8, "duplicated": 1, "missing": 1},
            [(3, "duplicated", 2, 1), (9, "missing", 0, 1)],
        ),
        (TEN, ONES[1:], {"applied": 9, "duplicated": 1}, [(0, "duplicated", 1, 0)]),
        ([*TEN, 17, 17], ONES, {"applied": 10, "foreign": 2}, [(17, "foreign", 2, 0)]),
        ([*TEN, None], ONES, {"applied": 10}, []),
    ],
)
def test_every_offset_of_a_table_without_a_key_is_told_apart(
    there: list[int | None], made: list[tuple[int, ...]], found: dict[str, int], bad: list[Any], at_once: int
) -> None:
    table = compared(APPEND, there, made, at_once=at_once)
    assert kinds(table) == found
    assert sorted(table.bad, key=lambda one: one.offset) == [Difference(ZERO, *one) for one in bad]
    assert table.wrong == sum(found.get(kind, 0) for kind in BAD)


def test_offsets_without_a_record_are_markers_or_compacted() -> None:
    assert kinds(compared(APPEND, TEN[:8], ONES[:8], absent=[8, 9])) == {"applied": 8, "marker": 2}
    compacted = compared(APPEND, TEN[:9], ONES[:8], absent=[8, 9], compacts=True)
    assert kinds(compacted) == {"applied": 8, "compacted": 2}
    assert kinds(compared(APPEND, TEN[:9], ONES[:8], absent=[8, 9])) == {"applied": 8, "foreign": 1, "marker": 1}


def test_dead_skipped_lost_and_expired_offsets_need_no_row() -> None:
    ledger = busy()
    rows = [*range(2, 10), *range(25, 36)]
    made = [(one, 0, 1) for one in rows]
    gone = [36, 37, 38, 39]
    found = compared(APPEND, rows, made, absent=gone, ledger=ledger)
    # After a loss, the log starts behind it.
    assert kinds(compared(APPEND, rows, made, absent=gone, ledger=ledger, log_start=15)) == {
        "expired": 10,
        "lost": 5,
        "skipped": 10,
        "applied": 11,
        "marker": 4,
    }
    assert found.counts[ZERO]["dead"] == 2
    assert found.wrong == 0
    ledger.letters.clear()
    without = compared(APPEND, rows, made, absent=gone, ledger=ledger, undecoded=[0])
    assert without.counts[ZERO]["missing"] == 1
    into = compared(APPEND, [*rows, 1, 15, 16], made, absent=gone, ledger=busy())
    assert [(one.offset, one.kind) for one in into.bad] == [(15, "foreign"), (16, "foreign"), (1, "foreign")]


def test_after_a_reset_rows_may_be_there_again_and_earlier_ones_too() -> None:
    ledger = Ledger()
    ledger.commit(applied=10)
    ledger.restart(4)
    ledger.commit(applied=8)
    made = [(one, 0, 1) for one in range(12)]
    again = compared(APPEND, [*range(10), *range(4, 12)], made, ledger=ledger)
    assert kinds(again) == {"earlier": 4, "repeated": 6, "applied": 2}
    assert compared(APPEND, [*range(10), *range(4, 12), 11], made, ledger=ledger).counts[ZERO]["duplicated"] == 1
    started = Ledger(4)
    started.commit(applied=8)
    assert compared(APPEND, range(3, 12), made, ledger=started).bad == [Difference(ZERO, 3, "foreign", 1, 0)]


def test_after_an_empty_start_no_row_is_explained_by_an_earlier_reset() -> None:
    ledger = Ledger()
    ledger.commit(applied=4)
    ledger.restart(2)
    ledger.commit(applied=2)
    ledger.empty(0)
    ledger.commit(applied=4)
    made = [(one, 0, 1) for one in range(4)]
    assert kinds(compared(APPEND, range(4), made, ledger=ledger)) == {"applied": 4}
    assert compared(APPEND, [0, 1, 2, 3, 3], made, ledger=ledger).bad == [Difference(ZERO, 3, "duplicated", 2, 1)]
    ledger.restart(3)
    ledger.commit(applied=1)
    assert compared(APPEND, [0, 1, 2, 3, 3], made, ledger=ledger).bad == []


def test_a_reset_explains_one_more_copy_and_no_further_one() -> None:
    ledger = Ledger()
    ledger.commit(applied=4)
    ledger.restart(2)
    ledger.commit(applied=2)
    ledger.restart(0)
    ledger.commit(applied=4)
    made = [(one, 0, 1) for one in range(4)]
    twice, thrice = [0, 1, 0, 1], [2, 3] * 3
    assert kinds(compared(APPEND, [*twice, *thrice], made, ledger=ledger)) == {"repeated": 4}
    found = compared(APPEND, [*twice, *thrice, 0, 3], made, ledger=ledger)
    assert sorted(found.bad, key=lambda one: one.offset) == [
        Difference(ZERO, 0, "duplicated", 3, 1),
        Difference(ZERO, 3, "duplicated", 4, 1),
    ]


KEYED = [(0, 1, 1), (1, 2, 1), (2, 1, 1), (3, 3, 1), (4, 3, 0), (5, 4, 1)]
"""Key 1 twice, key 2, key 3 put and deleted, key 4; the rest is filtered."""


@pytest.mark.parametrize("at_once", [1000, 2, 1])
def test_a_newer_record_of_a_key_supersedes_the_older_ones(at_once: int) -> None:
    def upsert(*there: int) -> Compared:
        return compared(UPSERT, there, KEYED, at_once=at_once)

    assert kinds(upsert(1, 2, 5)) == {"applied": 4, "superseded": 2, "filtered": 4}
    assert [(one.offset, one.kind) for one in upsert(2, 5).bad] == [(1, "missing")]
    assert [(one.offset, one.kind) for one in upsert(0, 1, 5).bad] == [(2, "missing")], "an older row is there"
    assert [(one.offset, one.kind) for one in upsert(1, 2, 4, 5).bad] == [(4, "duplicated")], "it was to go"
    assert kinds(upsert(2, 5)) == {"applied": 3, "superseded": 2, "filtered": 4, "missing": 1}


@pytest.mark.parametrize("at_once", [1000, 1])
@pytest.mark.parametrize("spec", [IGNORE, VERSION])
def test_where_the_order_is_no_rule_any_row_of_the_key_will_do(spec: TableSpec, at_once: int) -> None:
    assert compared(spec, [0, 1, 5], KEYED, at_once=at_once).wrong == 0
    assert compared(spec, [2, 1, 5], KEYED, at_once=at_once).wrong == 0
    assert [one.offset for one in compared(spec, [0, 5], KEYED, at_once=at_once).bad] == [1]


def test_a_row_of_unknown_origin_may_be_the_one_that_is_missing() -> None:
    assert compared(UPSERT, [2, 5, None], KEYED).wrong == 0
    assert compared(IGNORE, [5], KEYED[1:], absent=[0], log_start=1).wrong == 0
    assert compared(UPSERT, [5, 2], KEYED, log_start=1).wrong == 1


def test_what_was_filled_in_later_may_have_overwritten_its_successors() -> None:
    ledger = Ledger()
    ledger.commit(skipped=3, applied=3)
    ledger.skips, ledger.tally = [], Tally(6)
    assert compared(UPSERT, [0], [(0, 1, 1), (4, 1, 1)], ledger=ledger).wrong == 1
    ledger.notes.append((Note("backfill", Span(ZERO, 0, 3), ""), NOW))
    for at_once in (1000, 1):
        assert compared(UPSERT, [0], [(0, 1, 1), (4, 1, 1)], ledger=ledger, at_once=at_once).wrong == 0


@pytest.mark.parametrize("at_once", [1000, 1])
def test_a_delete_that_was_filled_in_may_have_deleted_its_successors(at_once: int) -> None:
    ledger = Ledger()
    ledger.commit(applied=6)
    ledger.notes.append((Note("backfill", Span(ZERO, 0, 3), ""), NOW))
    made = [(1, 1, 0), (4, 1, 1)]
    for there in ([], [4]):
        for spec in (UPSERT, VERSION):
            assert compared(spec, there, made, ledger=ledger, at_once=at_once).wrong == 0


@pytest.mark.parametrize("at_once", [1000, 1])
def test_a_row_that_was_deleted_must_be_gone(at_once: int) -> None:
    made = [(0, 7, 1), (1, 7, 0), (2, 8, 1), (3, 8, 0), (4, 8, 1)]
    well = compared(UPSERT, [4], made, at_once=at_once)
    assert kinds(well) == {"superseded": 2, "applied": 3, "filtered": 5}
    still = compared(UPSERT, [0, 4], made, at_once=at_once)
    assert still.bad == [Difference(ZERO, 0, "foreign", 1, 0)]
    assert kinds(still) == {"superseded": 1, "applied": 3, "filtered": 5, "foreign": 1}
    assert compared(VERSION, [4], made, at_once=at_once).wrong == 0
    assert compared(VERSION, [0, 4], made, at_once=at_once).bad == still.bad, "whatever version it has"
    assert compared(VERSION, [2], made, at_once=at_once).bad == [
        Difference(ZERO, 2, "foreign", 1, 0),
        Difference(ZERO, 4, "missing", 0, None),
    ]
    versions = [(at, key, rows or -1) for at, key, rows in made]
    assert compared(VERSION, [0, 4], versions, at_once=at_once).wrong == 0, "it may be the newer one"
    ledger = Ledger()
    ledger.commit(applied=10)
    ledger.notes.append((Note("replay", Span(ZERO, 0, 1), ""), NOW))
    for spec in (UPSERT, VERSION):
        assert compared(spec, [0, 4], made, ledger=ledger, at_once=at_once).wrong == 0, "it was replayed after that"


@pytest.mark.parametrize("at_once", [1000, 1])
@pytest.mark.parametrize("spec", [UPSERT, IGNORE, VERSION])
def test_a_record_with_several_keys_has_as_many_rows_as_nobody_else_could_have_written(
    spec: TableSpec, at_once: int
) -> None:
    made = [(0, 7, 1), (0, 8, 1), (0, 9, 1), (2, 9, 1)]

    def bad(*there: int) -> list[Difference]:
        return compared(spec, there, made, at_once=at_once).bad

    assert bad(0, 0, 2) == []
    assert bad(0, 2) == [Difference(ZERO, 0, "missing", 1, 2)]
    assert [(one.offset, one.rows) for one in bad(2)] == [(0, 0)]
    assert bad(0, 0, 0) == ([Difference(ZERO, 2, "missing", 0, None)] if spec == UPSERT else [])
    assert compared(spec, [0, 0], [(0, 7, 3), (0, 8, 1)], at_once=at_once).wrong == 0, "one row of a key is written"


@pytest.mark.parametrize("at_once", [1000, 1])
def test_of_a_record_with_several_keys_the_deleted_ones_must_be_gone(at_once: int) -> None:
    made = [(0, 7, 1), (0, 8, 1), (1, 7, 0)]
    for spec in (UPSERT, VERSION):
        assert compared(spec, [0], made, at_once=at_once).wrong == 0
        assert compared(spec, [0, 0], made, at_once=at_once).bad == [Difference(ZERO, 0, "foreign", 2, 1)]


@st.composite
def keyed_records(draw: st.DrawFn) -> list[Made]:
    """Ten records of a partition, each with a row of one of three keys, or a deletion of it."""
    one = st.tuples(st.integers(0, 2), st.none() | st.integers(1, 3), st.booleans())
    found = draw(st.lists(one, min_size=10, max_size=10))
    return [
        Made(key, "orders", 0, at, version=version, deletes=deletes) for at, (key, version, deletes) in enumerate(found)
    ]


def as_made(spec: TableSpec, rows: Sequence[Made]) -> list[tuple[int, ...]]:
    final = {True: 0, False: -1}
    return [(row.offset, row.key, final[not spec.version or row.version is None] if row.deletes else 1) for row in rows]


@pytest.mark.parametrize("spec", [UPSERT, IGNORE, VERSION], ids=["upsert", "ignore", "version"])
@settings(max_examples=12)
@given(rows=keyed_records(), cuts=st.lists(st.integers(0, 10)), at_once=st.integers(1, 10))
def test_a_table_that_is_as_the_rule_says_raises_no_alarm_and_a_row_that_came_back_does(
    rows: list[Made], spec: TableSpec, cuts: list[int], at_once: int
) -> None:
    if spec == IGNORE:
        rows = [replace(row, deletes=False) for row in rows]
    table = Oracle(versions=spec.version is not None, first_stays=spec == IGNORE)
    for start, stop in pairwise([0, *sorted(cuts), 10]):
        table.apply(rows[start:stop])
    there, made = [row.offset for row in table.rows.values()], as_made(spec, rows)
    versions = {row.offset: row.version for row in rows}
    assert compared(spec, there, made, versions=versions, at_once=at_once).bad == []
    for row in rows:
        deleted = any(one[2] == 0 and one[1] == row.key and one[0] > row.offset for one in made)
        if deleted and not row.deletes and row.key not in table.rows:
            assert compared(spec, [*there, row.offset], made, versions=versions, at_once=at_once).wrong, row


@pytest.mark.parametrize("at_once", [1000, 1])
def test_a_deletion_with_a_version_does_not_hide_a_row_from_a_final_one(at_once: int) -> None:
    made, versions = [(0, 7, 1), (8, 7, -1), (9, 7, 0)], {0: 1, 8: 1, 9: None}
    assert compared(VERSION, [], made, versions=versions, at_once=at_once).bad == []
    wrong = compared(VERSION, [0], made, versions=versions, at_once=at_once)
    assert wrong.bad == [Difference(ZERO, 0, "foreign", 1, 0)]


@pytest.mark.parametrize("at_once", [1000, 1])
def test_a_row_of_a_lower_version_is_not_taken_for_the_higher_one(at_once: int) -> None:
    made, versions = [(0, 7, 1), (1, 7, 1), (2, 7, 1), (3, 8, 1), (4, 8, 1)], {0: 1, 1: 3, 2: 2, 3: None, 4: 1}

    def bad(*there: int, made: Sequence[tuple[int, ...]] = made) -> list[Difference]:
        return compared(VERSION, there, made, versions=versions, at_once=at_once).bad

    assert bad(1, 4) == []
    assert bad(2, 4) == [Difference(ZERO, 1, "missing", 0, None)]
    assert bad(1, 3) == [Difference(ZERO, 4, "missing", 0, None)]
    assert bad(2, 4, made=[*made, (5, 7, 0)]) == [Difference(ZERO, 2, "foreign", 1, 0)], (
        "what is deleted without a version leaves nothing behind"
    )


@pytest.mark.parametrize("at_once", [1000, 1])
def test_a_row_that_is_older_than_a_deletion_of_its_key_came_back(at_once: int) -> None:
    made = [(0, 7, 1), (1, 7, -1), (2, 7, 1), (3, 8, 1), (4, 7, 1)]

    def bad(*there: int, versions: dict[int, int | None]) -> list[Difference]:
        return compared(VERSION, there, made, versions=versions, at_once=at_once).bad

    newer: dict[int, int | None] = {0: 1, 1: 5, 2: 4, 3: 1, 4: 6}
    assert bad(4, 3, versions=newer) == []
    assert bad(2, 3, versions=newer) == [Difference(ZERO, 2, "foreign", 1, 0), Difference(ZERO, 4, "missing", 0, None)]
    older: dict[int, int | None] = newer | {4: None}
    assert bad(3, versions=older) == []
    assert bad(4, 3, versions=older) == [Difference(ZERO, 4, "foreign", 1, 0)]
    assert bad(4, 3, versions=newer | {4: 5}) == [], "of equal versions the newest row stays"


def test_why_missing_keys_are_not_looked_for_is_said() -> None:
    rows = pa.table([["orders", "others", None], [0, 0, None], [0, 0, None]], schema=ORIGIN)
    ledger = Ledger()
    ledger.commit(applied=1)
    table = Compared(UPSERT, Origins.of([rows], [ZERO]), {ZERO: scope(ledger)})
    assert table.unsure == "1 rows have no provenance and 1 rows come from other partitions"
    assert Compared(APPEND, Origins.of([rows], [ZERO]), {ZERO: scope(ledger)}).unsure is None
    expired = compared(IGNORE, [5], KEYED[1:], absent=[0], log_start=1)
    assert expired.unsure == "1 records have expired or are from before a reset"
    assert compared(UPSERT, [5], KEYED[1:], absent=[0], log_start=1).unsure is None


@given(st.lists(st.integers(1, 9), max_size=6), st.integers(1, 7))
def test_chunks_are_small_hold_a_partition_once_and_lose_nothing(lengths: list[int], most: int) -> None:
    spans = [Span(Partition("orders", at // 2), 10 * at, 10 * at + length) for at, length in enumerate(lengths)]
    found = list(chunks(spans, most))
    assert all(sum(map(len, chunk)) <= most for chunk in found)
    assert all(len({span.partition for span in chunk}) == len(chunk) for chunk in found)
    assert sum(len(span) for chunk in found for span in chunk) == sum(lengths)


def test_rows_of_other_partitions_are_left_to_whoever_writes_them() -> None:
    rows = pa.table([["orders", "orders", "others"], [0, 1, 0], [0, 0, 0]], schema=ORIGIN)
    found = Origins.of([rows], [ZERO])
    assert (len(found.offsets[ZERO]), found.others, found.unknown) == (1, 2, 0)


def test_an_account_is_of_its_partition_alone() -> None:
    ledger, other = busy(), Partition("orders", 1)
    moment = ledger.moment()
    foreign = [(Note("loss", Span(other, 0, 9), ""), NOW), (Note("reset", Span(other, 0, 9), ""), NOW)]
    mixed = replace(
        moment,
        notes=[*moment.notes, *foreign],
        skips=[*moment.skips, Span(other, 0, 4)],
        letters=[*moment.letters, SnapshotMark(other, 3, "dead", NOW)],
    )
    assert accounts(mixed) == accounts(moment)
