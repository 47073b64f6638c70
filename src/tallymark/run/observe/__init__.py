"""What runs tell to the outside beside their logs: metrics for Prometheus, spans for OpenTelemetry.

Both are made of the named steps of a batch (``steps.py``). What takes a question to brokers or database is asked in a
thread of its own, never on a batch's way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tallymark.setup import Setup
from tallymark.steps import OnStep, Progress, Step

if TYPE_CHECKING:
    from tallymark.observe.server import Server


@contextmanager
def serving(setup: Setup) -> Iterator[Server | None]:
    """The endpoint that the settings ask for, open; None if they do not."""
    if setup.metrics_port is None:
        yield None
        return
    # Here, and below: neither is installed with every tallymark, nor worth its import time unasked.
    from tallymark.observe.server import shared

    with shared(setup.metrics_host, setup.metrics_port) as server:
        yield server


@contextmanager
def observed(setup: Setup, run: str, on_step: OnStep) -> Iterator[OnStep]:
    """What to call at every step of this run: all that the settings want to be told, and whoever asked for it."""
    with ExitStack() as stack:
        told: list[OnStep] = []
        server = stack.enter_context(serving(setup))
        if server is not None:
            told.append(stack.enter_context(server.watching(setup, run)))
        if setup.traced:
            from tallymark.observe.tracing import Tracing

            told.append(stack.enter_context(Tracing(setup.group)))

        def tell(step: Step, progress: Progress) -> None:
            for one in (*told, on_step):
                one(step, progress)

        yield tell if told else on_step
