"""Exports Prometheus metrics and OpenTelemetry spans of runs.

Both are derived from the named steps of a batch (``core/progress.py``). Requests to brokers or database run in a
separate thread, so they never delay a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tallymark.core.progress import OnStep, Progress, Step
from tallymark.run.setup import Setup

if TYPE_CHECKING:
    from tallymark.run.observe.server import MetricsServer


@contextmanager
def serving(setup: Setup) -> Iterator[MetricsServer | None]:
    """The running metrics endpoint; None if the settings have no ``metrics_port``."""
    if setup.metrics_port is None:
        yield None
        return
    # Imported here, and tracing below, because both have optional dependencies and are slow to import.
    from tallymark.run.observe.server import shared

    with shared(setup.metrics_host, setup.metrics_port) as server:
        yield server


@contextmanager
def observed(setup: Setup, run: str, on_step: OnStep) -> Iterator[OnStep]:
    """The callback for every step of this run: metrics and tracing as configured, then ``on_step``."""
    with ExitStack() as stack:
        callbacks: list[OnStep] = []
        server = stack.enter_context(serving(setup))
        if server is not None:
            callbacks.append(stack.enter_context(server.watching(setup, run)))
        if setup.traced:
            from tallymark.run.observe.tracing import Tracing

            callbacks.append(stack.enter_context(Tracing(setup.group)))

        def notify(step: Step, progress: Progress) -> None:
            for callback in (*callbacks, on_step):
                callback(step, progress)

        yield notify if callbacks else on_step
