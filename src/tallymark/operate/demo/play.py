"""Runs the demo: produces orders, runs and kills the pipeline until all is done, then verifies the result."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from sqlalchemy import text

from tallymark.core.progress import Step
from tallymark.core.spans import OUTCOMES, Tally
from tallymark.errors import TallymarkError
from tallymark.local.jars import fetch
from tallymark.local.sandbox import Sandbox
from tallymark.operate.demo.produce import create_topic, produce_orders
from tallymark.operate.demo.settings import DemoSettings
from tallymark.operate.demo.verdict import DemoVerdict, judge
from tallymark.stores.opening import open_sql
from tallymark.stores.sql.ledger.tables import metadata
from tallymark.stores.sql.store import SqlStore

KILLS = (Step.STAGED, Step.WRITTEN, Step.COMMITTED)
"""The steps at which runs are killed: with rows in memory, inside the transaction, and right after the commit."""
BATCHES = 8


class Stage(Protocol):
    """Displays the progress of the demo."""

    def note(self, said: str) -> None: ...

    def fetched(self, here: int, total: int) -> None: ...

    def produced(self, records: int) -> None: ...

    def accounted(self, tally: Tally) -> None: ...


@dataclass(frozen=True)
class Play:
    records: int
    store: str | None
    keep: bool
    kills: int = len(KILLS)

    def perform(self, stage: Stage) -> DemoVerdict:
        began = time.monotonic()
        name = uuid.uuid4().hex[:8]
        with Sandbox() as box, self._store() as store_url:
            for jars in ("kafka", "spark-kafka"):
                fetch(jars, progress=stage.fetched)
            stage.note("starting Kafka")
            brokers = box.kafka().brokers
            settings = DemoSettings(
                brokers, f"orders-{name}", store_url, f"demo-{name}", f"demo_orders_{name}", self.records // BATCHES
            )
            with removed_after(settings, keep=self.keep) as store:
                create_topic(brokers, settings.topic)
                produce_orders(brokers, settings.topic, self.records, stage.produced)
                kills = self._run_until_done(settings, stage)
                stage.note("counting Kafka and the database, independently")
                seconds = time.monotonic() - began
                return judge(settings, store, kills=kills, seconds=seconds)

    @contextlib.contextmanager
    def _store(self) -> Iterator[str]:
        if self.store is not None:
            yield self.store
        elif self.keep:
            yield "sqlite:///tallymark-demo.db"
        else:
            with tempfile.TemporaryDirectory(prefix="tallymark-demo-") as directory:
                yield f"sqlite:///{Path(directory) / 'demo.db'}"

    def _run_until_done(self, settings: DemoSettings, stage: Stage) -> int:
        """Run the pipeline and kill it as often as planned; the last run is not killed."""
        kills, total = 0, Tally()
        for kill_at in (*KILLS[: self.kills], None):
            stage.note(f"run {kills + 1}: starting Spark")
            run = DriverProcess(settings)
            killed = run.watch(stage, total, kill_at)
            total += run.committed
            if not killed:
                break
            kills += 1
            stage.note(f"run {kills}: killed with SIGKILL while {killed}")
        return kills


@contextlib.contextmanager
def removed_after(settings: DemoSettings, *, keep: bool) -> Iterator[SqlStore]:
    """Open the store, and restore its former state at the end, unless tables and ledger are to be kept."""
    with contextlib.closing(open_sql(settings.store)) as store:
        store.ping()
        had_ledger = store.has_ledger()
        try:
            yield store
        finally:
            if not keep:
                _remove(store, settings, ledger=not had_ledger)


def _remove(store: SqlStore, settings: DemoSettings, *, ledger: bool) -> None:
    with store.transaction() as connection:
        for table in (settings.table, settings.totals):
            connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
    if not store.has_ledger():
        return
    store.journal().delete(settings.group, lambda *_: None)
    store.clear_stages(settings.group)
    if ledger and not store.journal().groups():
        with store.transaction() as connection:
            connection.execute(text("DROP VIEW IF EXISTS tallymark_status"))
            metadata.drop_all(connection)


class DriverProcess:
    """One process that runs the pipeline."""

    def __init__(self, settings: DemoSettings) -> None:
        command = [sys.executable, "-m", "tallymark.operate.demo.orders"]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when the run ends
        # In its own process group, so that the JVM is killed with it.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with self._process.stdin as stdin:
            json.dump(asdict(settings), stdin)
        self.committed = Tally()

    def watch(self, stage: Stage, before: Tally, kill_at: Step | None) -> str | None:
        """Follow the run to its end, or kill it at ``kill_at`` from its third batch on, and return where it was."""
        batches = 0
        try:
            for line in self._process.stdout or ():
                event = json.loads(line)
                step = Step(event["step"])
                if step is Step.COMMITTED:
                    self.committed += Tally(**{name: event[name] for name in OUTCOMES})
                    stage.accounted(before + self.committed)
                batches += step is Step.PLANNED
                if step is kill_at and batches >= 3:
                    return self._kill(f"at {step.value!r} of batch {event['batch']}")
            if self._process.wait():
                self._errors.seek(0)
                raise TallymarkError(f"the pipeline ended early: {self._errors.read().strip()[-500:]}")
            return None
        finally:
            self._end()

    def _kill(self, doing: str) -> str:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return doing

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()
