"""Threads: one that works ahead and does not keep the process alive, and a pool for what leaves the interpreter."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


Work = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]


class Background:
    """Runs one piece of work after the other. Unlike a pool's, its thread does not keep the interpreter alive.

    The thread ends with ``close``, or when nobody knows of this object any more.
    """

    def __init__(self, name: str) -> None:
        self._work: Work = queue.SimpleQueue()
        threading.Thread(target=_serve, args=[self._work], name=name, daemon=True).start()
        self._end = weakref.finalize(self, self._work.put, None)
        self._end.atexit = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._work.put((work, future))
        return future

    def close(self) -> None:
        """Let the thread end after what it is doing; does not wait for it."""
        self._end()


def _serve(waiting: Work) -> None:
    while (item := waiting.get()) is not None:
        work, future = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
                future.set_exception(error)
        # Neither what was done nor what came of it is kept until there is more to do.
        del item, work, future


@cache
def threads() -> ThreadPoolExecutor:
    """A pool for calls that let other threads run meanwhile, as Arrow's do. It is made when it is first needed."""
    return ThreadPoolExecutor(min(4, os.cpu_count() or 1), "tallymark-decode")


# A forked process has none of its parent's threads, and would wait for them for ever.
os.register_at_fork(after_in_child=threads.cache_clear)
