"""A handler's transaction on SQL databases: its statements, its errors, and what is refused.

The contract of every store is in test_contract_transaction.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Connection, Integer, String, event, select, text
from sqlalchemy.exc import IntegrityError, NoResultFound, OperationalError, ResourceClosedError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tallymark.core.claims import Claim, Entry
from tallymark.core.progress import Step
from tallymark.core.spans import Partition
from tallymark.errors import BadInput, DataRefused, TableChanged, TallymarkError, Unreachable
from tallymark.stores.sql.store import SqlStore
from tests.support.background import Background
from tests.support.commits import take, work
from tests.support.databases import KINDS, create, drop
from tests.support.proxy import Proxy
from tests.support.stores import opened, prepare

PARTITION = Partition("web", 0)
INSERT = "INSERT INTO seen (id) VALUES (:id)"


@pytest.fixture(scope="module", params=KINDS)
def kept_url(
    request: pytest.FixtureRequest, servers: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """One database of each kind for all tests: creating one takes longer than most of them."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('kept') / 'store.db'}"
        return
    url = create(servers[request.param])
    yield url
    drop(url)


@pytest.fixture
def store(kept_url: str) -> Iterator[SqlStore]:
    made = opened(kept_url)
    made.create_ledger()
    prepare(made, *(f"DROP TABLE IF EXISTS {table}" for table in ("seen", "made", "others")))
    prepare(made, "CREATE TABLE seen (id INTEGER NOT NULL PRIMARY KEY, name VARCHAR(20))")
    prepare(made, *(f"DELETE FROM tallymark_{table}" for table in ("positions", "batches", "dead_letters")))
    yield made
    made.close()


@pytest.fixture
def claims(store: SqlStore) -> dict[Partition, Claim]:
    return take(store, "group", "me", [PARTITION])


def step(claims: dict[Partition, Claim], start: int = 0, stop: int = 3, dead: int = 0) -> Callable[[], Entry]:
    return lambda: work("group", "me", claims, start, stop, dead=dead).entry


def nothing() -> None:
    """No entry: the positions belong to another owner."""


def run(
    store: SqlStore,
    entry: Callable[[], Entry | None],
    *handlers: Callable[[Any], object],
    on_step: Callable[[Step], None] = lambda _: None,
) -> None:
    with store.begin(entry, on_step) as db:
        for handler in handlers:
            handler(db)


def insert(*ids: int) -> Callable[[Any], object]:
    return lambda db: db.execute(INSERT, [{"id": id} for id in ids])


def seen(store: SqlStore) -> list[int]:
    with store.look() as connection:
        return list(connection.scalars(text("SELECT id FROM seen ORDER BY id")))


def position(store: SqlStore) -> int:
    return store.positions("group")["group"][0].next_offset


# Both or neither


def test_rows_and_positions_commit_together(store: SqlStore, claims: dict[Partition, Claim]) -> None:
    steps: list[Step] = []
    with store.begin(step(claims, dead=1), steps.append) as db:
        db.execute(INSERT, {"id": 1})
        db.execute(INSERT, [{"id": 2}, {"id": 3}])
        assert db.scalar("SELECT count(*) FROM seen") == 3
        assert list(db.scalars("SELECT id FROM seen WHERE id > :id ORDER BY id", {"id": 1})) == [2, 3]
        assert (steps, seen(store)) == ([], [])
    assert steps == [Step.WRITTEN, Step.MOVED]
    assert (seen(store), position(store)) == ([1, 2, 3], 3)
    [found] = store.positions("group")["group"]
    assert (found.tally.applied, found.tally.dead) == (2, 1)


@pytest.mark.parametrize("wrong", [{"no": 1}, [{"id": 1}, {"no": 2}], [(1,)], ["1"]])
def test_wrong_parameters_are_reported_by_sqlalchemy(store: SqlStore, wrong: Any) -> None:
    with pytest.raises(SQLAlchemyError, match=r"value is required|only of dictionaries"), store.begin(nothing) as db:
        db.execute(INSERT, wrong)
    assert seen(store) == []


def test_a_statement_without_rows_tells_how_many_it_changed(store: SqlStore) -> None:
    with store.begin(nothing) as db:
        assert db.execute(INSERT, [{"id": 1}, {"id": 2}]).rowcount == 2
        changed = db.execute("UPDATE seen SET id = id + 10 WHERE id > :id", {"id": 0})
        assert (changed.rowcount, changed.returns_rows) == (2, False)
        changed.close()
        for read in (list, lambda result: result.all(), lambda result: result.scalar_one()):
            with pytest.raises(ResourceClosedError, match="does not return rows"):
                read(changed)
    assert seen(store) == [11, 12]


def test_a_statement_with_rows_returns_them(store: SqlStore) -> None:
    with store.begin(nothing) as db:
        db.execute(INSERT, [{"id": 1}, {"id": 2}])
        assert db.execute("SELECT id FROM seen WHERE id > :id", {"id": 1}).scalars().all() == [2]
        if store.dialect.name != "mysql":
            returned = db.execute("INSERT INTO seen (id) VALUES (:id)\n  Returning id", {"id": 3})
            assert returned.scalar_one() == 3


def test_a_parameter_may_occur_twice(store: SqlStore) -> None:
    """PostgreSQL can't tell the type of a parameter that is only compared with NULL."""
    with store.begin(nothing) as db:
        db.execute(INSERT, {"id": 1})
        for given in ({"text": "a"}, [{"text": "a"}, {"text": "A"}]):
            db.execute("UPDATE seen SET id = id + 1 WHERE lower(:text) = 'a' AND :text IS NOT NULL", given)
    assert seen(store) == [4]


def test_values_that_fill_the_buffers_of_a_connection_are_written_all(store: SqlStore) -> None:
    """More than a socket takes while the server is busy, in both directions."""
    rows = [{"id": number, "text": f"{number:07}" * 60_000} for number in range(100)]
    with store.begin(nothing) as db:
        db.write("large", [{"id": -1, "text": ""}])
        db.execute("INSERT INTO large (id, text) VALUES (:id, :text)", rows)
    with store.look() as connection:
        found = connection.execute(text("SELECT count(*), sum(length(text)) FROM large")).one()
    assert tuple(found) == (101, 100 * 7 * 60_000)


# Savepoints and errors


def test_who_catches_an_error_of_the_database_in_a_savepoint_goes_on(
    store: SqlStore, claims: dict[Partition, Claim]
) -> None:
    with store.begin(step(claims)) as db:
        db.execute(INSERT, {"id": 1})
        with suppress(IntegrityError), db.savepoint():
            db.execute(INSERT, {"id": 1})
        db.execute(INSERT, {"id": 2})
    assert (seen(store), position(store)) == ([1, 2], 3)


@pytest.mark.parametrize("with_entry", [True, False])
def test_a_transaction_that_the_database_has_given_up_is_never_taken_for_committed(
    store: SqlStore, claims: dict[Partition, Claim], with_entry: bool
) -> None:
    entry = step(claims) if with_entry else nothing

    def swallow() -> None:
        with store.begin(entry) as db:
            db.execute(INSERT, {"id": 1})
            with suppress(IntegrityError):
                db.execute(INSERT, {"id": 1})

    def go_on() -> None:
        with store.begin(entry) as db:
            with suppress(IntegrityError):
                db.execute(INSERT, [{"id": 1}, {"id": 1}])
            db.execute(INSERT, {"id": 2})

    if store.dialect.name == "postgresql":
        with pytest.raises(BadInput, match="savepoint") as at_the_end:
            swallow()
        with pytest.raises(BadInput, match="savepoint") as earlier:
            go_on()
        assert str(earlier.value) == str(at_the_end.value)
    else:
        swallow()
    there = store.dialect.name != "postgresql"
    assert (seen(store), position(store)) == ([1] if there else [], 3 if there and with_entry else 0)


@pytest.mark.parametrize("with_entry", [True, False])
def test_a_deadlock_that_was_caught_undoes_everything(database: Callable[[str], str], with_entry: bool) -> None:
    store = opened(database("mariadb"))
    store.create_ledger()
    prepare(store, "CREATE TABLE seen (id INTEGER NOT NULL PRIMARY KEY, name VARCHAR(20))")
    prepare(store, "INSERT INTO seen (id) VALUES (1), (2)")
    held = take(store, "group", "me", [PARTITION])
    update = "UPDATE seen SET name = 'x' WHERE id = :id"
    other = store.engine.connect()
    waiting = Background(lambda: other.execute(text(update), {"id": 1}))
    # The server aborts the transaction with fewer changes.
    for number in range(10, 60):
        other.execute(text(INSERT), {"id": number})
    other.execute(text(update), {"id": 2})

    def caught() -> None:
        with store.begin(step(held) if with_entry else nothing) as db:
            db.execute(update, {"id": 1})
            waiting.start()
            with pytest.raises(OperationalError, match="Deadlock"), db.savepoint():
                db.execute(update, {"id": 2})
            db.execute(INSERT, {"id": 3})

    try:
        with pytest.raises(Unreachable, match="has rolled back the transaction; try again"):
            caught()
    finally:
        waiting.wait()
        other.rollback()
        other.close()
    assert (seen(store), position(store)) == ([1, 2], 0)
    store.close()


def test_errors_are_translated_when_they_leave_the_block(store: SqlStore, claims: dict[Partition, Claim]) -> None:
    with pytest.raises(DataRefused), store.begin(step(claims)) as db:
        db.execute(INSERT, [{"id": 1}, {"id": 1}])
    with pytest.raises(TableChanged), store.begin(step(claims)) as db:
        db.execute("INSERT INTO absent (id) VALUES (1)")
    with pytest.raises(NoResultFound), store.begin(step(claims)) as db:
        db.execute("SELECT id FROM seen").one()
    assert (seen(store), position(store)) == ([], 0)


DEFERRED = "REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED"


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_what_the_commit_refuses_is_a_matter_of_the_data_and_can_be_looked_at_before(
    database: Callable[[str], str], kind: str
) -> None:
    store = opened(database(kind))
    if kind == "sqlite":
        event.listen(store.engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
        with store.engine.connect() as connection:
            # No record of this batch is at fault for a row that was wrong before.
            driver: Any = connection.connection.driver_connection
            driver.execute("PRAGMA foreign_keys = OFF")
            driver.execute("CREATE TABLE old (id INTEGER REFERENCES parents (id))")
            driver.execute("INSERT INTO old VALUES (77)")
            driver.execute("PRAGMA foreign_keys = ON")
    prepare(store, "CREATE TABLE parents (id INTEGER PRIMARY KEY)", f"CREATE TABLE seen (id INTEGER {DEFERRED})")
    with pytest.raises(DataRefused, match=r"^refused at the end of the block: .*; nothing was written$"):
        run(store, nothing, insert(1))
    assert seen(store) == []
    with store.begin(nothing) as db:
        with pytest.raises(DataRefused), db.savepoint():
            insert_and_check(db, 1)
        for number in (2, 3):
            db.execute("INSERT INTO parents (id) VALUES (:id)", {"id": number})
            insert_and_check(db, number)
    assert seen(store) == [2, 3]
    store.close()


def insert_and_check(db: Any, number: int) -> None:
    db.execute(INSERT, {"id": number})
    db.check()


# Refused in the block


CALLS: dict[str, Callable[[Any], object]] = {
    "commit": lambda db: db.commit(),
    "rollback": lambda db: db.rollback(),
    "close": lambda db: db.close(),
    "begin": lambda db: db.begin(),
    "invalidate": lambda db: db.invalidate(),
    "detach": lambda db: db.detach(),
    "COMMIT": lambda db: db.execute("COMMIT"),
    "end": lambda db: db.exec_driver_sql(" \n end"),
    "ROLLBACK": lambda db: db.execute("rollback"),
    "the connection's commit": lambda db: db.connection.commit(),
}


def test_the_block_can_not_end_the_transaction(store: SqlStore) -> None:
    for call in CALLS.values():
        with pytest.raises(BadInput, match="raise to roll back"):
            run(store, nothing, insert(1), call)
        assert seen(store) == []


def test_who_ends_it_behind_our_back_is_told(store: SqlStore, claims: dict[Partition, Claim]) -> None:
    def commit(db: Any) -> None:
        with suppress(BadInput):
            db.connection.commit()

    for entry in (nothing, step(claims)):
        for ending in (commit, lambda db: db.connection.rollback()):
            with pytest.raises(BadInput, match="ended inside the block"):
                run(store, entry, insert(1), ending)
            assert (seen(store), position(store)) == ([], 0)


def test_mysql_statements_that_would_commit_are_refused(database: Callable[[str], str]) -> None:
    store = opened(database("mariadb"))
    prepare(store, "CREATE TABLE seen (id INTEGER)")
    run(store, nothing, lambda db: db.execute("CREATE TEMPORARY TABLE fine (id INTEGER)"))
    with pytest.raises(BadInput, match="CREATE would commit"):
        run(store, nothing, insert(1), lambda db: db.execute("\nCREATE TABLE others (id INTEGER)"))
    assert seen(store) == []
    store.close()


def sent(statement: str) -> Callable[[Any], object]:
    return lambda db: db.exec_driver_sql(statement)


COMMENTED = ("/* why not */ COMMIT", "-- done\nCOMMIT", "  ; /* a *//* b */ -- c\n rollback")


def test_what_ends_a_transaction_is_refused_behind_comments_too(store: SqlStore) -> None:
    for statement in COMMENTED:
        with pytest.raises(BadInput, match="raise to roll back"):
            run(store, nothing, insert(1), sent(statement))
        assert seen(store) == []


MYSQL_COMMITS = [
    "/* tidy up */ TRUNCATE TABLE others",
    "# tidy up\nDROP TABLE others",
    "SET autocommit = 1",
    "SET @x = 1, SESSION autocommit = 1",
    "CHECK TABLE seen",
    "LOCK TABLES seen WRITE",
    "OPTIMIZE TABLE seen",
    "START TRANSACTION",
    "XA START 'x'",
]
MYSQL_ENDS = [
    ("CALL ends()", "CALL ends"),
    ("CALL goes_on(7)", "CALL goes_on"),
    ("CALL fails()", "CALL fails"),
    ("CALL answers()", "CALL answers"),
    ("/*! COMMIT */", r"/\*! COMMIT"),
    ("EXECUTE IMMEDIATE 'COMMIT'", "EXECUTE IMMEDIATE"),
]
PROCEDURES = (
    "CREATE PROCEDURE ends() BEGIN INSERT INTO seen (id) VALUES (50); COMMIT; END",
    "CREATE PROCEDURE goes_on(n INT) BEGIN COMMIT; INSERT INTO seen (id) VALUES (n); END",
    "CREATE PROCEDURE fails() BEGIN COMMIT; INSERT INTO seen (id) VALUES (70); INSERT INTO seen (id) VALUES (70); END",
    "CREATE PROCEDURE answers() BEGIN COMMIT; SELECT 1; END",
    "CREATE PROCEDURE harmless() BEGIN INSERT INTO seen (id) VALUES (60); SELECT 1; END",
)


def test_on_mysql_what_has_committed_is_never_taken_for_a_rollback(database: Callable[[str], str]) -> None:
    store = opened(database("mariadb"))
    store.create_ledger()
    prepare(store, "CREATE TABLE others (id INTEGER)", "CREATE TABLE seen (id INTEGER NOT NULL PRIMARY KEY)")
    prepare(store, *PROCEDURES)
    held = take(store, "group", "me", [PARTITION])
    for statement in MYSQL_COMMITS:
        with pytest.raises(BadInput, match=r"would commit the transaction on MySQL|raise to roll back"):
            run(store, step(held), insert(1), sent(statement))
        assert seen(store) == []
    for first in (insert(1), lambda db: db.scalar("SELECT 1")):
        for statement, name in MYSQL_ENDS:
            prepare(store, "DELETE FROM seen")
            with pytest.raises(BadInput, match=rf"{name} ended the transaction inside the block: rows that .* may be"):
                run(store, step(held), first, sent(statement), insert(2))
            assert position(store) == 0
            assert 2 not in seen(store)
    run(store, step(held), insert(61), lambda db: db.execute("CALL harmless()").all(), insert(62))
    assert (seen(store)[-3:], position(store)) == ([60, 61, 62], 3)
    store.close()


def test_on_postgresql_no_statement_of_several_may_commit(database: Callable[[str], str]) -> None:
    store = opened(database("postgresql"))
    prepare(store, "CREATE TABLE seen (id INTEGER)")
    for ending in ("; COMMIT", "; COMMIT; BEGIN", "; COMMIT AND CHAIN", "; /* so */ END; SELECT 1"):
        with pytest.raises(BadInput, match=r"INSERT INTO ended the transaction inside the block: rows that .* may be"):
            run(store, nothing, sent(f"INSERT INTO seen VALUES (1){ending}"))

    def caught(db: Any) -> None:
        with suppress(BadInput):
            db.exec_driver_sql("INSERT INTO seen VALUES (1); COMMIT")

    for after in ([insert(2)], []):
        with pytest.raises(BadInput, match="INSERT INTO ended the transaction"):
            run(store, nothing, caught, *after)
    run(store, nothing, lambda db: db.exec_driver_sql("INSERT INTO seen VALUES (3); SAVEPOINT a; ROLLBACK TO a"))
    assert seen(store) == [1] * 6 + [3]
    prepare(store, "CREATE PROCEDURE ends() LANGUAGE plpgsql AS 'BEGIN COMMIT; END'")
    with pytest.raises(TallymarkError, match="invalid transaction termination") as raised:
        run(store, nothing, lambda db: db.execute("CALL ends()"))
    assert not raised.value.transient
    store.close()


def test_on_sqlite_nothing_goes_on_outside_of_a_transaction_that_was_rolled_back(
    database: Callable[[str], str],
) -> None:
    """A statement may roll back everything, and its error may be caught: later statements would autocommit."""
    store = opened(database("sqlite"))
    prepare(store, "CREATE TABLE seen (id INTEGER NOT NULL PRIMARY KEY)")

    def roll_back(db: Any) -> None:
        with suppress(IntegrityError):
            db.execute("INSERT OR ROLLBACK INTO seen (id) VALUES (1)")

    for after in ([insert(2)], []):
        with pytest.raises(DataRefused, match=r"UNIQUE constraint failed: seen.id.*rolled back the transaction"):
            run(store, nothing, insert(1), roll_back, *after)
        assert seen(store) == []
    store.close()


def test_after_the_block_the_transaction_is_over(store: SqlStore) -> None:
    with store.begin(nothing) as db:
        db.execute(INSERT, {"id": 1})
    for use in (lambda: db.execute(INSERT, {"id": 2}), lambda: db.connection, lambda: db.write("seen", {"id": 2})):
        with pytest.raises(BadInput, match="has ended"):
            use()
    assert seen(store) == [1]


# Allowed in the block


class Base(DeclarativeBase):
    pass


class PartitionCounts(Base):
    __tablename__ = "seen"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str | None] = mapped_column(String(20))


@pytest.mark.parametrize("options", [{"join_transaction_mode": "create_savepoint"}, {}])
def test_an_orm_session_joins_it(store: SqlStore, claims: dict[Partition, Claim], options: Any) -> None:
    with store.begin(step(claims)) as db:
        with Session(bind=db.connection, **options) as session:
            session.add(PartitionCounts(id=1, name="one"))
            session.commit()
            session.add(PartitionCounts(id=2))
            session.flush()
            session.rollback()
        assert seen(store) == []

    def fail(db: Any) -> None:
        with Session(bind=db.connection, **options) as session:
            session.add(PartitionCounts(id=3))
            session.commit()
        raise KeyError

    with pytest.raises(KeyError):
        run(store, step(claims, 3, 6), fail)
    assert (seen(store), position(store)) == ([1], 3)


def test_it_can_do_what_a_connection_can(store: SqlStore) -> None:
    with store.begin(nothing) as db:
        assert isinstance(db.connection, Connection)
        assert db.dialect.name == db.connection.dialect.name
        assert db.exec_driver_sql("SELECT 1").scalar_one() == 1
        assert db.execute(select(PartitionCounts.id)).all() == []
        with pytest.raises(AttributeError):
            db.no_such_thing  # noqa: B018


def test_thinking_holds_no_lock(database: Callable[[str], str]) -> None:
    """SQLite has one writer: a block that has not used the transaction yet does not lock out other writers."""
    store = opened(database("sqlite"))
    prepare(store, "CREATE TABLE seen (id INTEGER)")
    with store.begin(nothing) as db:
        prepare(store, "INSERT INTO seen (id) VALUES (1)")
        db.execute(INSERT, {"id": 2})
    assert seen(store) == [1, 2]
    store.close()


def test_an_unreachable_store_is_told_as_such(database: Callable[[str], str]) -> None:
    url = database("postgresql")
    with Proxy(url) as proxy:
        store = opened(proxy.url)
    with pytest.raises(TallymarkError, match="can't be reached"), store.begin(nothing) as db:
        db.execute("SELECT 1")
