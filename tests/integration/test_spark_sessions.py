"""The user's session keeps its settings, and functions see them; tallymark reads in a session of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tallymark import Json, Kafka
from tallymark.core.tables import TableSpec
from tallymark.stores.opening import open_sql
from tests.support.kafka import Topics
from tests.support.paths import FUNCTIONS, SCHEMA, reader, whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tallymark.spark.reader import Path

PATHS: list[Path] = ["direct", "tasks"]
SETTINGS = {
    "spark.sql.session.timeZone": "Europe/Berlin",
    "spark.sql.redaction.options.regex": "(?i)mine",
    "spark.sql.sources.useV1SourceList": "kafka,csv",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "77",
    "spark.sql.execution.arrow.maxBytesPerBatch": "12345678",
    "spark.sql.execution.arrow.localRelationThreshold": "1234",
}


@pytest.fixture
def users(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with settings of the user."""
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    """Noon in UTC, with and without a zone: in Berlin it is 13 o'clock in winter, and 14 o'clock in summer."""
    name = topics.create(1)
    times = ["2026-01-31T12:00:00", "2026-01-31T13:00:00+01:00", "2026-07-31T12:00:00Z"]
    topics.send(name, [{"id": n, "at": time} for n, time in enumerate(times)])
    return name


def settings(session: SparkSession) -> dict[str, str | None]:
    return {name: session.conf.get(name) for name in SETTINGS}


@pytest.mark.parametrize("path", PATHS)
def test_reads_change_no_setting_of_the_user(users: SparkSession, brokers: str, topic: str, path: Path) -> None:
    tables = {name: FUNCTIONS[name] for name in ("picks", "computes", "merges")}
    assert reader(users, brokers, topic, path, **tables).read(whole(topic, 3), "b").rows["picks"].num_rows == 3
    assert settings(users) == SETTINGS


def test_staging_changes_no_setting_of_the_user(
    users: SparkSession, brokers: str, topic: str, database: Callable[[str], str]
) -> None:
    from tallymark.spark.reader import SparkReader

    source, tables = Kafka(brokers, topic, value=Json(SCHEMA)), [(TableSpec("computes"), FUNCTIONS["computes"])]
    with closing(open_sql(database("postgresql"))) as store:
        staging = SparkReader(users, source, tables, "run", stages=store.stages("g", "1"), path="executors")
        found = staging.read(whole(topic, 3), "b")
        assert found.staged["computes"].rows == 2
        staging.discard(found)
    assert settings(users) == SETTINGS


@pytest.mark.parametrize("path", PATHS)
def test_functions_see_the_time_zone_of_the_session_and_json_is_utc(
    users: SparkSession, brokers: str, topic: str, path: Path
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    def hours(records: DataFrame) -> DataFrame:
        texts = F.col("value.at").cast("string")
        return records.select("value.id", "value.at", F.hour("value.at").alias("hour"), texts.alias("text"))

    found = reader(users, brokers, topic, path, hours=hours, plain=FUNCTIONS["picks"]).read(whole(topic, 3), "b")
    rows = found.rows["hours"].sort_by("id").to_pylist()
    assert [row["hour"] for row in rows] == [13, 13, 14]
    assert [row["text"][11:] for row in rows] == ["13:00:00", "13:00:00", "14:00:00"]
    for name in ("hours", "plain"):
        times = found.rows[name].sort_by("id")["at"].to_pylist()
        assert [f"{time:%m %H %Z}" for time in times] == ["01 12 UTC", "01 12 UTC", "07 12 UTC"]


@pytest.mark.parametrize("path", PATHS)
def test_functions_use_views_of_the_session(users: SparkSession, brokers: str, topic: str, path: Path) -> None:
    def joined(records: DataFrame) -> DataFrame:
        records.createOrReplaceTempView("incoming")
        return users.sql("SELECT value.id, word FROM incoming JOIN words ON words.id = value.id")

    def selected(records: DataFrame) -> DataFrame:
        records.createOrReplaceTempView("incoming")
        return users.sql("SELECT value.id + 1 AS id FROM incoming WHERE value.id > 0")

    made = reader(users, brokers, topic, path, joined=joined, selected=selected)
    # A view that is younger than the reader is visible, too.
    users.createDataFrame([(1, "one"), (2, "two")], "id BIGINT, word STRING").createOrReplaceTempView("words")
    found = made.read(whole(topic, 3), "b")
    rows = {name: found.rows[name].to_pylist() for name in found.rows}
    assert sorted((row["id"], row["word"], row["_tallymark_offset"]) for row in rows["joined"]) == [
        (1, "one", 1),
        (2, "two", 2),
    ]
    assert sorted((row["id"], row["_tallymark_offset"]) for row in rows["selected"]) == [(2, 1), (3, 2)]
    assert [seen.records for seen in found.seen.values()] == [3]
