"""Lag from the records in Kafka: exact to the millisecond, and for all partitions at once."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer

from tallymark.core.spans import STREAMING, Partition, Position, Tally
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.lag import Lag, measure, rates_in
from tests.support.background import wait_for
from tests.support.kafka import Topics

HOUR = timedelta(hours=1)


@pytest.fixture
def asked(brokers: str) -> Brokers:
    return Brokers(brokers)


def at(asked: Brokers, topic: str, offset: int, partition: int = 0) -> Position:
    found = asked.find([topic])[topic]
    now = datetime.now(UTC)
    return Position(
        Partition(topic, partition), offset, offset, found.id, asked.cluster_id(), 1, None, Tally(), None, now
    )


def aged(age: timedelta) -> int:
    return int((time.time() - age.total_seconds()) * 1000)


def only(found: dict[Partition, Lag]) -> Lag:
    (lag,) = found.values()
    return lag


def about(age: timedelta) -> object:
    return pytest.approx(age.total_seconds(), abs=5)


def test_the_age_is_that_of_the_first_unread_record(asked: Brokers, topics: Topics) -> None:
    topic = topics.create(2, retention_ms=str(10 * 3_600_000))
    topics.send_to(topic, 0, ["oldest"], timestamp=aged(3 * HOUR))
    topics.send_to(topic, 0, ["next", "last"], timestamp=aged(2 * HOUR))
    topics.send_to(topic, 1, ["other"] * 5000, timestamp=aged(HOUR))
    found = measure(asked, [at(asked, topic, 1), at(asked, topic, 0, partition=1)])
    lag, other = found[Partition(topic, 0)], found[Partition(topic, 1)]
    assert (lag.records, lag.seconds, other.records, other.seconds) == (2, about(2 * HOUR), 5000, about(HOUR))
    assert lag.expires is not None
    assert lag.log is not None
    assert lag.log.end == 3
    assert lag.expires.total_seconds() == about(8 * HOUR)


def test_nothing_unread_is_no_lag(asked: Brokers, topics: Topics) -> None:
    topic = topics.create(1)
    topics.send_to(topic, 0, ["read"], timestamp=aged(HOUR))
    lag = only(measure(asked, [at(asked, topic, 1)]))
    assert (lag.records, lag.seconds, lag.unread, lag.expires) == (0, 0.0, None, None)


def test_offsets_without_a_record_are_passed_over(asked: Brokers, topics: Topics) -> None:
    topic = topics.create(1)
    topics.send_in_transaction(topic, {0: ["aborted"] * 3}, commit=False)
    wait_for(lambda: asked.logs(asked.topics([topic]))[Partition(topic, 0)].stop == 4)
    assert only(measure(asked, [at(asked, topic, 0)])).seconds == 0.0
    topics.send_to(topic, 0, ["real"], timestamp=aged(HOUR))
    lag = only(measure(asked, [at(asked, topic, 0)]))
    assert (lag.records, lag.seconds) == (5, about(HOUR))


def test_records_that_were_deleted_unread_have_no_age_any_more(asked: Brokers, topics: Topics) -> None:
    topic = topics.create(1)
    topics.send_to(topic, 0, ["deleted"], timestamp=aged(3 * HOUR))
    topics.send_to(topic, 0, ["there"], timestamp=aged(HOUR))
    topics.delete_records(topic, {0: 1})
    lag = only(measure(asked, [at(asked, topic, 0)]))
    assert (lag.records, lag.seconds) == (2, about(HOUR))


def test_an_open_transaction_ages_though_nothing_of_it_can_be_read(asked: Brokers, topics: Topics) -> None:
    topic = topics.create(1)
    producer = Producer({"bootstrap.servers": topics.brokers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0, timestamp=aged(HOUR))
    producer.flush(10)
    try:
        assert only(measure(asked, [at(asked, topic, 0)])).seconds == about(HOUR)
    finally:
        producer.abort_transaction(10)


def test_a_position_that_means_nothing_here_has_no_log(asked: Brokers, topics: Topics) -> None:
    topic = topics.create(1)
    topics.send(topic, ["unread"])
    position = at(asked, topic, 0)
    gone = replace(position, partition=Partition("never-was", 0))
    query = replace(position, partition=Partition("no name for a topic", 0), cluster_id=STREAMING)
    for other in (replace(position, topic_id="x"), replace(position, cluster_id="x"), gone, query):
        assert only(measure(asked, [other])) == Lag(None)


def test_the_rate_is_what_came_in_within_the_window(asked: Brokers, topics: Topics) -> None:
    topic = topics.create(3)
    topics.send_to(topic, 0, ["old"] * 50, timestamp=aged(HOUR))
    topics.send_to(topic, 0, ["new"] * 60, timestamp=aged(timedelta(minutes=1)))
    topics.send_to(topic, 1, ["old"] * 50, timestamp=aged(HOUR))
    wanted = [Partition(topic, number) for number in range(3)]
    assert rates_in(asked, asked.logs(asked.find([topic]))) == {wanted[0]: 60 / 300, wanted[1]: 0, wanted[2]: 0}
