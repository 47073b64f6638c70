"""Trying again, for as long as it makes sense, what failed for a reason that may pass."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tallymark.errors import TallymarkError

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds that a broker or a database may be away before the run gives up."""
LAST_SECONDS = 5.0
"""Seconds that a batch in flight has to be committed when its run is told to stop and the store does not take it."""

T = TypeVar("T")


def patiently(
    work: Callable[[], T],
    stop: threading.Event | None = None,
    patience: float | None = None,
    *,
    after_stop: float = 0.0,
) -> T:
    """Call until it succeeds, with growing pauses; a terminal error, the end of patience or ``stop`` ends it.

    Patience is counted from the first failure: the work itself may take long. What should be finished even if its run
    is told to stop may go on for ``after_stop`` seconds.
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
            log.warning("trying again in %.2f s: %s", pause, error)
            if stop.is_set():
                time.sleep(pause)
            elif stop.wait(pause) and not after_stop:
                raise
            pause = min(2.0, pause * 2)
