"""A run of the loop in a child process that kills itself at a named step.

The processes are forked from a server that has already imported everything, so that each starts at once.
"""

from __future__ import annotations

import os
import signal
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

from tallymark.core.budget import Budget
from tallymark.core.plan import Limits
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.core.spans import Owner
from tallymark.core.start import Start
from tallymark.kafka.brokers import Brokers
from tallymark.run.claimed import run_loop
from tallymark.run.commit import Delivery, Destination
from tallymark.run.loop import Loop
from tallymark.run.setup import Job
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tests.support.children import PROCESSES
from tests.support.reader import PlainReader

TIMEOUT = 60.0


@dataclass(frozen=True)
class Run:
    """What a child runs until it has caught up, in several small batches."""

    brokers: str
    store: str
    group: str
    topic: str
    records: int = 20
    delivery: Delivery = "exactly-once"
    ledger: str | None = None


@dataclass(frozen=True)
class Plug:
    """When the child kills itself: at the n-th time that a batch passes the step."""

    step: Step
    occurrence: int


def new_owner() -> Owner:
    return Owner(f"{os.getpid()}-{uuid.uuid4().hex[:8]}", "test-host", datetime.now(UTC))


def make_loop(
    run: Run, store: Store, reader: PlainReader, on_step: OnStep = ignore, budget: Budget | None = None
) -> Loop:
    job = Job(
        run.group,
        [run.topic],
        reader.tables,
        new_owner(),
        Start.parse("uncommitted-earliest"),
        Limits(run.records),
        budget=budget or Budget(),
    )
    ledger = open_store(run.ledger) if run.ledger else store
    return run_loop(job, Brokers(run.brokers), Destination(store, ledger, run.delivery), reader, on_step)


def run_in_child(run: Run, plug: Plug | None = None) -> int:
    """Run in a child until it ends or kills itself; returns its exit code, which is -9 if it was killed."""
    child = PROCESSES.Process(target=_child, args=(run, plug))
    child.start()
    child.join(TIMEOUT)
    if child.is_alive():
        child.kill()
        raise AssertionError(f"{run} with {plug} did not end")
    assert child.exitcode is not None
    return child.exitcode


def _child(run: Run, plug: Plug | None) -> None:
    passed = 0

    def watch(step: Step, _: Progress) -> None:
        nonlocal passed
        if plug is not None and step is plug.step:
            passed += 1
            if passed == plug.occurrence:
                os.kill(os.getpid(), signal.SIGKILL)

    make_loop(run, open_store(run.store), PlainReader(run.brokers), watch).run("caught-up")
