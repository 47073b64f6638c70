"""Executors stage the rows that the driver would have read, and leave no staging table behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import column, inspect, select, table

from tallymark import Json, Kafka, Pipeline
from tallymark.core.newest import finish
from tallymark.core.records import Reading
from tallymark.core.spans import Partition, Span
from tallymark.core.tables import Staged, TableSpec, visible
from tallymark.errors import BadInput, ReadFailed
from tallymark.stores.opening import open_sql
from tallymark.stores.sql.staging import ATTEMPT
from tallymark.stores.sql.store import SqlStore
from tests.support.kafka import Topics
from tests.support.paths import DEAD, FUNCTIONS, SCHEMA, Function, calls, comparable, values, whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tallymark.spark.reader import SparkReader

Tables = Mapping[TableSpec, Function]
PICKING: Tables = {
    TableSpec("picks"): FUNCTIONS["picks"],
    TableSpec("renames", provenance=True): FUNCTIONS["renames"],
}
COMPUTES: Tables = {TableSpec("computes", provenance=True): FUNCTIONS["computes"]}
COMPUTING: dict[str, Tables] = {
    "one table": COMPUTES,
    "two tables": {**COMPUTES, TableSpec("nested"): FUNCTIONS["nested"]},
    "no rows": {TableSpec("none"): lambda records: records.where("false").selectExpr("value.id + 1 AS id")},
    "an aggregate": {TableSpec("merges"): FUNCTIONS["merges"]},
    "upsert": {TableSpec("keyed", ("n",), "upsert"): lambda records: records.selectExpr("value.id % 7 AS n", "offset")},
}


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    name = topics.create(2)
    # NULL would be refused as a key.
    topics.send(name, [value for value in values() if value not in (None, b"{}")], partitions=2)
    return name


def everything(topic: str) -> list[Span]:
    return whole(topic, 204, 203)


@contextmanager
def staging(
    spark: SparkSession, brokers: str, topic: str, url: str, tables: Tables = PICKING
) -> Iterator[tuple[SparkReader, SqlStore]]:
    """A reader whose executors stage all batches."""
    from tallymark.spark.reader import SparkReader

    with closing(open_sql(url)) as store:
        source, stages = Kafka(brokers, topic, value=Json(SCHEMA)), store.stages("group", "4711-abc")
        yield SparkReader(spark, source, list(tables.items()), "run-staging", stages=stages, path="executors"), store


def all_rows(store: SqlStore, reading: Reading, spec: TableSpec) -> list[Any]:
    """The staged and the collected rows, as the table will have them."""
    staged = reading.staged[spec.name]
    query: Any = select(*map(column, staged.columns)).select_from(table(staged.name))
    with store.look() as connection:
        rows = [tuple(row) for row in connection.execute(query.where(column(ATTEMPT).in_(staged.attempts)))]
    assert len(rows) == staged.rows
    rest = visible(finish(spec, reading.rows[spec.name], "b").puts).to_pylist()
    rows += [tuple(row[name] for name in staged.columns) for row in rest]
    return sorted(repr(tuple(map(_plain, row))) for row in rows)


def _plain(value: Any) -> Any:
    """A value without what differs between drivers: time zones, and parsed JSON."""
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def tables_of(store: SqlStore) -> list[str]:
    with store.look() as connection:
        return sorted(inspect(connection).get_table_names())


def assert_same(store: SqlStore, found: Reading, expected: Reading, tables: Tables) -> None:
    assert (found.seen, found.size) == (expected.seen, expected.size)
    assert comparable(found)["letters"] == comparable(expected)["letters"]
    for spec in tables:
        staged = found.staged[spec.name]
        none = replace(expected, staged={spec.name: Staged(staged.name, staged.columns, (), 0)})
        assert all_rows(store, found, spec) == all_rows(store, none, spec)


def by_driver(spark: SparkSession, brokers: str, topic: str, tables: Tables, gone: Any = ()) -> Reading:
    from tallymark.spark.reader import SparkReader

    source = Kafka(brokers, topic, value=Json(SCHEMA))
    return SparkReader(spark, source, list(tables.items()), "run", path="direct").read(everything(topic), "b", gone)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_tasks_stage_picked_columns(
    spark: SparkSession, brokers: str, topic: str, kind: str, database: Callable[[str], str]
) -> None:
    gone = [(Partition(topic, 0), 2)]
    with staging(spark, brokers, topic, database(kind)) as (executors, store):
        found = executors.read(everything(topic), "b", gone)
        assert_same(store, found, by_driver(spark, brokers, topic, PICKING, gone), PICKING)
        assert (found.rows["picks"].num_rows, found.staged["picks"].rows) == (0, 407 - 1 - DEAD)
        executors.discard(found)
        assert tables_of(store) == []


@pytest.mark.parametrize("name", COMPUTING)
def test_tasks_compute_and_stage(
    spark: SparkSession, brokers: str, topic: str, name: str, database: Callable[[str], str]
) -> None:
    tables = COMPUTING[name]
    with staging(spark, brokers, topic, database("postgresql"), tables) as (executors, store):
        found = executors.read(everything(topic), "b")
        assert_same(store, found, by_driver(spark, brokers, topic, tables), tables)
        assert all(found.rows[spec.name].num_rows == 0 for spec in tables)
        executors.discard(found)
        assert tables_of(store) == []


@pytest.mark.parametrize(("name", "counts"), [("one table", 0), ("two tables", 1), ("an aggregate", 1), ("upsert", 1)])
def test_one_appended_table_is_counted_in_the_pass_that_stages_it(
    spark: SparkSession,
    brokers: str,
    topic: str,
    name: str,
    counts: int,
    database: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tallymark.spark import tasks

    with (
        calls(monkeypatch, tasks, "count") as counted,
        staging(spark, brokers, topic, database("postgresql"), COMPUTING[name]) as (executors, store),
    ):
        executors.read(everything(topic), "b")
        assert len(counted) == counts
        assert len(tables_of(store)) == len(COMPUTING[name])


def test_counts_that_are_not_known_stage_the_batch_again(
    spark: SparkSession, brokers: str, topic: str, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallymark.spark import tasks

    monkeypatch.setattr(tasks, "counted", lambda *_: None)
    with staging(spark, brokers, topic, database("postgresql"), COMPUTES) as (executors, store):
        found = executors.read(everything(topic), "b")
        assert_same(store, found, by_driver(spark, brokers, topic, COMPUTES), COMPUTES)
        assert tables_of(store) == [found.staged["computes"].name]


def test_many_undecodable_values_are_not_staged(
    spark: SparkSession, brokers: str, topics: Topics, database: Callable[[str], str]
) -> None:
    made = topics.create(1)
    partition = Partition(made, 0)
    topics.send(made, [b"broken"] * 1_100 + [{"id": n} for n in range(50)])
    with staging(spark, brokers, made, database("postgresql")) as (executors, store):
        found = executors.read([Span(partition, 0, 1_150)], "b")
        assert found.seen[partition] == replace(found.seen[partition], records=1_150, dead=1_100)
        assert (len(found.dead_letters), found.staged["picks"].rows) == (1_100, 50)
        assert tables_of(store) == sorted(staged.name for staged in found.staged.values())


def test_a_cancelled_batch_is_not_read_on_another_path(
    spark: SparkSession, brokers: str, topic: str, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import PySparkException

    from tallymark.spark import tasks

    with staging(spark, brokers, topic, database("postgresql"), COMPUTES) as (executors, store):

        def cancelled(*_: Any) -> DataFrame:
            executors.cancel()
            raise PySparkException("Job 7 cancelled part of cancelled job group run-staging")

        monkeypatch.setattr(tasks, "as_columns", cancelled)
        with calls(monkeypatch, tasks, "count") as again, pytest.raises(ReadFailed, match="the run is ending"):
            executors.read(everything(topic), "b")
        assert not again
        assert tables_of(store) == []
        with pytest.raises(ReadFailed, match="the run is ending"):
            executors.read(everything(topic), "b")


@pytest.mark.parametrize("tables", [PICKING, COMPUTES, COMPUTING["two tables"]], ids=["picking", "one", "two"])
def test_staged_rows_are_dropped_if_the_rest_of_a_batch_fails(
    spark: SparkSession,
    brokers: str,
    topic: str,
    tables: Tables,
    database: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tallymark.spark import tasks

    with staging(spark, brokers, topic, database("postgresql"), tables) as (executors, store):

        def fails(*_: Any) -> Any:
            assert len(tables_of(store)) == len(tables)
            raise ReadFailed("no letters")

        monkeypatch.setattr(tasks, "fetched", fails)
        with pytest.raises(ReadFailed, match="no letters"):
            executors.read(everything(topic), "b")
        assert tables_of(store) == []


@pytest.mark.parametrize("others", [{}, COMPUTES], ids=["one table", "two tables"])
def test_a_batch_with_a_record_that_a_function_fails_on_is_read_through_the_driver(
    spark: SparkSession, brokers: str, topic: str, others: Tables, database: Callable[[str], str]
) -> None:
    tables = {**others, TableSpec("fails"): FUNCTIONS["fails"]}
    with staging(spark, brokers, topic, database("postgresql"), tables) as (executors, store):
        found = executors.read(everything(topic), "b")
        assert comparable(found) == comparable(by_driver(spark, brokers, topic, tables))
        assert (len(found.refusals), found.staged) == (1, {})
        assert tables_of(store) == []


@pytest.mark.parametrize(
    ("settings", "function", "reason"),
    [
        ({"delete": "tombstone"}, FUNCTIONS["picks"], "table orders deletes rows, which executors can't stage"),
        (
            {"per_batch": True},
            lambda records: records.groupBy("value.id").count(),
            "table orders merges records, and executors can't check the keys of merged rows",
        ),
    ],
    ids=["deletes", "merges with a key"],
)
def test_a_table_that_executors_can_not_stage_is_refused_at_the_start(
    spark: SparkSession,
    brokers: str,
    topic: str,
    group: str,
    database: Callable[[str], str],
    settings: dict[str, Any],
    function: Function,
    reason: str,
) -> None:
    del spark
    source = Kafka(brokers, topic, value=Json(SCHEMA))
    pipeline = Pipeline(group=group, source=source, store=database("postgresql"), road="executors")
    pipeline.table("orders", key="id", write="upsert", **settings)(function)
    with pytest.raises(BadInput) as refused:
        pipeline.run("caught-up")
    assert str(refused.value) == f"road='executors': {reason}; leave out road="


def test_a_batch_that_exceeds_the_memory_is_staged(
    spark: SparkSession, brokers: str, topic: str, database: Callable[[str], str]
) -> None:
    from tallymark.spark.reader import SparkReader

    with closing(open_sql(database("postgresql"))) as store:
        source, stages = Kafka(brokers, topic, value=Json(SCHEMA)), store.stages("group", "4711-abc")
        small = SparkReader(spark, source, list(COMPUTES.items()), "run-staging", 10_000, stages)
        assert not small.read([Span(Partition(topic, 0), 0, 20)], "b").staged
        found = small.read(everything(topic), "b")
        assert_same(store, found, by_driver(spark, brokers, topic, COMPUTES), COMPUTES)
        small.discard(found)
