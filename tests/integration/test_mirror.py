"""``mirror=True``: Kafka's own tools show the positions and the lag of the ledger."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

import tallymark as tm
from tallymark.core.spans import Partition
from tallymark.errors import BadInput
from tallymark.kafka.member import Mirror
from tallymark.kafka.membership import GroupProtocol
from tallymark.stores.opening import open_store
from tests.support.background import Background, wait_for
from tests.support.kafka import Topics
from tests.support.kafka_tools import described

QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}


def consumer(brokers: str, topic: str, group: str, store: str, **settings: Any) -> tm.Consumer:
    source = tm.Kafka(brokers, topic, settings={} if "membership" in settings else QUICK)
    return tm.Consumer(group=group, source=source, store=store, mirror=True, **settings)


def one_by_one(consumer: tm.Consumer) -> Background[None]:
    """Take one record at a time, from now on."""

    def work() -> None:
        for batch in consumer.batches(max_records=1):
            with batch.transaction():
                pass

    return Background(work, consumer.stop).start()


def in_kafka(brokers: str, group: str) -> dict[Partition, int]:
    """The offsets of the Kafka group, by a direct request: the tool takes seconds to start."""
    client = AdminClient({"bootstrap.servers": brokers})
    [future] = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {Partition(one.topic, one.partition): one.offset for one in future.result(15).topic_partitions}


def in_ledger(store: str, group: str) -> dict[Partition, int]:
    opened = open_store(store)
    try:
        found = opened.positions(group).get(group, []) if opened.has_ledger() else []
        return {one.partition: one.next_offset for one in found}
    finally:
        opened.close()


@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.faults)])
def test_kafka_consumer_groups_shows_the_positions_of_the_ledger_while_members_come_and_go(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str], protocol: GroupProtocol
) -> None:
    url, topic = database("postgresql"), topics.create(2)
    topics.send(topic, [b"x"] * 10, partitions=2)
    settings: dict[str, Any] = {"membership": tm.Group(protocol=protocol)} if protocol == "consumer" else {}

    def agreed(offsets: int) -> bool:
        found = in_ledger(url, group)
        return sum(found.values()) == offsets and in_kafka(brokers, group) == found

    first = one_by_one(consumer(brokers, topic, group, url, **settings))
    wait_for(lambda: agreed(10))
    other = consumer(brokers, topic, group, url, **settings)
    second = one_by_one(other)
    wait_for(lambda: len(other.positions()) == 1)
    topics.send(topic, [b"x"] * 6, partitions=2)
    wait_for(lambda: agreed(16))
    first.stop()
    topics.send(topic, [b"x"] * 2, partitions=2)
    wait_for(lambda: agreed(18))
    second.stop()

    topics.send_to(topic, 0, [b"unread"] * 3)
    assert described(brokers, group) == {Partition(topic, 0): ("9", "3"), Partition(topic, 1): ("9", "0")}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_last_position_is_there_when_a_run_has_ended_and_an_idle_group_shows(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str], protocol: GroupProtocol
) -> None:
    url, topic = database("sqlite"), topics.create(2)
    settings: dict[str, Any] = {"membership": tm.Group(protocol=protocol)} if protocol == "consumer" else {}
    topics.send_to(topic, 0, [b"x"] * 5)

    for batch in consumer(brokers, topic, group, url, **settings).batches(until="caught-up"):
        with batch.transaction():
            pass

    assert in_kafka(brokers, group) == {Partition(topic, 0): 5, Partition(topic, 1): 0} == in_ledger(url, group)


def test_what_kafka_holds_is_never_read(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    url, topic = database("sqlite"), topics.create(1)
    topics.send_to(topic, 0, [b"x"] * 5)
    admin = AdminClient({"bootstrap.servers": brokers})
    lie = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 4)])
    [future] = admin.alter_consumer_group_offsets([lie]).values()
    future.result(15)
    read = 0

    for batch in consumer(brokers, topic, group, url).batches(until="caught-up"):
        with batch.transaction():
            read += len(batch)

    assert read == 5
    assert in_kafka(brokers, group) == {Partition(topic, 0): 5}


def test_a_run_that_reads_alone_has_no_group_to_write_to() -> None:
    with pytest.raises(BadInput, match="Standalone"):
        consumer("localhost:9", "t", "g", "sqlite://", membership=tm.Standalone())


class Client:
    """The part of librdkafka's consumer that a mirror uses."""

    def __init__(self) -> None:
        self.sent: list[dict[Partition, int]] = []

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous
        self.sent.append({Partition(one.topic, one.partition): one.offset for one in offsets})


A, B = Partition("t", 0), Partition("t", 1)


def test_only_the_latest_position_of_what_is_ours_goes_out_and_one_request_at_a_time() -> None:
    mirror = Mirror("g")
    client: Any = Client()
    mirror.note({A: 1, B: 1})
    mirror.serve(client, {A})
    mirror.note({A: 2})
    mirror.note({A: 3})
    mirror.serve(client, {A})
    assert client.sent == [{A: 1}]

    mirror.answered(None, [TopicPartition("t", 0, 1)])
    mirror.serve(client, {A, B})
    assert client.sent == [{A: 1}, {A: 3}]

    mirror.note({A: 4, B: 4})
    mirror.forget([A])
    mirror.send(client, {A, B})
    assert client.sent[2:] == [{B: 4}]


def test_what_fails_is_sent_again_and_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallymark.kafka.member.AGAIN_SECONDS", 0.0)
    mirror = Mirror("g")
    client: Any = Client()
    mirror.note({A: 1})
    with caplog.at_level(logging.WARNING):
        for code in (KafkaError.REBALANCE_IN_PROGRESS, *[KafkaError.GROUP_AUTHORIZATION_FAILED] * 3):
            mirror.serve(client, {A})
            mirror.answered(KafkaError(code), [TopicPartition("t", 0, 1)])
    assert client.sent == [{A: 1}] * 4
    assert [record.message.split(" error=")[0] for record in caplog.records] == [
        "positions not mirrored to Kafka group=g"
    ]
