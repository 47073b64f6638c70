"""Executors die and tasks run twice; the counts do not change."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.command import DEADLINE, REPOSITORY
from tests.support.databases import query
from tests.support.kafka import Topics

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.faults]


def test_a_lost_executor_and_speculative_tasks_change_nothing(
    topics: Topics, brokers: str, group: str, database: Callable[[str], str]
) -> None:
    topic, url = topics.create(4), database("sqlite")
    # A batch larger than the driver reads by itself.
    topics.send(topic, [b"dead" if n % 100 == 3 else {"id": n} for n in range(36_000)], partitions=4)
    settings = {"brokers": brokers, "topic": topic, "store": url, "group": group, "batch": 12_000}

    run = subprocess.run(
        [sys.executable, "-m", "tests.support.executors", json.dumps(settings)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
        start_new_session=True,
    )

    said = run.stdout.splitlines()
    assert [line.split()[0] for line in said] == ["killed", "caught"], run.stderr
    committed = set(topics.committed(topic))
    rows = query(url, "SELECT partition_id, record_offset FROM orders")
    letters = query(url, "SELECT partition_id, record_offset FROM tallymark_dead_letters")
    assert (len(rows), len(letters)) == (35_640, 360)
    assert {*rows, *letters} == committed
    assert query(url, "SELECT sum(applied), sum(dead), sum(absent), min(balanced) FROM tallymark_status") == [
        (35_640, 360, 0, 1)
    ]
