"""A driver dies at critical moments, on every database: after the next run every record is there once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tallymark import Limits
from tallymark.core.progress import Step
from tallymark.spark.pipeline import Road
from tests.support import databases
from tests.support.databases import tables
from tests.support.kafka import Topics
from tests.support.pipelines import UNBALANCED, coordinates, one_to_one
from tests.support.spark_crash import BATCH, run_until_killed

pytestmark = pytest.mark.usefixtures("spark")

# Two pairs in every run, and SQLite in the demonstration; the other pairs take three more minutes.
ROADS: dict[str, Road] = {"postgresql": "executors", "mariadb": "driver", "sqlite": "driver"}
BATCHES_LEFT = {Step.STAGED: {0, 1}, Step.MOVED: {1}, Step.COMMITTED: {2}}


@pytest.mark.faults
@pytest.mark.parametrize("step", list(BATCHES_LEFT))
@pytest.mark.parametrize("kind", databases.KINDS)
def test_a_driver_that_is_killed_in_its_second_batch_leaves_nothing_out_and_nothing_twice(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str], kind: str, step: Step
) -> None:
    url, topic = database(kind), topics.create(3)
    topics.send(topic, [{"id": n, "name": f"n{n}"} for n in range(3 * BATCH)], partitions=3)
    topics.send_in_transaction(topic, {0: [{"id": -1}]}, commit=False)

    assert run_until_killed(brokers, topic, group, url, step, 2, ROADS[kind]) == -9

    committed = "SELECT applied FROM tallymark_batches"
    assert len(databases.query(url, committed)) in BATCHES_LEFT[step]
    assert len(coordinates(url)) == sum(int(str(applied)) for (applied,) in databases.query(url, committed))
    assert databases.query(url, UNBALANCED) == []

    if (kind, step) == ("postgresql", Step.STAGED):
        assert [name for name in tables(url) if name.startswith("tallymark_stage_")]
    one_to_one(brokers, topic, group, url, limits=Limits(records=BATCH)).run("caught-up")

    assert coordinates(url) == sorted(topics.committed(topic))
    assert databases.query(url, UNBALANCED) == []
    assert not [name for name in tables(url) if name.startswith("tallymark_stage_")]
