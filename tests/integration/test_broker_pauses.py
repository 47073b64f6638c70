"""A broker that pauses or restarts ends no member: every record counts once, and nobody is told to start again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import tallymark as tm
from tallymark.sandbox import Kafka
from tests.support import databases, truth
from tests.support.crash import Run
from tests.support.load import Load
from tests.support.pipelines import eventually
from tests.support.reader import EVENTS
from tests.support.running import Running, wait_for
from tests.support.storm_member import QUICK

PARTITIONS = 4
FENCED_SECONDS = 3.5
"""A pause that ends the broker's session with its controller: leaders are gone for a moment, and have new epochs."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with Kafka(tmp_path_factory.mktemp("pauses") / "kafka", temporary=True) as running:
        yield running


@pytest.fixture
def topic(broker: Kafka, group: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.brokers})
    admin.create_topics([NewTopic(group, PARTITIONS, 1)])[group].result(30)
    wait_for(lambda: len(admin.list_topics(group).topics[group].partitions) == PARTITIONS)
    return group


def pause(broker: Kafka, seconds: float = FENCED_SECONDS) -> None:
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(broker.pid, signal.SIGCONT)


def restart(broker: Kafka) -> None:
    broker.kill()
    broker.start()


def rows(store: str, table: str) -> Counter[int]:
    try:
        return Counter(int(str(number)) for (number,) in databases.query(store, f"SELECT id FROM {table}"))
    except Exception:  # noqa: BLE001 - there is no table yet
        return Counter()


def test_services_and_loops_go_on_behind_a_broker_that_pauses_and_restarts(
    broker: Kafka, topic: str, group: str, tmp_path: Path
) -> None:
    served, looped = (f"sqlite:///{tmp_path / name}.db" for name in ("served", "looped"))
    databases.execute(served, "CREATE TABLE numbers (id INTEGER)")
    app = tm.App(brokers=broker.brokers, store=served, kafka=QUICK)

    @app.listen(topic, group=group, value=tm.Json("id BIGINT"), batch=True, threads=2)
    def receive(records: tm.Records, db: Any) -> None:
        db.write("numbers", records.values())

    failures: list[BaseException] = []
    serving = threading.Thread(target=lambda: caught(app.run, failures), daemon=True)
    serving.start()
    load = Load(broker.brokers, topic)
    with Running(Run(broker.brokers, looped, f"{group}-loop", topic, 500), tables=[EVENTS]) as loop:

        def have(count: int) -> Callable[[], bool]:
            return lambda: min(rows(served, "numbers").total(), rows(looped, "events").total()) >= count

        for trouble in (pause, pause, restart):
            assert eventually(have(load.sent))
            trouble(broker)
            assert not failures
        sent = load.stop()
        assert eventually(have(sent))
        assert loop.error is None
    app.stop()
    serving.join(30)
    assert not serving.is_alive()
    assert not failures
    for store, table in ((served, "numbers"), (looped, "events")):
        assert rows(store, table) == Counter(range(sent))
        truth.check_accounts(store)


def caught(work: Callable[[], object], failures: list[BaseException]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - for the test to look at
        failures.append(error)
