"""What py-spy, Spark's event log and PostgreSQL's own statistics have seen of a run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from tallymark.errors import TallymarkError
from tallymark.local.sandbox.postgresql import PostgreSQL
from tallymark.stores.sql.store import SqlStore

Frames = Counter[tuple[str, str]]
Statement = tuple[str, int, float, int, int]

WAITING = ("wait", "_wait_for_tstate_lock", "select")
"""Functions in which a thread waits for another one: to be there is no work."""
EVENT_LOG = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}
STATEMENTS = """
SELECT query, calls, total_exec_time / 1000, rows, wal_bytes FROM pg_stat_statements
WHERE query NOT LIKE '%pg_stat%' ORDER BY total_exec_time DESC LIMIT :most
"""
ACTIVITY = """
SELECT CASE WHEN state <> 'active' THEN state ELSE coalesce(wait_event_type || ': ' || wait_event, 'works') END
FROM pg_stat_activity WHERE backend_type = 'client backend' AND state <> 'idle' AND pid <> pg_backend_pid()
"""
SAMPLE_SECONDS = 0.02
LOOKS = "looks"


@contextmanager
def sampled_python(program: str | None, frames: Frames) -> Iterator[None]:
    """Fill in how often which function of ours was at work, and what it had called."""
    if program is None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="tallymark-profile-") as directory:
        found = Path(directory, "stacks")
        command = [program, "record", "--pid", str(os.getpid()), "--format", "raw", "--output", str(found)]
        sampler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            sampler.send_signal(signal.SIGINT)
            sampler.wait(60)
        if not found.exists():
            raise TallymarkError(f"{program} may not look at this process: run as root, or allow ptrace")
        for line in found.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            stacked = stack.split(";")
            if not _waits(stacked):
                frames[_telling(stacked)] += int(count)


def _waits(stack: Sequence[str]) -> bool:
    """Whether the thread waits for another one, or is the one that looks at the database for us."""
    function = stack[-1].partition(" (")[0].rpartition(".")[2]
    return function in WAITING or any("(evidence.py" in frame or "/evidence.py" in frame for frame in stack)


def _telling(stack: Sequence[str]) -> tuple[str, str]:
    """The innermost frame that is ours, and the one that works for it."""
    ours = [frame for frame in stack if "tallymark/" in frame]
    return _short(ours[-1] if ours else stack[0]), _short(stack[-1])


def _short(frame: str) -> str:
    """``function (module.py)`` without the path and the line."""
    function, _, place = frame.partition(" (")
    return f"{function} ({Path(place.rstrip(')').partition(':')[0]).name})"


@dataclass
class Work:
    """All tasks of the stages of one name, in seconds. ``around`` is what a task takes beside its own work."""

    stage: str
    tasks: int = 0
    run: float = 0.0
    cpu: float = 0.0
    gc: float = 0.0
    around: float = 0.0


def works(directory: Path, since: float, until: float) -> list[Work]:
    """The work that ended between these moments, the longest first. To be asked when the session has stopped."""
    names: dict[int, str] = {}
    found: dict[str, Work] = {}
    for event in _events(directory):
        if event["Event"] == "SparkListenerStageSubmitted":
            names[event["Stage Info"]["Stage ID"]] = _name(event["Stage Info"]["Stage Name"])
        elif event["Event"] == "SparkListenerTaskEnd" and since <= event["Task Info"]["Finish Time"] / 1000 <= until:
            name = names[event["Stage ID"]]
            _add(found.setdefault(name, Work(name)), event["Task Info"], event.get("Task Metrics") or {})
    return sorted(found.values(), key=lambda work: -work.run)


def _events(directory: Path) -> Iterator[dict[str, Any]]:
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open() as lines:
                yield from map(json.loads, lines)


def _add(work: Work, info: dict[str, Any], metrics: dict[str, Any]) -> None:
    run = metrics.get("Executor Run Time", 0) / 1e3
    work.tasks += 1
    work.run += run
    work.cpu += metrics.get("Executor CPU Time", 0) / 1e9
    work.gc += metrics.get("JVM GC Time", 0) / 1e3
    work.around += (info["Finish Time"] - info["Launch Time"]) / 1e3 - run


def _name(stage: str) -> str:
    """Without the directories of the file that started it."""
    return re.sub(r"/\S*/", "", stage)


class WatchedPostgreSQL(PostgreSQL):
    """The sandbox's server with the module that counts statements."""

    def command(self) -> list[str | Path]:
        return [*super().command(), "--shared_preload_libraries=pg_stat_statements", "--track_io_timing=on"]


@contextmanager
def sampled_database(store: SqlStore, activity: Counter[str]) -> Iterator[None]:
    """Fill in what the database's connections did, look by look; ``LOOKS`` counts those."""
    done = threading.Event()

    def watch() -> None:
        with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while not done.wait(SAMPLE_SECONDS):
                activity[LOOKS] += 1
                activity.update(connection.execute(text(ACTIVITY)).scalars())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def statements(connection: Connection, most: int) -> list[Statement]:
    found = connection.execute(text(STATEMENTS), {"most": most}).all()
    return [(" ".join(query.split()), calls, seconds, rows, int(wal)) for query, calls, seconds, rows, wal in found]
