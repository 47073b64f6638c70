"""Where the time of a batch goes: a pipeline on local[2] into PostgreSQL, seen from four sides.

The named steps say which stage takes how long. py-spy, where it is installed, samples the driver's Python; Spark's
event log has the tasks; pg_stat_statements and pg_stat_activity say what the database did and what it waited for. And
/proc has the CPU time of each process.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from sqlalchemy import text as sql

from bench.contenders.ours import OurPipeline
from bench.harness import tables
from bench.harness.command import Command, run
from bench.harness.evidence import (
    EVENT_LOG,
    LOOKS,
    Frames,
    Statement,
    WatchedPostgreSQL,
    Work,
    sampled_database,
    sampled_python,
    statements,
    works,
)
from bench.harness.machine import facts, sentence
from bench.harness.processes import family, processes
from bench.harness.race import Course, say
from bench.harness.report import table, thousands
from bench.harness.servers import Servers, course
from bench.harness.tables import Mode
from tallymark.core.progress import Progress, Step
from tallymark.local.sandbox.server import Server
from tallymark.spark.pipeline import Road
from tallymark.spark.session import session
from tallymark.stores.opening import open_sql

MODES: Sequence[Mode] = ("append", "upsert")
BATCH = 250_000
WARM = 4
COMPILING = "of the JVM's, compiling"
MOST = 8
"""Lines of a table: what comes after them is small."""
STEPS = (Step.PLANNED, Step.READ, Step.STAGED, Step.WRITTEN, Step.MOVED, Step.COMMITTED)


@dataclass
class Profile:
    """What was seen of one run."""

    mode: Mode
    records: int
    seconds: float = 0.0
    began: float = 0.0
    """By the clock that Spark writes to its log."""
    stages: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu: dict[str, float] = field(default_factory=dict)
    frames: Frames = field(default_factory=Counter)
    statements: list[Statement] = field(default_factory=list)
    activity: Counter[str] = field(default_factory=Counter)
    work: list[Work] = field(default_factory=list)


class Stopwatch:
    """How long each batch took to each of its steps. A batch that was read and waits for its turn is in no stage."""

    def __init__(self, stages: dict[str, list[float]]) -> None:
        self._stages = stages
        self._last: dict[str, float] = {}

    def __call__(self, step: Step, progress: Progress) -> None:
        if step in STEPS:
            now = time.monotonic()
            began = max(self._last.get(progress.batch, 0.0), progress.since)
            self._stages[step.name].append(now - began)
            self._last[progress.batch] = now


def spent(servers: Mapping[str, Server]) -> dict[str, float]:
    """CPU seconds until now. In local mode the JVM is driver and executors in one."""
    running, here = processes(), os.getpid()
    below = family(running, [here]) - {here}
    members = {"Python": {here}, "JVM": {pid for pid in below if running[pid].name == "java"}}
    members |= {name: family(running, [server.pid]) for name, server in servers.items()}
    found = {name: sum(running[pid].seconds for pid in pids) for name, pids in members.items()}
    return found | {COMPILING: sum(map(compiling, members["JVM"]))}


def compiling(pid: int) -> float:
    """CPU seconds of the threads that compile what the others run."""
    found, tick = 0.0, os.sysconf("SC_CLK_TCK")
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            head, _, tail = path.read_text().rpartition(")")
            if "CompilerThre" in head:
                found += sum(map(int, tail.split()[11:13])) / tick
    return found


def run_once(profile: Profile, course: Course, road: Road) -> None:
    """Read the whole topic into a new table of the mode, which has an old row for every key of an upsert."""
    tables.prepare(course, profile.mode)
    pipeline = OurPipeline("profile", profile.mode, BATCH, road).pipeline(course)
    profile.began, began = time.time(), time.perf_counter()
    pipeline.run("caught-up", on_step=Stopwatch(profile.stages))
    profile.seconds = time.perf_counter() - began


def profiled(mode: Mode, course: Course, road: Road, servers: Mapping[str, Server], program: str | None) -> Profile:
    """One run, after some that warm up."""
    profile = Profile(mode, course.records)
    with closing(open_sql(course.url)) as store:
        for _ in range(WARM):
            run_once(Profile(mode, course.records), course, road)
        tables.prepare(course, mode)
        with store.transaction() as connection:
            connection.execute(sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements"))
            connection.execute(sql("SELECT pg_stat_statements_reset()"))
        before = spent(servers)
        with sampled_python(program, profile.frames), sampled_database(store, profile.activity):
            run_once(profile, course, road)
            profile.cpu = {part: seconds - before[part] for part, seconds in spent(servers).items()}
        with store.look() as connection:
            profile.statements = statements(connection, MOST)
    tables.lap(course, mode, course.records, profile.seconds)
    return profile


def as_json(profile: Profile) -> dict[str, Any]:
    frames = [[*where, count] for where, count in profile.frames.most_common()]
    return {**vars(profile), "frames": frames, "work": [vars(one) for one in profile.work]}


def report(profile: Profile) -> Iterator[str]:
    said = f"{profile.records:,} records, {BATCH:,} a batch, in {profile.seconds:.2f} s"
    yield f"\n**{profile.mode}**: {said}, {thousands(profile.records / profile.seconds)} k records/s"
    yield from _table("step|ms to it, median|share of the time", _stage_lines(profile))
    yield from _table("CPU time of|seconds|cores", _cpu_lines(profile))
    yield from _table("Python is in|and there in|share of its samples", _frame_lines(profile.frames))
    yield from _table("Spark stage|tasks|task s|CPU s|GC s|around it s|cores", _work_lines(profile))
    yield from _table("statement|calls|seconds|rows|WAL MB", _statement_lines(profile))
    yield from _table("connections to PostgreSQL|share of the time", _activity_lines(profile.activity))


def _table(head: str, lines: Iterator[Sequence[str]]) -> Iterator[str]:
    if rows := list(lines):
        yield from ["", *table(head.split("|"), rows)]


def _stage_lines(profile: Profile) -> Iterator[Sequence[str]]:
    for name, times in profile.stages.items():
        yield name, f"{statistics.median(times) * 1000:,.0f}", f"{sum(times) / profile.seconds:.0%}"


def _cpu_lines(profile: Profile) -> Iterator[Sequence[str]]:
    for part, seconds in profile.cpu.items():
        yield part, f"{seconds:.2f}", f"{seconds / profile.seconds:.2f}"


def _activity_lines(activity: Counter[str]) -> Iterator[Sequence[str]]:
    for name, count in activity.most_common(MOST + 1):
        if name != LOOKS:
            yield name, f"{count / activity[LOOKS]:.0%}"


def _frame_lines(frames: Frames) -> Iterator[Sequence[str]]:
    total = sum(frames.values())
    return ((caller, leaf, f"{count / total:.0%}") for (caller, leaf), count in frames.most_common(MOST))


def _work_lines(profile: Profile) -> Iterator[Sequence[str]]:
    for one in profile.work[:MOST]:
        times = (one.run, one.cpu, one.gc, one.around)
        yield one.stage, f"{one.tasks}", *(f"{t:.2f}" for t in times), f"{one.run / profile.seconds:.2f}"


def _statement_lines(profile: Profile) -> Iterator[Sequence[str]]:
    for query, calls, seconds, rows, wal in profile.statements:
        cut = query if len(query) <= 70 else f"{query[:67]}..."
        yield f"`{cut.replace('|', '/')}`", f"{calls:,}", f"{seconds:.2f}", f"{rows:,}", f"{wal / 1e6:.1f}"


def measure(servers: Servers, records: int, road: Road, program: str | None) -> tuple[dict[str, str], list[Profile]]:
    with ExitStack() as stack:
        events = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tallymark-events-")))
        postgresql = stack.enter_context(WatchedPostgreSQL(servers.box.directory / "watched", temporary=True))
        watched = {"PostgreSQL": postgresql, "Kafka": servers.kafka}
        spark = session({"spark.master": "local[2]", "spark.eventLog.dir": events.as_uri(), **EVENT_LOG})
        at = stack.enter_context(course(servers.brokers, postgresql.url, records))
        profiles = []
        for mode in MODES:
            say(f"profile of {mode}")
            profiles.append(profiled(mode, at, road, watched, program))
        spark.stop()
        for profile in profiles:
            profile.work = works(events, profile.began, profile.began + profile.seconds)
        return facts(postgresql.url), profiles


def sampler() -> str | None:
    """py-spy, on the PATH or beside this Python."""
    beside = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or (str(beside) if beside.exists() else None)


def main() -> None:
    command = Command("profiling", __doc__)
    command.options.add_argument("--records", type=int, default=1_000_000)
    command.options.add_argument("--road", default="auto", choices=get_args(Road))
    command.options.add_argument("--py-spy", default=sampler(), help="The sampler of the driver's Python.")
    chosen = command.parse()
    with Servers() as servers:
        known, profiles = measure(servers, chosen.records, chosen.road, chosen.py_spy)
    text = "\n".join([sentence(known), *(line for profile in profiles for line in report(profile))])
    command.publish(chosen, text, {"facts": known, "profiles": [as_json(profile) for profile in profiles]})


if __name__ == "__main__":
    run(main)
