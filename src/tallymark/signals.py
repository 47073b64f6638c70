"""Leaving on Ctrl-C and SIGTERM: the first one asks, the second one does not."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

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
