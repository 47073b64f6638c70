"""Retries of transient errors, a background thread, and a thread pool for calls that release the GIL."""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from tallymark.errors import TallymarkError

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds that a broker or a database may be unavailable before the run fails."""
LAST_SECONDS = 5.0
"""Seconds to retry the commit of a batch in flight after its run was asked to stop, if the store fails."""

T = TypeVar("T")


def retrying(
    work: Callable[[], T],
    stop: threading.Event | None = None,
    patience: float | None = None,
    *,
    after_stop: float = 0.0,
) -> T:
    """Call ``work`` until it succeeds, with growing pauses; a terminal error, a timeout or ``stop`` ends the retries.

    ``patience`` is a timeout in seconds from the first failure, because the work itself may take long. After ``stop``,
    retries continue for ``after_stop`` seconds, for work that should be completed even if its run stops.
    """
    stop = stop or threading.Event()
    deadline, pause = math.inf, 0.05
    while True:
        try:
            return work()
        except TallymarkError as error:
            deadline = min(deadline, time.monotonic() + (PATIENCE if patience is None else patience))
            if stop.is_set():
                deadline = min(deadline, time.monotonic() + after_stop)
            if not error.transient or time.monotonic() >= deadline:
                raise
            log.warning("retrying seconds=%.2f error=%s", pause, error)
            if stop.is_set():
                time.sleep(pause)
            elif stop.wait(pause) and not after_stop:
                raise
            pause = min(2.0, pause * 2)


Calls = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]


class Background:
    """Runs calls one after the other in a thread. Unlike a pool's, this thread does not keep the interpreter alive.

    The thread ends after ``close``, or when this object is garbage-collected.
    """

    def __init__(self, name: str) -> None:
        self._work: Calls = queue.SimpleQueue()
        threading.Thread(target=_serve, args=[self._work], name=name, daemon=True).start()
        self._end = weakref.finalize(self, self._work.put, None)
        self._end.atexit = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._work.put((work, future))
        return future

    def close(self) -> None:
        """Let the thread end after the calls that are queued, without waiting for it."""
        self._end()


def _serve(waiting: Calls) -> None:
    while (item := waiting.get()) is not None:
        work, future = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised again by Future.result
                future.set_exception(error)
        # Release the work and its result now: the thread may wait long for the next call.
        del item, work, future


@cache
def threads() -> ThreadPoolExecutor:
    """Return the pool for calls that release the GIL, such as Arrow's. It is created on first use."""
    return ThreadPoolExecutor(min(4, os.cpu_count() or 1), "tallymark-decode")


# A forked process does not have the threads of its parent, and would wait for them forever.
os.register_at_fork(after_in_child=threads.cache_clear)
