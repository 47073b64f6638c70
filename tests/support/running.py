"""Runs loops in the background: alone or as members of a group, in a thread or in a process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tallymark.core.budget import Budget
from tallymark.core.progress import OnStep, ignore
from tallymark.core.spans import Tally
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.member import Member
from tallymark.kafka.membership import Group
from tallymark.kafka.source import Kafka
from tallymark.run.claimed import run_loop
from tallymark.run.commit import Destination
from tallymark.stores.opening import open_store
from tests.support.background import Background
from tests.support.children import PROCESSES
from tests.support.crash import Run, make_loop
from tests.support.reader import EVERY_WAY, Filled, PlainReader
from tests.support.storm_member import QUICK


class Running(Background[Tally]):
    """A loop that starts immediately, and runs until it is stopped or fails."""

    def __init__(
        self,
        run: Run,
        on_step: OnStep = ignore,
        *,
        tables: Sequence[Filled] = EVERY_WAY,
        budget: Budget | None = None,
    ) -> None:
        self.store, self.reader = open_store(run.store), PlainReader(run.brokers, tables)
        self.loop = make_loop(run, self.store, self.reader, on_step, budget)
        self._begin()

    def _begin(self) -> None:
        super().__init__(self.loop.run, self.loop.stop)
        self.owner = self.loop.job.owner.run
        self.start()

    def close(self) -> None:
        super().close()
        self.reader.close()
        self.store.close()


class SharedLoop(Running):
    """A loop that shares the partitions of its group, as several Spark drivers of one pipeline do."""

    def __init__(self, run: Run, on_step: OnStep = ignore, **changes: Any) -> None:
        self.store, self.reader = open_store(run.store), PlainReader(run.brokers)
        job = replace(make_loop(run, self.store, self.reader).job, **changes)
        member = Member(run.group, Kafka(run.brokers, run.topic, settings=QUICK), Group(), job.owner.run)
        destination = Destination(self.store, self.store)
        self.loop = run_loop(job, Brokers(run.brokers), destination, self.reader, on_step, member)
        self._begin()


def start_loop(run: Run) -> Any:
    """Starts a shared loop in a process that can be killed, and returns the process."""
    process = PROCESSES.Process(target=_process, args=(run,), daemon=True)
    process.start()
    return process


def _process(run: Run) -> None:
    shared = SharedLoop(run)
    shared.wait(3600)
    raise SystemExit(str(shared.error))
