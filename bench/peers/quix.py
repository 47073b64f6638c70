"""Quix Streams with its PostgreSQL sink, in an environment and a process of its own: at least once.

Its environment is made once from ``requirements/quix.txt``, in ``.venv-quix``; it needs Python 3.11. The sink inserts
100 rows a statement, and no setting changes that. What can be set is how many records a commit takes: 10,000 here,
which was not compared with other numbers. In a latency run every record is a commit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import make_url

from bench.harness import tables
from bench.harness.race import Course, Lap
from bench.harness.servers import new_group
from bench.peers.watch import Check, watch
from tallymark.errors import TallymarkError
from tallymark.local.cache import cache_dir, locked
from tallymark.stores.url import with_password

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-quix"
REQUIREMENTS = ROOT / "requirements" / "quix.txt"
APP = Path(__file__).with_name("quix_app.py")
STOP_SECONDS = 30.0


@dataclass
class Quix:
    """With commits of 10,000 records and librdkafka's settings as ours, on a share of the records."""

    name: str
    share: float

    def start(self, course: Course) -> None:
        if course.kind != "postgresql":
            raise TallymarkError(f"Quix Streams has no sink for {course.kind}: race it with PostgreSQL alone")
        install()

    def stop(self) -> None:
        """Its process ends with each lap."""

    def lap(self, course: Course) -> Lap:
        tables.prepare(course)
        with application(course, commit_every=10_000) as check:
            return watch(course, "append", int(course.records * self.share), check)


@contextmanager
def running(course: Course) -> Iterator[None]:
    """An application that writes each record at once to the table of the course."""
    install()
    with application(course, commit_every=1):
        yield


def install() -> None:
    """Make its environment if that has not been done, or if the requirements have changed since."""
    stamp = ENVIRONMENT / "installed.txt"
    with locked(cache_dir() / "quix.lock"):
        if stamp.exists() and stamp.read_bytes() == REQUIREMENTS.read_bytes():
            return
        python = ENVIRONMENT / "bin" / "python"
        _run(sys.executable, "-m", "venv", ENVIRONMENT)
        _run(python, "-m", "pip", "install", "--disable-pip-version-check", "--require-hashes", "-r", REQUIREMENTS)
        stamp.write_bytes(REQUIREMENTS.read_bytes())


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TallymarkError(f"Quix Streams could not be installed: {done.stderr.strip()[-600:]}")


@contextmanager
def application(course: Course, commit_every: int) -> Iterator[Check]:
    """The application at work; yields what raises if it has ended."""
    with tempfile.TemporaryDirectory(prefix="bench-quix-") as directory, (Path(directory) / "log").open("w+b") as log:
        command = [ENVIRONMENT / "bin" / "python", APP]
        process = subprocess.Popen(
            command, env=_environment(course, commit_every), cwd=directory, stdout=log, stderr=log
        )

        def check() -> None:
            if process.poll() is not None:
                log.seek(0)
                said = log.read().decode(errors="replace")
                raise TallymarkError(f"Quix Streams ended with status {process.returncode}: {said.strip()[-600:]}")

        try:
            yield check
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment(course: Course, commit_every: int) -> dict[str, str]:
    """Passwords travel in the environment, because a list of processes does not show it."""
    url = with_password(make_url(course.url))
    return {
        **os.environ,
        "BENCH_BROKERS": course.brokers,
        "BENCH_TOPIC": course.topic,
        "BENCH_URL": url.render_as_string(hide_password=False),
        "BENCH_TABLE": course.table,
        "BENCH_GROUP": new_group(course),
        "BENCH_COMMIT_EVERY": str(commit_every),
    }
