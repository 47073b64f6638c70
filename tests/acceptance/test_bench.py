"""``tallymark bench`` races on the user's own servers and leaves them as they were."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import closing

import pytest
from confluent_kafka.admin import AdminClient

from tallymark.stores.opening import open_sql
from tests.support.command import started, tallymark, wait_until
from tests.support.databases import query

pytestmark = pytest.mark.xdist_group("processes")

TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'",
    "postgresql": "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'",
}


def topics(brokers: str) -> set[str]:
    names = AdminClient({"bootstrap.servers": brokers}).list_topics(timeout=30).topics
    return {name for name in names if name.startswith("bench-")}


def test_a_race_is_told_as_json_and_leaves_nothing_behind(brokers: str, database: Callable[[str], str]) -> None:
    store = database("sqlite")
    with closing(open_sql(store)) as opened:
        opened.create_ledger()
    before = query(store, TABLES["sqlite"])

    only = ["--only", "tallymark"]
    done = tallymark(
        "bench", "--brokers", brokers, "--store", store, "--records", "3000", "--rounds", "1", "--json", *only
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    append, upsert = found["races"]
    assert set(append["laps"]) == {"tallymark", "tallymark, listener"}
    assert set(upsert["laps"]) == {"tallymark, upsert"}
    assert all([lap[0] for lap in laps] == [3000] for race in found["races"] for laps in race["laps"].values())
    assert found["machine"]["SQLite"]
    assert query(store, TABLES["sqlite"]) == before
    with closing(open_sql(store)) as opened:
        assert opened.journal().groups() == {}
    wait_until(lambda: not topics(brokers), "the topic is gone")


def test_a_race_that_is_ended_leaves_nothing_behind(brokers: str, database: Callable[[str], str]) -> None:
    """Neither a ledger, which was not there before."""
    store = database("postgresql")
    process = started("bench", "--brokers", brokers, "--store", store, "--records", "3000", "--only", "limit: bulk")
    wait_until(lambda: bool(query(store, TABLES["postgresql"])) or process.poll() is not None, "it has a table")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=240)
    assert process.returncode != 0, said
    assert query(store, TABLES["postgresql"]) == []
    wait_until(lambda: not topics(brokers), "the topic is gone")


def test_a_contender_that_nobody_knows_is_said(brokers: str, database: Callable[[str], str]) -> None:
    done = tallymark(
        "bench", "--brokers", brokers, "--store", database("sqlite"), "--records", "1000", "--only", "nobody"
    )
    assert done.returncode == 1
    assert "no contender has 'nobody' in its name" in done.stderr
