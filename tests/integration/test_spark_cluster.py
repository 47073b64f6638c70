"""A real cluster of two workers stages rows that one transaction promotes, and may lose a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.harness.records import fill
from tallymark.kafka.cluster import Cluster
from tests.support.databases import query

if TYPE_CHECKING:
    from bench.harness.standalone import Standalone

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.faults, pytest.mark.timeout(900)]

RECORDS, BATCH = 6000, 1500
ROWS = "SELECT COUNT(*), COUNT(DISTINCT id), MIN(id), MAX(id) FROM orders"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    from bench.harness.standalone import Standalone

    with Standalone(tmp_path, workers=2) as running:
        yield running


def test_a_worker_that_is_killed_in_the_middle_of_a_run_changes_nothing(
    cluster: Standalone, brokers: str, group: str, database: Callable[[str], str]
) -> None:
    from bench.harness.standalone import Driver, Order

    url, topic = database("postgresql"), f"{group}-orders"
    fill(Cluster(brokers), topic, RECORDS)
    with Driver(cluster) as driver:
        told = driver.obey(Order(brokers, topic, url, "orders", "executors", BATCH, group))
        assert next(told) == {"applied": BATCH}

        cluster.workers[0].kill()

        *others, _ = told
    assert [one["applied"] for one in others] == [BATCH] * (RECORDS // BATCH - 1)
    assert query(url, ROWS) == [(RECORDS, RECORDS, 0, RECORDS - 1)]
    assert query(url, "SELECT sum(applied), sum(dead), bool_and(balanced) FROM tallymark_status") == [
        (RECORDS, 0, True)
    ]
    assert not cluster.workers[0].running
    assert cluster.workers[1].running
