"""Spark's tasks count the records of a batch while they compute its rows, whatever a function does with them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tallymark import Json, Kafka
from tallymark.core.records import PartitionCounts, Reading
from tallymark.core.spans import Partition, Span
from tallymark.core.tables import TableSpec
from tests.integration.test_absurd_times import ABSURD, ANY_TIME
from tests.support.kafka import Topics
from tests.support.paths import FUNCTIONS, SCHEMA, Function, calls, comparable, reader, whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tallymark.spark.reader import Path


def both(spark: SparkSession, brokers: str, topic: str, spans: list[Span], **tables: Function) -> list[Reading]:
    """The readings of the direct path and of the tasks."""
    paths: list[Path] = ["direct", "tasks"]
    return [reader(spark, brokers, topic, path, **tables).read(spans, "b") for path in paths]


def test_spans_may_end_with_transaction_markers(
    spark: SparkSession, brokers: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallymark.spark import tasks

    topic = topics.create(3)
    for number in range(3):
        topics.send_in_transaction(topic, {0: [{"id": number}], 1: [{"id": number}, b"dead"]})
    # Partition 2 holds an aborted record and its marker.
    topics.send_in_transaction(topic, {2: [{"id": 9}]}, commit=False)
    with calls(monkeypatch, tasks, "count") as counts:
        expected, found = both(spark, brokers, topic, whole(topic, 6, 9, 2), computes=FUNCTIONS["computes"])
    assert not counts
    assert comparable(found) == comparable(expected)
    assert {partition.number: (seen.records, seen.dead) for partition, seen in found.seen.items()} == {
        0: (3, 0),
        1: (6, 3),
    }


def test_a_long_end_without_records(
    spark: SparkSession, brokers: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallymark.spark import tasks

    topic = topics.create(2)
    topics.send(topic, [{"id": n} for n in range(10)], partitions=2)
    topics.send_in_transaction(topic, {0: [{"id": n} for n in range(100)]}, commit=False)
    with calls(monkeypatch, tasks, "count") as counts:
        for tables in (["computes"], ["computes", "explodes"]):
            chosen = {name: FUNCTIONS[name] for name in tables}
            expected, found = both(spark, brokers, topic, whole(topic, 5 + 100 + 1, 5), **chosen)
            assert comparable(found) == comparable(expected)
            assert [seen.records for seen in found.seen.values()] == [5, 5]
    assert not counts


def test_spans_without_any_record(spark: SparkSession, brokers: str, topics: Topics) -> None:
    topic = topics.create(1)
    topics.send_in_transaction(topic, {0: [{"id": 1}, {"id": 2}]}, commit=False)
    expected, found = both(spark, brokers, topic, whole(topic, 3), computes=FUNCTIONS["computes"])
    assert comparable(found) == comparable(expected)
    assert found.seen == {}


@pytest.mark.parametrize("count", [1, 2], ids=["one pass", "shared cache"])
def test_several_topics(
    spark: SparkSession, brokers: str, topics: Topics, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    from tallymark.spark import tasks
    from tallymark.spark.reader import SparkReader

    names = [topics.create(2) for _ in range(3)]
    for number, name in enumerate(names):
        topics.send_to(name, 1, [{"id": n} for n in range(20 * (number + 1))])
        topics.send_to(name, 0, [b"dead", {"id": 1}])
    spans = [span for number, name in enumerate(names) for span in whole(name, 2, 20 * (number + 1))]
    source = Kafka(brokers, names, value=Json(SCHEMA))
    tables = [(TableSpec(name), FUNCTIONS[name]) for name in ("computes", "explodes")[:count]]
    paths: list[Path] = ["direct", "tasks"]
    with calls(monkeypatch, tasks, "count") as counts:
        expected, found = (SparkReader(spark, source, tables, "run", path=path).read(spans, "b") for path in paths)
    assert not counts
    assert comparable(found) == comparable(expected)
    assert {(seen.records, seen.dead) for seen in found.seen.values()} == {(2, 1), (20, 0), (40, 0), (60, 0)}


def test_the_last_timestamp_is_that_of_the_last_record(spark: SparkSession, brokers: str, topics: Topics) -> None:
    topic = topics.create(3, retention_ms="-1", **ANY_TIME)
    for number, times in enumerate([(3_000, 2_001), (5, 1), (7, ABSURD)]):
        for time in times:
            topics.send_to(topic, number, [{"id": 1}], timestamp=time)
    expected, found = both(spark, brokers, topic, whole(topic, 2, 2, 2), computes=FUNCTIONS["computes"])
    assert found.seen == expected.seen
    assert found.seen == {
        Partition(topic, 0): PartitionCounts(2, 0, datetime(1970, 1, 1, 0, 0, 2, 1_000, UTC)),
        Partition(topic, 1): PartitionCounts(2, 0, datetime(1970, 1, 1, 0, 0, 0, 1_000, UTC)),
        Partition(topic, 2): PartitionCounts(2, 0, None),
    }


def empty_first(records: DataFrame) -> DataFrame:
    return records.selectExpr("value.id", f"{records.isEmpty()} AS is_empty")


def counting_first(records: DataFrame) -> DataFrame:
    return records.selectExpr("value.id", f"{records.count()} AS n")


def taking_first(records: DataFrame) -> DataFrame:
    return records.selectExpr("value.id", f"{len(records.limit(1).collect())} AS n")


def broadcast(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    names = records.sparkSession.createDataFrame([(0, "even"), (1, "odd")], "parity BIGINT, word STRING")
    numbered = records.selectExpr("value.id", "value.id % 2 AS parity")
    return numbered.join(F.broadcast(names), "parity", "left")


def with_itself(records: DataFrame) -> DataFrame:
    totals = records.groupBy("value.name").count()
    return records.selectExpr("value.id", "value.name").join(totals, "name")


def subquery(records: DataFrame) -> DataFrame:
    records.createOrReplaceTempView("subquery_records")
    return records.sparkSession.sql(
        "SELECT value.id, (SELECT max(value.id) FROM subquery_records) AS largest FROM subquery_records"
    )


def by_python(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    doubled = F.udf(lambda number: None if number is None else number * 2, "bigint")
    return records.select(doubled("value.id").alias("doubled"), "offset").where("doubled % 4 = 0")


USES: dict[str, Function] = {
    "isEmpty": empty_first,
    "count": counting_first,
    "take": taking_first,
    "limit": lambda records: records.orderBy("partition", "offset").selectExpr("value.id").limit(7),
    "unordered limit": lambda records: records.selectExpr("1 AS one").limit(7),
    "sample": lambda records: records.selectExpr("value.id + 1").sample(1.0),
    "distinct": lambda records: records.selectExpr("value.id % 3").distinct(),
    "aggregate": FUNCTIONS["merges"],
    "aggregate of all": lambda records: records.groupBy().count(),
    "window": lambda records: records.selectExpr("sum(value.id) OVER (PARTITION BY value.name) AS total", "offset"),
    "broadcast": broadcast,
    "itself": with_itself,
    "subquery": subquery,
    "udf": by_python,
    "nothing": lambda records: records.where("false").selectExpr("value.id + 1"),
    "an impossible filter": lambda records: records.where("offset < 0").selectExpr("value.id + 1"),
    "constants": lambda records: records.selectExpr("1 AS one"),
    "a sort": lambda records: records.selectExpr("value.id + 1 AS id").orderBy("id"),
    "repartition": lambda records: records.repartition(3).selectExpr("value.id + 1"),
    "other rows": lambda records: records.sparkSession.range(3).toDF("id"),
}


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    name = topics.create(2)
    topics.send(name, [{"id": n, "name": f"n{n % 3}"} for n in range(60)], partitions=2)
    topics.send_to(name, 1, [b"dead"])
    return name


@pytest.mark.parametrize("others", [{}, {"computes": FUNCTIONS["computes"]}], ids=["alone", "with another"])
@pytest.mark.parametrize("name", USES)
@pytest.mark.faults_where(others=[{"computes": FUNCTIONS["computes"]}], name=["sample", "constants", "a sort"])
def test_whatever_a_function_does_the_records_are_counted(
    spark: SparkSession, brokers: str, topic: str, name: str, others: dict[str, Any]
) -> None:
    expected, found = both(spark, brokers, topic, whole(topic, 30, 31), uses=USES[name], **others)
    assert comparable(found) == comparable(expected)
    assert [(seen.records, seen.dead) for _, seen in sorted(found.seen.items())] == [(30, 0), (31, 1)]


@pytest.mark.parametrize("names", [("computes",), ("computes", "explodes")], ids=["one pass", "shared cache"])
def test_up_to_a_number_of_dead_records_are_fetched_and_more_are_collected_by_a_job(
    spark: SparkSession, brokers: str, topics: Topics, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    from tallymark.spark import tasks

    topic, most = topics.create(2), 5
    topics.send(topic, [b"dead" if n <= most else {"id": n} for n in range(20)], partitions=2, headers=[("h", b"1")])
    monkeypatch.setattr(tasks, "MOST_FETCHED", most)
    tables = {name: FUNCTIONS[name] for name in names}
    with calls(monkeypatch, tasks, "fetched") as fetched:
        for spans, dead, by_driver in ((whole(topic, 10, 10), most + 1, False), (whole(topic, 10, 2), most, True)):
            expected, found = both(spark, brokers, topic, spans, **tables)
            assert comparable(found) == comparable(expected)
            assert len(found.dead_letters) == sum(seen.dead for seen in found.seen.values()) == dead
            assert bool(fetched) is by_driver


def test_a_dead_record_that_kafka_deletes_meanwhile_keeps_its_letter(
    spark: SparkSession, brokers: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallymark.spark import tasks
    from tallymark.spark.counting import counted

    topic = topics.create(1)
    topics.send(topic, [b"dead", {"id": 1}, b"dead too"])

    def deleting(counts: Any) -> Any:
        topics.delete_records(topic, {0: 1})
        return counted(counts)

    monkeypatch.setattr(tasks, "counted", deleting)
    found = reader(spark, brokers, topic, "tasks", computes=FUNCTIONS["computes"]).read(whole(topic, 3), "b")
    assert found.seen[Partition(topic, 0)].dead == 2
    first, second = found.dead_letters
    assert (first.offset, first.value, first.table) == (0, None, None)
    assert first.error == f"{tasks.UNDECODED}; Kafka has deleted the record meanwhile"
    assert (second.offset, second.value) == (2, b"dead too")
    assert "not JSON" in second.error
