"""Every example runs unchanged on real servers and prints the expected output. Each has its own assertions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import DEADLINE, REPOSITORY

pytestmark = pytest.mark.xdist_group("processes")

EXAMPLES = REPOSITORY / "examples"
SHOWN = {
    "offset_table": "partition 2: no offset yet",
    "offsets_in_redis": r"tallymark:position:\w+:\w+:1 .*'next_offset': '10'",
    "one_transaction": r"rows and position after another run: \(15, 15\)",
    "delivery": "exactly-once 20 records, crash at moved: 20 rows, 20 different, position 20",
    "subscription": r"revoked  gained \[\] lost \[\[",
    "rebalances": r"a partition is added:\n  tallymark-\S+ has .*-books\[4\]",
    "first_poll": r"uncommitted-latest +nothing saved: \[\] .* \[3, 4\]",
    "taken_over": r"refused \d+ records of partitions .* was claimed by",
    "skip_ahead": "exception: skip 0 1100 1,200 records behind",
    "standalone": "members of the group in Kafka: 0",
    "threads": r"threads: \S+ applied 100 \S+ applied 100",
    "settings": "refused: .*enable.auto.commit can't be set",
    "positions": "committed 10, current 10, last stable 10, high watermark 13, lag 3",
    "fencing": "the old one was refused: .* was claimed by run",
    "producer": r"own partitioner: \[0, 1, 2, 3, 0\]",
    "no_loss": r"stopped: this producer stopped at its first failure, .*max.message.bytes; create a new one",
    "listener": "dead letters: .*nobody ordered this",
}
SHOWN_BY_TESTS_TOO = [
    "offset_table",
    "offsets_in_redis",
    "delivery",
    "subscription",
    "rebalances",
    "first_poll",
    "skip_ahead",
    "standalone",
    "threads",
    "settings",
    "positions",
]
RUNNING_TOTALS = """\
first run: killed by SIGKILL: True
sales in the table: 3000
second run: ended well: True
Aachen 3329 165072.98 99.94
Bonn 3376 168171.18 99.95
Celle 3295 163447.83 99.95
sales in the table: 10000
"""
STORES = {"offset_table": "mariadb", "one_transaction": "postgresql"}


@pytest.mark.faults_where(name=SHOWN_BY_TESTS_TOO)
@pytest.mark.parametrize("name", SHOWN)
def test_an_example_runs_and_shows_its_point(
    name: str, brokers: str, database: Callable[[str], str], redis_url: str, tmp_path: Path
) -> None:
    store = redis_url if "redis" in name else database(STORES.get(name, "sqlite"))

    done = run_example(name, brokers, store, tmp_path)

    assert re.search(SHOWN[name], done.stdout), done.stdout


def test_every_example_is_listed_and_run() -> None:
    files = {file.stem for file in EXAMPLES.glob("*.py")} - {"common"}
    assert files == {*SHOWN, "running_totals", "orders", "streaming"}
    listed = (EXAMPLES / "README.md").read_text()
    assert {name for name in files if f"({name}.py)" not in listed} == set()


def test_running_totals_survive_the_kill_of_their_example(
    brokers: str, database: Callable[[str], str], tmp_path: Path
) -> None:
    done = run_example("running_totals", brokers, database("sqlite"), tmp_path)
    assert done.stdout == RUNNING_TOTALS


def run_example(name: str, brokers: str, store: str, directory: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        env={**os.environ, "TALLYMARK_BROKERS": brokers, "TALLYMARK_STORE": store},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done
