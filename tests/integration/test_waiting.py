"""Every request of a run to its store, also before the first batch and between batches, may fail for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress

import pytest

import tallymark as tm
from tallymark.core.progress import Progress, Step
from tallymark.core.start import Start
from tallymark.errors import Unreachable
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.membership import Alone
from tallymark.run.ownership import Ownership
from tallymark.run.setup import Job, new_owner
from tallymark.stores.opening import open_sql, open_store
from tests.support.crash import Run, make_loop
from tests.support.databases import query
from tests.support.proxy import Cut, Proxy
from tests.support.reader import PlainReader
from tests.support.truth import Committed, check_complete

CLAIM = b"UPDATE tallymark_positions"


@pytest.fixture(params=["postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, database: Callable[[str], str]) -> str:
    return database(request.param)


@pytest.mark.parametrize("asked", ["tables", "ledger", "stages", "window"])
def test_a_connection_that_breaks_at_any_question_is_replaced(
    asked: str, proxy: Proxy, url: str, brokers: str, group: str, topic: str, committed: Committed
) -> None:
    """Statements of the checks at the start, the removal of stages, and the window of a budget."""
    listing = b"pg_class" if url.startswith("postgresql") else b"SHOW FULL TABLES"
    cut = {
        "tables": Cut(b"events", "request"),
        "ledger": Cut(b"tallymark_schema", "request"),
        "stages": Cut(listing, "request", after=CLAIM),
        "window": Cut(b"sum(tallymark_batches", "request"),
    }[asked]
    store, reader = open_store(proxy.url), PlainReader(brokers)
    proxy.arm(cut)
    run = Run(brokers, proxy.url, group, topic)
    make_loop(run, store, reader, budget=tm.Budget(max_dead_total=1_000)).run("caught-up")
    reader.close()
    store.close()
    assert proxy.done == [cut]
    check_complete(url, committed)


def test_the_look_at_what_others_have_done_is_patient(proxy: Proxy, brokers: str, group: str, topic: str) -> None:
    """A run with an end waits for the other members, and reads their positions for that."""
    store, cluster = open_store(proxy.url), Brokers(brokers)
    store.create_ledger()
    cut = Cut(b"tallymark_positions", "request")
    start, alone = Start.parse("uncommitted-earliest"), Alone(cluster, [topic])
    share = Ownership(Job(group, [topic], [], new_owner(), start), alone, cluster, store)
    goals = share.goals(cluster.topics([topic]))
    proxy.arm(cut)
    assert not goals.reached({})
    assert proxy.done == [cut]
    store.close()


def test_a_consumer_whose_store_is_away_at_the_start_waits(
    proxy: Proxy, url: str, brokers: str, group: str, topic: str
) -> None:
    source = tm.Kafka(brokers, topic, value=tm.Json("id BIGINT"))
    consumer = tm.Consumer(group=group, source=source, store=proxy.url)
    cuts = [Cut(b"", "request")] * 2
    proxy.arm(*cuts)
    for batch in consumer.batches(max_records=100, until="caught-up"):
        with batch.transaction() as db:
            db.write("events", [{"id": record.value["id"]} for record in batch.records])
    assert proxy.done == cuts
    assert query(url, "SELECT COUNT(*) FROM events") == [(60,)]


def test_a_database_that_is_read_only_after_a_failover_is_waited_for(
    database: Callable[[str], str], brokers: str, group: str, topic: str, committed: Committed
) -> None:
    """With new connections: those to the former primary stay read-only."""
    url = database("postgresql")
    admin = open_sql(url)
    back: list[threading.Timer] = []

    def set_read_only(value: str) -> None:
        with admin.transaction() as connection:
            connection.exec_driver_sql("SET LOCAL transaction_read_only = off")
            name = connection.exec_driver_sql("SELECT current_database()").scalar_one()
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = {value}")

    def fail_over(step: Step, _: Progress) -> None:
        if step is Step.DONE and not back:
            back.append(threading.Timer(1.0, set_read_only, ["off"]))
            set_read_only("on")
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            query(url, f"{ended} AND pid <> pg_backend_pid() AND application_name <> 'admin'")
            back[0].start()

    store, reader = open_store(url), PlainReader(brokers)
    make_loop(Run(brokers, url, group, topic), store, reader, fail_over).run("caught-up")
    back[0].join()
    reader.close()
    store.close()
    admin.close()
    check_complete(url, committed)


def test_a_handler_may_wait_for_longer_than_the_server_allows_others(database: Callable[[str], str]) -> None:
    url = database("postgresql")
    admin = open_sql(url)
    with admin.transaction() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar_one()
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '60s'")
    admin.close()
    store, show = open_sql(url), "SHOW idle_in_transaction_session_timeout"
    for ending in (nullcontext(), suppress(ZeroDivisionError), nullcontext()):
        with ending, store.begin(lambda: None) as db:
            assert db.scalar(show) == "0"
            if isinstance(ending, suppress):
                raise ZeroDivisionError
    with store.transaction() as other:
        assert other.exec_driver_sql(show).scalar_one() == "5min"
    with suppress(ZeroDivisionError), store.transaction():
        raise ZeroDivisionError
    with store.begin(lambda: None) as db:
        assert db.scalar(show) == "0"
    with store.look() as other:
        assert other.exec_driver_sql(show).scalar_one() == "5min"
    store.close()


def test_who_gives_up_waiting_says_what_for(proxy: Proxy, brokers: str, group: str, topic: str) -> None:
    source = tm.Kafka(brokers, topic, value=tm.Json("id BIGINT"))
    consumer = tm.Consumer(group=group, source=source, store=proxy.url, patience=0.3)
    proxy.arm(*[Cut(b"", "request")] * 1_000)
    with pytest.raises(Unreachable, match="check that it runs"):
        next(consumer.batches())
