"""Leaving on Ctrl-C and SIGTERM: the first one asks, the second one does not."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)


@contextmanager
def leaving_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first signal asks to stop, a second one kills the process. Only the main thread can listen."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, signal._HANDLER] = {}

    def leave(number: int, _frame: FrameType | None) -> None:
        # Whoever asks twice means it: the database rolls back what was not committed, and Spark's JVM ends with us.
        for other in before:
            signal.signal(other, signal.SIG_DFL)
        name = signal.Signals(number).name
        log.warning("stopping after the batch in flight; once more leaves at once signal=%s", name)
        stop()

    for listened in (signal.SIGINT, signal.SIGTERM):
        before[listened] = signal.signal(listened, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def noticing_interrupts() -> Iterator[Callable[[], None]]:
    """Raise KeyboardInterrupt at the end of the block, too, if Ctrl-C came in it and the exception was lost.

    Python drops what is raised inside a callback of a weak reference, and py4j has one for every Java object. The block
    calls what it is given after Spark has set a handler of its own.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    def listen() -> None:
        signal.signal(signal.SIGINT, interrupt)

    def unraisable(lost: Any) -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            shown(lost)

    before, shown = signal.getsignal(signal.SIGINT), sys.unraisablehook
    listen()
    sys.unraisablehook = unraisable
    try:
        yield listen
        if came:
            raise KeyboardInterrupt
    finally:
        sys.unraisablehook = shown
        signal.signal(signal.SIGINT, before)
