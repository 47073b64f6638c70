"""Two Spark drivers share a group and are killed in turn: merged totals equal those computed from Kafka."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import totals
from tests.support.background import wait_for
from tests.support.command import DEADLINE, started
from tests.support.databases import query
from tests.support.kafka import Topics
from tests.support.totals_driver import JSON
from tests.support.totals_schedule import Schedule, Weather

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("processes"), pytest.mark.timeout(900)]

WEATHER = Weather(seconds=1.0, members=2, partitions=4, records=1_200, acts=0)
SEED = int(os.environ.get("TALLYMARK_TOTALS_SEED") or random.randrange(1_000_000))
PIPELINE = """
import tallymark as tm
from pyspark.sql import functions as F

pipeline = tm.Pipeline(
    group={group!r},
    source=tm.Kafka({brokers!r}, {topic!r}, value=tm.Json({json!r}), settings={settings}),
    store={store!r},
    limits=tm.Limits(records={most}),
    spark={{"spark.master": "local[1]", "spark.driver.memory": "512m"}},
)

@pipeline.table("totals", key="shop", write="merge", version="last", merge={{
    "records": "count", "flagged": "count", "points": "sum", "amount": "sum", "lowest": "min", "highest": "max",
    "word": "max", "state": "newest", "since": "min"}})
def by_record(records):
    return records.selectExpr(
        "value.shop", "1L AS records", "value.flag AS flagged", "value.points",
        "cast(value.amount AS DECIMAL(24,2)) AS amount", "value.amount AS lowest", "value.points AS highest",
        "value.word", "value.state", "value.at AS last", "value.since")

@pipeline.table("grouped", key="shop", write="merge", merge={{"orders": "count", "revenue": "sum"}})
def by_shop(records):
    known = records.where("value.shop IS NOT NULL")
    return known.groupBy("value.shop").agg(F.count("*").alias("orders"), F.sum("value.amount").alias("revenue"))
"""
QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}


def test_totals_are_right_although_drivers_are_killed(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str], tmp_path: Path
) -> None:
    print(f"TALLYMARK_TOTALS_SEED={SEED} make faults ARGS='-k test_spark_totals'")
    plan, chance = Schedule(SEED, WEATHER), random.Random(SEED)
    store, topic = database("postgresql"), topics.create(WEATHER.partitions)
    file = tmp_path / "pipeline.py"
    settings = {"group": group, "brokers": brokers, "topic": topic, "store": store, "settings": QUICK, "json": JSON}
    file.write_text(PIPELINE.format(**settings, most=chance.randint(20, 60)))
    drivers: list[subprocess.Popen[str]] = []
    left = list(plan.parts)

    def send(count: int) -> None:
        for partition, aborted, values in left[:count]:
            if aborted:
                topics.send_in_transaction(topic, {partition: values}, commit=False)
            else:
                topics.send_to(topic, partition, values)
        del left[:count]

    def positions(columns: str) -> list[tuple[object, ...]]:
        with suppress(Exception):
            return query(store, f"SELECT {columns} FROM tallymark_positions")
        return []

    def applied() -> int:
        return sum(int(str(number)) for (number,) in positions("applied"))

    def reached() -> dict[int, int]:
        found = positions("partition_id, next_offset")
        return {int(str(partition)): int(str(offset)) for partition, offset in found}

    def owners() -> int:
        return len({owner for (owner,) in positions("owner") if owner})

    def join() -> None:
        drivers.append(started("run", file))
        alive = sum(driver.poll() is None for driver in drivers)
        wait_for(lambda: owners() == alive, DEADLINE, f"{alive} drivers share the partitions")

    third = len(left) // 3
    try:
        join()
        join()
        for victim in (0, 1):
            before = applied()
            send(third)
            wait_for(lambda before=before: applied() > before, DEADLINE, "the drivers are at work")  # type: ignore[misc]
            os.killpg(drivers[victim].pid, signal.SIGKILL)
            drivers[victim].wait()
            join()
        send(len(left))
        ends = topics.ends(topic)
        wait_for(lambda: reached() == ends, DEADLINE, "all is applied")
    finally:
        for driver in drivers:
            driver.terminate()
        said = [driver.communicate(timeout=60) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [-signal.SIGKILL] * 2 + [0] * 2, said
    fates = totals.split(topics.committed(topic))
    # No table refuses what the storms repair.
    values = [*fates["good"].values(), *fates["repairable"].values()]
    totals.check(store, values, tables=("totals", "grouped"))
    totals.check_tallies(store, fates, repaired=True)
