"""Records that a table refuses become dead letters, all others are applied, and a table that changes loses nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import event, text

from tallymark.core.budget import Budget
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.core.spans import GroupState, Tally
from tallymark.core.tables import OFFSET, PARTITION, TOPIC, Changes, TableSpec
from tallymark.errors import GroupPaused, TableChanged, TableMismatch, TooManyDead
from tallymark.stores.contract import RowsRefused
from tallymark.stores.opening import open_sql
from tallymark.stores.sql.store import SqlStore
from tests.support.background import wait_for
from tests.support.crash import Run, make_loop
from tests.support.databases import query
from tests.support.kafka import Topics
from tests.support.reader import EVENTS, LATEST, NUMBER, Filled, PlainReader
from tests.support.running import Running
from tests.support.truth import check_accounts, events, letters, positions, rows

TEXT = pa.string()
PEOPLE = Filled(
    TableSpec("people", ("id",), "upsert"),
    {"id": NUMBER, "name": TEXT, "age": NUMBER, "boss": NUMBER},
    lambda _, __, value: (value["id"], value.get("name", "Ada"), value.get("age", 30), value.get("boss", 1)),
)
EMAILS = Filled(
    TableSpec("emails"),
    {"id": NUMBER, "email": TEXT},
    lambda _, offset, value: (value["id"], value.get("email", f"{offset}@example.org")),
)
STRICT = (EVENTS, PEOPLE, EMAILS)
CREATE = [
    "CREATE TABLE bosses (id BIGINT PRIMARY KEY)",
    "INSERT INTO bosses VALUES (1)",
    # SQLite ignores the length of a VARCHAR.
    """CREATE TABLE people (
        id BIGINT PRIMARY KEY,
        name VARCHAR(10) NOT NULL CHECK (length(name) <= 10),
        age BIGINT CHECK (age >= 0),
        boss BIGINT,
        FOREIGN KEY (boss) REFERENCES bosses (id)
    )""",
    "CREATE TABLE emails (id BIGINT, email VARCHAR(50) UNIQUE)",
]
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "check": ({"age": -1}, "people"),
    "not null": ({"name": None}, "people"),
    "too long": ({"name": "Ada, Countess of Lovelace"}, "people"),
    "foreign key": ({"boss": 99}, "people"),
    "duplicate": ({"email": "taken@example.org"}, "emails"),
}
"""The error of a record, and the table that refuses it."""


def execute(url: str, *statements: str) -> None:
    store = open_sql(url)
    with store.transaction() as connection:
        for statement in statements:
            connection.execute(text(statement))
    store.close()


@pytest.fixture
def store(store_url: str) -> Iterator[SqlStore]:
    """A run with the user's own tables, which have constraints."""
    execute(store_url, *CREATE)
    made = open_sql(store_url)
    if made.dialect.name == "sqlite":
        event.listen(made.engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
    yield made
    made.close()


class Runner:
    """Runs until it has caught up, in this process."""

    def __init__(self, brokers: str, group: str, topic: str, records: int) -> None:
        self.topic, self._brokers, self._group, self._records = topic, brokers, group, records

    def run(self, url: str, records: int | None = None) -> Run:
        return Run(self._brokers, url, self._group, self.topic, records or self._records)

    def __call__(
        self, store: SqlStore, tables: Sequence[Filled], on_step: OnStep = ignore, budget: Budget | None = None
    ) -> Tally:
        reader = PlainReader(self._brokers, tables)
        url = store.engine.url.render_as_string(hide_password=False)
        try:
            return make_loop(self.run(url), store, reader, on_step, budget).run("caught-up")
        finally:
            reader.close()


@pytest.fixture
def runner(topics: Topics, brokers: str, group: str) -> Runner:
    """A run on a topic of one partition, so that offsets identify records; a batch takes all records."""
    return Runner(brokers, group, topics.create(1), records=1000)


def offsets(url: str) -> list[int]:
    """Those of the rows in ``events``."""
    return sorted(offset for _, offset, _ in events(url).elements())


# Which records are dead


def test_records_that_a_table_refuses_are_dead_and_all_others_are_there(
    store: SqlStore, store_url: str, runner: Runner, topics: Topics
) -> None:
    good = [{"id": number} for number in range(40)]
    values: list[dict[str, Any]] = [{"id": 100, "email": "taken@example.org"}, *good]
    for number, (wrong, _) in enumerate(BAD.values()):
        values.insert(5 + 7 * number, {"id": 200 + number, **wrong})
    topics.send_to(runner.topic, 0, values, key=b"\x00key", headers=[("trace", b"\xff\x00"), ("none", None)])
    dead = {at: value for at, value in enumerate(values) if value["id"] >= 200}
    total = runner(store, STRICT)
    assert total == Tally(applied=41, dead=len(BAD))
    check_accounts(store_url)

    columns = "record_offset, table_name, record_key, record_value, headers, error, record_time"
    found = {row[0]: row[1:] for row in query(store_url, f"SELECT {columns} FROM tallymark_dead_letters")}
    assert found.keys() == dead.keys()
    for (at, value), (_, table) in zip(sorted(dead.items()), BAD.values(), strict=True):
        name, key, raw, headers, error, time = found[at]
        assert name == table
        assert (bytes(key), json.loads(bytes(raw))) == (b"\x00key", value)  # type: ignore[call-overload]
        assert json.loads(str(headers)) == [["trace", "ff00"], ["none", None]]
        assert len(str(error)) > 10
        assert "\n" not in str(error)
        assert "://" not in str(error), "the words of the database, and not where it is"
        assert time is not None

    alive = [at for at in range(len(values)) if at not in dead]
    assert offsets(store_url) == alive, "no row of a dead record in a table that would take it"
    ids = Counter((values[at]["id"],) for at in alive)
    assert rows(store_url, "people", "id") == ids
    assert rows(store_url, "emails", "id") == ids


def test_what_is_there_from_an_earlier_batch_can_make_a_record_dead(
    store: SqlStore, store_url: str, runner: Runner, topics: Topics
) -> None:
    topics.send_to(runner.topic, 0, [{"id": 1, "email": "taken@example.org"}])
    runner(store, STRICT)
    topics.send_to(runner.topic, 0, [{"id": 2, "email": "taken@example.org"}, {"id": 3}])
    assert runner(store, STRICT) == Tally(applied=1, dead=1)
    assert rows(store_url, "emails", "id") == rows(store_url, "people", "id") == Counter([(1,), (3,)])
    assert letters(store_url) == Counter([(0, 1)])


def test_an_older_row_comes_to_light_when_the_newest_of_its_key_is_dead(
    store: SqlStore, store_url: str, runner: Runner, topics: Topics
) -> None:
    ages = [(1, 10), (1, 20), (2, 30), (1, -1), (2, -2), (2, -3), (3, -4)]
    topics.send_to(runner.topic, 0, [{"id": number, "age": age} for number, age in ages])
    assert runner(store, STRICT) == Tally(applied=3, dead=4)
    assert rows(store_url, "people", "id", "age") == Counter([(1, 20), (2, 30)])
    assert letters(store_url) == Counter([(0, 3), (0, 4), (0, 5), (0, 6)])
    assert offsets(store_url) == [0, 1, 2]
    check_accounts(store_url)


def test_a_record_without_a_key_is_dead_before_any_table_sees_it(
    store: SqlStore, store_url: str, runner: Runner, topics: Topics
) -> None:
    topics.send_to(runner.topic, 0, [{"id": 1}, {"id": None}, {"id": 2}])
    assert runner(store, (EVENTS, LATEST)) == Tally(applied=2, dead=1)
    ((error,),) = query(store_url, "SELECT error FROM tallymark_dead_letters WHERE table_name = 'latest'")
    assert str(error).startswith("key column id is NULL")
    assert offsets(store_url) == [0, 2]


# Deferred constraints, and conflicts that roll the transaction back

NODES = Filled(
    TableSpec("nodes", ("id",), "upsert"),
    {"id": NUMBER, "parent": NUMBER, "age": NUMBER},
    lambda _, __, value: (value["id"], value.get("parent"), value.get("age")),
)
LEAVES = Filled(TableSpec("leaves"), {"node": NUMBER}, lambda _, __, value: (value["leaf"],))
FOREST = [
    "CREATE TABLE nodes (id BIGINT PRIMARY KEY, age BIGINT CHECK (age >= 0), "
    "parent BIGINT REFERENCES nodes (id) DEFERRABLE INITIALLY DEFERRED)",
    "CREATE TABLE leaves (node BIGINT REFERENCES nodes (id) DEFERRABLE INITIALLY DEFERRED)",
]


@pytest.fixture
def forest(database: Callable[[str], str], kind: str) -> Iterator[SqlStore]:
    url = database(kind)
    execute(url, *FOREST)
    made = open_sql(url)
    if kind == "sqlite":
        event.listen(made.engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
@pytest.mark.parametrize("wrong", [{"age": -1}, {"parent": 999}, {"leaf": 999}])
def test_a_row_that_refers_to_a_later_one_is_taken_whatever_else_is_refused(
    forest: SqlStore, runner: Runner, topics: Topics, wrong: dict[str, int]
) -> None:
    """The leaves precede the nodes that they refer to, and each node precedes its parent."""
    count = 40
    values = [{"id": at, "parent": min(at + 1, count - 1), "leaf": (at + 1) % count} for at in range(count)]
    # Nothing refers to this one.
    values.insert(25, {"id": 100, "parent": 30, "leaf": 31, **wrong})
    topics.send_to(runner.topic, 0, values)
    assert runner(forest, (LEAVES, NODES)) == Tally(applied=count, dead=1)
    url = forest.engine.url.render_as_string(hide_password=False)
    assert letters(url) == Counter([(0, 25)])
    assert rows(url, "nodes", "id") == Counter((at,) for at in range(count))
    assert rows(url, "leaves", "node") == Counter((at,) for at in range(count))
    check_accounts(url)


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_what_refers_to_a_dead_record_is_dead_too(forest: SqlStore, runner: Runner, topics: Topics) -> None:
    parents = {0: 2, 1: 3, 2: 4, 3: 3, 4: 999, 5: 3}
    topics.send_to(runner.topic, 0, [{"id": at, "parent": parent, "leaf": at} for at, parent in parents.items()])
    assert runner(forest, (LEAVES, NODES)) == Tally(applied=3, dead=3)
    url = forest.engine.url.render_as_string(hide_password=False)
    assert rows(url, "nodes", "id") == rows(url, "leaves", "node") == Counter([(1,), (3,), (5,)])
    assert letters(url) == Counter([(0, 0), (0, 2), (0, 4)])
    check_accounts(url)


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_a_flood_of_rows_that_are_refused_late_uses_up_the_budget(
    forest: SqlStore, runner: Runner, topics: Topics
) -> None:
    topics.send_to(runner.topic, 0, [{"id": at, "leaf": 999} for at in range(20)])
    with pytest.raises(TooManyDead, match=r"max_dead_per_batch=3, for example: .*(?i:foreign key)"):
        runner(forest, (LEAVES, NODES), budget=Budget(max_dead_per_batch=3))


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_a_row_that_only_the_commit_refuses_is_known_before_positions_move(forest: SqlStore) -> None:
    """At-most-once needs this: later the whole batch would be lost."""
    leaves = TableSpec("leaves")
    forest.create_tables([leaves], {"leaves": pa.schema([("node", NUMBER)])})
    execute(forest.engine.url.render_as_string(hide_password=False), "INSERT INTO nodes (id) VALUES (1)")
    puts = pa.table({"node": [1, 2, 1], TOPIC: ["t"] * 3, PARTITION: [0] * 3, OFFSET: [7, 8, 9]})
    with pytest.raises(RowsRefused) as refused:
        forest.try_out([Changes(leaves, puts, puts.slice(0, 0))])
    assert [refusal.offset for refusal in refused.value.refusals] == [8]


def test_on_sqlite_a_conflict_that_undoes_the_transaction_is_blamed_on_its_record(
    database: Callable[[str], str], runner: Runner, topics: Topics
) -> None:
    url = database("sqlite")
    execute(
        url,
        "CREATE TABLE emails (id BIGINT, email VARCHAR(50) UNIQUE ON CONFLICT ROLLBACK)",
        "CREATE TRIGGER guard BEFORE INSERT ON emails WHEN NEW.id = 13 BEGIN SELECT RAISE(ROLLBACK, 'no 13'); END",
    )
    values: list[dict[str, Any]] = [{"id": at} for at in range(30)]
    values[20]["email"] = values[5]["email"] = "taken@example.org"
    topics.send_to(runner.topic, 0, values)
    store = open_sql(url)
    assert runner(store, (EVENTS, EMAILS)) == Tally(applied=28, dead=2)
    store.close()
    assert letters(url) == Counter([(0, 13), (0, 20)])
    assert offsets(url) == [at for at in range(30) if at not in (13, 20)]
    assert rows(url, "emails", "id") == Counter((at,) for at in offsets(url))
    check_accounts(url)


# Budgets


@pytest.mark.faults_where(store_url="mariadb")
def test_a_batch_with_more_dead_records_than_its_budget_moves_nothing(
    store: SqlStore, store_url: str, runner: Runner, topics: Topics
) -> None:
    topics.send_to(runner.topic, 0, [{"id": n, "age": -1 if n % 3 == 0 else 1} for n in range(12)])
    with pytest.raises(
        TooManyDead, match=r"max_dead_per_batch=3, for example: .*\[0\] offset \d+: .*this batch moved no position"
    ):
        runner(store, STRICT, budget=Budget(max_dead_per_batch=3))
    assert positions(store_url) == {0: 0}
    assert not events(store_url)
    assert not letters(store_url)
    assert runner(store, STRICT, budget=Budget(max_dead_per_batch=4)) == Tally(applied=8, dead=4)


@pytest.mark.faults_where(store_url="mariadb")
def test_more_dead_records_than_the_window_allows_pause_the_group(
    store: SqlStore, store_url: str, runner: Runner, topics: Topics, group: str
) -> None:
    budget = Budget(max_dead_total=2)
    topics.send_to(runner.topic, 0, [{"id": n, "age": -1 if n < 3 else 1} for n in range(6)])
    with pytest.raises(
        GroupPaused, match=rf"group {group} has been paused since .* by budget: 3 dead records .*resume"
    ):
        runner(store, STRICT, budget=budget)
    reason = "3 dead records within 1:00:00 are more than max_dead_total=2"
    state = query(store_url, "SELECT desired_state, reason, changed_by FROM tallymark_groups")
    assert state == [("paused", reason, "budget")]
    assert (offsets(store_url), len(letters(store_url))) == ([3, 4, 5], 3), "the batch itself is committed"
    topics.send_to(runner.topic, 0, [{"id": 6}])
    with pytest.raises(GroupPaused, match="max_dead_total=2"):
        runner(store, STRICT, budget=budget)
    assert offsets(store_url) == [3, 4, 5]

    with Running(runner.run(store_url), tables=STRICT, budget=budget) as running:
        resume(store, group)
        wait_for(lambda: offsets(store_url) == [3, 4, 5, 6])
        assert running.error is None


@pytest.mark.faults_where(store_url="mariadb")
def test_a_run_that_is_paused_waits_and_goes_on_when_it_is_resumed(
    store: SqlStore, store_url: str, runner: Runner, topics: Topics, group: str
) -> None:
    with Running(runner.run(store_url), tables=STRICT, budget=Budget(max_dead_total=0)) as running:
        topics.send_to(runner.topic, 0, [{"id": 0}])
        wait_for(lambda: offsets_if_any(store_url) == [0])
        topics.send_to(runner.topic, 0, [{"id": 1, "age": -1}])
        wait_for(lambda: paused(store, group))
        topics.send_to(runner.topic, 0, [{"id": 2}])
        topics.send_to(runner.topic, 0, [{"id": 3}])
        # It checks for a pause before every batch: a paused run does not write.
        owner = store.positions(group)[group][0].owner
        assert owner is not None
        assert owner.run == running.loop.job.owner.run
        assert offsets(store_url) == [0]
        resume(store, group)
        wait_for(lambda: offsets(store_url) == [0, 2, 3])
        assert running.error is None
        assert not paused(store, group), "what was dead before the resumption does not count again"
    check_accounts(store_url)


def resume(store: SqlStore, group: str) -> None:
    store.set_state(group, GroupState("running", None, "me", datetime.now(UTC)))


def paused(store: SqlStore, group: str) -> bool:
    state = store.state(group)
    return state is not None and state.paused


def offsets_if_any(url: str) -> list[int]:
    try:
        return offsets(url)
    except Exception:  # noqa: BLE001  # there is no table yet
        return []


# Tables that change under a run


def after_first_batch(happens: Callable[[], None]) -> OnStep:
    def on_step(step: Step, progress: Progress) -> None:
        if step is Step.DONE and progress.batch.endswith("-1"):
            happens()

    return on_step


@pytest.fixture
def in_batches(topics: Topics, brokers: str, group: str) -> Runner:
    """Thirty records in batches of ten, with the same ten ids in every batch."""
    topic = topics.create(1)
    topics.send_to(topic, 0, [{"id": number % 10} for number in range(30)])
    return Runner(brokers, group, topic, records=10)


@pytest.fixture
def plain(store_url: str) -> Iterator[SqlStore]:
    made = open_sql(store_url)
    yield made
    made.close()


def test_a_table_that_is_dropped_stops_the_run_and_no_other_table_loses_a_row(
    plain: SqlStore, store_url: str, in_batches: Runner
) -> None:
    drop = after_first_batch(lambda: execute(store_url, "DROP TABLE latest"))
    with pytest.raises(TableChanged, match="table latest was dropped while the pipeline ran; restart"):
        in_batches(plain, (EVENTS, LATEST), drop)
    assert (positions(store_url), offsets(store_url)) == ({0: 10}, list(range(10)))

    assert in_batches(plain, (EVENTS, LATEST)) == Tally(applied=20)
    assert offsets(store_url) == list(range(30))
    assert rows(store_url, "latest", "id", "record_offset") == Counter((n, 20 + n) for n in range(10))
    check_accounts(store_url)


def test_a_column_that_is_dropped_stops_the_run_until_it_is_back(
    plain: SqlStore, store_url: str, in_batches: Runner
) -> None:
    drop = after_first_batch(lambda: execute(store_url, "ALTER TABLE latest DROP COLUMN record_offset"))
    with pytest.raises(TableMismatch, match="table latest has no column record_offset"):
        in_batches(plain, (EVENTS, LATEST), drop)
    assert (positions(store_url), offsets(store_url)) == ({0: 10}, list(range(10)))
    with pytest.raises(TableMismatch, match="table latest has no column record_offset"):
        in_batches(plain, (EVENTS, LATEST))

    execute(store_url, "ALTER TABLE latest ADD COLUMN record_offset BIGINT")
    assert in_batches(plain, (EVENTS, LATEST)) == Tally(applied=20)
    assert offsets(store_url) == list(range(30))
    assert rows(store_url, "latest", "id", "record_offset") == Counter((n, 20 + n) for n in range(10))
    check_accounts(store_url)


@pytest.mark.parametrize("column", ["note VARCHAR(20)", "note VARCHAR(20) DEFAULT 'none' NOT NULL"])
def test_a_column_that_is_added_and_fills_itself_goes_unnoticed(
    column: str, plain: SqlStore, store_url: str, in_batches: Runner
) -> None:
    statements = [f"ALTER TABLE {table} ADD COLUMN {column}" for table in ("events", "latest")]
    add = after_first_batch(lambda: execute(store_url, *statements))
    assert in_batches(plain, (EVENTS, LATEST), add) == Tally(applied=30)
    assert offsets(store_url) == list(range(30))
    assert rows(store_url, "latest", "id", "record_offset") == Counter((n, 20 + n) for n in range(10))
    check_accounts(store_url)


def test_a_column_that_nobody_fills_is_a_mismatch_and_no_dead_record(
    plain: SqlStore, store_url: str, in_batches: Runner
) -> None:
    """Every row would be refused: the table is at fault, not the records."""
    change = [
        "DROP TABLE latest",
        "CREATE TABLE latest (id BIGINT PRIMARY KEY, record_offset BIGINT, x BIGINT NOT NULL)",
    ]
    with pytest.raises(TableMismatch, match="column x is NOT NULL without a default"):
        in_batches(plain, (EVENTS, LATEST), after_first_batch(lambda: execute(store_url, *change)))
    assert (positions(store_url), letters(store_url)) == ({0: 10}, Counter())
    assert offsets(store_url) == list(range(10))
