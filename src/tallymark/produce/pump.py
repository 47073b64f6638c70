"""Serves the delivery reports of a producer's client, and handles process exit and fork.

A thread that polled all the time would compete with the sender for the interpreter lock at every report. Only one
thread serves at a time, so that the reports of a partition arrive in order.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from confluent_kafka import KafkaException

from tallymark.errors import BadInput, TallymarkError

log = logging.getLogger(__name__)

EXIT_SECONDS = 10.0
"""How long process exit waits for the records of a producer that was not closed."""


class Closeable(Protocol):
    def close(self, timeout: float) -> None: ...
    def detach(self) -> None: ...


still_open: set[Closeable] = set()


@atexit.register
def _close_all() -> None:
    for producer in tuple(still_open):
        try:
            producer.close(EXIT_SECONDS)
        except TallymarkError as error:
            log.error("producer not closed before the process ended error=%s", error)


def _detach_all() -> None:
    """Disable the producers in a forked child: the client's threads are missing, and the records are the parent's."""
    for producer in still_open:
        producer.detach()
    still_open.clear()


os.register_at_fork(after_in_child=_detach_all)


BLOCK_SECONDS = 0.1
"""Maximum time of one call that serves reports."""
BUSY_SECONDS = 0.02
"""How long the thread sleeps while the sender serves reports."""
JOIN_SECONDS = 5.0
"""How long ``close`` waits for the thread, which may be in a callback that does not return."""
FORKED = "this producer was created before a fork; create one in each process"


class Pump:
    """Calls ``on_fatal`` with a fatal error of the client, and ``on_served`` each time reports were served."""

    def __init__(self, client: Any, on_fatal: Callable[[Any], None], on_served: Callable[[], None]) -> None:
        self._client = client
        self._on_fatal, self._on_served = on_fatal, on_served
        self._right = threading.Lock()
        self._served = threading.Condition()
        self._server: int | None = None
        self._nudges = self._hurrying = 0
        self._closed = self._forked = False
        self._thread = threading.Thread(target=self._serve_when_idle, name="tallymark-producer", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Serve waiting reports, unless another thread is serving."""
        self._nudges += 1
        self._serve(0)

    @contextmanager
    def hurrying(self) -> Iterator[None]:
        """While in the block, send records at once instead of waiting for linger.ms."""
        self._check_process()
        with self._served:
            self._hurrying += 1
        try:
            yield
        finally:
            with self._served:
                self._hurrying -= 1

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Serve, or let other threads serve, until the condition holds. Returns whether it did in time."""
        if condition():
            return True
        self.check_caller()
        self._check_process()
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not self._serve(min(left, BLOCK_SECONDS)):
                with self._served:
                    self._served.wait(min(left, BLOCK_SECONDS))
            if condition():
                return True
        return False

    def serves_here(self) -> bool:
        """Whether the caller runs inside of a delivery report, where it would wait for itself."""
        return self._server == threading.get_ident()

    def check_caller(self) -> None:
        if self.serves_here():
            raise BadInput(
                "a delivery callback, or a signal handler that interrupts a wait, can't wait for deliveries, because "
                "reports are served one at a time; wait outside of it"
            )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the right to serve, for client calls that serve reports themselves."""
        self._check_process()
        with self._right:
            self._server = threading.get_ident()
            try:
                yield
            finally:
                self._server = None
        with self._served:
            self._served.notify_all()

    def close(self) -> None:
        self._closed = True
        self._thread.join(JOIN_SECONDS)

    def detach(self) -> None:
        """Disable serving in a forked child. Locks are replaced, because the threads that held them are gone."""
        self._forked = True
        self._right, self._served = threading.Lock(), threading.Condition()

    def _check_process(self) -> None:
        if self._forked:
            raise BadInput(FORKED)

    def _serve(self, seconds: float) -> bool:
        """Serve reports, unless another thread is serving. Returns whether it served."""
        right = self._right  # a callback may fork
        if not right.acquire(blocking=False):
            return False
        self._server = threading.get_ident()
        try:
            (self._client.flush if self._hurrying else self._client.poll)(seconds)
        except KafkaException as error:
            self._on_fatal(error.args[0])
        finally:
            self._server = None
            right.release()
        self._on_served()
        with self._served:
            self._served.notify_all()
        return True

    def _serve_when_idle(self) -> None:
        seen = -1
        while not self._closed:
            try:
                if seen == self._nudges and self._serve(BLOCK_SECONDS):
                    continue
            except BaseException:  # a callback may raise SystemExit, which has no effect in this thread
                log.exception("callback raised in the thread of the producer, ignored")
            seen = self._nudges
            time.sleep(BUSY_SECONDS)
