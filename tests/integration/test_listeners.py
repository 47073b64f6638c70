"""Listeners: a decorated function gets the open transaction; records that it refuses become dead letters."""

from __future__ import annotations

import asyncio
import functools
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import IntegrityError

import tallymark as tm
from tallymark.core.progress import Progress, Step
from tallymark.errors import BadInput, TooManyDead
from tests.support.background import Background, wait_for
from tests.support.command import in_process
from tests.support.databases import execute, query
from tests.support.kafka import Topics
from tests.support.pipelines import UNBALANCED
from tests.support.proxy import Cut, Proxy

Databases = Callable[[str], str]
VALUE = tm.Json("id BIGINT, name STRING")
QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}


@pytest.fixture
def topic(topics: Topics) -> str:
    name = topics.create(3)
    topics.send(name, ({"id": n, "name": f"n{n}"} for n in range(300)), partitions=3)
    return name


def ids(url: str, table: str = "seen") -> list[int]:
    return sorted(int(str(found)) for (found,) in query(url, f"SELECT id FROM {table}"))


def letters(url: str) -> list[tuple[Any, ...]]:
    return query(url, "SELECT partition_id, record_offset, error FROM tallymark_dead_letters ORDER BY record_offset")


def make(brokers: str, url: str, **settings: Any) -> tm.App:
    execute(url, "CREATE TABLE seen (id BIGINT NOT NULL)")
    return tm.App(brokers=brokers, store=url, kafka=QUICK, **settings)


def insert(record: tm.Record, db: Any) -> None:
    db.execute("INSERT INTO seen (id) VALUES (:id)", {"id": record.value["id"]})


def test_a_function_for_each_record(brokers: str, topic: str, group: str, store_url: str) -> None:
    app = make(brokers, store_url)
    app.listen(topic, group=group, value=VALUE)(insert)
    assert app.run("caught-up") == tm.Tally(applied=300)
    assert ids(store_url) == list(range(300))
    assert query(store_url, UNBALANCED) == []


@pytest.mark.parametrize("order", ["partition", "key", "none"])
def test_several_consumers_with_workers_behind_them(
    brokers: str, topic: str, group: str, database: Databases, order: Any
) -> None:
    url = database("postgresql")
    app = make(brokers, url)

    threads = 2 if order == "key" else 1

    @app.listen(topic, group=group, value=VALUE, threads=threads, workers=4, order=order, max_records=50)
    async def receive(record: tm.Record, db: Any) -> None:
        await asyncio.sleep(0.001)
        insert(record, db)

    assert app.run("caught-up") == tm.Tally(applied=300)
    assert ids(url) == list(range(300))


def test_a_batch_goes_over_the_bulk_road_and_the_table_is_made(
    brokers: str, topic: str, group: str, store_url: str
) -> None:
    app = tm.App(brokers=brokers, store=store_url, kafka=QUICK)

    @app.listen(topic, group=group, value=VALUE, batch=True)
    def receive(records: tm.Records, db: Any) -> None:
        db.write("orders", records.values_to_arrow(), key="id", write="upsert")

    assert app.run("caught-up") == tm.Tally(applied=300)
    assert ids(store_url, "orders") == list(range(300))


@pytest.mark.parametrize(("batch", "workers"), [(False, 1), (False, 3), (True, 1)])
def test_records_that_the_function_or_the_database_refuses_are_dead_letters(
    brokers: str, topics: Topics, topic: str, group: str, database: Databases, workers: int, batch: bool
) -> None:
    url = database("postgresql")
    topics.send_to(topic, 0, [b"not json", {"id": 7000, "name": "x"}])
    app = make(brokers, url)
    execute(url, "ALTER TABLE seen ADD CHECK (id <> 42)")

    def take(record: tm.Record, db: Any) -> None:
        insert(record, db)
        if record.value["id"] == 7000:
            raise KeyError("no such customer")

    def take_all(records: tm.Records, db: Any) -> None:
        for record in records:
            take(record, db)

    app.listen(topic, group=group, value=VALUE, workers=workers, batch=batch)(take_all if batch else take)
    assert app.run("caught-up") == tm.Tally(applied=299, dead=3)
    assert ids(url) == [n for n in range(300) if n != 42]
    sent = topics.committed(topic)
    words = {sent[partition, offset]: str(error) for partition, offset, error in letters(url)}
    assert words[b'{"id": 42, "name": "n42"}'].startswith("new row for relation")
    assert words[b"not json"].startswith("not JSON")
    assert re.fullmatch(
        r"KeyError: 'no such customer' \((test_listeners.py:\d+ in take_all, )?test_listeners.py:\d+ in take\)",
        words[b'{"id": 7000, "name": "x"}'],
    )
    assert query(url, UNBALANCED) == []


def test_a_wrong_schema_ends_the_run_before_it_kills_the_topic(
    brokers: str, topics: Topics, group: str, store_url: str
) -> None:
    topic = topics.create(1)
    topics.send(topic, [{"price": "12.34"}] * 1500, partitions=1)

    def run(schema: str) -> tm.Tally:
        app = tm.App(brokers=brokers, store=store_url, kafka=QUICK)
        app.listen(topic, group=group, value=tm.Json(schema), max_records=400)(lambda _: None)
        return app.run("caught-up")

    words = r"of the last 1,\d{3} records are dead, .*: price: '12\.34' does not fit DOUBLE; no position moved: correct"
    for _ in range(2):
        with pytest.raises(TooManyDead, match=words):
            run("price DOUBLE")
    dead = len(letters(store_url))
    assert dead < 1000, "a restart does not go on killing"
    assert run("price STRING") == tm.Tally(applied=1500 - dead)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite", "redis"])
def test_resuming_a_group_begins_a_new_count_after_a_correction(
    kind: str, brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    topic, store = topics.create(1), database(kind)

    def run(schema: str, values: list[Any]) -> tm.Tally:
        topics.send(topic, values, partitions=1)
        app = tm.App(brokers=brokers, store=store, kafka=QUICK)
        app.listen(topic, group=group, value=tm.Json(schema))(lambda _: None)
        return app.run("caught-up")

    assert run("price DOUBLE", [{"price": "12.34"}] * 900) == tm.Tally(dead=900)
    assert run("price STRING", [{"price": "12.34"}] * 200) == tm.Tally(applied=200)
    words = rf"901 of the last 1,101 records are dead, .*, start a new window: (tallymark resume {group})"
    with pytest.raises(TooManyDead, match=words) as refused:
        run("price STRING", ["not json"])
    found = re.search(words, str(refused.value))
    assert found is not None
    in_process(*found[1].split()[1:], "--store", store)
    assert run("price STRING", ["not json"]) == tm.Tally(dead=2)


def test_too_many_dead_leave_no_rows_where_rows_commit_first(
    brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    topic, url = topics.create(1), database("sqlite")
    topics.send(topic, [{"price": "x"} if n % 3 else {"price": 1.5} for n in range(1500)], partitions=1)

    def run() -> int:
        app = tm.App(brokers=brokers, store=url, kafka=QUICK, delivery="at-least-once")

        @app.listen(topic, group=group, value=tm.Json("price DOUBLE"), max_records=400)
        def receive(record: tm.Record, db: Any) -> None:
            db.write("prices", {"price": record.value["price"]})

        with pytest.raises(TooManyDead, match="no position moved"):
            app.run("caught-up")
        return len(query(url, "SELECT price FROM prices"))

    assert run() == run(), "a restart writes no row again"


@pytest.mark.parametrize("workers", [1, 3])
def test_what_may_pass_is_tried_again_and_nothing_is_there_twice(
    brokers: str, topic: str, group: str, database: Databases, workers: int
) -> None:
    url, tries = database("sqlite"), Counter[int]()
    app = make(brokers, url)

    @app.listen(topic, group=group, value=VALUE, workers=workers, order="none")
    def receive(record: tm.Record, db: Any) -> None:
        insert(record, db)
        tries[record.value["id"]] += 1
        if record.value["id"] in (50, 250) and tries[record.value["id"]] < 3:
            raise ConnectionError("the other service is away")

    assert app.run("caught-up") == tm.Tally(applied=300)
    assert ids(url) == list(range(300))
    assert min(tries[50], tries[250]) == 3
    assert letters(url) == []


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


class Called:
    async def __call__(self, record: tm.Record, db: Any) -> None:
        await asyncio.sleep(0)
        insert(record, db)


@pytest.mark.parametrize("workers", [1, 3])
def test_an_async_function_that_is_hidden_applies_what_is_counted_as_applied(
    brokers: str, topic: str, group: str, database: Databases, workers: int
) -> None:
    url = database("sqlite")
    app = make(brokers, url)
    app.listen(topic, group=f"{group}-called", value=VALUE, workers=workers)(Called())

    @app.listen(topic, group=f"{group}-batch", value=VALUE, batch=True)
    @hidden
    async def receive(records: tm.Records, db: Any) -> None:
        for record in records:
            await Called()(record, db)

    assert app.run("caught-up") == tm.Tally(applied=600)
    assert ids(url) == sorted([*range(300), *range(300)])


def test_records_whose_errors_are_odd_are_dead_and_replay_runs_what_is_hidden(
    brokers: str, topic: str, group: str, database: Databases
) -> None:
    url, broken = database("sqlite"), True

    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    app = make(brokers, url)

    @app.listen(topic, group=group, value=VALUE, max_records=2_000_000)
    @hidden
    async def receive(record: tm.Record, db: Any) -> None:
        if broken and record.value["id"] == 7:
            raise asyncio.CancelledError
        if broken and record.value["id"] == 8:
            raise Unspeakable
        insert(record, db)

    assert app.run("caught-up") == tm.Tally(applied=298, dead=2)
    assert {str(error).split(" (test_listeners.py:")[0] for _, _, error in letters(url)} == {
        "CancelledError",
        "Unspeakable, whose message can't be read: RuntimeError",
    }
    broken = False
    assert app.replay() == tm.Tally(applied=2)
    assert ids(url) == list(range(300))
    assert query(url, UNBALANCED) == []


def test_what_does_not_pass_in_time_ends_the_run_and_nothing_is_lost(
    brokers: str, topic: str, group: str, database: Databases
) -> None:
    url = database("sqlite")
    app = make(brokers, url, patience=0.3)
    app.listen(topic, group=group, value=VALUE)(raising(tm.Retry("not yet")))
    with pytest.raises(tm.Retry, match="not yet"):
        app.run("caught-up")
    again = tm.App(brokers=brokers, store=url, kafka=QUICK)
    again.listen(topic, group=group, value=VALUE)(insert)
    assert again.run("caught-up") == tm.Tally(applied=300)


def raising(error: Exception) -> Callable[[tm.Record, Any], None]:
    def receive(record: tm.Record, db: Any) -> None:
        raise error

    return receive


@pytest.mark.parametrize("workers", [1, 3])
def test_a_function_that_always_fails_is_taken_for_broken(
    brokers: str, topic: str, group: str, database: Databases, workers: int
) -> None:
    url = database("sqlite")
    app = make(brokers, url)
    app.listen(topic, group=group, value=VALUE, workers=workers)(raising(NameError("typo")))
    with pytest.raises(TooManyDead, match=r"listener receive failed on .* NameError: typo .*; no position was moved"):
        app.run("caught-up")
    assert letters(url) == []


@pytest.mark.parametrize(("delivery", "twice"), [("exactly-once", 0), ("at-least-once", 1), ("at-most-once", -1)])
def test_a_crash_between_rows_and_positions_does_what_the_delivery_says(
    brokers: str, topic: str, group: str, database: Databases, delivery: Any, twice: int
) -> None:
    url = database("sqlite")
    app = make(brokers, url, delivery=delivery)
    app.listen(topic, group=group, value=VALUE, max_records=100)(insert)
    halfway: list[int] = []

    def crash(step: Step, progress: Progress) -> None:
        if step is Step.HALFWAY:
            halfway.append(progress.offsets)
            if len(halfway) == 2:
                raise SystemExit("pulled the plug")

    if delivery == "exactly-once":
        app.run("caught-up", on_step=crash)
        assert halfway == []
    else:
        with pytest.raises(SystemExit):
            app.run("caught-up", on_step=crash)
    app.run("caught-up")
    assert len(ids(url)) == 300 + twice * (halfway[1] if halfway else 0)
    assert query(url, UNBALANCED) == []


def test_on_redis_the_function_gets_a_small_client(brokers: str, topic: str, group: str, redis_url: str) -> None:
    from tests.support import redis

    app = tm.App(brokers=brokers, store=redis_url, kafka=QUICK)

    @app.listen(topic, group=group, value=VALUE)
    def receive(record: tm.Record, db: Any) -> None:
        db.hset(f"order:{record.value['id']}", "name", record.value["name"])
        db.incrby("count")
        if record.value["id"] == 13:
            raise ValueError("unlucky")

    assert app.run("caught-up") == tm.Tally(applied=299, dead=1)
    client = redis.client(redis_url)
    assert client.get(redis.key(redis_url, "count")) == b"299"
    assert not client.exists(redis.key(redis_url, "order:13"))
    assert client.hget(redis.key(redis_url, "order:299"), "name") == b"n299"


HOW = [{"workers": 1}, {"workers": 3}, {"batch": True}]


def each(batch: bool, take: Callable[[tm.Record, Any], None]) -> Callable[..., None]:
    """The function for single records, or one for batches that does the same."""

    def take_all(records: tm.Records, db: Any) -> None:
        for record in records:
            take(record, db)

    return take_all if batch else take


@pytest.mark.parametrize(
    ("kind", "how"), [*(("postgresql", how) for how in HOW), ("sqlite", {"workers": 1}), ("sqlite", {"workers": 3})]
)
def test_what_the_database_refuses_only_in_the_commit_is_blamed_on_its_records(
    brokers: str, topic: str, group: str, database: Databases, kind: str, how: dict[str, Any]
) -> None:
    url = database(kind)
    app = make(brokers, url)
    execute(url, "CREATE TABLE customers (id BIGINT PRIMARY KEY)")
    execute(url, "CREATE TABLE orders (customer BIGINT REFERENCES customers (id) DEFERRABLE INITIALLY DEFERRED)")

    def take(record: tm.Record, db: Any) -> None:
        number = record.value["id"]
        db.execute("INSERT INTO orders (customer) VALUES (:id)", {"id": number})
        if number not in (42, 142):
            # After the row that refers to it: constraints stay deferred while the batch is bisected.
            db.execute("INSERT INTO customers (id) VALUES (:id)", {"id": number})
        if number == 200:
            raise ValueError("no")

    app.listen(topic, group=group, value=VALUE, **how)(each("batch" in how, take))
    with enforcing_foreign_keys():
        assert app.run("caught-up") == tm.Tally(applied=297, dead=3)
    assert len(query(url, "SELECT * FROM orders")) == len(query(url, "SELECT * FROM customers")) == 297
    assert sorted("foreign key" in str(error).lower() for _, _, error in letters(url)) == [False, True, True]
    assert query(url, UNBALANCED) == []


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("wrong", ["at once", "late"])
def test_a_record_that_refers_to_a_later_one_is_taken_whatever_else_is_refused(
    brokers: str, topics: Topics, group: str, database: Databases, kind: str, how: dict[str, Any], wrong: str
) -> None:
    url, topic, count = database(kind), topics.create(1), 40
    execute(url, "CREATE TABLE seen (id BIGINT PRIMARY KEY, next BIGINT REFERENCES seen DEFERRABLE INITIALLY DEFERRED)")
    execute(url, "CREATE TABLE last (id BIGINT)")
    execute(url, "INSERT INTO last VALUES (0)")
    topics.send_to(topic, 0, [{"id": n, "name": ""} for n in range(count)])
    app = tm.App(brokers=brokers, store=url, kafka=QUICK)

    def take(record: tm.Record, db: Any) -> None:
        number = record.value["id"]
        following = {25: 999, 24: 26, count - 1: None}.get(number, number + 1)
        db.execute("INSERT INTO seen VALUES (:id, :next)", {"id": number, "next": following})
        db.execute("UPDATE last SET id = :id", {"id": number})
        if number == 25 and wrong == "at once":
            raise ValueError("no")

    app.listen(topic, group=group, value=VALUE, **how)(each("batch" in how, take))
    with enforcing_foreign_keys():
        assert app.run("caught-up") == tm.Tally(applied=count - 1, dead=1)
    assert ids(url) == [n for n in range(count) if n != 25]
    assert ids(url, "last") == [count - 1], "the records are applied in their order"
    ((_, offset, error),) = letters(url)
    assert (offset, "foreign key" in str(error).lower()) == (25, wrong == "late")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("caught", [False, True])
def test_on_sqlite_a_conflict_that_undoes_the_transaction_is_blamed_on_its_record(
    brokers: str, topics: Topics, group: str, database: Databases, how: dict[str, Any], caught: bool
) -> None:
    url, topic = database("sqlite"), topics.create(1)
    execute(url, "CREATE TABLE seen (id BIGINT NOT NULL UNIQUE ON CONFLICT ROLLBACK)")
    execute(
        url, "CREATE TRIGGER guard BEFORE INSERT ON seen WHEN NEW.id = 13 BEGIN SELECT RAISE(ROLLBACK, 'no 13'); END"
    )
    # More records than a function may fail on.
    numbers = [5, *range(150), 160]
    topics.send_to(topic, 0, [{"id": n, "name": ""} for n in numbers])
    app = tm.App(brokers=brokers, store=url, kafka=QUICK, patience=5)

    def take(record: tm.Record, db: Any) -> None:
        with suppress(*([IntegrityError] if caught else [])):
            if record.value["id"] == 160:
                db.execute("INSERT OR ROLLBACK INTO seen VALUES (NULL)")
            insert(record, db)

    app.listen(topic, group=group, value=VALUE, **how)(each("batch" in how, take))
    assert app.run("caught-up") == tm.Tally(applied=149, dead=3)
    assert ids(url) == [n for n in range(150) if n != 13]
    words = [(numbers[offset], str(error)) for _, offset, error in letters(url)]
    assert [number for number, _ in words] == [5, 13, 160]
    assert "UNIQUE constraint failed" in words[0][1]
    assert "no 13" in words[1][1]
    assert query(url, UNBALANCED) == []


@contextmanager
def enforcing_foreign_keys() -> Iterator[None]:
    """For all engines, as in SQLAlchemy's documentation for SQLite."""

    def on(connection: Any, _: Any) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA foreign_keys = ON")

    event.listen(Engine, "connect", on)
    try:
        yield
    finally:
        event.remove(Engine, "connect", on)


@pytest.mark.parametrize("how", HOW)
def test_what_redis_refuses_at_the_end_is_blamed_on_its_records(
    brokers: str, topic: str, group: str, redis_url: str, how: dict[str, Any]
) -> None:
    from tests.support import redis

    client = redis.client(redis_url)
    client.rpush(redis.key(redis_url, "order:13"), "a list")
    app = tm.App(brokers=brokers, store=redis_url, kafka=QUICK)

    def take(record: tm.Record, db: Any) -> None:
        number = record.value["id"]
        db.hset(f"order:{number}", "name", None if number == 15 else record.value["name"])
        db.incrby("count")
        if number == 14:
            db.sadd("count", "x")

    app.listen(topic, group=group, value=VALUE, **how)(each("batch" in how, take))
    assert app.run("caught-up") == tm.Tally(applied=297, dead=3)
    assert client.get(redis.key(redis_url, "count")) == b"297"
    assert client.lrange(redis.key(redis_url, "order:13"), 0, -1) == [b"a list"]
    assert client.hget(redis.key(redis_url, "order:299"), "name") == b"n299"


@pytest.mark.parametrize("workers", [1, 3])
def test_a_procedure_that_commits_ends_the_run_at_once_and_says_that_rows_are_there(
    brokers: str, topic: str, group: str, database: Databases, workers: int
) -> None:
    url = database("mariadb")
    app = make(brokers, url)
    execute(url, "CREATE PROCEDURE note(n BIGINT) BEGIN INSERT INTO seen (id) VALUES (n); COMMIT; END")

    @app.listen(topic, group=group, value=VALUE, workers=workers)
    def receive(record: tm.Record, db: Any) -> None:
        db.execute("CALL note(:id)", {"id": record.value["id"]})

    with pytest.raises(BadInput, match=r"CALL note ended the transaction inside the block: rows .* may be committed"):
        app.run("caught-up")
    assert max(Counter(ids(url)).values()) == 1
    assert query(url, "SELECT sum(next_offset) FROM tallymark_positions") == [(0,)]


@pytest.mark.parametrize(
    ("kind", "statement", "workers"),
    [
        ("postgresql", b"ROLLBACK TO SAVEPOINT", 1),
        ("mariadb", b"ROLLBACK TO SAVEPOINT", 1),
        ("postgresql", b"RELEASE SAVEPOINT", 3),
    ],
)
def test_a_connection_that_is_cut_while_the_records_at_fault_are_looked_for_is_replaced(
    brokers: str, topic: str, group: str, database: Databases, kind: str, statement: bytes, workers: int
) -> None:
    url = database(kind)
    with Proxy(url) as proxy:
        app = tm.App(brokers=brokers, store=proxy.url, kafka=QUICK)
        execute(url, "CREATE TABLE seen (id BIGINT NOT NULL)")
        armed: list[bool] = []

        @app.listen(topic, group=group, value=VALUE, workers=workers)
        def receive(record: tm.Record, db: Any) -> None:
            insert(record, db)
            if record.value["id"] == 42:
                if not armed:
                    armed.append(True)
                    proxy.arm(Cut(statement, "request"), Cut(statement, "reply"))
                raise ValueError("no")

        assert app.run("caught-up") == tm.Tally(applied=299, dead=1)
        assert [one.lose for one in proxy.done] == ["request", "reply"]
    assert ids(url) == [n for n in range(300) if n != 42]
    assert query(url, UNBALANCED) == []


def test_listeners_of_an_app_stop_together(brokers: str, topic: str, group: str, database: Databases) -> None:
    url = database("sqlite")
    app = make(brokers, url)
    app.listen(topic, group=group, value=VALUE, threads=2)(insert)
    with Background(app.run, app.stop):
        wait_for(lambda: len(ids(url)) == 300)
    assert query(url, "SELECT owner FROM tallymark_positions WHERE owner IS NOT NULL") == []


@pytest.mark.parametrize("records", [0, 300])
def test_a_topic_that_was_recreated_is_refused_although_nothing_is_left_to_read(
    brokers: str, topic: str, group: str, topics: Topics, database: Databases, records: int
) -> None:
    url = database("sqlite")
    app = make(brokers, url)
    app.listen(topic, group=group, value=VALUE)(insert)
    app.run("caught-up")
    topics.recreate(topic, 3)
    topics.send(topic, ({"id": n} for n in range(records)), partitions=3)
    with pytest.raises(tm.TallymarkError, match=f"topic {topic} was deleted and created again"):
        app.run("caught-up")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"threads": 0}, "threads=, workers= and max_records= must be positive"),
        ({"order": "topic"}, "order='topic' is not known; write partition, key, none"),
        ({"workers": 2, "batch": True}, "workers= needs single records"),
        ({"threads": 2, "membership": tm.Standalone()}, r"Standalone\(\) has none"),
    ],
)
def test_settings_that_can_not_be_are_refused_at_once(arguments: dict[str, Any], words: str) -> None:
    app = tm.App(brokers="localhost:9", store="sqlite:///nowhere.db")
    with pytest.raises(BadInput, match=words):
        app.listen("t", group="g", **arguments)(insert)
    with pytest.raises(BadInput, match="the app has no listener"):
        app.run()
    with pytest.raises(BadInput, match="must take a record, or a record and the transaction"):
        app.listen("t", group="g")(lambda: None)
