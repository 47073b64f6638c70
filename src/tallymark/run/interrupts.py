"""Keeps Ctrl-C from getting lost in callbacks of weak references."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

REPEATED_AFTER = 0.05
"""Seconds after which an interrupt that was dropped is raised again."""


@contextmanager
def repeating_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt again after ``REPEATED_AFTER`` seconds if Python has dropped it.

    Python drops exceptions raised in the callback of a weak reference. py4j has such a callback for every Java object,
    and SQLAlchemy for every engine.
    """

    def unraisable(dropped: Any) -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            # Delayed, because this hook runs inside the callback.
            again = threading.Timer(REPEATED_AFTER, _interrupt_main_thread)
            again.daemon = True
            again.start()
        else:
            before(dropped)

    before = sys.unraisablehook
    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = before


def _interrupt_main_thread() -> None:
    """Sends a real signal, because that also interrupts a system call."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
