"""The demonstration holds, and reports a difference if there is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tallymark.cli.demo import as_object
from tallymark.core.claims import FirstClaim, PositionChanges
from tallymark.core.spans import Owner, Partition
from tallymark.operate.demo.verdict import judge
from tallymark.stores.opening import open_sql
from tests.support.command import tallymark
from tests.support.databases import query
from tests.support.kafka import Topics

pytestmark = pytest.mark.xdist_group("processes")


@pytest.mark.parametrize(
    "kills", [0, pytest.param(1, marks=pytest.mark.faults), pytest.param(3, marks=pytest.mark.faults)]
)
def test_kills_lose_nothing_and_repeat_nothing(database: Callable[[str], str], kills: int) -> None:
    store = database("postgresql")
    done = tallymark("demo", "--records", "12000", "--kills", str(kills), "--store", store, "--json")
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict.pop("seconds") > 0
    assert verdict.pop("absent") >= 1000
    assert verdict == {
        "records": 12000,
        "applied": 11880,
        "dead": 120,
        "skipped": 0,
        "lost": 0,
        "missing": 0,
        "duplicated": 0,
        "kills": kills,
    }
    assert query(store, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'") == []


def test_the_verdict_sees_what_is_missing_and_what_is_there_twice(
    topics: Topics, brokers: str, group: str, database: Callable[[str], str]
) -> None:
    """A store filled by hand: offset 1 is missing, offset 2 is there twice, offset 9 was never in Kafka."""
    topic = topics.create(1)
    topics.send_to(topic, 0, [{"id": n} for n in range(4)])
    store = open_sql(database("sqlite"))
    store.create_ledger()
    owner = Owner("run", "host", datetime.now(UTC))
    first = {Partition(topic, 0): FirstClaim(0, "id", "cluster")}
    store.claim(group, owner, first.keys(), lambda _: PositionChanges(first), {})
    with store.transaction() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (partition_id INT, record_offset INT)")
        connection.exec_driver_sql("INSERT INTO orders VALUES (0, 0), (0, 2), (0, 2), (0, 3), (0, 9)")

    verdict = judge(brokers, topic, store, group, "orders", kills=0, seconds=0.0)

    assert not verdict.holds
    facts = as_object(verdict)
    assert (facts["records"], facts["missing"], facts["duplicated"]) == (4, 1, 2)
    store.close()
