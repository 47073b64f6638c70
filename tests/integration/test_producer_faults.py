"""Brokers die and return under a no-loss producer: no record is lost, repeated or reordered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import tallymark as tm
from tallymark.errors import CommitUnknown, ProducerStopped, StillWaiting
from tallymark.local.sandbox import KafkaBroker, KafkaCluster
from tests.support.background import Background, wait_for
from tests.support.kafka import TIMEOUT, Topics

pytestmark = pytest.mark.xdist_group("processes")

PARTITIONS, KEYS = 4, 50


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that tests may kill."""
    with KafkaBroker(tmp_path_factory.mktemp("broker") / "kafka", temporary=True) as running:
        yield running


def check_complete_and_in_order(topics: Topics, topic: str, records: int) -> None:
    """Every record once, and the records of each key in order."""
    by_key: dict[int, list[int]] = {}
    for _, value in sorted(topics.committed(topic).items()):
        number = int(value or b"")
        by_key.setdefault(number % KEYS, []).append(number)
    assert by_key == {key: list(range(key, records, KEYS)) for key in range(KEYS)}


@pytest.mark.parametrize("records", [20_000, pytest.param(200_000, marks=pytest.mark.faults)])
def test_a_broker_that_is_killed_in_the_middle_costs_and_repeats_nothing(broker: KafkaBroker, records: int) -> None:
    topics = Topics(broker.brokers)
    topic, sending = topics.create(PARTITIONS), threading.Event()

    def kill_and_restart() -> None:
        assert sending.wait(TIMEOUT)
        broker.kill()
        broker.start()

    restarting = Background(kill_and_restart).start()
    # The buffer is so small that the sender has to wait for the broker.
    with tm.Producer(broker.brokers, settings={"queue.buffering.max.messages": records // 10}) as producer:
        for number in range(records):
            producer.send(topic, str(number), key=str(number % KEYS))
            if number == records // 3:
                sending.set()
        producer.flush()
        assert producer.statistics() == (records, records, 0, 0)
    restarting.result()
    check_complete_and_in_order(topics, topic, records)


@pytest.mark.faults
def test_what_waits_for_a_broker_is_delivered_when_it_is_back(broker: KafkaBroker) -> None:
    topics = Topics(broker.brokers)
    topic = topics.create(PARTITIONS)
    with tm.Producer(broker.brokers) as producer:
        producer.send(topic, "0", key="0").result(TIMEOUT)
        broker.kill()
        sent = [producer.send(topic, str(number), key=str(number % KEYS)) for number in range(1, 500)]
        with pytest.raises(
            StillWaiting, match=r"499 records are not delivered after 0.5 s: the brokers at .* can't be reached"
        ):
            sent[-1].result(timeout=0.5)
        broker.start()
        assert all(one.result(TIMEOUT).topic == topic for one in sent)
    check_complete_and_in_order(topics, topic, 500)


@pytest.mark.faults
def test_a_commit_that_no_broker_answers_ends_the_producer_and_the_next_one_goes_on(broker: KafkaBroker) -> None:
    topics = Topics(broker.brokers)
    topic = topics.create(1)

    def send(producer: tm.Producer, value: str, *, kill: bool) -> None:
        with producer.transaction():
            producer.send(topic, value).result(TIMEOUT)
            if kill:
                broker.kill()

    with tm.Producer(broker.brokers, transactional_id="shop", buffer_seconds=2) as producer:
        send(producer, "seen", kill=False)
        with pytest.raises(
            CommitUnknown, match=r"no answer within 2 s: .* can't be reached.*may or may not be visible"
        ):
            send(producer, "unsure", kill=True)
        broker.start()
        with pytest.raises(ProducerStopped, match="the commit of the transaction of shop was not confirmed"):
            send(producer, "refused", kill=False)
    with tm.Producer(broker.brokers, transactional_id="shop") as producer:
        send(producer, "again", kill=False)
    assert [value for value in topics.committed(topic).values() if value != b"unsure"] == [b"seen", b"again"]


@pytest.mark.faults
@pytest.mark.parametrize(("killed", "least"), [(1, 3), (2, 2)])
def test_below_min_insync_replicas_records_wait_and_it_is_said(
    tmp_path: Path, killed: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without two of three, too few controllers are left to notice the missing replicas."""
    # a cluster without two brokers may answer slowly
    monkeypatch.setattr("tallymark.produce.state.ASK_SECONDS", 10.0)
    with KafkaCluster(tmp_path / "kafka", temporary=True) as cluster:
        topics, admin = Topics(cluster.brokers), AdminClient({"bootstrap.servers": cluster.brokers})
        new = NewTopic("strict", 1, 3, config={"min.insync.replicas": str(least)})
        admin.create_topics([new])["strict"].result(TIMEOUT)
        wait_for(lambda: in_sync(admin, "strict") == 3)
        with tm.Producer(cluster.brokers, settings={"request.timeout.ms": 1000}) as producer:
            producer.send("strict", "0", key="0").result(TIMEOUT)
            for node in cluster.nodes[:killed]:
                node.kill()
            sent = producer.send("strict", "1", key="1")
            said = (
                rf"topic strict partition 0 has {3 - killed} of 3 replicas in sync, and min.insync.replicas is {least}"
            )
            with pytest.raises(StillWaiting, match=f"1 record is not delivered after 2 s: {said}"):
                sent.result(timeout=2)
            for node in cluster.nodes[:killed]:
                node.start()
            sent.result(TIMEOUT)
        assert list(topics.committed("strict").values()) == [b"0", b"1"]


@pytest.mark.faults
def test_a_leader_that_is_killed_under_load_costs_and_repeats_nothing(tmp_path: Path) -> None:
    with KafkaCluster(tmp_path / "kafka", temporary=True) as cluster:
        topics, admin = Topics(cluster.brokers), AdminClient({"bootstrap.servers": cluster.brokers})
        admin.create_topics([NewTopic("replicated", PARTITIONS, 3)])["replicated"].result(TIMEOUT)
        wait_for(lambda: in_sync(admin, "replicated") == 3)
        leader = cluster.nodes[wait_for(lambda: a_leader(admin, "replicated")) - 1]
        records, killed = 20_000, Background(leader.kill)
        with tm.Producer(cluster.brokers, settings={"queue.buffering.max.messages": 2000}) as producer:
            for number in range(records):
                producer.send("replicated", str(number), key=str(number % KEYS))
                if number == records // 3:
                    killed.start()
                if number == records // 3 * 2:
                    killed.result()
        check_complete_and_in_order(topics, "replicated", records)


def in_sync(admin: AdminClient, topic: str) -> int:
    """The lowest number of in-sync replicas of this topic's partitions."""
    found = admin.list_topics(topic, TIMEOUT).topics[topic].partitions.values()
    return min((len(one.isrs) for one in found), default=0)


def a_leader(admin: AdminClient, topic: str) -> int | None:
    """The id of the broker that leads one of this topic's partitions, None where a broker does not know it yet."""
    found = admin.list_topics(topic, TIMEOUT).topics[topic].partitions.values()
    return next((one.leader for one in found if one.leader > 0), None)
