"""Records with a timestamp outside of the calendar, such as microseconds for milliseconds, are processed normally."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tallymark import App, Consumer, Json, Kafka, Record, Standalone, Tally, Transaction
from tallymark.core.journal import LetterQuery
from tallymark.core.spans import Partition
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.lag import measure, rates_in
from tallymark.stores.opening import open_store
from tests.support.command import in_process
from tests.support.databases import query
from tests.support.kafka import Topics
from tests.support.pipelines import one_to_one
from tests.support.standing import stand, standing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Databases = Callable[[str], str]
ABSURD = 1_700_000_000_000_000
ORDERS = Json("id BIGINT, name STRING")
ANY_TIME = {"message_timestamp_after_max_ms": str(2**63 - 1)}


@pytest.fixture
def topic(topics: Topics) -> str:
    """A good record and a bad one, both with an absurd timestamp, at the end of the partition."""
    made = topics.create(1, **ANY_TIME)
    topics.send(made, [{"id": 1, "name": "a"}], partitions=1)
    topics.send(made, [{"id": 2, "name": "b"}, "no JSON"], partitions=1, timestamp=ABSURD)
    return made


def test_a_service_applies_them(brokers: str, topic: str, group: str, database: Databases) -> None:
    url = database("sqlite")
    consumer = Consumer(group=group, source=Kafka(brokers, topic, ORDERS), store=url, membership=Standalone())
    times: list[Any] = []
    for batch in consumer.batches(until="caught-up"):
        with batch.transaction() as db:
            times += [record.timestamp for record in batch.records]
            db.write("orders", batch.records.values_to_arrow())
    assert [time is None for time in times] == [False, True]
    check(url, group)


def test_a_pipeline_applies_them(
    brokers: str, topic: str, group: str, database: Databases, spark: SparkSession
) -> None:
    url = database("sqlite")
    assert one_to_one(brokers, topic, group, url).run("caught-up").applied == 2
    check(url, group)


def check(url: str, group: str) -> None:
    """Two rows, and a letter without a timestamp."""
    assert query(url, "SELECT id FROM orders ORDER BY id") == [(1,), (2,)]
    position = standing(url, group)[0]
    assert (position.next_offset, position.balanced) == (3, True)
    assert query(url, "SELECT record_time FROM tallymark_dead_letters") == [(None,)]


def test_lag_is_known_but_for_its_seconds(
    brokers: str, topics: Topics, topic: str, group: str, database: Databases
) -> None:
    url = database("sqlite")
    stand(brokers, url, group, topic, {0: 1})
    asked, partition = Brokers(brokers), Partition(topic, 0)
    (lag,) = measure(asked, [standing(url, group)[0]]).values()
    assert (lag.records, lag.seconds, lag.unread, lag.expires) == (2, None, None, None)
    assert lag.log is not None
    topics.send_to(topic, 0, ["x"] * 50)
    (found,) = json.loads(in_process("status", "--store", url, "--brokers", brokers, "--json").stdout)["groups"]
    assert (found["lag"], found["lag_seconds"], found["partitions"][0]["rate_in"]) == (
        52,
        None,
        pytest.approx(53 / 300),
    )
    assert asked.records({partition: [1]})[partition, 1].time is None
    ahead = topics.create(1, **ANY_TIME)
    topics.send_to(ahead, 0, ["future"], timestamp=ABSURD)
    topics.send_to(ahead, 0, ["x"] * 50)
    assert rates_in(asked, asked.logs(asked.find([ahead]))) == {}, "all that came after it would count for ever"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sqlite", "a time beyond the years 1 to 9999"),
        ("mariadb", "date value out of range"),
        ("redis", "column at: a time beyond the years 1 to 9999"),
    ],
)
def test_a_row_with_such_a_time_is_dead_where_the_store_has_no_room_for_it(
    kind: str, words: str, brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    topic, url = topics.create(1), database(kind)
    topics.send(topic, [{"id": 1}, {"id": ABSURD * 1000}], partitions=1)
    app = App(brokers=brokers, store=url)

    @app.listen(topic, group=group, value=ORDERS)
    def receive(record: Record, db: Transaction) -> None:
        at = pa.array([record.value["id"]], pa.timestamp("us", "UTC"))
        db.write("times", pa.table({"id": [record.value["id"]], "at": at}), key="id", write="upsert")

    assert app.run("caught-up") == Tally(applied=1, dead=1)
    (letter,) = open_store(url).journal().letters(LetterQuery())
    assert words in letter.record.error
