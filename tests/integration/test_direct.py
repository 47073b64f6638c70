"""Small spans read by the driver: all records of a span and no others, whatever was read before."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tallymark import Kafka
from tallymark.core.spans import Partition, Span
from tallymark.errors import BatchTooLarge, Unreachable
from tallymark.kafka.brokers import Brokers, connect
from tallymark.kafka.fetch import Direct
from tests.support.kafka import Topics


@pytest.fixture
def topic(topics: Topics) -> str:
    """Two partitions with committed and aborted transactions in them, so that offsets are missing everywhere."""
    name = topics.create(2)
    for at in range(6):
        topics.send_to(name, 0, [f"plain {at} {n}" for n in range(3)])
        topics.send_in_transaction(name, {0: [f"0 {at}"], 1: [f"1 {at}"]}, commit=at % 2 == 0)
    return name


@pytest.fixture
def direct(brokers: str, topic: str) -> Iterator[Direct]:
    made = Direct(Kafka(brokers, topic), Brokers(brokers))
    yield made
    made.close()


def read(direct: Direct, *spans: Span) -> dict[tuple[int, int], bytes | None]:
    return {(m.partition(), m.offset()): m.value() for m in direct.read(spans)}


def expected(topics: Topics, topic: str, *spans: Span) -> dict[tuple[int, int], bytes | None]:
    return {
        (number, offset): value
        for (number, offset), value in topics.committed(topic).items()
        if any(span.partition.number == number and span.start <= offset < span.stop for span in spans)
    }


def ends(brokers: str, topic: str) -> dict[Partition, int]:
    asked = Brokers(brokers)
    return {partition: log.stop for partition, log in asked.logs(asked.topics([topic])).items()}


def test_spans_that_follow_each_other(direct: Direct, brokers: str, topics: Topics, topic: str) -> None:
    stops = ends(brokers, topic)
    found: dict[tuple[int, int], bytes | None] = {}
    for start in range(0, max(stops.values()), 4):
        spans = [Span(p, min(start, stop), min(start + 4, stop)) for p, stop in stops.items() if start < stop]
        got = read(direct, *spans)
        assert got == expected(topics, topic, *spans)
        found |= got
    assert found == topics.committed(topic)


def test_spans_in_any_order(direct: Direct, brokers: str, topics: Topics, topic: str) -> None:
    stops, chance = ends(brokers, topic), random.Random(1)
    for _ in range(12):
        spans = [Span(p, *sorted(chance.choices(range(stop + 1), k=2))) for p, stop in stops.items()]
        spans = [span for span in spans if len(span)][: chance.randint(1, 2)]
        assert read(direct, *spans) == expected(topics, topic, *spans)


def test_a_span_that_ends_with_what_holds_no_record(direct: Direct, brokers: str, topics: Topics, topic: str) -> None:
    topics.send_in_transaction(topic, {1: ["given up"] * 5}, commit=False)
    one = Partition(topic, 1)
    stop = ends(brokers, topic)[one]
    assert read(direct, Span(one, stop - 6, stop)) == {}
    topics.send_to(topic, 1, ["next"])
    assert list(read(direct, Span(one, stop, stop + 1)).values()) == [b"next"]


def test_what_was_deleted_meanwhile_is_not_taken_for_absent(direct: Direct, topics: Topics, topic: str) -> None:
    left = Span(Partition(topic, 0), 5, 8)
    records = expected(topics, topic, left)
    topics.delete_records(topic, {0: 5})
    with pytest.raises(Unreachable):
        read(direct, Span(Partition(topic, 0), 0, 8))
    assert read(direct, left) == records


def test_a_reading_is_given_up_at_once(direct: Direct, brokers: str, topic: str) -> None:
    stop = ends(brokers, topic)[Partition(topic, 0)]
    timer = threading.Timer(0.5, direct.cancel)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Unreachable):
        # No producer writes these records.
        read(direct, Span(Partition(topic, 0), stop, stop + 3))
    assert time.monotonic() - began < 5
    timer.join()


def test_partitions_that_are_not_ours_any_more_are_read_anew(
    direct: Direct, brokers: str, topics: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[Any] = []

    def counted(*given: Any) -> Any:
        clients.append(connect(*given))
        return clients[-1]

    monkeypatch.setattr("tallymark.kafka.fetch.connect", counted)
    one = Partition(topic, 0)
    stop = ends(brokers, topic)[one]
    read(direct, Span(one, 0, 4))
    direct.release([one, Partition(topic, 1)])
    assert len(clients) == 1
    assert read(direct, Span(one, 4, stop)) == expected(topics, topic, Span(one, 4, stop))
    assert len(clients) == 2, "a new client has no records that the old one had fetched"


def test_what_is_more_than_the_memory_takes_is_given_up(direct: Direct, brokers: str, topic: str) -> None:
    one = Partition(topic, 0)
    with pytest.raises(BatchTooLarge):
        direct.read([Span(one, 0, ends(brokers, topic)[one])], most_bytes=20)


def test_what_was_fetched_ahead_does_not_count(direct: Direct, topic: str) -> None:
    one = Partition(topic, 0)
    for start in range(0, 12, 2):
        assert len(direct.read([Span(one, start, start + 2)], most_bytes=40)) <= 2
