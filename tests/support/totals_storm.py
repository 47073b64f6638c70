"""A storm over merged tables: drivers are killed, stopped and cut off while positions jump, skips are filled and dead
letters are replayed. Everything that happens follows from one seed, as far as several processes allow.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tallymark.core.progress import Step
from tallymark.errors import TallymarkError
from tallymark.kafka.brokers import Brokers
from tallymark.operate.emptying import Consent
from tallymark.operate.moves import Resetting
from tallymark.operate.reset import Aim
from tallymark.stores.opening import open_store
from tests.support import totals
from tests.support.background import wait_for
from tests.support.kafka import Topics
from tests.support.proxy import Cut, Proxy
from tests.support.totals import FULL
from tests.support.totals_driver import Driver, Fault, Kind, prepare, repair, start, stopped
from tests.support.totals_schedule import Act, Schedule, Weather

DRAIN_SECONDS = 90.0


@dataclass
class Storm:
    """One storm over one store. ``run`` returns what happened, or raises if the totals are wrong."""

    seed: int
    weather: Weather
    url: str
    group: str
    topics: Topics
    logs: Path
    processes: dict[str, Any] = field(default_factory=dict)
    drivers: dict[str, Driver] = field(default_factory=dict)
    killed: set[str] = field(default_factory=set)
    skipped: int = 0

    def __post_init__(self) -> None:
        self._open, self._over, self._store = ExitStack(), threading.Event(), self.url

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule(self.seed, self.weather)

    def run(self) -> dict[str, Any]:
        plan = self.schedule
        with self._open:
            self._open.callback(self._kill_all)
            self.proxy = None if self.url.startswith("sqlite") else self._open.enter_context(Proxy(self.url))
            self._store = self.proxy.url if self.proxy else self.url
            self.topic = self.topics.create(self.weather.partitions)
            prepare(self.url, plan.bad)
            self._open.callback(self._over.set)
            threading.Thread(target=self._continue_stopped, daemon=True).start()
            for part in range(plan.backlog):
                self._send(part)
            self._play()
            self._drain()
            fates = totals.split(self.topics.committed(self.topic))
            self._finish("backfill")
            self._check(fates, repaired=False)
            repair(self.url, plan.bad)
            self._finish("replay")
            self._check(fates, repaired=True)
            self._check_exits()
        return {"engine": plan.engine} | self._facts(fates)

    def _play(self) -> None:
        for settings in self.schedule.first:
            self._start(settings)
        wait_for(self._reached, DRAIN_SECONDS, "the first members begin")
        began = time.monotonic()
        for act in self.schedule.acts:
            time.sleep(max(0.0, began + act.at - time.monotonic()))
            self._do(act)

    def _do(self, act: Act) -> None:
        if act.kind == "send":
            self._send(act.detail)
        elif act.kind == "start":
            self._start(act.detail)
        elif act.kind == "skip":
            self._skip(act.detail)
        elif act.kind == "cut":
            if self.proxy:
                # Only a connection that has written a batch: others commit claims and heartbeats.
                after = b"" if self.url.startswith("redis") else b"tallymark_batches"
                self.proxy.arm(Cut(self.proxy.commit, act.detail, after=after))
        elif len(alive := [name for name, process in self.processes.items() if process.is_alive()]) > 1:
            name = alive[int(act.detail * len(alive))]
            if act.kind == "kill":
                self.killed.add(name)
            os.kill(self.processes[name].pid, signal.SIGKILL if act.kind == "kill" else signal.SIGTERM)

    def _start(self, settings: Mapping[str, Any]) -> None:
        driver = self._driver(settings)
        if driver.fault is not None and driver.fault.number == signal.SIGKILL:
            self.killed.add(driver.name)
        self.drivers[driver.name] = driver
        self.processes[driver.name] = start(driver)

    def _driver(self, settings: Mapping[str, Any]) -> Driver:
        driver = Driver(self.topics.brokers, self._store, self.group, self.topic, self.schedule.engine, **settings)
        return replace(driver, logs=self.logs, session=self.weather.session)

    def _send(self, part: int) -> None:
        partition, aborted, values = self.schedule.parts[part]
        if aborted:
            self.topics.send_in_transaction(self.topic, {partition: values}, commit=False)
        else:
            self.topics.send_to(self.topic, partition, values)

    def _skip(self, shifts: Mapping[int, int]) -> None:
        """An operator moves positions forward, although the group is running. A partition may have none yet."""
        store = open_store(self.url)
        try:
            known = store.positions(self.group).get(self.group, []) if store.has_ledger() else []
            there = {position.partition.number for position in known}
            for partition, shift in ((number, shift) for number, shift in shifts.items() if number in there):
                aim = Aim("shift", f"--shift-by {shift}", shift)
                scope = [f"{self.topic}:{partition}"]
                try:
                    moved = Resetting(store, self.group, Brokers(self.topics.brokers), aim, scope, all_topics=False)
                    self.skipped += sum(
                        each.skips for each in moved.execute("op", None, take_over=True, consent=Consent())
                    )
                except TallymarkError as error:
                    if not error.transient:
                        raise
        finally:
            store.close()

    def _continue_stopped(self) -> None:
        """Continue each member that has stopped itself after its session has ended."""
        continued: set[str] = set()
        while not self._over.wait(0.05):
            for name, driver in list(self.drivers.items()):
                stops = driver.kind == "run" and driver.fault is not None
                if name not in continued and stops and stopped(driver).exists():
                    continued.add(name)
                    timer = threading.Timer(1.5 * self.weather.session, self._signal, (name, signal.SIGCONT))
                    timer.daemon = True
                    timer.start()

    def _signal(self, name: str, number: int) -> None:
        if self.processes[name].is_alive():
            os.kill(self.processes[name].pid, number)

    def _drain(self) -> None:
        """New members process the rest; then all processes end."""
        for settings in ({"name": f"fresh{number}", "most": 40} for number in range(2)):
            self._start(settings)
        ends = self.topics.ends(self.topic)
        while (reached := self._reached()) != ends:
            wait_for(partial(self._has_moved, reached), DRAIN_SECONDS, f"{reached} comes nearer to {ends}")
        for name in self.processes:
            self._signal(name, signal.SIGTERM)
            self._signal(name, signal.SIGCONT)
        self._join()

    def _join(self, started: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Wait for the end of all processes, or of these."""
        names = list(self.processes) if started is None else [settings["name"] for settings in started]
        for process in map(self.processes.__getitem__, names):
            process.join(DRAIN_SECONDS)
            assert not process.is_alive(), f"{process.name} does not end"

    def _finish(self, kind: Kind) -> None:
        """Fill or replay everything: two processes at once, one that finishes, and one that comes late."""
        *both, last = self.schedule.final(kind)
        late = self._stop_before_its_commit({**last, "name": f"late-{kind}"})
        for settings in both:
            self._start(settings)
        self._join(both)
        self._driver(last).work()
        before = totals.found(self.url)
        self._signal(late, signal.SIGCONT)
        self._join()
        self._driver(last).work()
        assert totals.found(self.url) == before, f"a {kind} that has nothing left to do has changed a table"

    def _stop_before_its_commit(self, settings: Mapping[str, Any]) -> str:
        """Start a process that stops when it has read its first batch; others then apply the records of that batch."""
        step = Step.READ if self.schedule.engine == "service" else Step.STAGED
        if self.url.startswith("redis"):
            # Nothing is locked before the script: it alone decides then.
            step = Step.MOVED
        name = str(settings["name"])
        self._start({**settings, "fault": Fault(step, 1, signal.SIGSTOP)})
        is_over = lambda: stopped(self.drivers[name]).exists() or not self.processes[name].is_alive()  # noqa: E731
        wait_for(is_over, DRAIN_SECONDS, f"{name} stops")
        return name

    def _check(self, fates: Mapping[str, Mapping[totals.Record, totals.Row]], *, repaired: bool) -> None:
        """Before the repair, the tables lack the repairable records, and the full total stays out of the comparison."""
        values = [*fates["good"].values(), *(fates["repairable"].values() if repaired else ())]
        tables = list(totals.KEYS) if repaired or not self.url.startswith("redis") else ["totals", "origins", "grouped"]
        totals.check(self.url, values, None if repaired else FULL, tables)
        totals.check_tallies(self.url, fates, repaired=repaired)

    def _check_exits(self) -> None:
        """No process ended by an error."""
        wrong = {}
        for name, process in self.processes.items():
            file = self.logs / f"{name}.log"
            log = file.read_text() if file.exists() else ""
            # A process that gets the signal before its handler is installed is ended by the signal.
            allowed = {0, -signal.SIGTERM} | ({-signal.SIGKILL} if name in self.killed else set())
            if "stopping after the current batch" in log and "errors.Unreachable" in log.splitlines()[-1]:
                # Told to stop, it does not wait for a store that is away.
                allowed.add(1)
            if process.exitcode not in allowed:
                wrong[name] = process.exitcode, log.splitlines()[-25:]
        assert not wrong, f"processes ended by themselves: {wrong}"

    def _kill_all(self) -> None:
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
                process.join()

    def _reached(self) -> dict[int, int]:
        return {partition: tally["next_offset"] for partition, tally in totals.tallies(self.url).items()}

    def _has_moved(self, reached: Mapping[int, int]) -> bool:
        return self._reached() != reached

    def _facts(self, fates: Mapping[str, Mapping[totals.Record, totals.Row]]) -> dict[str, Any]:
        words = "".join(log.read_text() for log in sorted(self.logs.glob("*.log")))
        return {
            "processes": len(self.processes),
            "killed": sum(process.exitcode == -signal.SIGKILL for process in self.processes.values()),
            "stopped": len(list(self.logs.glob("*.stopped"))),
            "cuts": len(self.proxy.done) if self.proxy else 0,
            "skipped by hand": self.skipped,
            "fenced": words.count("fenced"),
            "unknown": words.count("outcome unknown"),
            **{kind: len(records) for kind, records in fates.items()},
        }
