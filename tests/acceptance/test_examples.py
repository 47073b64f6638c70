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
    "m01_offset_table": "partition 2: no offset yet",
    "m02_offsets_in_redis": r"tallymark:position:\w+:\w+:1 .*'next_offset': '10'",
    "m03_one_transaction": r"rows and position after another run: \(15, 15\)",
    "m04_delivery": "exactly-once 20 records, crash at moved: 20 rows, 20 different, position 20",
    "m05_subscription": r"revoked  gained \[\] lost \[\[",
    "m06_rebalance_triggers": r"a partition is added:\n  tallymark-\S+ has .*-books\[4\]",
    "m07_first_poll": r"uncommitted-latest +nothing saved: \[\] .* \[3, 4\]",
    "m08_in_doubt": r"refused \d+ records of partitions .* was claimed by",
    "m09_skip_ahead": "exception: skip 0 1100 1,200 records behind",
    "m10_standalone": "members of the group in Kafka: 0",
    "m11_threads": r"threads: \S+ applied 100 \S+ applied 100",
    "m12_settings": "refused: .*enable.auto.commit can't be set",
    "m13_positions": "committed 10, current 10, last stable 10, high watermark 13, lag 3",
    "m14_generations": "the old one was refused: .* was claimed by run",
    "m15_producer": r"own partitioner: \[0, 1, 2, 3, 0\]",
    "m16_no_loss": r"stopped: this producer stopped at its first failure, .*max.message.bytes; create a new one",
    "m18_listener": "dead letters: .*nobody ordered this",
}
SHOWN_BY_TESTS_TOO = [
    "m01_offset_table",
    "m02_offsets_in_redis",
    "m04_delivery",
    "m05_subscription",
    "m06_rebalance_triggers",
    "m07_first_poll",
    "m09_skip_ahead",
    "m10_standalone",
    "m11_threads",
    "m12_settings",
    "m13_positions",
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
STORES = {"m01_offset_table": "mariadb", "m03_one_transaction": "postgresql"}


@pytest.mark.faults_where(name=SHOWN_BY_TESTS_TOO)
@pytest.mark.parametrize("name", SHOWN)
def test_an_example_runs_and_shows_its_point(
    name: str, brokers: str, database: Callable[[str], str], redis_url: str, tmp_path: Path
) -> None:
    store = redis_url if "redis" in name else database(STORES.get(name, "sqlite"))

    done = run_example(name, brokers, store, tmp_path)

    assert re.search(SHOWN[name], done.stdout), done.stdout


def test_every_requirement_has_an_example_that_is_listed_and_run() -> None:
    files = {file.stem for file in EXAMPLES.glob("m*.py")}
    assert files == set(SHOWN)
    assert {int(name[1:3]) for name in files} == {*range(1, 17), 18}
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
