"""A small batch is read, decoded and computed without a Spark job, and has the rows that a job would compute."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.kafka import Topics
from tests.support.paths import FUNCTIONS, comparable, reader, values, whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallymark.spark.reader import Path


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in another time zone than UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def jobs(spark: SparkSession, path: Path) -> list[int]:
    return spark.sparkContext.statusTracker().getJobIdsForGroup(f"run-{path}")


@pytest.mark.parametrize("names", [("computes",), ("nested", "computes", "picks")])
def test_the_direct_path_starts_no_job(
    spark: SparkSession, brokers: str, topics: Topics, names: tuple[str, ...]
) -> None:
    topic = topics.create(1)
    # Some of them can't be decoded.
    topics.send(topic, values(), key=b"k", headers=[("h", b"1")])
    spans, tables = whole(topic, len(values())), {name: FUNCTIONS[name] for name in names}
    direct, tasks = (reader(spark, brokers, topic, path, **tables) for path in ("direct", "tasks"))
    before = jobs(spark, "direct")
    found = direct.read(spans, "b")
    assert jobs(spark, "direct") == before
    earlier = jobs(spark, "tasks")
    assert comparable(found) == comparable(tasks.read(spans, "b"))
    assert len(jobs(spark, "tasks")) > len(earlier)


TYPES = [
    "value.id",
    "CAST(value.id AS TINYINT) AS byte",
    "CAST(value.id * 1000 AS SMALLINT) AS short",
    "CAST(value.id * -100000 AS INT) AS int",
    "value.id * 1000000000000 AS bigint",
    "CAST(value.amount AS FLOAT) AS float",
    "value.amount / 3 AS double",
    "CAST('NaN' AS DOUBLE) AS nan",
    "CAST(value.amount AS DECIMAL(20, 5)) AS decimal",
    "CAST(value.amount AS DECIMAL(38, 0)) AS longest",
    "concat(value.name, '\\u0000é') AS string",
    "value.id % 2 = 0 AS boolean",
    "CAST(value.name AS BINARY) AS binary",
    "CAST(value.name AS DATE) AS day",
    "value.at + INTERVAL 1 MICROSECOND AS moment",
    "CAST(value.at AS TIMESTAMP_NTZ) AS clock",
    "NULL AS nothing",
    "named_struct('at', value.at, 'list', array(value.id, NULL)) AS struct",
    "map('a', value.amount) AS map",
    "array(value.at) AS times",
    "value.name AS `dotted.name`",
]
EDGES = [
    # Daylight saving time began in New York on the first day, and ended on the second.
    *(f"2026-03-08T0{hour}:30:00{zone}" for hour in (1, 2, 3, 6, 7) for zone in ("Z", "-05:00")),
    *(f"2026-11-01T0{hour}:30:00{zone}" for hour in (0, 1, 2, 5, 6) for zone in ("Z", "-04:00")),
    "0001-01-01T00:00:00Z",
    "1582-10-10T12:00:00Z",
    "1883-11-18T12:03:58Z",
    "1899-12-31T23:59:59.999Z",
    "1969-12-31T23:59:59.999999Z",
    "2262-04-12T00:00:00Z",
    "9999-12-31T23:59:59Z",
]


@pytest.mark.usefixtures("elsewhere")
def test_all_types_are_as_a_job_would_compute_them(spark: SparkSession, brokers: str, topics: Topics) -> None:
    topic = topics.create(1)
    sent = [{"id": n, "name": edge[:10], "amount": n * -1.7, "at": edge} for n, edge in enumerate(EDGES)]
    topics.send(topic, [*sent, {"id": None}, None])
    spans = whole(topic, len(EDGES) + 2)
    direct, tasks = (
        reader(spark, brokers, topic, path, types=lambda records: records.selectExpr(*TYPES))
        for path in ("direct", "tasks")
    )
    before = jobs(spark, "direct")
    found = direct.read(spans, "b").rows["types"].sort_by("_tallymark_offset")
    assert jobs(spark, "direct") == before
    expected = tasks.read(spans, "b").rows["types"].sort_by("_tallymark_offset")
    assert found.schema == expected.schema
    # NaN is not equal to itself.
    for name in found.column_names:
        assert repr(found[name].to_pylist()) == repr(expected[name].to_pylist()), name
    assert found.num_rows == len(EDGES) + 2
    assert str(found["clock"][10]) == "2026-11-01 00:30:00"
    assert {str(day)[:4] for day in found["day"].to_pylist() if day} >= {"0001", "1899", "9999"}
