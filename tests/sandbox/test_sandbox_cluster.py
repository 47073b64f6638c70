"""Three brokers are one cluster that continues without any one of them, and accepts its return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tallymark.errors import BadInput, SandboxError
from tallymark.local.sandbox import KafkaCluster
from tallymark.local.sandbox.keeper import seen
from tallymark.local.sandbox.state import Service
from tests.support.background import wait_for

TOPIC, PARTITIONS = "replicated", 3
TIMEOUT = 30.0


def send(settings: dict[str, Any], count: int) -> None:
    """Write with acks=all."""
    answers: list[KafkaError | None] = []
    producer = Producer({**settings, "acks": "all"})
    for number in range(count):
        producer.produce(TOPIC, b"", partition=number % PARTITIONS, on_delivery=lambda error, _: answers.append(error))
    assert producer.flush(TIMEOUT) == 0
    assert answers == [None] * count


def in_sync(admin: AdminClient) -> list[int]:
    """The number of in-sync replicas of each partition."""
    return [len(found.isrs) for found in admin.list_topics(TOPIC, TIMEOUT).topics[TOPIC].partitions.values()]


def states(cluster: KafkaCluster) -> list[tuple[str, str]]:
    return [(node.name, node.state) for node in seen(Service("kafka", "running", "now"), cluster).nodes]


def lives_through_the_death_of_a_node(cluster: KafkaCluster, settings: dict[str, Any]) -> None:
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(TIMEOUT)
    wait_for(lambda: in_sync(admin) == [3] * PARTITIONS, TIMEOUT)
    first = cluster.nodes[0]
    place = first.brokers
    first.kill()
    assert states(cluster) == [("kafka-1", "ended"), ("kafka-2", "running"), ("kafka-3", "running")]
    send(settings, 30)
    assert cluster.running
    first.start()
    assert first.brokers == place
    wait_for(lambda: in_sync(admin) == [3] * PARTITIONS, TIMEOUT)
    assert dict(states(cluster)) == {f"kafka-{number}": "running" for number in (1, 2, 3)}


@pytest.mark.faults
def test_a_cluster_goes_on_without_a_node_and_takes_it_back(tmp_path: Path) -> None:
    with KafkaCluster(tmp_path / "kafka", temporary=True) as cluster:
        settings: dict[str, Any] = {"bootstrap.servers": cluster.brokers}
        assert {node.cluster_id for node in cluster.nodes} == {AdminClient(settings).list_topics(timeout=15).cluster_id}
        lives_through_the_death_of_a_node(cluster, settings)
        found = topic_settings(AdminClient(settings))
        assert (found["min.insync.replicas"], found["unclean.leader.election.enable"]) == ("2", "false")
    assert not any(node.running for node in cluster.nodes)


def topic_settings(admin: AdminClient) -> dict[str, str]:
    topic = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)
    return {name: entry.value for name, entry in admin.describe_configs([topic])[topic].result(TIMEOUT).items()}


@pytest.mark.faults
def test_a_secured_cluster_goes_on_as_well(tmp_path: Path) -> None:
    with KafkaCluster(tmp_path / "kafka", secure=True, temporary=True) as cluster:
        assert cluster.security is not None
        lives_through_the_death_of_a_node(cluster, {"bootstrap.servers": cluster.brokers, **cluster.security.as_user()})


@pytest.mark.parametrize("brokers", [0, 2, 4, 7, -1])
def test_a_number_of_brokers_that_cannot_agree_is_refused(tmp_path: Path, brokers: int) -> None:
    with pytest.raises(BadInput, match=f"{brokers} Kafka brokers: choose 1, 3 or 5"):
        KafkaCluster(tmp_path / "kafka", brokers=brokers)


def test_when_a_node_cannot_start_none_stays(tmp_path: Path) -> None:
    cluster = KafkaCluster(tmp_path / "kafka", settings={"num.io.threads": "zero"})
    with pytest.raises(SandboxError, match=r"(?s)kafka ended while it started.*zero.*num\.io\.threads"):
        cluster.start()
    assert not cluster.running
