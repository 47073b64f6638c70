"""A broker that pauses or restarts ends no member: every record is applied once, without a restart of the member."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import tallymark as tm
from tallymark.errors import BadInput
from tallymark.kafka.membership import Alone, Assignment
from tallymark.local.sandbox import KafkaBroker
from tallymark.run.ownership import Ownership
from tests.support import databases, truth
from tests.support.background import Background, wait_for
from tests.support.crash import Run
from tests.support.load import Load
from tests.support.reader import EVENTS
from tests.support.running import Running
from tests.support.standing import Service, standing
from tests.support.storm_member import QUICK

PARTITIONS = 4
FENCED_SECONDS = 3.5
"""A pause that ends the broker's session with its controller: leaders are absent for a moment, then have new epochs."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("pauses") / "kafka", temporary=True) as running:
        yield running


@pytest.fixture
def topic(broker: KafkaBroker, group: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.brokers})
    admin.create_topics([NewTopic(group, PARTITIONS, 1)])[group].result(30)
    wait_for(lambda: len(admin.list_topics(group).topics[group].partitions) == PARTITIONS)
    return group


def pause(broker: KafkaBroker, seconds: float = FENCED_SECONDS) -> None:
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(broker.pid, signal.SIGCONT)


def restart(broker: KafkaBroker) -> None:
    broker.kill()
    broker.start()


def rows(store: str, table: str) -> Counter[int]:
    try:
        return Counter(int(str(number)) for (number,) in databases.query(store, f"SELECT id FROM {table}"))
    except Exception:  # noqa: BLE001 - there is no table yet
        return Counter()


@pytest.mark.faults
def test_services_and_loops_go_on_behind_a_broker_that_pauses_and_restarts(
    broker: KafkaBroker, topic: str, group: str, tmp_path: Path
) -> None:
    served, looped = (f"sqlite:///{tmp_path / name}.db" for name in ("served", "looped"))
    databases.execute(served, "CREATE TABLE numbers (id INTEGER)")
    app = tm.App(brokers=broker.brokers, store=served, kafka=QUICK)

    @app.listen(topic, group=group, value=tm.Json("id BIGINT"), batch=True, threads=2)
    def receive(records: tm.Records, db: Any) -> None:
        db.write("numbers", records.values())

    load = Load(broker.brokers, topic)
    alone = Run(broker.brokers, looped, f"{group}-loop", topic, 500)
    with Background(app.run, app.stop) as serving, Running(alone, tables=[EVENTS]) as loop:

        def have(count: int) -> Callable[[], bool]:
            return lambda: min(rows(served, "numbers").total(), rows(looped, "events").total()) >= count

        for trouble in (pause, pause, restart):
            wait_for(have(load.sent))
            trouble(broker)
            assert serving.error is None
        sent = load.stop()
        wait_for(have(sent))
        assert loop.error is None
    for store, table in ((served, "numbers"), (looped, "events")):
        assert rows(store, table) == Counter(range(sent))
        truth.check_accounts(store)


@contextmanager
def silenced(broker: KafkaBroker, seconds: float = 2.5) -> Iterator[None]:
    """The broker does not answer for a while; requests time out sooner."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    awake = threading.Timer(seconds, os.kill, (broker.pid, signal.SIGCONT))
    awake.start()
    try:
        yield
    finally:
        awake.join()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallymark.kafka.brokers.TIMEOUT", 0.5)


def abort(broker: KafkaBroker, topic: str) -> None:
    """A transaction that leaves its markers in the log, and no readable record."""
    producer = Producer({"bootstrap.servers": broker.brokers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"never", partition=0)
    producer.flush(30)
    producer.abort_transaction(30)


def test_markers_are_passed_over_though_the_brokers_are_silent_meanwhile(
    broker: KafkaBroker, topic: str, group: str, tmp_path: Path, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    abort(broker, topic)
    asking, silences = Ownership.ask_identity, ExitStack()

    def silently(ownership: Ownership) -> Callable[[], None]:
        """The brokers have delivered the records, and stop answering before the check of the topic id."""
        monkeypatch.setattr(Ownership, "ask_identity", asking)
        silences.enter_context(silenced(broker))
        return asking(ownership)

    monkeypatch.setattr(Ownership, "ask_identity", silently)
    store = f"sqlite:///{tmp_path / 'store.db'}"
    consumer = tm.Consumer(
        group=group, source=tm.Kafka(broker.brokers, topic), store=store, membership=tm.Standalone(), patience=20
    )
    with silences:
        assert list(consumer.batches(until="caught-up")) == []
    assert standing(store, group)[0].next_offset == 2


def test_a_pipeline_waits_for_brokers_before_it_starts_spark(
    broker: KafkaBroker, topic: str, group: str, tmp_path: Path, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, store = tm.Kafka(broker.brokers, topic), f"sqlite:///{tmp_path / 'store.db'}"
    pipeline = tm.Pipeline(group=group, source=source, store=store, patience=20)
    pipeline.table("orders")(lambda records: records)

    def start(_: object) -> None:
        raise BadInput("Spark starts now")

    monkeypatch.setattr("tallymark.spark.session.session", start)
    with silenced(broker), pytest.raises(BadInput, match="Spark starts now"):
        pipeline.run()


@pytest.mark.parametrize("kind", ["loop", "service"])
def test_a_claim_that_waits_for_brokers_ends_when_it_is_told_to(
    broker: KafkaBroker, topic: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    store, waiting, pid = f"sqlite:///{tmp_path / 'store.db'}", threading.Event(), broker.pid
    assigned = Alone.assignment
    assert pid is not None

    def silently(membership: Alone) -> Assignment:
        """The brokers stop answering when the partitions are known that the run claims next."""
        now = assigned(membership)
        assert now.ours
        os.kill(pid, signal.SIGSTOP)
        waiting.set()
        return now

    monkeypatch.setattr(Alone, "assignment", silently)
    with ExitStack() as stack:
        running: Running | Service
        if kind == "loop":
            running = stack.enter_context(Running(Run(broker.brokers, store, group, topic)))
            stop = running.loop.stop
        else:
            running = stack.enter_context(Service(broker.brokers, store, group, topic, membership=tm.Standalone()))
            stop = running.consumer.stop
        try:
            assert waiting.wait(30)
            began = time.monotonic()
            stop()
            running.wait()
            assert time.monotonic() - began < 5
            assert running.error is None
        finally:
            os.kill(pid, signal.SIGCONT)
