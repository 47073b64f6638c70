"""Running totals on Spark: the table equals what an independent program computes of all records."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tallymark import Json, Kafka, Limits, Pipeline, Tally
from tallymark.errors import BadInput
from tallymark.operate.check import try_pipeline
from tests.support.kafka import Topics
from tests.support.truth import rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.usefixtures("spark")

SCHEMA = Json("shop STRING, amount DECIMAL(12,2), at TIMESTAMP, status STRING")
MERGE: dict[str, Any] = {"orders": "count", "revenue": "sum", "largest": "max", "status": "newest"}
COLUMNS = ("shop", "hour", "orders", "revenue", "largest", "status")


def make(brokers: str, topic: str, group: str, store: str, records: int = 40, **settings: Any) -> Pipeline:
    source = Kafka(brokers, topic, value=SCHEMA)
    return Pipeline(group=group, source=source, store=store, limits=Limits(records=records), **settings)


def by_hour(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    hour = F.window("value.at", "1 hour").start
    return records.groupBy("value.shop", hour.cast("string").alias("hour")).agg(
        F.count("*").alias("orders"),
        F.sum("value.amount").cast("decimal(22,2)").alias("revenue"),
        F.max("value.amount").alias("largest"),
        F.max_by("value.status", "value.at").alias("status"),
        F.max("value.at").alias("last_at"),
    )


def by_record(records: DataFrame) -> DataFrame:
    return records.selectExpr(
        "value.shop",
        "cast(date_trunc('HOUR', value.at) AS STRING) AS hour",
        "1L AS orders",
        "cast(value.amount AS DECIMAL(22,2)) AS revenue",
        "value.amount AS largest",
        "value.status",
        "value.at AS last_at",
    )


def sent(count: int, seed: int) -> list[Any]:
    """Records with a time of their own, some of which can't be decoded."""
    chance = random.Random(seed)
    return [
        {
            "shop": chance.choice("abc"),
            "amount": f"{chance.randint(-99999, 99999) / 100:.2f}",
            "at": f"2026-01-01T{chance.randint(8, 10):02}:{at // 60 % 60:02}:{at % 60:02}.{chance.randint(0, 999):03}Z",
            "status": chance.choice(["new", "paid", "late"]),
        }
        if chance.random() > 0.1
        else "not an object"
        for at in range(count)
    ]


def expected(values: list[Any]) -> set[tuple[Any, ...]]:
    """In cents, so that nothing is rounded."""
    orders: Counter[tuple[str, str]] = Counter()
    cents: Counter[tuple[str, str]] = Counter()
    largest: dict[tuple[str, str], int] = {}
    newest: dict[tuple[str, str], tuple[str, str]] = {}
    for value in values:
        if not isinstance(value, dict):
            continue
        key = value["shop"], f"{value['at'][:10]} {value['at'][11:13]}:00:00"
        amount = int(value["amount"].replace(".", ""))
        orders[key] += 1
        cents[key] += amount
        largest[key] = max(amount, largest.get(key, amount))
        newest[key] = max((value["at"], value["status"]), newest.get(key, ("", "")))
    return {(*key, orders[key], cents[key], largest[key], newest[key][1]) for key in orders}


def found(url: str, table: str) -> set[tuple[Any, ...]]:
    def cents(amount: Any) -> int:
        return int(str(amount).replace(".", ""))

    return {
        (shop, hour, orders, cents(revenue), cents(largest), status)
        for shop, hour, orders, revenue, largest, status in rows(url, table, *COLUMNS)
    }


def both(pipeline: Pipeline) -> Pipeline:
    for name, function in (("aggregated", by_hour), ("by_record", by_record)):
        pipeline.table(name, key=("shop", "hour"), write="merge", version="last_at", merge=MERGE)(function)
    return pipeline


@pytest.mark.faults_where(url=["mariadb", "sqlite"])
def test_totals_are_those_of_all_records(brokers: str, topics: Topics, group: str, url: str) -> None:
    topic, values = topics.create(3), sent(300, seed=19)
    for at, value in enumerate(values):
        topics.send_to(topic, at % 3, [value])
    tally = both(make(brokers, topic, group, url, records=70)).run("caught-up")
    dead = sum(not isinstance(value, dict) for value in values)
    assert (tally.applied, tally.dead) == (300 - dead, dead)
    assert found(url, "aggregated") == found(url, "by_record") == expected(values)
    # Enough for Spark's tasks.
    again = sent(2_500, seed=20)
    topics.send_to(topic, 0, again)
    assert both(make(brokers, topic, group, url, records=10_000)).run("caught-up") == Tally(
        applied=sum(isinstance(value, dict) for value in again),
        dead=sum(not isinstance(value, dict) for value in again),
    )
    assert found(url, "aggregated") == found(url, "by_record") == expected([*values, *again])


@pytest.mark.faults_where(url=["mariadb", "sqlite"])
def test_arrays_are_appended_in_the_order_of_the_records(brokers: str, topics: Topics, group: str, url: str) -> None:
    topic, values = topics.create(1), sent(200, seed=21)
    topics.send_to(topic, 0, values)

    def appending() -> Pipeline:
        pipeline = make(brokers, topic, group, url, records=2_000 if len(values) > 1_000 else 30)
        pipeline.table("logs", key="shop", write="merge", merge={"log": "append(20)"})(
            lambda records: records.selectExpr(
                "value.shop", "array(named_struct('status', value.status, 'amount', value.amount)) AS log"
            )
        )
        return pipeline

    def stored() -> dict[str, Any]:
        log = "log" if url.startswith("redis") else f"CAST(log AS {'CHAR' if url.startswith('mysql') else 'TEXT'})"
        return {shop: json.loads(text, parse_float=str) for shop, text in rows(url, "logs", "shop", log)}

    def last() -> dict[str, Any]:
        shops: dict[str, list[Any]] = {}
        for value in values:
            if isinstance(value, dict):
                log = {"status": value["status"], "amount": value["amount"]}
                shops[value["shop"]] = [*shops.get(value["shop"], []), log][-20:]
        return shops

    appending().run("caught-up")
    assert stored() == last()
    # Enough for Spark's tasks.
    values += sent(2_500, seed=22)
    topics.send_to(topic, 0, values[200:])
    appending().run("caught-up")
    assert stored() == last()


NOT_APPENDED = {
    "its function merges records, so that nothing tells the order of the elements of log": "collect_list(value.status)",
    "column log is string, and append needs an array": "value.status",
    "column log is map<string,int>, and append needs an array": "map(value.status, 1)",
    "column log is struct<status:string>, and append needs an array": "struct(value.status)",
}


@pytest.mark.parametrize(("why", "column"), NOT_APPENDED.items())
def test_what_can_not_be_appended_is_refused(
    why: str, column: str, brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    pipeline = make(brokers, topics.create(1), group, database("sqlite"))
    pipeline.table("t", key="shop", write="merge", merge={"log": "append(3)"})(
        lambda records: (
            records.groupBy("value.shop").agg(_expr(column).alias("log"))
            if "collect" in column
            else records.select("value.shop", _expr(column).alias("log"))
        )
    )
    with pytest.raises(BadInput, match=f"table t: {why}"):
        try_pipeline(pipeline)


UNSAFE = {
    "Average of the records .* divide them in a view": "avg(value.amount)",
    "Sum DISTINCT of the records": "sum(DISTINCT value.amount)",
    "n is Max of the records of one batch, and is merged by sum": "max(value.amount)",
    "n is computed from the records": "round(sum(value.amount), 1)",
    "n is computed from the records of one batch, and is merged by sum: aggregate it by sum": "sum(value.amount) + 1",
}


@pytest.mark.parametrize(("why", "aggregate"), UNSAFE.items())
def test_an_aggregate_that_can_not_be_merged_is_refused(
    why: str, aggregate: str, brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    pipeline = make(brokers, topics.create(1), group, database("sqlite"))
    pipeline.table("t", key="shop", write="merge", merge={"n": "sum"})(
        lambda records: records.selectExpr("value.shop", "value").groupBy("shop").agg(_expr(aggregate).alias("n"))
    )
    with pytest.raises(BadInput, match=f"table t: totals would depend on where batches begin: .*{why}"):
        try_pipeline(pipeline)


def _expr(text: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    return F.expr(text)


def _counted(records: DataFrame) -> DataFrame:
    return records.groupBy("value.shop").agg(_expr("count(*) AS n"))


def _shops(records: DataFrame) -> DataFrame:
    return records.sparkSession.createDataFrame([("a", 1)], "shop STRING, n BIGINT")


BATCHWISE: dict[str, Callable[[Any], Any]] = {
    "Filter sees": lambda records: _counted(records).where("n > 1"),
    "Deduplicate sees": lambda records: _counted(records.dropDuplicates(["key"])),
    "GlobalLimit sees": lambda records: _counted(records.limit(2)),
    "Window sees": lambda records: records.selectExpr("value.shop", "count(*) OVER (PARTITION BY value.shop) AS n"),
    "Join sees": lambda records: _shops(records).join(records.select("value.shop"), "shop", "left"),
    "Join sees .*": lambda records: _shops(records).join(records.select("value.shop"), "shop", "left_semi"),
    "Join sees the": lambda records: _counted(
        records.join(records.select("key").withColumnRenamed("key", "k"), _expr("key = k"))
    ),
    "Union sees": lambda records: records.selectExpr("value.shop", "1L AS n").union(_shops(records)),
    "Aggregate sees": lambda records: _counted(records.groupBy("value").agg(_expr("count(*) AS c"))),
}


@pytest.mark.parametrize("why", BATCHWISE)
def test_a_function_that_compares_the_records_of_a_batch_is_refused(
    why: str, brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    pipeline = make(brokers, topics.create(1), group, database("sqlite"))
    pipeline.table("t", key="shop", write="merge", merge={"n": "sum"})(BATCHWISE[why])
    with pytest.raises(BadInput, match=f"table t: totals would depend on where batches begin: .*{why}"):
        try_pipeline(pipeline)


def test_functions_that_can_be_merged_are_accepted(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    topic = topics.create(1)
    topics.send_to(topic, 0, [{"shop": "a", "amount": "1.50"}, {"shop": "a"}, {"shop": "b"}])
    url = database("sqlite")
    pipeline = make(brokers, topic, group, url)

    def joined(records: DataFrame) -> DataFrame:
        shops = records.sparkSession.createDataFrame([("a", "Aachen"), ("b", "Bonn")], "shop STRING, town STRING")
        priced = records.selectExpr("value.shop", "value.amount").join(shops, "shop", "left").orderBy("shop")
        return priced.groupBy("town").agg(_expr("coalesce(sum(amount), 0) AS n"), _expr("count_if(amount > 1) AS many"))

    def doubled(records: DataFrame) -> DataFrame:
        once = records.selectExpr("value.shop AS town", "1L AS n", "0L AS many")
        return once.union(once)

    pipeline.table("joined", key="town", write="merge", merge={"n": "sum", "many": "count"})(joined)
    pipeline.table("doubled", key="town", write="merge", merge={"n": "sum", "many": "count"})(doubled)
    pipeline.run("caught-up")
    assert {(town, float(n), many) for town, n, many in rows(url, "joined", "town", "n", "many")} == {
        ("Aachen", 1.5, 1),
        ("Bonn", 0.0, 0),
    }
    assert set(rows(url, "doubled", "town", "n")) == {("a", 4), ("b", 2)}


def test_other_guarantees_than_exactly_once_are_refused(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    for delivery in ("at-least-once", "at-most-once"):
        pipeline = make(brokers, topics.create(1), group, database("sqlite"), delivery=delivery)
        with pytest.raises(BadInput, match="would make wrong totals of it; set delivery='exactly-once'"):
            both(pipeline).run("caught-up")


def test_other_guarantees_and_wrong_totals_can_be_allowed(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    for delivery in ("at-least-once", "at-most-once"):
        topic, url = topics.create(1), database("postgresql")
        topics.send_to(topic, 0, [{"shop": "a"}] * 3)
        pipeline = make(brokers, topic, group, url, records=2, delivery=delivery)
        counted = pipeline.table("totals", key="shop", write="merge", merge={"n": "sum"}, inexact=True)
        counted(lambda records: records.selectExpr("value.shop", "1L AS n"))
        assert pipeline.run("caught-up").applied == 3
        assert set(rows(url, "totals", "shop", "n")) == {("a", 3)}


def test_a_start_that_every_run_repeats_is_refused(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    pipeline = both(make(brokers, topics.create(1), group, database("sqlite"), start="earliest"))
    words = "start='earliest' overrides the saved positions, so that every run would add all records again"
    with pytest.raises(BadInput, match=words):
        pipeline.run("caught-up")
    with pytest.raises(BadInput, match=words):
        try_pipeline(pipeline)


def test_newest_of_merged_records_needs_a_version(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    pipeline = make(brokers, topics.create(1), group, database("sqlite"))
    pipeline.table("t", key="shop", write="merge", merge={"status": "newest"})(
        lambda records: records.groupBy("value.shop").agg(_expr("max_by(value.status, value.at) AS status"))
    )
    with pytest.raises(BadInput, match="nothing tells which status is the newest; set version="):
        try_pipeline(pipeline)


def test_a_record_that_is_dead_for_one_table_is_in_no_total(brokers: str, topics: Topics, group: str, url: str) -> None:
    topic = topics.create(1)
    values = [
        {"shop": shop, "amount": amount}
        for shop, amount in (("a", "1.00"), ("a", "2.00"), (None, "4.00"), ("b", "8.00"))
    ]
    topics.send_to(topic, 0, [json.loads(json.dumps(value)) for value in values])
    pipeline = make(brokers, topic, group, url)
    pipeline.table("totals", key="hour", write="merge", merge={"n": "sum"})(
        lambda records: records.groupBy(_expr("'all'").alias("hour")).agg(_expr("sum(value.amount) AS n"))
    )
    pipeline.table("shops", key="shop", write="upsert")(
        lambda records: records.selectExpr("value.shop", "value.amount")
    )
    tally = pipeline.run("caught-up")
    assert (tally.applied, tally.dead) == (3, 1)
    assert {(hour, float(n)) for hour, n in rows(url, "totals", "hour", "n")} == {("all", 11.0)}


STAGED: dict[str, Any] = {"orders": "count", "revenue": "sum", "largest": "max", "weight": "sum"}


def staged(pipeline: Pipeline) -> Pipeline:
    def totals(records: DataFrame) -> DataFrame:
        return records.selectExpr(
            "value.shop",
            "1 AS orders",
            "cast(value.amount AS DECIMAL(22,2)) AS revenue",
            "value.amount AS largest",
            "cast(value.status AS DOUBLE) AS weight",
        )

    def grouped(records: DataFrame) -> DataFrame:
        return (
            totals(records)
            .where("shop IS NOT NULL")
            .groupBy("shop")
            .agg(*map(_expr, (f"{MERGED[name]}({name}) AS {name}" for name in STAGED)))
        )

    for name, function in (("by_record", totals), ("aggregated", grouped)):
        pipeline.table(name, key="shop", write="merge", merge=STAGED)(function)
    return pipeline


MERGED = {"orders": "sum", "revenue": "sum", "largest": "max", "weight": "sum"}


@pytest.mark.parametrize("url", ["postgresql", pytest.param("mariadb", marks=pytest.mark.faults)], indirect=True)
def test_executors_stage_rows_to_merge(brokers: str, topics: Topics, group: str, url: str) -> None:
    topic = topics.create(2)
    values: list[Any] = [
        {"shop": f"s{at % 7}", "amount": f"{at - 500}.{at % 90 + 10}", "status": f"{at % 9}.5"} for at in range(1_000)
    ]
    values += [{"shop": "s0"}, {"shop": "none"}, "not an object", {"shop": None, "amount": "1.00"}]
    topics.send(topic, values, partitions=2)
    tally = staged(make(brokers, topic, group, url, road="executors")).run("caught-up")
    assert tally == Tally(applied=1_002, dead=2)
    shops: dict[str, list[dict[str, Any]]] = {}
    for value in values:
        if isinstance(value, dict) and value["shop"] is not None:
            shops.setdefault(value["shop"], []).append(value)

    def total(shop: str) -> tuple[Any, ...]:
        amounts = [int(value["amount"].replace(".", "")) for value in shops[shop] if "amount" in value]
        weights = [float(value["status"]) for value in shops[shop] if "status" in value]
        known = bool(amounts)
        return (
            shop,
            len(shops[shop]),
            sum(amounts) if known else None,
            max(amounts) if known else None,
            sum(weights) if known else None,
        )

    def cents(amount: Any) -> int | None:
        return None if amount is None else int(str(amount).replace(".", ""))

    for table in ("by_record", "aggregated"):
        found = {
            (shop, orders, cents(revenue), cents(largest), weight)
            for shop, orders, revenue, largest, weight in rows(url, table, "shop", *STAGED)
        }
        assert found == {total(shop) for shop in shops}
