"""A batch gives the same reading on every path: direct, and in Spark's tasks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from tallymark import Json, Kafka
from tallymark.core.records import Reading
from tallymark.core.spans import Partition, Span, split
from tallymark.core.tables import OFFSET, PARTITION, TableSpec
from tallymark.errors import BatchTooLarge, ReadFailed
from tallymark.kafka.fetch import Direct
from tallymark.spark import tasks
from tests.support.background import wait_for
from tests.support.kafka import Topics
from tests.support.paths import (
    DEAD,
    FUNCTIONS,
    SCHEMA,
    Function,
    calls,
    comparable,
    limited_reader,
    reader,
    values,
    whole,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tallymark.spark.reader import Path

PATHS: list[Path] = ["direct", "tasks"]


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    name = topics.create(2)
    topics.send(name, values(), partitions=2, key=b"k", headers=[("h", b"1")])
    topics.send_in_transaction(name, {0: [{"id": 1000}]}, commit=False)
    return name


def everything(topic: str) -> list[Span]:
    return whole(topic, 207, 204)


@pytest.mark.faults_where(name=["renames", "explodes", "nested"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("alone", [True, False], ids=["one pass", "shared cache"])
def test_every_path_gives_the_same(spark: SparkSession, brokers: str, topic: str, name: str, alone: bool) -> None:
    tables = {name: FUNCTIONS[name]} | ({} if alone else {"plain": FUNCTIONS["picks"]})
    direct, other = (reader(spark, brokers, topic, path, **tables) for path in PATHS)
    expected, found = (each.read(everything(topic), "b") for each in (direct, other))
    assert comparable(found) == comparable(expected)
    assert sum(counts.records for counts in found.seen.values()) == len(values())
    assert len(found.dead_letters) == DEAD
    for table, rows in found.rows.items():
        columns = [column for column in rows.schema if not column.name.startswith("_tallymark")]
        assert [(c.name, c.type) for c in columns] == [(c.name, c.type) for c in other.schemas()[table]]


def test_one_aggregate_is_counted_in_the_pass_that_reads(
    spark: SparkSession, brokers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: dict[str, Function] = {"merges": FUNCTIONS["merges"]}
    expected, other = (reader(spark, brokers, topic, path, **tables) for path in PATHS)
    with calls(monkeypatch, tasks, "count") as counted_alone:
        found = other.read(everything(topic), "b")
    assert counted_alone == []
    assert comparable(found) == comparable(expected.read(everything(topic), "b"))


def test_a_batch_without_a_living_record(spark: SparkSession, brokers: str, topic: str) -> None:
    dead, tables = [Span(Partition(topic, 1), 150, 151)], {name: FUNCTIONS[name] for name in ("picks", "computes")}
    tables["counts"] = lambda records: records.groupBy().count()
    expected, found = (reader(spark, brokers, topic, each, **tables).read(dead, "b") for each in PATHS)
    assert comparable(found) == comparable(expected)
    assert [len(found.dead_letters), found.rows["counts"].num_rows] == [1, 1]


@pytest.mark.parametrize("path", PATHS)
def test_records_that_are_left_out_are_neither_counted_nor_shaped(
    spark: SparkSession, brokers: str, topic: str, path: Path
) -> None:
    gone = [(Partition(topic, 0), 2), (Partition(topic, 1), 150)]
    found = reader(spark, brokers, topic, path, picks=FUNCTIONS["picks"]).read(everything(topic), "b", gone)
    rows = found.rows["picks"]
    places = set(zip(rows[PARTITION].to_pylist(), rows[OFFSET].to_pylist(), strict=True))
    assert not places & {(0, 2), (1, 150)}
    dead = sum(counts.dead for counts in found.seen.values())
    records = sum(counts.records for counts in found.seen.values())
    # The record at offset 150 is dead.
    assert (dead, records) == (DEAD - 1, len(values()) - 2)
    assert len(places) == rows.num_rows == records - dead


def test_row_wise_functions_are_read_in_parts_and_give_the_same(
    spark: SparkSession, brokers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallymark.spark import reader as module
    from tallymark.spark.tasks import Tasks

    tables = {name: FUNCTIONS[name] for name in ("computes", "explodes")}
    expected = reader(spark, brokers, topic, "direct", **tables).read(everything(topic), "b")
    monkeypatch.setattr(module, "PART", expected.size // 3)
    with calls(monkeypatch, Tasks, "collect") as parts:
        found = reader(spark, brokers, topic, "tasks", **tables).read(everything(topic), "b")
        assert len(parts) >= 3
        assert comparable(found) == comparable(expected)
        parts.clear()
        merging = {**tables, "merges": FUNCTIONS["merges"]}
        reader(spark, brokers, topic, "tasks", **merging).read(everything(topic), "b")
        assert len(parts) == 1


def test_records_that_grow_from_part_to_part_are_not_all_read(
    spark: SparkSession, brokers: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallymark.spark import reader as module
    from tallymark.spark.tasks import Tasks

    made = topics.create(1)
    topics.send(made, [{"id": n, "name": "x" * (10 if n < 100 else 5_000)} for n in range(400)])
    monkeypatch.setattr(module, "PART", 3_300)
    growing = limited_reader(spark, brokers, made, "tasks", 50_000, {"picks": FUNCTIONS["picks"]})
    with calls(monkeypatch, Tasks, "collect") as read, pytest.raises(BatchTooLarge):
        growing.read(whole(made, 400), "b")
    sizes = [sum(map(len, spans)) for spans in read]
    # A third part may be in progress by then.
    assert sizes[:2] == [100, 100]
    assert len(sizes) <= 3


@pytest.mark.parametrize("path", PATHS)
def test_a_batch_that_exceeds_the_memory_is_refused_with_the_share_that_fits(
    spark: SparkSession, brokers: str, topics: Topics, path: Path
) -> None:
    made = topics.create(1)
    topics.send(made, [{"id": n, "name": "x" * (10 if n < 100 else 1_000)} for n in range(200)])
    grown = limited_reader(spark, brokers, made, path, 60_000, {"computes": FUNCTIONS["computes"]})
    with pytest.raises(BatchTooLarge, match=r"limits\.memory=60,000") as refused:
        grown.read(whole(made, 200), "b")
    assert 0 < refused.value.share < 1


@pytest.mark.parametrize("names", [("picks", "computes"), ("merges",)])
def test_the_next_batch_is_read_ahead_and_gives_the_same(
    spark: SparkSession, brokers: str, topic: str, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    from tallymark.spark import reader as module
    from tallymark.spark.tasks import Tasks

    # As plans have them.
    first, second = map(tuple, split(everything(topic), 2))
    tables = {name: FUNCTIONS[name] for name in names}
    plain, ahead = (reader(spark, brokers, topic, "tasks", **tables) for _ in range(2))
    expected = [comparable(plain.read(spans, "b")) for spans in (first, second)]
    monkeypatch.setattr(module, "SMALL", 0)
    with calls(monkeypatch, Tasks, "collect") as read:
        found = [comparable(ahead.read(first, "b", then=second))]
        wait_for(lambda: len(read) == 2)
        found.append(comparable(ahead.read(second, "b", then=())))
    assert found == expected
    assert sorted(map(tuple, read)) == [first, second]


def test_functions_are_called_one_at_a_time_and_may_use_views(
    spark: SparkSession, brokers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallymark.spark import reader as module

    running, together = threading.Semaphore(), threading.Event()

    def by_view(records: DataFrame) -> DataFrame:
        if not running.acquire(blocking=False):
            together.set()
        records.createOrReplaceTempView("shared")
        # Another call would begin meanwhile.
        together.wait(0.2)
        rows = records.sparkSession.sql("SELECT value.id FROM shared")
        running.release()
        return rows

    expected = reader(spark, brokers, topic, "direct", views=by_view).read(everything(topic), "b")
    monkeypatch.setattr(module, "PART", expected.size // 4)
    found = reader(spark, brokers, topic, "tasks", views=by_view).read(everything(topic), "b")
    assert comparable(found) == comparable(expected)
    assert not together.is_set()


@pytest.mark.parametrize("end", ["release", "cancel"])
def test_what_was_read_ahead_of_released_partitions_is_not_used(
    spark: SparkSession, brokers: str, topic: str, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    from tallymark.spark import reader as module
    from tallymark.spark.tasks import Tasks

    first, second = split(everything(topic), 2)
    monkeypatch.setattr(module, "SMALL", 0)
    ahead = reader(spark, brokers, topic, "tasks", picks=FUNCTIONS["picks"])
    ahead.read(first, "b", then=second)
    monkeypatch.setattr(Tasks, "collect", lambda *_: Reading({}, {}, []))
    if end == "release":
        ahead.release([Partition(topic, 0)])
        assert ahead.read(second, "b").seen == {}
    else:
        ahead.cancel()
        with pytest.raises(ReadFailed, match="the run is ending"):
            ahead.read(second, "b")


def test_records_that_have_grown_are_measured_again(
    spark: SparkSession, brokers: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallymark.spark import reader as module
    from tallymark.spark.tasks import Tasks

    made = topics.create(1)
    topics.send(made, [{"id": n} for n in range(300)])
    grown = reader(spark, brokers, made, "tasks", picks=FUNCTIONS["picks"])

    def refuse(*_: Any) -> Reading:
        raise BatchTooLarge("Total size of serialized results is bigger than spark.driver.maxResultSize")

    with monkeypatch.context() as patch:
        patch.setattr(Tasks, "collect", refuse)
        with pytest.raises(BatchTooLarge):
            grown.read(whole(made, 300), "b")
    with calls(monkeypatch, Direct, "read") as sampled:
        assert grown.read(whole(made, 150), "b").rows["picks"].num_rows == 150
    assert sampled == [whole(made, module.SAMPLE)]


def test_functions_are_judged_by_their_plans(spark: SparkSession) -> None:
    from tallymark.formats.decoders import Decoders
    from tallymark.spark.decode import RECORD, SparkDecoder
    from tallymark.spark.plans import is_row_wise, is_single_pass, picked
    from tallymark.spark.scan import RAW_RECORDS

    schema = (
        SparkDecoder(spark, Decoders.of(Json(SCHEMA)))(spark.createDataFrame([], RAW_RECORDS)).select(*RECORD).schema
    )
    records = spark.createDataFrame([], schema)

    def judged(function: Function) -> tuple[bool, bool, bool]:
        rows = function(records)
        return picked(rows, records) is not None, is_row_wise(rows, records), is_single_pass(rows, records)

    picks: list[Function] = [
        FUNCTIONS["picks"],
        FUNCTIONS["renames"],
        lambda records: spark.sql("SELECT value.id, offset FROM {r} AS x", r=records),
        lambda records: records.selectExpr("value.id", "value.name IS NULL AS nameless"),
    ]
    row_wise: list[Function] = [
        *(FUNCTIONS[name] for name in ("nested", "computes", "explodes", "fails")),
        lambda records: records.selectExpr("CAST(value.id AS STRING)"),
        lambda records: records.selectExpr("value.id", "1 AS one"),
    ]
    aggregates: list[Function] = [
        FUNCTIONS["merges"],
        lambda records: records.where("value.id > 1").groupBy("value.id").count().selectExpr("id", "`count` + 1 AS n"),
    ]
    others: list[Function] = [
        lambda records: records.groupBy("value.id").count().where("`count` > 1"),
        lambda records: records.groupBy("value.id").count().groupBy().max("count"),
        lambda records: records.join(records.groupBy("value.id").count().withColumnRenamed("id", "i"), how="cross"),
        lambda records: records.select("value.id").limit(1),
        lambda records: records.select("value.id").distinct(),
        lambda records: records.select("value.id").sample(0.5),
        lambda records: records.select("value.id").union(records.select("value.id")),
        lambda records: records.selectExpr("value.id", "row_number() OVER (ORDER BY offset) AS nth"),
        lambda _: spark.range(3).toDF("id"),
    ]
    assert [judged(function) for function in picks] == [(True, True, True)] * len(picks)
    assert [judged(function) for function in row_wise] == [(False, True, True)] * len(row_wise)
    assert [judged(function) for function in aggregates] == [(False, False, True)] * len(aggregates)
    assert [judged(function) for function in others] == [(False, False, False)] * len(others)


def test_a_function_is_judged_by_its_plan_with_records(spark: SparkSession, brokers: str, topic: str) -> None:
    """Also if it spells names in another case."""
    from tallymark.spark.decode import RECORD, SparkDecoder
    from tallymark.spark.rows import Shaper
    from tallymark.spark.scan import RAW_RECORDS
    from tallymark.spark.session import own_session

    def careful(records: DataFrame) -> DataFrame:
        if records.isEmpty():
            return records.select("value.id")
        return records.where("value.id % 3 > 0").select("value.id")

    checkpointed: Function = lambda records: records.where("value.id % 3 > 0").localCheckpoint().select("value.id")  # noqa: E731
    shouting: Function = lambda records: records.select("value.ID", "VALUE.Name")  # noqa: E731
    tables = {"careful": careful, "checkpointed": checkpointed, "shouting": shouting}
    source, own = Kafka(brokers, topic, value=Json(SCHEMA)), own_session(spark)
    schema = SparkDecoder(own, source.decoders())(own.createDataFrame([], RAW_RECORDS)).select(*RECORD).schema
    specs = [(TableSpec(name), function) for name, function in tables.items()]
    computing = Shaper(own, spark, source, specs, schema, topic).computing
    assert [spec.name for spec, _ in computing] == ["careful", "checkpointed"]
    direct, tasks = (
        reader(spark, brokers, topic, path, **tables).read(everything(topic), "b") for path in ("direct", "tasks")
    )
    assert comparable(direct) == comparable(tasks)
