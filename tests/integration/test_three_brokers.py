"""One of three brokers dies under load: producer, pipeline and service continue, and every record is applied once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import tallymark as tm
from tallymark.local.sandbox import KafkaCluster
from tests.support import databases, truth
from tests.support.background import Background, wait_for
from tests.support.load import Load
from tests.support.pipelines import RunningPipeline
from tests.support.storm_member import QUICK

NUMBERS = tm.Json("number BIGINT")
PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("three") / "kafka", temporary=True) as running:
        yield running


@pytest.fixture
def topic(cluster: KafkaCluster, group: str) -> str:
    """On all three brokers; each leads two of its partitions."""
    admin = AdminClient({"bootstrap.servers": cluster.brokers})
    admin.create_topics([NewTopic(group, PARTITIONS, 3)])[group].result(30)
    wait_for(lambda: len(admin.list_topics(group).topics[group].partitions) == PARTITIONS)
    return group


def numbers(store: str) -> Counter[int]:
    try:
        return Counter(int(str(number)) for (number,) in databases.query(store, "SELECT number FROM numbers"))
    except Exception:  # noqa: BLE001 - there is no table yet
        return Counter()


def lose_a_broker_under(load: Load, cluster: KafkaCluster, store: str) -> None:
    """The load continues for a while without the broker, and after its return; then every record must be there."""
    try:
        wait_for(lambda: numbers(store).total() > 500)
        cluster.nodes[1].kill()
        killed_at = load.sent
        wait_for(lambda: numbers(store).total() > killed_at + 500)
        cluster.nodes[1].start()
        started_at = load.sent
        wait_for(lambda: numbers(store).total() > started_at + 200)
    finally:
        sent = load.stop()
    wait_for(lambda: numbers(store).total() >= sent)
    assert numbers(store) == Counter(range(sent))
    truth.check_accounts(store)


@pytest.mark.faults
def test_a_service_and_a_producer_go_on_without_a_broker(
    cluster: KafkaCluster, topic: str, group: str, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'numbers.db'}"
    databases.execute(store, "CREATE TABLE numbers (number INTEGER)")
    app = tm.App(brokers=cluster.brokers, store=store, kafka=QUICK)

    @app.listen(topic, group=group, value=NUMBERS, batch=True)
    def receive(records: tm.Records, db: Any) -> None:
        db.write("numbers", records.values())

    with Background(app.run, app.stop):
        lose_a_broker_under(Load(cluster.brokers, topic), cluster, store)


@pytest.mark.faults
def test_a_pipeline_and_a_producer_go_on_without_a_broker(
    spark: Any, cluster: KafkaCluster, topic: str, group: str, database: Callable[[str], str]
) -> None:
    store = database("postgresql")
    source = tm.Kafka(cluster.brokers, topic, value=NUMBERS, settings=QUICK)
    pipeline = tm.Pipeline(group=group, source=source, store=store)
    pipeline.table("numbers")(lambda records: records.select("value.number"))
    with RunningPipeline(pipeline) as running:
        lose_a_broker_under(Load(cluster.brokers, topic), cluster, store)
        assert running.stop().applied
