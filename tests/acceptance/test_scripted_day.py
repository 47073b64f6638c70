"""A day of operations on one pipeline: every record is accounted for, and in the table as often as the journal says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.command import in_process
from tests.support.databases import execute, query
from tests.support.kafka import Topics

PIPELINE = """
import tallymark as tm

pipeline = tm.Pipeline(
    group={group!r},
    source=tm.Kafka({brokers!r}, {topic!r}, value=tm.Json({schema!r})),
    store={store!r},
    limits=tm.Limits(records=50),
    catch_up={catch_up},
)

@pipeline.table("events", provenance=True)
def events(records):
    return records.where("value.id % 10 <> 9").selectExpr("CAST(value.id AS BIGINT) AS id")

@pipeline.table("latest", key="part", write="upsert", version="id", provenance=True)
def latest(records):
    return records.selectExpr("CAST(value.id % 4 AS BIGINT) AS part", "CAST(value.id AS BIGINT) AS id")
"""


class Day:
    """One pipeline, its commands and its topic."""

    def __init__(self, file: Path, brokers: str, store: str, group: str, topics: Topics) -> None:
        self.file, self.brokers, self.store, self.group, self.topics = file, brokers, store, group, topics
        self.topic = topics.create(2)
        self.sent = 0
        self.code()

    def code(self, schema: str = "id INT", catch_up: str = "None") -> None:
        names = {"group": self.group, "brokers": self.brokers, "topic": self.topic, "store": self.store}
        self.file.write_text(PIPELINE.format(**names, schema=schema, catch_up=catch_up))

    def send(self, count: int, partitions: int = 2) -> None:
        numbers = range(self.sent, self.sent + count)
        self.topics.send(self.topic, ({"id": number} for number in numbers), partitions=partitions)
        self.sent += count

    def do(self, *arguments: str | Path, expect: int = 0) -> Any:
        done = in_process(*arguments, "--json")
        assert done.returncode == expect, (arguments, done.stdout, done.stderr)
        return json.loads(done.stdout) if done.stdout.strip() else None

    def run(self) -> Any:
        return self.do("run", self.file, "--until", "caught-up")

    def ask(self, command: str, *arguments: str) -> Any:
        return self.do(command, *arguments, self.group, "--store", self.store)

    def reset(self, *to: str) -> Any:
        where = ("--store", self.store, "--brokers", self.brokers)
        return self.do("reset", self.group, "--all-topics", *to, "--execute", *where)

    def audit(self, *more: str | Path) -> Any:
        return self.do("audit", self.group, "--store", self.store, "--brokers", self.brokers, *more)


@pytest.fixture
def day(tmp_path: Path, brokers: str, group: str, topics: Topics, database: Callable[[str], str]) -> Day:
    return Day(tmp_path / "day.py", brokers, database("postgresql"), group, topics)


@pytest.mark.faults
def test_after_a_day_of_everything_each_record_is_accounted_for(day: Day, spark: SparkSession) -> None:
    # Morning: it runs; two records are broken, and it is paused and resumed.
    day.send(100)
    day.topics.send(day.topic, [{"id": 5_000_000_000}, b"broken"], partitions=2)
    assert day.run()["dead"] == 2
    day.ask("pause", "--reason", "maintenance")
    day.send(20)
    day.do("run", day.file, "--until", "caught-up", expect=2)
    day.ask("resume")
    assert day.run()["applied"] == 20
    day.audit()
    # Noon: far behind, it skips ahead; then it is moved back, and ahead.
    day.send(400)
    day.code(catch_up="tm.SkipAhead(when_behind=50, keep=10)")
    assert day.run()["skipped"] == 380
    day.audit("--deep", "--file", day.file)
    day.code()
    day.reset("--shift-by", "-15", "--repeat")
    assert day.run()["applied"] == 30
    day.audit("--deep", "--file", day.file)
    day.send(60)
    day.reset("--to-latest")
    day.audit()
    # Afternoon: the topic grows, the code is corrected, dead letters are replayed, and skips are filled.
    day.topics.grow(day.topic, 3)
    # An existing producer would not know the new partition for minutes.
    day.topics = Topics(day.brokers)
    day.send(30, partitions=3)
    day.run()
    day.code(schema="id BIGINT")
    replayed = day.do("dead-letters", "replay", day.file, "--execute")
    assert (replayed["applied"], replayed["dead"]) == (1, 1)
    # The part of the first skip before the offset to which the group was moved back, in each of two partitions.
    assert day.do("backfill", day.file)["applied"] == 2 * 185 + 60
    # Evening.
    day.audit("--deep", "--file", day.file)
    ((rows, ids),) = query(day.store, "SELECT count(*), count(DISTINCT id) FROM events")
    # Ten of each partition were applied before it was moved back, and again after it; one was dead.
    applied = [number for number in [*range(day.sent), *range(500, 520)] if number % 10 != 9]
    assert (rows, ids) == (len(applied) + 1, len(set(applied)) + 1)
    letters = query(day.store, "SELECT state, count(*) FROM tallymark_dead_letters GROUP BY state ORDER BY state")
    assert [tuple(row) for row in letters] == [("dead", 1), ("replayed", 1)]
    # Night: a row is deleted, and the audit names it.
    execute(day.store, f"DELETE FROM events WHERE id = {day.sent - 2}")
    done = in_process("audit", "--deep", "--file", day.file)
    assert (done.returncode, "missing" in done.stdout) == (1, True), done.stdout
