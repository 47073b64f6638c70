"""Several Spark drivers share a group: two share the partitions, a third joins, one is killed, and the counts hold."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.background import Background, wait_for
from tests.support.command import DEADLINE, started
from tests.support.databases import query
from tests.support.kafka import Topics

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("processes")]

PIPELINE = """
import tallymark as tm

pipeline = tm.Pipeline(
    group={group!r},
    source=tm.Kafka({brokers!r}, {topic!r}, value=tm.Json("id BIGINT"), settings={settings}),
    store={store!r},
    limits=tm.Limits(records=500),
    spark={{"spark.master": "local[1]", "spark.driver.memory": "512m"}},
)

@pipeline.table("orders")
def orders(records):
    return records.selectExpr("value.id")
"""
QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}


def test_drivers_join_and_die_and_every_record_is_there_once(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str], tmp_path: Path
) -> None:
    store, topic = database("postgresql"), topics.create(6)
    file = tmp_path / "pipeline.py"
    file.write_text(PIPELINE.format(group=group, brokers=brokers, topic=topic, store=store, settings=QUICK))
    drivers: list[subprocess.Popen[str]] = []
    sent, over = [0], threading.Event()

    def send() -> None:
        while not over.wait(0.2):
            topics.send(topic, ({"id": n} for n in range(sent[0], sent[0] + 60)), partitions=6)
            sent[0] += 60

    def owners() -> int:
        with suppress(Exception):
            return len(query(store, "SELECT DISTINCT owner FROM tallymark_positions WHERE owner IS NOT NULL"))
        return 0

    def join() -> None:
        drivers.append(started("run", file))
        wait_for(lambda: owners() == len(drivers), DEADLINE, f"{len(drivers)} drivers share the partitions")

    sender = Background(send, over.set).start()
    try:
        for _ in range(3):
            join()
        os.killpg(drivers[0].pid, signal.SIGKILL)
        wait_for(lambda: owners() == 2, DEADLINE, "the others have taken over")
        sender.stop()
        applied = "SELECT coalesce(sum(applied), 0) FROM tallymark_positions"
        wait_for(lambda: query(store, applied) == [(sent[0],)], DEADLINE, "all is applied")
    finally:
        over.set()
        for driver in drivers:
            driver.terminate()
        ends = [driver.communicate(timeout=60) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [-signal.SIGKILL, 0, 0], ends
    found = Counter(int(str(one)) for (one,) in query(store, "SELECT id FROM orders"))
    assert found == Counter(range(sent[0]))
    kinds = {str(kind) for (kind,) in query(store, "SELECT kind FROM tallymark_rebalances")}
    assert {"assigned", "revoked", "left"} <= kinds
