"""A move that empties tables: rows and positions change together or not at all; the same in every store."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tallymark.core.claims import EMPTYING, Claim, Fill, PositionChanges, Restart
from tallymark.core.journal import VOID
from tallymark.core.retry import retrying
from tallymark.core.spans import Partition, Position, Span, Tally
from tallymark.core.tables import Changes, TableSpec
from tallymark.errors import BadInput, CommitRefused, Fenced, PositionMoved, TallymarkError
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tallymark.stores.redis import emptying
from tests.support.commits import EVENTS, SCHEMA, SEVERAL_WRITERS, SINCE, moving, ready, take, work
from tests.support.databases import execute, query

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
OPERATOR = "op@host"
ODD = TableSpec("odd [1]*?\\n:name")
"""Its name has characters that mean something in patterns of keys, and in SQL."""
BESIDE = TableSpec("events2")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = ready(url)
    made.create_tables([ODD, BESIDE], dict.fromkeys([ODD.name, BESIDE.name], SCHEMA))
    yield made
    made.close()


def begin(store: Store, group: str) -> dict[Partition, Claim]:
    """Ten rows of each of two partitions in two tables, and a row in a third one; the last two records are dead."""
    claims = take(store, group, "first", [ZERO, ONE])
    made = work(group, "first", claims, 0, 12, dead=2)
    rows = made.changes[0].puts
    beside = Changes(BESIDE, rows.slice(0, 1), rows.slice(0, 0))
    store.apply([*made.changes, Changes(ODD, rows, rows.slice(0, 0)), beside], made.entry)
    return claims


def counts(store: Store) -> dict[str, int]:
    there = store.journal().row_counts([EVENTS.name, ODD.name, BESIDE.name, "never was"])
    return {table: count for table, count in there.items() if count}


FULL = {EVENTS.name: 20, ODD.name: 20, BESIDE.name: 1}


def starting_over(*tables: str, at: int = 0) -> Callable[..., PositionChanges]:
    def decide(found: Mapping[Partition, Position], _: object) -> PositionChanges:
        restarts = {partition: Restart(at, "by hand", emptied=True) for partition in found}
        return PositionChanges({}, restarts, tables or (EVENTS.name, ODD.name))

    return decide


def empty(store: Store, group: str, decide: Callable[..., PositionChanges] | None = None) -> None:
    store.journal().move(group, [ZERO, ONE], decide or starting_over(), OPERATOR, SINCE)


def next_offsets(store: Store, group: str) -> list[int]:
    return [position.next_offset for position in store.positions(group)[group]]


def test_rows_go_and_positions_start_over_in_one(store: Store, group: str) -> None:
    begin(store, group)
    assert counts(store) == FULL
    empty(store, group)
    assert counts(store) == {BESIDE.name: 1}
    for position in store.positions(group)[group]:
        assert (position.next_offset, position.first_offset, position.tally) == (0, 0, Tally())
        assert position.owner is None
    notes = [line.note for line in store.journal().notes(group, [EMPTYING])]
    assert [(note.span, note.reason) for note in notes] == [(Span(at, 0, 12), "by hand") for at in (ZERO, ONE)]
    assert store.journal().letter_counts(group) == {VOID: 4}


def test_a_position_that_stays_has_a_note_too(store: Store, group: str) -> None:
    take(store, group, "first", [ZERO, ONE])
    empty(store, group)
    assert [len(line.note.span) for line in store.journal().notes(group, [EMPTYING])] == [0, 0]


def test_a_decision_that_raises_keeps_rows_and_positions(store: Store, group: str) -> None:
    begin(store, group)

    def refuse(*_: object) -> PositionChanges:
        raise BadInput("no")

    with pytest.raises(BadInput):
        empty(store, group, refuse)
    assert (counts(store), next_offsets(store, group)) == (FULL, [12, 12])


def test_a_position_that_the_reset_does_not_have_keeps_rows_and_positions(store: Store, group: str) -> None:
    begin(store, group)
    take(store, group, "late", [Partition("orders", 2)], at=5)
    with pytest.raises(
        PositionMoved, match=r"orders\[2\]: a run has created the position meanwhile; nothing was changed"
    ):
        empty(store, group)
    assert (counts(store), next_offsets(store, group)) == (FULL, [12, 12, 5])
    assert store.journal().letter_counts(group) == {"dead": 4}


def test_the_previous_owner_writes_nothing_any_more(store: Store, group: str) -> None:
    claims = begin(store, group)
    late = work(group, "first", claims, 12, 20)
    empty(store, group)
    with pytest.raises(Fenced):
        store.apply(late.changes, late.entry)
    assert (counts(store), next_offsets(store, group)) == ({BESIDE.name: 1}, [0, 0])


def test_an_open_skip_is_not_filled_any_more(store: Store, group: str) -> None:
    begin(store, group)
    ahead = PositionChanges({}, {ZERO: Restart(20, "ahead")})
    store.journal().move(group, [ZERO], lambda *_: ahead, OPERATOR, SINCE)
    (skip,) = store.skips(group)
    empty(store, group)
    filled = Fill(skip.span, skip.span, Tally(applied=8))
    row = pa.Table.from_pylist([{"partition_id": 0, "record_offset": 12, "writer": "fill"}], SCHEMA)
    entry = dataclasses.replace(moving(group).entry, advances=[], fills=[filled])
    with pytest.raises(CommitRefused):
        store.apply([Changes(EVENTS, row, row.slice(0, 0))], entry)
    assert (counts(store), store.skips(group)) == ({BESIDE.name: 1}, [])


def test_a_table_that_was_dropped_is_passed_over(store: Store, group: str) -> None:
    begin(store, group)
    empty(store, group, starting_over(EVENTS.name, "never was"))
    assert counts(store) == {ODD.name: 20, BESIDE.name: 1}
    assert next_offsets(store, group) == [0, 0]


@SEVERAL_WRITERS
def test_a_commit_at_the_same_time_is_refused_or_deleted_with_the_others(store: Store, url: str, group: str) -> None:
    claims, other = begin(store, group), open_store(url)
    other.create_tables([EVENTS], {EVENTS.name: SCHEMA})
    late = work(group, "first", claims, 12, 20)

    def commit() -> TallymarkError | None:
        try:
            # The database may abort it as the victim of a deadlock.
            retrying(lambda: other.apply(late.changes, late.entry), patience=10)
        except TallymarkError as refused:
            return refused
        return None

    with ThreadPoolExecutor(1) as pool:
        commits: list[object] = []

        def decide(found: Mapping[Partition, Position], runs: Sequence[object]) -> PositionChanges:
            if not commits:
                commits.append(pool.submit(commit))
                if url.startswith("redis"):
                    # Nothing is locked: the script has to notice the commit.
                    assert commits[0].result() is None  # type: ignore[attr-defined]
            return starting_over()(found, runs)

        empty(store, group, decide)
        refused = commits[0].result()  # type: ignore[attr-defined]
    other.close()
    assert isinstance(refused, CommitRefused) or url.startswith("redis")
    assert (counts(store), next_offsets(store, group)) == ({BESIDE.name: 1}, [0, 0])


@SEVERAL_WRITERS
def test_a_partition_that_is_claimed_at_the_same_time_loses_no_row(store: Store, url: str, group: str) -> None:
    """Its rows are there after a refusal; or it was claimed after the transaction, and its rows were written later."""
    begin(store, group)
    two, other = Partition("orders", 2), open_store(url)
    other.create_tables([EVENTS], {EVENTS.name: SCHEMA})

    def claim_and_commit() -> None:
        claims = take(other, group, "late", [two])
        late = work(group, "late", claims, 0, 5)
        other.apply(late.changes, late.entry)

    def decide(found: Mapping[Partition, Position], runs: Sequence[object]) -> PositionChanges:
        if two not in {position.partition for position in other.positions(group)[group]}:
            claim_and_commit()
        return starting_over()(found, runs)

    with pytest.raises(PositionMoved):
        empty(store, group, decide)
    other.close()
    assert counts(store) == FULL | {EVENTS.name: 25}
    assert next_offsets(store, group) == [12, 12, 5]


@pytest.mark.parametrize("url", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_tables_that_refer_to_each_other_are_emptied_in_order(store: Store, url: str, group: str) -> None:
    begin(store, group)
    engine = " ENGINE=InnoDB" if url.startswith("mysql") else ""
    execute(
        url,
        f"CREATE TABLE a_parent (id INT PRIMARY KEY){engine}",
        f"CREATE TABLE b_child (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES a_parent (id)){engine}",
        "INSERT INTO a_parent VALUES (1)",
        "INSERT INTO b_child VALUES (1, 1)",
    )
    empty(store, group, starting_over("a_parent", "b_child"))
    assert query(url, "SELECT (SELECT count(*) FROM a_parent) + (SELECT count(*) FROM b_child)") == [(0,)]


@pytest.mark.parametrize("url", ["postgresql", "mariadb"], indirect=True)
def test_a_table_that_another_one_refers_to_is_refused_whole(store: Store, url: str, group: str) -> None:
    begin(store, group)
    engine = " ENGINE=InnoDB" if url.startswith("mysql") else ""
    execute(
        url,
        f"CREATE TABLE parent (id INT PRIMARY KEY){engine}",
        f"CREATE TABLE other (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES parent (id)){engine}",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO other VALUES (1, 1)",
    )
    with pytest.raises(TallymarkError):
        empty(store, group, starting_over(EVENTS.name, "parent"))
    assert (counts(store), next_offsets(store, group)) == (FULL, [12, 12])


@pytest.mark.parametrize("url", ["redis"], indirect=True)
def test_more_keys_than_a_script_deletes_are_refused(store: Store, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(store, group)
    monkeypatch.setattr(emptying, "MOST_KEYS", 39)
    with pytest.raises(
        BadInput, match=r"have 40 keys, and one script deletes at most 39.*nothing was changed: stop the"
    ):
        empty(store, group)
    assert (counts(store), next_offsets(store, group)) == (FULL, [12, 12])
