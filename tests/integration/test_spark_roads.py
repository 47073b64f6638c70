"""A batch gives the same result on every path: by Spark alone, through the driver, or read by the driver itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from sqlalchemy import bindparam, inspect, text

from tallymark import Json, Kafka
from tallymark.core import raw
from tallymark.core.records import Reading
from tallymark.core.spans import Partition, Span, split
from tallymark.core.tables import OFFSET, PARTITION, Staged, TableSpec, finish, visible
from tallymark.errors import BatchTooLarge, ReadFailed, TallymarkError
from tallymark.stores.opening import open_sql
from tallymark.stores.sql.store import SqlStore
from tests.support.background import wait_for
from tests.support.kafka import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tallymark.spark.reader import SparkReader

Function = Callable[["DataFrame"], "DataFrame"]
SCHEMA = "id BIGINT, name STRING, amount DOUBLE, at TIMESTAMP, place STRUCT<city: STRING, zip: INT>"
FUNCTIONS: dict[str, Function] = {
    "picks": lambda records: records.select("value.*").drop("place"),
    "nested": lambda records: records.select("value.id", "value.place", "headers", "key"),
    "renames": lambda records: records.select("value.place.city", "offset").withColumnRenamed("offset", "o"),
    "computes": lambda records: records.where("value.id % 3 > 0").selectExpr("value.id + 1 AS id", "upper(value.name)"),
    "explodes": lambda records: records.selectExpr("value.id", "explode(array(1, 2)) AS n"),
    "merges": lambda records: records.groupBy("value.name").count(),
    "fails": lambda records: records.selectExpr("value.id", "1 / (value.id - 7) AS x"),
}
ROADS = {"spark": (None, 0), "driver": (1.0, 0), "direct": (1.0, 10_000)}


def values() -> list[Any]:
    good = [
        {"id": n, "name": f"n{n % 5}", "amount": n / 7, "at": f"2026-01-31T12:00:{n % 60:02}Z", "place": {"city": "é"}}
        for n in range(400)
    ]
    odd = [
        None,
        b"broken",
        b'{"id":"x"}',
        b"[]",
        b"{}",
        b'  {"id":\n401}\n',
        # Spark by itself would read it.
        json.dumps({"id": 402, "at": "2026-01-31 12:00:00 Europe/Berlin"}),
        b'{"id":403,"place":{"zip":1}}',
        b'{"id":404,"name":"\xff"}',
    ]
    return [*good[:300], *odd, *good[300:]]


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    name = topics.create(2)
    topics.send(name, values(), partitions=2, key=b"k", headers=[("h", b"1")])
    topics.send_in_transaction(name, {0: [{"id": 1000}]}, commit=False)
    return name


def reader(spark: SparkSession, brokers: str, topic: str, road: str, **tables: Function) -> SparkReader:
    from tallymark.spark import reader as module

    average, small = ROADS[road]
    specs = [(TableSpec(name), function) for name, function in tables.items()]
    made = module.SparkReader(spark, Kafka(brokers, topic, value=Json(SCHEMA)), specs, f"run-{road}", memory=1 << 30)
    made._memory.average, made._small = average, small
    return made


def everything(topic: str) -> list[Span]:
    return [Span(Partition(topic, 0), 0, 207), Span(Partition(topic, 1), 0, 204)]


def plainly(rows: pa.Table) -> list[Any]:
    return sorted(map(repr, rows.select(sorted(rows.column_names)).to_pylist()))


def in_words(reading: Reading) -> dict[str, Any]:
    return {
        "seen": reading.seen,
        "rows": {name: plainly(rows) for name, rows in reading.rows.items()},
        "letters": sorted(reading.dead_letters, key=lambda one: (one.partition, one.offset)),
        "refusals": sorted((one.record, one.table) for one in reading.refusals),
        "size": reading.size,
    }


@pytest.mark.faults_where(name=["renames", "explodes", "nested"])
@pytest.mark.faults_where(road="direct", name=["fails", "merges"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("road", ["driver", "direct"])
def test_every_road_gives_the_same(spark: SparkSession, brokers: str, topic: str, name: str, road: str) -> None:
    tables = {name: FUNCTIONS[name], "plain": FUNCTIONS["picks"]}
    by_spark, other = (reader(spark, brokers, topic, one, **tables) for one in ("spark", road))
    expected, found = (one.read(everything(topic), "b") for one in (by_spark, other))
    assert in_words(found) == in_words(expected)
    assert sum(seen.records for seen in found.seen.values()) == len(values())
    assert len(found.dead_letters) == 5
    for table, rows in found.rows.items():
        columns = [column for column in rows.schema if not column.name.startswith("_tallymark")]
        assert [(c.name, c.type) for c in columns] == [(c.name, c.type) for c in other.schemas()[table]]


@pytest.mark.parametrize("road", ["driver", "direct"])
def test_a_batch_without_a_living_record(spark: SparkSession, brokers: str, topic: str, road: str) -> None:
    dead, tables = [Span(Partition(topic, 1), 150, 151)], {name: FUNCTIONS[name] for name in ("picks", "computes")}
    tables["counts"] = lambda records: records.groupBy().count()
    expected, found = (reader(spark, brokers, topic, one, **tables).read(dead, "b") for one in ("spark", road))
    assert in_words(found) == in_words(expected)
    assert [len(found.dead_letters), found.rows["counts"].num_rows] == [1, 1]


@pytest.mark.parametrize("road", ["driver", "direct"])
def test_records_that_are_not_wanted_are_as_if_they_were_not_there(
    spark: SparkSession, brokers: str, topic: str, road: str
) -> None:
    gone = [(Partition(topic, 0), 2), (Partition(topic, 1), 150)]
    found = reader(spark, brokers, topic, road, picks=FUNCTIONS["picks"]).read(everything(topic), "b", gone)
    rows = found.rows["picks"]
    places = set(zip(rows[PARTITION].to_pylist(), rows[OFFSET].to_pylist(), strict=True))
    assert not places & {(0, 2), (1, 150)}
    dead = sum(one.dead for one in found.seen.values())
    assert (
        len(places)
        == rows.num_rows
        == sum(one.records for one in found.seen.values()) - dead
        == len(values()) - 2 - dead
    )


@contextmanager
def staging(spark: SparkSession, brokers: str, topic: str, url: str) -> Iterator[tuple[SparkReader, SqlStore]]:
    """A reader whose executors stage everything they read."""
    from tallymark.spark.reader import SparkReader

    specs = [
        (TableSpec("picks"), FUNCTIONS["picks"]),
        (TableSpec("renames", provenance=True), FUNCTIONS["renames"]),
    ]
    with closing(open_sql(url)) as store:
        source, stages = Kafka(brokers, topic, value=Json(SCHEMA)), store.stages("group", "4711-abc")
        yield SparkReader(spark, source, specs, "run-staging", 0, stages), store


def all_rows(store: SqlStore, reading: Reading, batch: str, name: str) -> list[Any]:
    """The staged and the collected rows, as the table will have them."""
    staged, here = reading.staged[name], reading.rows[name]
    with store.look() as connection:
        found = connection.execute(
            text(
                f"SELECT {', '.join(staged.columns)} FROM {staged.name} WHERE tallymark_attempt IN :attempts"
            ).bindparams(bindparam("attempts", staged.attempts, expanding=True))
        )
        rows = [tuple(_utc(one) for one in row) for row in found]
    assert len(rows) == staged.rows
    changes = finish(TableSpec(name, provenance=name == "renames"), here, batch)
    rest = [tuple(row[column] for column in staged.columns) for row in visible(changes.puts).to_pylist()]
    return sorted(map(repr, [*rows, *([tuple(map(_utc, one)) for one in rest])]))


def tables_of(store: SqlStore) -> list[str]:
    with store.look() as connection:
        return sorted(inspect(connection).get_table_names())


def _utc(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_tasks_stage_in_one_pass_what_the_driver_would_read(
    spark: SparkSession, brokers: str, topic: str, kind: str, database: Callable[[str], str]
) -> None:
    gone = [(Partition(topic, 0), 2)]
    with staging(spark, brokers, topic, database(kind)) as (tasks, store):
        tables = {name: FUNCTIONS[name] for name in ("picks", "renames")}
        expected = reader(spark, brokers, topic, "driver", **tables).read(everything(topic), "b", gone)
        found = tasks.read(everything(topic), "b", gone)

        assert (found.seen, found.size) == (expected.seen, expected.size)
        assert in_words(found)["letters"] == in_words(expected)["letters"]
        for name in tables:
            here = replace(expected, staged={name: Staged(found.staged[name].name, found.staged[name].columns, (), 0)})
            assert all_rows(store, found, "b", name) == all_rows(store, here, "b", name)
        # Only the value that Spark alone can decode did not take that path.
        assert [found.rows["picks"].num_rows, found.staged["picks"].rows] == [0, len(values()) - 1 - 5]
        tasks.discard(found)
        assert tables_of(store) == []


def test_what_is_nothing_for_arrow_is_left_to_spark_and_nothing_stays_staged(
    spark: SparkSession, brokers: str, topics: Topics, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = topics.create(1)
    topics.send(made, [b"broken"] * 1_100 + [{"id": n} for n in range(50)])
    with staging(spark, brokers, made, database("postgresql")) as (tasks, store):
        found = tasks.read([Span(Partition(made, 0), 0, 1_150)], "b")
        assert found.seen[Partition(made, 0)] == replace(found.seen[Partition(made, 0)], records=1_150, dead=1_100)
        assert (len(found.dead_letters), found.staged["picks"].rows) == (1_100, 50)
        assert tables_of(store) == sorted(one.name for one in found.staged.values())
        # Spark reads the next batch from the start.
        monkeypatch.setattr(tasks, "_in_one_pass", lambda *_: pytest.fail("it was tried again"))
        assert tasks.read([Span(Partition(made, 0), 1_000, 1_150)], "c").staged["picks"].rows == 50


def test_a_batch_that_is_cancelled_is_not_read_by_another_road(
    spark: SparkSession, brokers: str, topic: str, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import PySparkException

    with staging(spark, brokers, topic, database("postgresql")) as (tasks, store):

        def cancelled(_: Any) -> DataFrame:
            tasks.cancel()
            raise PySparkException("Job 7 cancelled part of cancelled job group run-staging")

        monkeypatch.setattr(tasks._scan, "columns", cancelled)
        monkeypatch.setattr(tasks, "_by_spark", lambda *_: pytest.fail("it was read again"))
        with pytest.raises(TallymarkError, match="cancelled"):
            tasks.read(everything(topic), "b")
        assert tables_of(store) == []
        with pytest.raises(ReadFailed, match="the run is ending"):
            tasks.read(everything(topic), "b")


def test_what_tasks_have_staged_goes_when_the_rest_of_a_batch_fails(
    spark: SparkSession, brokers: str, topic: str, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with staging(spark, brokers, topic, database("postgresql")) as (tasks, store):

        def fails(*_: Any) -> Reading:
            assert len(tables_of(store)) == 2
            raise ReadFailed("no letters")

        monkeypatch.setattr(tasks, "_by_arrow", fails)
        with pytest.raises(ReadFailed, match="no letters"):
            tasks.read(everything(topic), "b")
        assert tables_of(store) == []


def test_records_that_grow_from_part_to_part_are_not_all_taken(
    spark: SparkSession, brokers: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallymark.spark import reader as module

    made = topics.create(1)
    topics.send(made, [{"id": n, "name": "x" * (10 if n < 100 else 5_000)} for n in range(400)])
    one = reader(spark, brokers, made, "driver", picks=FUNCTIONS["picks"])
    one._memory.memory, one._memory.average = 50_000, 100.0
    monkeypatch.setattr(module, "PART", 10_000)
    taken: list[int] = []
    to_arrow = one._scan.to_arrow

    def counted(spans: list[Span]) -> pa.Table:
        taken.append(sum(map(len, spans)))
        return to_arrow(spans)

    monkeypatch.setattr(one._scan, "to_arrow", counted)
    with pytest.raises(BatchTooLarge):
        one.read([Span(Partition(made, 0), 0, 400)], "b")
    # The third batch may be in progress by then.
    assert taken[:2] == [100, 100]
    assert len(taken) <= 3


def test_what_comes_next_is_scanned_ahead_and_gives_the_same(
    spark: SparkSession, brokers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = split(everything(topic), 2)
    tables = {name: FUNCTIONS[name] for name in ("picks", "computes")}
    plain, ahead = (reader(spark, brokers, topic, "driver", **tables) for _ in range(2))
    expected = [in_words(plain.read(spans, "b")) for spans in (first, second)]
    taken: list[list[Span]] = []
    to_arrow = ahead._scan.to_arrow

    def counted(spans: list[Span]) -> pa.Table:
        taken.append(spans)
        return to_arrow(spans)

    monkeypatch.setattr(ahead._scan, "to_arrow", counted)
    found = [in_words(ahead.read(first, "b", then=second))]
    wait_for(lambda: taken == [first, second])
    found.append(in_words(ahead.read(second, "b", then=())))
    assert found == expected
    assert taken == [first, second]


def test_what_functions_compute_on_has_to_fit_java_s_heap_too(spark: SparkSession, brokers: str, topic: str) -> None:
    picking, computing = (
        reader(spark, brokers, topic, "driver", **{name: FUNCTIONS[name]}) for name in ("picks", "computes")
    )
    assert picking._memory.heap is None
    assert (computing._memory.heap or 0) > 100 << 20
    computing._memory.heap = 16 * 1_000
    with pytest.raises(BatchTooLarge, match="exceed 1,000 bytes, the share of Java's heap of 16,000 bytes"):
        computing.read(everything(topic), "b")


@pytest.mark.parametrize(("name", "ahead"), [("picks", True), ("computes", False)])
def test_a_large_batch_is_not_scanned_ahead_where_spark_holds_another_one(
    spark: SparkSession, brokers: str, topic: str, monkeypatch: pytest.MonkeyPatch, name: str, ahead: bool
) -> None:
    from tallymark.spark import reader as module

    first, second = split(everything(topic), 2)
    made = reader(spark, brokers, topic, "driver", table=FUNCTIONS[name])
    monkeypatch.setattr(module, "PART", 150)
    assert len(made._parts(second)) == 2
    made.read(first, "b", then=second)
    assert bool(made._scanning._ahead[0]) is ahead


@pytest.mark.parametrize("end", ["release", "cancel"])
def test_what_was_scanned_ahead_of_partitions_that_are_gone_is_not_used(
    spark: SparkSession, brokers: str, topic: str, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    first, second = split(everything(topic), 2)
    ahead = reader(spark, brokers, topic, "driver", picks=FUNCTIONS["picks"])
    ahead.read(first, "b", then=second)
    monkeypatch.setattr(ahead._scan, "to_arrow", lambda _: raw.SCHEMA.empty_table())
    if end == "release":
        ahead.release([Partition(topic, 0)])
        assert ahead.read(second, "b").seen == {}
    else:
        ahead.cancel()
        with pytest.raises(ReadFailed, match="the run is ending"):
            ahead.read(second, "b")


def test_functions_that_only_pick_columns_are_known_by_their_plan(
    spark: SparkSession, brokers: str, topic: str
) -> None:
    from tallymark.spark.functions import picked

    def is_plain(function: Function) -> bool:
        records = spark.createDataFrame([], made._shaper._records)
        return picked(function(records), records) is not None

    made = reader(spark, brokers, topic, "spark", picks=FUNCTIONS["picks"])
    assert is_plain(FUNCTIONS["picks"])
    assert is_plain(FUNCTIONS["renames"])
    assert is_plain(lambda records: spark.sql("SELECT value.id, offset FROM {r} AS x", r=records))
    assert is_plain(lambda records: records.selectExpr("value.id", "value.name IS NULL AS nameless"))
    for name in ("nested", "computes", "explodes", "merges", "fails"):
        assert not is_plain(FUNCTIONS[name]), name
    assert not is_plain(lambda records: records.select("value.id").limit(1))
    assert not is_plain(lambda records: records.select("value.id").distinct())
    assert not is_plain(lambda records: records.select("value.id").union(records.select("value.id")))
    assert not is_plain(lambda records: records.selectExpr("CAST(value.id AS STRING)"))
    assert not is_plain(lambda records: records.selectExpr("value.id", "1 AS one"))
    assert not is_plain(lambda _: spark.range(3).toDF("id"))


def test_records_that_have_grown_are_read_in_smaller_batches(
    spark: SparkSession, brokers: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import PySparkException

    made, grown = topics.create(1), 0
    topics.send(made, [{"id": n} for n in range(300)])
    one = reader(spark, brokers, made, "driver", picks=FUNCTIONS["picks"])

    def refuse(_: Any) -> pa.Table:
        nonlocal grown
        grown += 1
        raise PySparkException("Total size of serialized results is bigger than spark.driver.maxResultSize")

    monkeypatch.setattr(one._scan, "to_arrow", refuse)
    with pytest.raises(BatchTooLarge):
        one.read([Span(Partition(made, 0), 0, 300)], "b")
    # A batch that is read again is measured before it is collected to the driver.
    assert one.read([Span(Partition(made, 0), 0, 150)], "b").rows["picks"].num_rows == 150
    assert grown == 1


def test_a_function_is_taken_for_plain_only_if_it_is(spark: SparkSession, brokers: str, topic: str) -> None:
    """The function is judged by its plan with records, also if it uses other names."""

    def careful(records: DataFrame) -> DataFrame:
        if records.isEmpty():
            return records.select("value.id")
        return records.where("value.id % 3 > 0").select("value.id")

    checkpointed: Function = lambda records: records.where("value.id % 3 > 0").localCheckpoint().select("value.id")  # noqa: E731
    shouting: Function = lambda records: records.select("value.ID", "VALUE.Name")  # noqa: E731
    tables = {"careful": careful, "checkpointed": checkpointed, "shouting": shouting}
    by_spark, direct = (reader(spark, brokers, topic, one, **tables) for one in ("spark", "direct"))
    assert [name for name in tables if direct._shaper._tried[name][1] is not None] == ["shouting"]
    assert in_words(direct.read(everything(topic), "b")) == in_words(by_spark.read(everything(topic), "b"))
