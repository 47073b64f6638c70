"""One thread that works ahead, and that nobody has to wait for when the process leaves."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Runs one piece of work after the other. Unlike a pool's, its thread does not keep the interpreter alive."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._work.put((work, future))
        return future

    def close(self) -> None:
        """Let the thread end after what it is doing; does not wait for it."""
        self._work.put(None)

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            work, future = item
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
                future.set_exception(error)
