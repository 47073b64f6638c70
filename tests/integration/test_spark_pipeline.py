"""Pipelines on Spark, from real Kafka into real databases: every record once, and every offset accounted for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tallymark import Json, Kafka, Limits, Pipeline, Standalone, Tally
from tallymark.core.progress import Progress, Step
from tallymark.errors import Fenced
from tests.support import databases
from tests.support.background import repeating, wait_for
from tests.support.kafka import Topics
from tests.support.pipelines import (
    UNBALANCED,
    RunningPipeline,
    coordinates,
    copied,
    next_offsets,
    one_to_one,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.usefixtures("spark")


def orders(count: int, first: int = 0) -> list[dict[str, object]]:
    return [{"id": n, "name": f"n{n}"} for n in range(first, first + count)]


@pytest.mark.faults_where(store_url=["mariadb", "sqlite"])
def test_every_committed_record_is_applied_once_or_is_dead(
    brokers: str, topics: Topics, group: str, store_url: str
) -> None:
    topic = topics.create(4)
    topics.send(topic, orders(60), partitions=4)
    topics.send_in_transaction(topic, {0: orders(5, 100), 1: orders(5, 200)})
    topics.send_in_transaction(topic, {1: orders(7, 300), 2: orders(7, 400)}, commit=False)
    topics.send(topic, [b"broken", None, b'{"id":"x"}', b'{"id":1}'], partitions=4)
    pipeline = one_to_one(brokers, topic, group, store_url, limits=Limits(records=25))

    tally = pipeline.run("caught-up")

    committed = topics.committed(topic)
    dead = {place for place, value in committed.items() if value in (b"broken", b'{"id":"x"}')}
    assert coordinates(store_url) == sorted(committed.keys() - dead)
    assert tally == Tally(applied=72, dead=2, absent=14 + 4)
    assert databases.query(store_url, UNBALANCED) == []
    assert databases.query(store_url, "SELECT count(*) > 2, sum(applied) FROM tallymark_batches") == [(1, 72)]
    assert pipeline.run("caught-up") == Tally()
    assert len(coordinates(store_url)) == 72


def test_a_dead_letter_keeps_all_of_the_record_and_the_reason(
    brokers: str, topics: Topics, group: str, store_url: str
) -> None:
    topic = topics.create(2, retention_ms="-1")
    time = datetime(2026, 1, 31, 12, tzinfo=UTC)
    options: dict[str, Any] = {"timestamp": int(time.timestamp() * 1000), "headers": [("a", b"\x01"), ("a", None)]}
    topics.send_to(topic, 1, orders(1))
    topics.send_to(topic, 1, [b"\xff\x00"], key=b"k\x00", **options)
    one_to_one(brokers, topic, group, store_url).run("caught-up")

    columns = "group_name, topic, partition_id, record_offset, record_key, record_value, headers, error, state"
    (letter,) = databases.query(store_url, f"SELECT {columns} FROM tallymark_dead_letters")
    assert letter[:4] == (group, topic, 1, 1)
    assert [bytes(value) for value in letter[4:6] if isinstance(value, bytes)] == [b"k\x00", b"\xff\x00"]
    assert json.loads(str(letter[6])) == [["a", "01"], ["a", None]]
    assert letter[7:] == ("not UTF-8: invalid start byte at byte 0", "dead")
    ((seen,),) = databases.query(store_url, "SELECT record_time FROM tallymark_dead_letters")
    assert str(seen).startswith("2026-01-31 12:00:00")


@pytest.mark.faults_where(store_url="mariadb")
def test_an_upsert_keeps_the_newest_within_a_batch_across_batches_and_partitions(
    brokers: str, topics: Topics, group: str, store_url: str
) -> None:
    topic = topics.create(2, retention_ms="-1")
    pipeline = Pipeline(
        group=group, source=Kafka(brokers, topic, value=Json("id BIGINT, name STRING")), store=store_url
    )
    pipeline.table("orders", key="id", write="upsert")(lambda records: records.select("value.*"))

    def send(partition: int, number: int, name: str, timestamp: int) -> None:
        topics.send_to(topic, partition, [{"id": number, "name": name}], timestamp=timestamp)

    send(0, 1, "older offset", 9_000)
    send(0, 1, "newer offset, earlier clock", 5_000)
    send(1, 2, "later clock", 8_000)
    for filler in range(3):
        send(0, 3, f"filler {filler}", 1_000)
    send(0, 2, "higher offset, earlier clock", 7_000)
    assert pipeline.run("caught-up").applied == 7
    send(1, 3, "next batch", 500)
    assert pipeline.run("caught-up").applied == 1

    assert databases.query(store_url, "SELECT id, name FROM orders ORDER BY id") == [
        (1, "newer offset, earlier clock"),
        (2, "later clock"),
        (3, "next batch"),
    ]


def test_columns_are_created_from_the_schema_and_hold_what_was_sent(
    brokers: str, topics: Topics, group: str, store_url: str
) -> None:
    topic = topics.create(1)
    schema = (
        "id BIGINT, small INT, name STRING, amount DOUBLE, price DECIMAL(10, 2), ok BOOLEAN, day DATE, at TIMESTAMP, "
        "who STRUCT<x: INT, y: ARRAY<STRING>>"
    )
    value = {
        "id": 2**62,
        "small": -7,
        "name": "quoted \"'\\, \n naïve \U0001f600",
        "amount": 0.1,
        "price": 12345678.91,
        "ok": True,
        "day": "2026-02-28",
        "at": "2026-01-31T12:00:00.123456Z",
        "who": {"x": 1, "y": ["a", None]},
    }
    topics.send_to(topic, 0, [value, {"id": 1, "name": ""}, {"id": 2}])
    pipeline = Pipeline(group=group, source=Kafka(brokers, topic, value=Json(schema)), store=store_url)
    pipeline.table("typed", key="id", write="upsert")(lambda r: r.select("value.*", "key", "headers"))
    pipeline.run("caught-up")

    full, empty, nothing = (
        databases.query(
            store_url,
            "SELECT small, name, amount, price, ok, day, at, who, id FROM typed ORDER BY id DESC",
        )[0],
        *databases.query(store_url, "SELECT name, small, who, at FROM typed WHERE id < 3 ORDER BY id"),
    )
    assert full[:3] == (-7, value["name"], 0.1)
    assert Decimal(str(full[3])) == Decimal("12345678.91")
    assert full[4] in (True, 1)
    assert full[5] in (date(2026, 2, 28), "2026-02-28")
    assert str(full[6]).startswith("2026-01-31 12:00:00.123456")
    assert (json.loads(full[7]) if isinstance(full[7], str) else full[7]) == {"x": 1, "y": ["a", None]}
    assert full[8] == 2**62
    assert empty == ("", None, None, None)
    assert nothing == (None, None, None, None)


@pytest.mark.faults_where(store_url="mariadb")
def test_all_tables_of_a_batch_and_its_positions_appear_at_one_moment(
    brokers: str, topics: Topics, group: str, store_url: str
) -> None:
    topic = topics.create(2)
    topics.send(topic, orders(10), partitions=2)
    pipeline = one_to_one(brokers, topic, group, store_url)
    pipeline.table("names", key="name", write="upsert")(lambda records: records.select("value.name"))
    pipeline.table("empty")(lambda records: records.select("value.id").where("false"))
    looks: dict[Step, tuple[object, ...]] = {}

    def look(step: Step, _: Progress) -> None:
        counts = ", ".join(f"(SELECT count(*) FROM {name})" for name in ("orders", "names", "tallymark_batches"))
        moved = "(SELECT sum(next_offset) FROM tallymark_positions)"
        looks[step] = databases.query(store_url, f"SELECT {counts}, {moved}")[0]

    pipeline.run("caught-up", on_step=look)

    assert {step: looks[step] for step in (Step.STAGED, Step.WRITTEN, Step.MOVED)} == dict.fromkeys(
        (Step.STAGED, Step.WRITTEN, Step.MOVED), (0, 0, 0, 0)
    )
    assert looks[Step.COMMITTED] == (10, 10, 1, 10)
    assert databases.query(store_url, "SELECT count(*) FROM empty") == [(0,)]
    ((rows,),) = databases.query(store_url, "SELECT table_rows FROM tallymark_batches")
    assert json.loads(str(rows)) == {"orders": 10, "names": 10, "empty": 0}


def test_a_batch_without_records_still_moves_on(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    url, topic = database("sqlite"), topics.create(2)
    topics.send_in_transaction(topic, {0: orders(30), 1: orders(5)}, commit=False)
    tally = one_to_one(brokers, topic, group, url, limits=Limits(records=10)).run("caught-up")
    assert tally == Tally(absent=37)
    assert next_offsets(url) == {0: 31, 1: 6}
    assert coordinates(url) == []
    assert databases.query(url, UNBALANCED) == []


def test_an_open_transaction_is_waited_for_and_never_passed_over(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    from confluent_kafka import Producer

    url, topic = database("sqlite"), topics.create(1)
    topics.send_to(topic, 0, orders(3))
    producer = Producer({"bootstrap.servers": brokers, "transactional.id": group})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b'{"id":3}', partition=0)
    producer.flush(30)
    topics.send_to(topic, 0, orders(2, 4))
    pipeline = one_to_one(brokers, topic, group, url)
    assert pipeline.run("caught-up") == Tally(applied=3)
    producer.commit_transaction(30)
    wait_for(lambda: pipeline.run("caught-up").applied > 0 or next_offsets(url) == {0: 7})
    assert coordinates(url) == [(0, n) for n in range(6)]
    assert databases.query(url, UNBALANCED) == []


@pytest.mark.faults
def test_whoever_looks_at_any_time_finds_rows_and_positions_in_agreement(
    brokers: str, topics: Topics, group: str, store_url: str
) -> None:
    topic = topics.create(3)
    topics.send(topic, orders(120), partitions=3)
    pipeline = one_to_one(brokers, topic, group, store_url, limits=Limits(records=12))
    pipeline.table("broken")(lambda records: records.select("value.id").where("false"))
    seen: list[tuple[object, ...]] = []
    agreement = (
        "SELECT (SELECT count(*) FROM orders), (SELECT sum(applied) FROM tallymark_positions), "
        "(SELECT count(*) FROM tallymark_positions "
        "WHERE applied + dead + skipped + lost + absent <> next_offset - first_offset)"
    )

    watcher = repeating(lambda: seen.append(databases.query(store_url, agreement)[0]))

    def start_watching(step: Step, _: Progress) -> None:
        if step is Step.PLANNED and not watcher.alive and not seen:
            watcher.start()

    try:
        assert pipeline.run("caught-up", on_step=start_watching) == Tally(applied=120)
    finally:
        watcher.stop()
    assert len({rows for rows, _, _ in seen}) > 3, "the watcher saw too little to say anything"
    assert [look for look in seen if look[0] != look[1] or look[2]] == []


def test_the_next_batch_is_read_while_this_one_commits(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    topic = topics.create(1)
    topics.send_to(topic, 0, orders(30))
    staged: dict[str, threading.Event] = {}
    overlapped = []

    def on_step(step: Step, progress: Progress) -> None:
        number = int(progress.batch.rsplit("-", 1)[1])
        if step is Step.STAGED:
            staged.setdefault(str(number), threading.Event()).set()
        if step is Step.WRITTEN and number < 3:
            overlapped.append(staged.setdefault(str(number + 1), threading.Event()).wait(30))

    pipeline = one_to_one(brokers, topic, group, database("sqlite"), limits=Limits(records=10))
    pipeline.run("caught-up", on_step=on_step)
    assert overlapped == [True, True]


def test_the_tally_counts_records_whatever_a_function_makes_of_them(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    url, topic = database("sqlite"), topics.create(2)
    topics.send(topic, orders(10), partitions=2)
    pipeline = Pipeline(group=group, source=Kafka(brokers, topic, value=Json("id BIGINT")), store=url)
    pipeline.table("filtered")(lambda r: r.select("value.id").where("id < 3"))
    pipeline.table("exploded")(lambda r: r.selectExpr("value.id", "explode(array(1, 2, 3)) AS item"))
    pipeline.table("counted", key="even", write="upsert", per_batch=True)(
        lambda r: r.groupBy((r["value.id"] % 2 == 0).alias("even")).count()
    )
    assert pipeline.run("caught-up") == Tally(applied=10)
    sizes = databases.query(
        url, "SELECT (SELECT count(*) FROM filtered), (SELECT count(*) FROM exploded), (SELECT sum(count) FROM counted)"
    )
    assert sizes == [(3, 30, 10)]


def test_an_empty_topic_is_caught_up_at_once_and_read_on_later(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    url, topic = database("sqlite"), topics.create(2)
    pipeline = one_to_one(brokers, topic, group, url)
    assert pipeline.run("caught-up") == Tally()
    assert next_offsets(url) == {0: 0, 1: 0}
    topics.send(topic, orders(4), partitions=2)
    assert pipeline.run("caught-up") == Tally(applied=4)


def test_several_topics_are_read_as_one(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    url, one, two = database("sqlite"), topics.create(1), topics.create(2)
    topics.send(one, orders(3), partitions=1)
    topics.send(two, orders(4), partitions=2)
    pipeline = Pipeline(group=group, source=Kafka(brokers, [one, two]), store=url)
    pipeline.table("rows")(lambda records: records.select("topic", "value"))
    assert pipeline.run("caught-up") == Tally(applied=7)
    assert databases.query(url, "SELECT topic, count(*) FROM rows GROUP BY 1 ORDER BY 2") == [(one, 3), (two, 4)]


def test_caught_up_ends_although_somebody_keeps_writing(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    url, topic = database("sqlite"), topics.create(1)
    topics.send_to(topic, 0, orders(20))

    def write_more(step: Step, _: Progress) -> None:
        if step is Step.READ:
            topics.send_to(topic, 0, orders(10, 100))

    tally = one_to_one(brokers, topic, group, url, limits=Limits(records=5)).run("caught-up", on_step=write_more)
    assert 20 <= tally.applied <= 30
    assert len(topics.committed(topic)) > tally.applied
    assert coordinates(url) == [(0, n) for n in range(tally.applied)]


def test_a_second_standalone_driver_takes_over_and_the_first_is_told_by_whom(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    url, topic = database("sqlite"), topics.create(2)
    topics.send(topic, orders(10), partitions=2)
    first_done, may_go_on = threading.Event(), threading.Event()

    def hold(step: Step, progress: Progress) -> None:
        if step is Step.DONE:
            first_done.set()
        if step is Step.STAGED and first_done.is_set():
            assert may_go_on.wait(60)

    with RunningPipeline(one_to_one(brokers, topic, group, url, membership=Standalone()), on_step=hold) as first:
        assert first_done.wait(60)
        topics.send(topic, orders(10, 10), partitions=2)
        with RunningPipeline(one_to_one(brokers, topic, group, url, membership=Standalone())) as second:
            wait_for(lambda: len(coordinates(url)) == 20)
            may_go_on.set()
            with pytest.raises(Fenced, match=rf"was claimed by run {second.run} on \S+ since \d{{4}}-.*epoch 2"):
                first.result()
            topics.send(topic, orders(10, 20), partitions=2)
            wait_for(lambda: len(coordinates(url)) == 30)
            assert second.stop() == Tally(applied=20)
    assert coordinates(url) == sorted(topics.committed(topic))
    assert databases.query(url, UNBALANCED) == []


def test_a_stopped_run_leaves_its_claims_and_a_new_one_goes_on(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    url, topic = database("sqlite"), topics.create(2)
    topics.send(topic, orders(10), partitions=2)
    with RunningPipeline(one_to_one(brokers, topic, group, url)) as running:
        wait_for(lambda: "orders" in str(databases.query(url, "SELECT name FROM sqlite_master")))
        wait_for(lambda: len(coordinates(url)) == 10)
        owners = "SELECT DISTINCT owner FROM tallymark_positions"
        assert databases.query(url, owners) == [(running.run,)]
        assert running.stop() == Tally(applied=10)
    assert databases.query(url, owners) == [(None,)]
    topics.send(topic, orders(6, 10), partitions=2)
    assert one_to_one(brokers, topic, group, url).run("caught-up") == Tally(applied=6)
    assert coordinates(url) == sorted(topics.committed(topic))


def test_a_python_function_of_the_user_runs_on_the_workers(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    url, topic = database("sqlite"), topics.create(2)
    topics.send(topic, orders(6), partitions=2)
    pipeline = one_to_one(brokers, topic, group, url)
    shout = F.udf(lambda name: name.upper(), "STRING")

    @pipeline.table("loud")
    def loud(records: DataFrame) -> DataFrame:
        return copied(records).withColumn("name", shout("name"))

    assert pipeline.run("caught-up") == Tally(applied=6)
    assert databases.query(url, "SELECT min(name), max(name) FROM loud") == [("N0", "N5")]
