"""Decides when a run ends or waits: goals, pauses, Ctrl-C and SIGTERM."""

from __future__ import annotations

import logging
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Literal, TypeVar

from tallymark.core.plan import caught_up, lowered
from tallymark.core.retry import retrying
from tallymark.core.spans import GroupState, Log, Partition, Position, Span
from tallymark.errors import GroupPaused
from tallymark.stores.contract import Store

log = logging.getLogger(__name__)

T = TypeVar("T")
Until = Literal["stopped", "caught-up"]

LOOK_SECONDS = 0.5
"""Interval for checking the positions of other members, and whether the logs still extend to the goals."""


@dataclass(frozen=True)
class Retrying:
    """Retries work for as long as one run allows: until its ``stop``, and for its ``patience`` in seconds."""

    stop: threading.Event
    patience: float | None

    def __call__(self, work: Callable[[], T]) -> T:
        return retrying(work, self.stop, self.patience)


class Goals:
    """The ends of all partitions at the start of a run.

    ``saved`` returns the positions of the group, ``logs`` the current logs.
    """

    def __init__(
        self,
        ends: Iterable[Log],
        saved: Callable[[], Mapping[Partition, Position]],
        logs: Callable[[], Mapping[Partition, Log]],
    ) -> None:
        self._goals = [Span(log.partition, 0, log.stop) for log in ends]
        self._ask, self._ask_logs = saved, logs
        self._looked, self._others = 0.0, dict[Partition, int]()
        self._looked_at_logs = time.monotonic()

    def reached(self, ours: Mapping[Partition, int]) -> bool:
        """Whether this run (``ours``) and the other members (saved positions) have reached all goals."""
        mine = [goal for goal in self._goals if goal.partition in ours]
        left = [goal for goal in self._goals if goal.partition not in ours]
        return caught_up(ours, mine) and (not left or caught_up(self._saved(), left))

    def lower(self, ours: Mapping[Partition, int]) -> None:
        """Lower goals to what the logs still hold. For a run that finds nothing to read."""
        if time.monotonic() - self._looked_at_logs > LOOK_SECONDS:
            self._goals = lowered(self._goals, {**self._saved(), **ours}, self._ask_logs())
            self._looked_at_logs = time.monotonic()

    def _saved(self) -> Mapping[Partition, int]:
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._others = {partition: position.next_offset for partition, position in self._ask().items()}
            self._looked = time.monotonic()
        return self._others


PAUSE_SECONDS = 1.0
"""How often a paused group checks whether it has been resumed."""


def may_go_on(
    ledger: Store,
    group: str,
    stop: threading.Event,
    patience: float | None,
    *,
    has_end: bool,
    meanwhile: Callable[[], None] = lambda: None,
) -> bool:
    """Whether to continue. Waits while the group is paused; returns False if ``stop`` is set.

    A run with an end raises ``GroupPaused`` instead of waiting, because a pause may last indefinitely.
    """
    logged = False
    while not stop.is_set():
        state = retrying(lambda: ledger.state(group), stop, patience)
        if state is None or not state.paused:
            return True
        if has_end:
            raise _paused(group, state)
        if not logged:
            log.warning("paused group=%s by=%s reason=%s", group, state.by, state.reason)
        logged = True
        stop.wait(PAUSE_SECONDS)
        meanwhile()
    return False


def _paused(group: str, state: GroupState) -> GroupPaused:
    return GroupPaused(
        f"group {group} has been paused since {state.since:%Y-%m-%d %H:%M:%S} UTC by {state.by}: {state.reason}; "
        f"resume it with tallymark resume {shlex.quote(group)}"
    )


@contextmanager
def leaving_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first signal calls ``stop``, the second kills the process. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, signal._HANDLER] = {}

    def leave(number: int, _frame: FrameType | None) -> None:
        # Killing is safe: the database rolls back uncommitted work, and Spark's JVM ends with this process.
        for other in before:
            signal.signal(other, signal.SIG_DFL)
        name = signal.Signals(number).name
        log.warning("stopping after the current batch, a second signal stops at once signal=%s", name)
        stop()

    for listened in (signal.SIGINT, signal.SIGTERM):
        before[listened] = signal.signal(listened, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
