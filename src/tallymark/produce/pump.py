"""Who serves the reports of a producer's client: whoever sends or waits, and a thread when nobody does.

A thread that does it all the time would fight with the sender for the interpreter, report by report. Only one serves at
a time, so that the reports of a partition come in its order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException

from tallymark.errors import BadInput

log = logging.getLogger(__name__)

BLOCK_SECONDS = 0.1
"""The longest time that anybody holds the right to serve without looking up."""
BUSY_SECONDS = 0.02
"""How long the thread stays away from a client that its sender serves."""
JOIN_SECONDS = 5.0
"""How long closing waits for the thread, which may be in a callback that does not return."""
FORKED = "this producer was made before a fork; make one in each process"


class Pump:
    """``on_fatal`` is told what the client raises when it has ended for good; ``on_served`` comes after every look."""

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
        """Serve what is there, unless somebody else does."""
        self._nudges += 1
        self._serve(0)

    @contextmanager
    def hurrying(self) -> Iterator[None]:
        """Whoever serves meanwhile sends what lingers until its batch is full."""
        self._check_process()
        with self._served:
            self._hurrying += 1
        try:
            yield
        finally:
            with self._served:
                self._hurrying -= 1

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Serve, or let others serve, until the condition holds; whether it did in time."""
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
        """Whether the caller runs inside of a report, and would wait for itself."""
        return self._server == threading.get_ident()

    def check_caller(self) -> None:
        if self.serves_here():
            raise BadInput(
                "a delivery callback can't wait for deliveries, nor can a signal handler that interrupts a wait: "
                "reports come one after the other"
            )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For calls of the client that serve reports by themselves."""
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

    def disown(self) -> None:
        """In a forked child: nobody serves there, and threads that held a lock are gone."""
        self._forked = True
        self._right, self._served = threading.Lock(), threading.Condition()

    def _check_process(self) -> None:
        if self._forked:
            raise BadInput(FORKED)

    def _serve(self, seconds: float) -> bool:
        """Whether it was our turn."""
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
            except BaseException:  # a callback may even want to end the process; from here it can't
                log.exception("a callback raised in the producer's thread and is passed over")
            seen = self._nudges
            time.sleep(BUSY_SECONDS)
