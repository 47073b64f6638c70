"""The parts ``throughput``, ``computing`` and ``totals`` race on the user's own servers and leave them as they were."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tallymark.stores.opening import open_sql
from tests.support.background import wait_for
from tests.support.command import DEADLINE, REPOSITORY
from tests.support.databases import query

pytestmark = pytest.mark.xdist_group("processes")

TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'",
    "postgresql": "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'",
}


def bench(part: str, *arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"bench.{part}", *arguments]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def topics(brokers: str) -> set[str]:
    names = AdminClient({"bootstrap.servers": brokers}).list_topics(timeout=30).topics
    return {name for name in names if name.startswith("bench-")}


@pytest.mark.faults
def test_a_race_reports_its_laps_and_leaves_nothing_behind(
    brokers: str, database: Callable[[str], str], tmp_path: Path
) -> None:
    store, kept = database("sqlite"), tmp_path / "results.json"
    with closing(open_sql(store)) as opened:
        opened.create_ledger()
    before = query(store, TABLES["sqlite"])

    servers, short = ("--brokers", brokers, "--store", store), ("--records", "3000", "--rounds", "1")
    process = bench("throughput", *servers, *short, "--only", "tallymark", "--json", kept)
    report, errors = process.communicate(timeout=240)

    assert process.returncode == 0, errors
    assert "| tallymark, listener |" in report
    found = json.loads(kept.read_text())
    append, upsert = found["races"]
    assert set(append["laps"]) == {"tallymark", "tallymark, listener"}
    assert set(upsert["laps"]) == {"tallymark, upsert"}
    assert all([lap[0] for lap in laps] == [3000] for race in found["races"] for laps in race["laps"].values())
    assert found["facts"]["SQLite"]
    assert query(store, TABLES["sqlite"]) == before
    with closing(open_sql(store)) as opened:
        assert opened.journal().groups() == {}
    wait_for(lambda: not topics(brokers), DEADLINE, "the topic is gone")


@pytest.mark.faults
def test_a_race_of_functions_fills_two_tables_and_leaves_nothing_behind(
    brokers: str, database: Callable[[str], str], tmp_path: Path
) -> None:
    store, kept = database("postgresql"), tmp_path / "results.json"
    short = ("--records", "3000", "--rounds", "1", "--only", "nested", "--json", kept)
    process = bench("computing", "--brokers", brokers, "--store", store, *short)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    (found,) = json.loads(kept.read_text())["races"]
    assert set(found["laps"]) == {"tallymark", "foreachBatch + JDBC, tuned"}
    assert query(store, TABLES["postgresql"]) == []
    wait_for(lambda: not topics(brokers), DEADLINE, "the topic is gone")


@pytest.mark.faults
def test_a_race_of_totals_compares_them_and_leaves_nothing_behind(
    brokers: str, database: Callable[[str], str], tmp_path: Path
) -> None:
    store, kept = database("postgresql"), tmp_path / "results.json"
    short = ("--records", "3000", "--rounds", "1", "--keys", "shop", "--only", "tallymark", "--json", kept)
    process = bench("totals", "--brokers", brokers, "--store", store, *short)
    report, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    assert "JVM heap after a collection" in report
    found = json.loads(kept.read_text())
    (race,) = found["races"]
    assert len(race["laps"]) == 2
    assert [held["name"] for held in found["memory"]] == list(race["laps"])
    assert all(min(held["python"], held["jvm"], held["heap"]) > 10 for held in found["memory"])
    assert query(store, TABLES["postgresql"]) == []
    wait_for(lambda: not topics(brokers), DEADLINE, "the topic is gone")


@pytest.mark.faults
def test_a_race_that_is_ended_leaves_nothing_behind(brokers: str, database: Callable[[str], str]) -> None:
    """The store had no ledger before, and has none afterwards."""
    store = database("postgresql")
    process = bench("throughput", "--brokers", brokers, "--store", store, "--records", "3000", "--only", "limit: bulk")
    wait_for(lambda: bool(query(store, TABLES["postgresql"])) or process.poll() is not None, DEADLINE, "it has a table")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=240)
    assert process.returncode != 0, errors
    assert "Traceback" not in errors
    assert query(store, TABLES["postgresql"]) == []
    wait_for(lambda: not topics(brokers), DEADLINE, "the topic is gone")


def test_an_unknown_contender_is_an_error_and_a_new_file_is_removed(
    brokers: str, database: Callable[[str], str], tmp_path: Path
) -> None:
    servers = ("--brokers", brokers, "--store", database("sqlite"))
    process = bench("throughput", *servers, "--records", "1000", "--only", "nobody")
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "error: no contender has 'nobody' in its name" in errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
