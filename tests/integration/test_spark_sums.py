"""Sums of decimals are computed as whole numbers where these hold them, and are the same sums."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MONEY = Decimal("99999999.99")
ROWS = [
    *[("a", MONEY)] * 30,
    *[("a", -MONEY)] * 7,
    *[("b", -MONEY)] * 40,
    *[("b", None), ("c", None), ("d", Decimal("0.01"))],
]
AGGREGATES = [
    "sum(amount) AS total",
    "sum(amount) + 1 AS total",
    "coalesce(sum(amount), 0) AS total",
    "sum(amount) FILTER (WHERE amount > 0) AS total",
    "sum(DISTINCT amount) AS total",
    "sum(amount) AS total, max(amount) AS most, avg(amount) AS mean, sum(-amount) AS negated, count(*) AS n",
]


@pytest.fixture(autouse=True)
def loaded(spark: SparkSession) -> None:
    from tallymark.spark.java import classes

    classes(spark)


def whole_numbers_are_added(frame: DataFrame) -> bool:
    return (
        re.search(r"sum\((distinct )?UnscaledValue", frame._jdf.queryExecution().optimizedPlan().toString()) is not None
    )


@pytest.mark.parametrize("aggregates", AGGREGATES)
def test_sums_are_those_that_spark_computes(spark: SparkSession, aggregates: str) -> None:
    from tallymark.spark.aggregates import with_long_sums

    amounts = spark.createDataFrame(ROWS, "name STRING, amount DECIMAL(10, 2)")
    rows = spark.sql(f"SELECT name, {aggregates} FROM {{amounts}} GROUP BY name ORDER BY name", amounts=amounts)
    faster = with_long_sums(rows, len(ROWS))
    assert whole_numbers_are_added(faster)
    assert not whole_numbers_are_added(rows)
    assert faster.schema == rows.schema
    assert faster.toArrow() == rows.toArrow()


@pytest.mark.parametrize(
    ("precision", "most", "fits"), [(16, 99, True), (16, 100, False), (38, 1, False), (17, 9, True)]
)
def test_only_sums_that_a_long_holds_are_computed_so(
    spark: SparkSession, precision: int, most: int, fits: bool
) -> None:
    from tallymark.spark.aggregates import with_long_sums

    largest = 10**precision - 1
    amounts = spark.createDataFrame([(Decimal(largest),)] * min(most, 99), f"amount DECIMAL({precision}, 0)")
    faster = with_long_sums(amounts.groupBy().sum("amount"), most)
    assert whole_numbers_are_added(faster) is fits
    assert int(faster.collect()[0][0]) == largest * min(most, 99)


def test_rows_that_a_generator_makes_are_not_counted_on(spark: SparkSession) -> None:
    from tallymark.spark.aggregates import with_long_sums

    each = "SELECT explode(sequence(1, 100)), CAST(1 AS DECIMAL(16)) AS amount"
    rows = spark.sql(f"SELECT sum(amount) AS total FROM ({each})")
    assert not whole_numbers_are_added(with_long_sums(rows, 1))
