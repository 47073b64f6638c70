"""A store that accepts bytes and never responds is given up after ``read_timeout``: nothing is lost or repeated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy.engine import make_url

import tallymark as tm
from tallymark.core.progress import Progress, Step
from tallymark.errors import Unreachable
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.cluster import Cluster
from tallymark.stores.opening import open_store
from tests.support.crash import Run, make_loop
from tests.support.proxy import Cut, Lose, Proxy
from tests.support.reader import PlainReader
from tests.support.truth import Committed, check_complete

LIMITS = {"connect_timeout": "2", "read_timeout": "1"}


@pytest.fixture(params=["postgresql", "mariadb", "redis"])
def url(request: pytest.FixtureRequest, database: Callable[[str], str]) -> str:
    return database(request.param)


def limited(proxy: Proxy) -> str:
    return make_url(proxy.url).update_query_dict(LIMITS).render_as_string(hide_password=False)


def at(step: Step, occurrence: int, happens: Callable[[], None]) -> Callable[[Step, Progress], None]:
    passed = 0

    def watch(now: Step, _: Progress) -> None:
        nonlocal passed
        passed += now is step
        if now is step and passed == occurrence:
            happens()

    return watch


@pytest.mark.faults_where(url=["mariadb", "postgresql"], lose="reply")
@pytest.mark.faults_where(url="redis", lose="request")
@pytest.mark.parametrize("lose", ["request", "reply"])
def test_a_commit_that_is_never_answered_is_settled_like_any_other(
    lose: Lose, proxy: Proxy, url: str, brokers: str, group: str, topic: str, committed: Committed
) -> None:
    cut = Cut(proxy.commit, lose, silently=True)
    store, reader = open_store(limited(proxy)), PlainReader(brokers)
    run = Run(brokers, proxy.url, group, topic)
    make_loop(run, store, reader, at(Step.MOVED, 2, lambda: proxy.arm(cut))).run("caught-up")
    reader.close()
    store.close()
    assert proxy.done == [cut]
    check_complete(url, committed)


def consumer_through(proxy: Proxy, brokers: str, group: str, topic: str, patience: float) -> tm.Consumer:
    source = tm.Kafka(brokers, topic, value=tm.Json("id BIGINT"))
    return tm.Consumer(group=group, source=source, store=limited(proxy), patience=patience)


def work(consumer: tm.Consumer, first: Callable[[], None]) -> None:
    for batch in consumer.batches(max_records=10):
        with batch.transaction() as db:
            db.write("events", [{"id": record.value["id"]} for record in batch.records], key="id", write="ignore")
        first()


@pytest.mark.faults_where(url="mariadb")
def test_a_member_whose_store_is_silent_for_good_leaves_its_group(
    proxy: Proxy, brokers: str, group: str, topic: str
) -> None:
    consumer = consumer_through(proxy, brokers, group, topic, patience=1)
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"did not answer|can't be reached"):
        work(consumer, proxy.hush)
    assert time.monotonic() - began < 30
    assert not Brokers(Cluster(brokers)).members(group)


@pytest.mark.faults_where(url=["mariadb", "redis"])
def test_a_consumer_that_waits_for_a_silent_store_can_be_stopped(
    proxy: Proxy, brokers: str, group: str, topic: str
) -> None:
    consumer = consumer_through(proxy, brokers, group, topic, patience=600)

    def hush() -> None:
        proxy.hush()
        threading.Timer(0.2, consumer.stop).start()

    with pytest.raises(Unreachable):
        work(consumer, hush)
    assert not Brokers(Cluster(brokers)).members(group)
