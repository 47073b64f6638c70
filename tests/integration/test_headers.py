"""Headers whose names are not UTF-8: the record is processed like any other, and every path gives the same headers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tallymark import Bytes, Consumer, Json, Kafka, Standalone
from tallymark.core import raw
from tallymark.core.journal import LetterQuery
from tallymark.core.spans import Partition, Span
from tallymark.core.times import headers
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.fetch import Direct
from tallymark.stores.opening import open_store
from tests.support.command import in_process
from tests.support.kafka import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIVEN = [(b"plain", b"1"), (b"caf\xe9", b"2"), (b"\xf0\x9f\x98\x80", b"\xff")]
FOUND = [("plain", b"1"), ("caf\ufffd", b"2"), ("\U0001f600", b"\xff")]
GOOD, BAD = b'{"id": 1}', b"no JSON"


@pytest.fixture
def topic(topics: Topics) -> str:
    made = topics.create(1)
    for value in (GOOD, BAD):
        topics.send_with_headers(made, value, GIVEN)
    topics.send(made, [{"id": 2}], partitions=1)
    return made


@pytest.fixture
def direct(brokers: str, topic: str) -> Iterator[Direct]:
    with closing(Direct(Kafka(brokers, topic), Brokers(brokers))) as made:
        yield made


def test_a_service_gets_them_and_its_dead_letters_keep_them(
    brokers: str, topic: str, group: str, store_url: str
) -> None:
    source = Kafka(brokers, topic, Json("id BIGINT"))
    consumer = Consumer(group=group, source=source, store=store_url, membership=Standalone())
    found = []
    for batch in consumer.batches(until="caught-up"):
        with batch.transaction():
            found += [(record.value["id"], list(record.headers)) for record in batch.records]
            # A second read gives the same headers.
            assert len(batch.records.to_arrow()["headers"][0]) == len(FOUND)
    assert found == [(1, FOUND), (2, [])]
    (letter,) = open_store(store_url).journal().letters(LetterQuery(group))
    assert [(name, value) for name, value in letter.record.headers] == FOUND


def test_single_records_and_the_command_line_show_them(brokers: str, topic: str) -> None:
    partition = Partition(topic, 0)
    assert list(Brokers(brokers).records({partition: [1]})[partition, 1].headers) == FOUND
    shown = in_process("consume", topic, "--brokers", brokers, "--json").stdout.splitlines()
    assert "caf\ufffd" in json.dumps(json.loads(shown[0])["headers"], ensure_ascii=False)
    assert len(shown) == 3


def test_several_such_names_leave_the_values_in_their_order(brokers: str, topics: Topics) -> None:
    topic = topics.create(1)
    topics.send_with_headers(topic, GOOD, [(b"\xff", b"1"), (b"a", b"2"), (b"b\xff", b"3")])
    with closing(Direct(Kafka(brokers, topic), Brokers(brokers))) as direct:
        (message,) = direct.read([Span(Partition(topic, 0), 0, 1)])
        for _ in range(2):
            assert headers(message) == [("\ufffd", b"1"), ("a", b"2"), ("\ufffd", b"3")]


def test_spark_and_the_driver_read_the_same(
    spark: SparkSession, brokers: str, topic: str, direct: Direct, group: str
) -> None:
    from tallymark.spark.scan import Scan

    spans = [Span(Partition(topic, 0), 0, 3)]
    by_spark = Scan(spark, Kafka(brokers, topic, Bytes()), group).frame(spans).toArrow()
    assert raw.of_messages(direct.read(spans))["headers"].to_pylist() == by_spark["headers"].to_pylist()
    assert [header["key"] for header in by_spark["headers"][0].as_py()] == [name for name, _ in FOUND]
