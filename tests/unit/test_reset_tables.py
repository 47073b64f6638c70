"""How many rows a reset repeats, and when the tables may be emptied."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.claims import Note, Restart
from tallymark.core.journal import BatchLine, NoteLine
from tallymark.core.spans import Log, Partition, Position, Span, Tally
from tallymark.core.tables import WrittenTable
from tallymark.errors import BadInput
from tallymark.operate.emptying import Consent, Written, check_emptying
from tallymark.operate.repeats import check_repeats, repeated
from tallymark.operate.reset import Aim, Planned, Reset

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
NOW = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)
EVENTS, TOTALS = WrittenTable("events", "append"), WrittenTable("totals", "merge")
LATEST = WrittenTable("latest", "upsert")


def position(offset: int, first: int = 0, partition: Partition = ZERO) -> Position:
    return Position(partition, offset, first, "id", "cluster", 3, None, Tally(applied=offset - first), None, NOW)


def planned(to: int, *held: Position, start: int = 0, end: int = 1_000) -> list[Planned]:
    positions = {each.partition: each for each in held}
    logs = {partition: Log(partition, "id", "cluster", start, end, end) for partition in positions}
    return Reset(Aim("offset", "", number=to), logs).plan(positions)


def commit(rows: int, *spans: tuple[int, int], partition: Partition = ZERO, table: str = "events") -> BatchLine:
    found = [Span(partition, start, stop) for start, stop in spans]
    return BatchLine("batch", NOW, NOW, Tally(applied=sum(map(len, found))), {table: rows}, found)


def estimated(plan: Sequence[Planned], history: Sequence[BatchLine], *skips: Span) -> tuple[int, int]:
    (found,) = repeated(plan, [EVENTS], history, skips)
    return found.rows, found.unknown


def test_rows_are_those_of_the_commits_that_are_repeated() -> None:
    history = [commit(20, (20, 30)), commit(30, (10, 20)), commit(40, (0, 10))]
    assert estimated(planned(10, position(30)), history) == (50, 0)
    assert estimated(planned(15, position(30)), history) == (35, 0)
    assert estimated(planned(0, position(30)), history[:2]) == (50, 10)


def test_of_offsets_that_were_applied_twice_the_last_commit_counts() -> None:
    history = [commit(7, (10, 30)), commit(20, (20, 30)), commit(30, (10, 20))]
    assert estimated(planned(10, position(30)), history) == (7, 0)


def test_a_commit_of_other_partitions_counts_in_proportion() -> None:
    both = BatchLine("b", NOW, NOW, Tally(applied=40), {"events": 40}, [Span(ZERO, 0, 10), Span(ONE, 0, 30)])
    assert estimated(planned(0, position(10)), [both]) == (10, 0)


def test_records_of_an_open_skip_have_no_rows_to_repeat() -> None:
    assert estimated(planned(0, position(30)), [commit(10, (20, 30))], Span(ZERO, 0, 20)) == (10, 0)


def test_offsets_that_the_log_does_not_hold_any_more_are_not_repeated() -> None:
    assert estimated(planned(0, position(30), end=20), [commit(30, (0, 30))]) == (20, 0)
    check_repeats(planned(99, position(30), end=20), [EVENTS])


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.integers(0, 12), st.data())
def test_every_repeated_offset_is_known_or_unknown(sizes: list[int], kept: int, data: st.DataObject) -> None:
    """With a row for each record, rows and unknown offsets add up to the repeated offsets."""
    ends = [sum(sizes[: at + 1]) for at in range(len(sizes))]
    history = [commit(size, (end - size, end)) for size, end in zip(sizes, ends, strict=True)][::-1][:kept]
    to = data.draw(st.integers(0, ends[-1]))
    plan = planned(to, position(ends[-1]))
    if plan[0].repeats:
        assert sum(estimated(plan, history)) == ends[-1] - to


@pytest.mark.parametrize(
    ("table", "rows", "unknown", "words"),
    [
        (EVENTS, 1204, 0, "about 1,204 rows will be there twice"),
        (TOTALS, 36, 0, "about 36 rows will be added again"),
        (TOTALS, 12, 9, "about 12 rows and those of 9 offsets that the history no longer has will be added again"),
        (EVENTS, 0, 3000, "the rows of 3,000 offsets that the history no longer has will be there twice"),
        (LATEST, 12, 5, "no row twice; without a newer version, rows have older values until the group has caught up"),
    ],
)
def test_each_table_is_told_what_happens(table: WrittenTable, rows: int, unknown: int, words: str) -> None:
    history = [commit(rows, (unknown, unknown + 1), table=table.name)] if rows else []
    (found,) = repeated(planned(0, position(unknown + bool(rows)), end=9_000), [table], history, ())
    assert found.words == words


def note(kind: str, start: int, stop: int) -> NoteLine:
    return NoteLine(Note(kind, Span(ZERO, start, stop), ""), None, NOW)


@pytest.mark.parametrize(
    ("notes", "first", "begin"),
    [
        ([], 7, 7),
        ([note("reset", 7, 20)], 7, 0),
        ([note("truncation", 7, 20)], 7, 0),
        ([note("begin", 7, 7)], 7, 0),
        ([note("reset", 7, 20), note("emptying", 5, 20)], 5, 5),
        ([note("emptying", 5, 20), note("reset", 9, 12)], 9, 5),
        ([note("emptying", 5, 20), note("reset", 3, 12), note("reset", 9, 12)], 9, 3),
    ],
)
def test_the_first_offset_of_which_there_may_be_rows(notes: list[NoteLine], first: int, begin: int) -> None:
    assert Written("g", {"g": [EVENTS]}, notes).begin(position(20, first)) == begin


def emptied(plan: Sequence[Planned], written: Written, lose: int = 0) -> list[str]:
    positions = {each.partition: each.old for each in plan if each.old}
    return check_emptying(plan, positions, written, lose)


MINE = Written("g", {"g": [EVENTS, LATEST, TOTALS]})


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 60), st.integers(0, 50))
def test_no_row_is_deleted_that_is_not_written_again_or_given_up(
    first: int, read: int, start: int, to: int, lose: int
) -> None:
    plan = planned(to, position(first + read, first), start=start)
    try:
        tables = emptied(plan, MINE, lose)
    except BadInput:
        return
    assert tables == ["events", "latest", "totals"]
    assert plan[0].new is not None
    # Rows may be of first..first + read; those from the new position on come back.
    assert max(0, plan[0].new - first) <= lose


def test_a_start_at_the_beginning_of_the_log_is_possible() -> None:
    assert emptied(planned(0, position(20), position(30, partition=ONE)), MINE) == ["events", "latest", "totals"]
    assert emptied(planned(0, position(20), start=5), MINE, lose=5) == ["events", "latest", "totals"]
    with pytest.raises(BadInput, match=r"deleted up to 5 offsets .* those of orders\[0\] before 5; .* add --lose 5 if"):
        emptied(planned(0, position(20), start=5), MINE, lose=4)


def test_a_start_after_the_beginning_of_the_group_is_refused() -> None:
    assert emptied(planned(7, position(20, first=7)), MINE)
    with pytest.raises(
        BadInput, match=r"goes to offset 8 of orders\[0\], and the tables may have rows from offset 7 on,"
    ):
        emptied(planned(8, position(20, first=7)), MINE)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (Written("g", {}), "the ledger knows no table of group g"),
        (
            Written("g", {"g": [WrittenTable("t", "append", "mysql://far")]}),
            "table t is in mysql://far, and the ledger",
        ),
        (Written("g", {"g": [EVENTS], "h": [WrittenTable("Events", "ignore")]}), "group h writes to table events, too"),
    ],
)
def test_tables_that_can_not_be_emptied(written: Written, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        emptied(planned(0, position(20)), written)


def test_a_table_of_another_store_with_the_same_name_is_another_table() -> None:
    written = Written("g", {"g": [EVENTS], "h": [WrittenTable("events", "append", "mysql://far")]})
    assert emptied(planned(0, position(20)), written) == ["events"]


def test_a_partition_that_is_not_in_the_reset_is_named() -> None:
    positions = {ZERO: position(20), ONE: position(20, partition=ONE)}
    with pytest.raises(BadInput, match=r"orders\[1\] is not in the reset, and rows of its records would be lost"):
        check_emptying(planned(0, position(20)), positions, MINE, 0)


def test_all_positions_start_over_and_their_owners_lose_them() -> None:
    stays, back = position(0), position(20, partition=ONE)
    positions = {ZERO: stays, ONE: back}
    reset = Reset(Aim("offset", "", number=0), {at: Log(at, "id", "cluster", 0, 9, 30) for at in positions})
    decide = reset.decide(reset.plan(positions), NOW, "why", lambda _: None, consent=lambda _: ["events"])
    changes = decide(positions, [])
    assert changes.empties == ["events"]
    assert changes.restarts == {at: Restart(0, "why; emptied events", emptied=True) for at in positions}


def test_consents_that_make_no_sense() -> None:
    with pytest.raises(BadInput, match="--repeat keeps the rows, and --truncate deletes them"):
        Consent(repeat=True, truncate=True)
    with pytest.raises(BadInput, match="leave it out, or add --truncate"):
        Consent(repeat=True, lose=3)
