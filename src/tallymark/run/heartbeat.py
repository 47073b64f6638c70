"""Records in the ledger that a run is alive, and how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from tallymark.core.journal import BEAT_SECONDS, Run
from tallymark.core.retention import DEFAULT_RETENTION, Retention
from tallymark.core.spans import Owner
from tallymark.errors import TallymarkError, described
from tallymark.stores.contract import Store

LAST_WAIT = 2.0
"""Longest time in seconds that ``end`` waits for a heartbeat in progress."""
PRUNE_SECONDS = 86_400.0


class Heartbeat:
    """Sends heartbeats from a separate thread, from ``start`` to ``end``. A failed heartbeat is not retried.

    The thread ends by itself when ``is_active`` returns False. Once a day it prunes the history of the group.
    """

    def __init__(
        self,
        ledger: Store,
        group: str,
        owner: Owner,
        is_active: Callable[[], bool] = lambda: True,
        retention: Retention = DEFAULT_RETENTION,
    ) -> None:
        self._ledger = ledger
        self._group = group
        self._run = Run(owner.run, owner.host, owner.since, owner.since)
        self._is_active = is_active
        self._retention = retention
        self._known = False
        self._pruned = -PRUNE_SECONDS
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._write()
        self._prune()
        self._thread = threading.Thread(target=self._beat, name="tallymark-heartbeat", daemon=True)
        self._thread.start()

    def end(self, error: str | None, *, reached: bool = True) -> None:
        """Record how the run ended. A run that failed before ``start`` is recorded too, if there is a ledger.

        Writes nothing if ``reached`` is False, because the ledger is known to be unreachable.
        """
        if self._thread is not None:
            self._ending.set()
            self._thread.join(LAST_WAIT)
        elif error is None:
            return
        if reached:
            self._finish(error)

    def _finish(self, error: str | None) -> None:
        self._run = replace(self._run, ended=datetime.now(UTC), error=error)
        self._write()

    def _beat(self) -> None:
        while not self._ending.wait(BEAT_SECONDS):
            if not self._is_active():
                self._finish(None)
                return
            self._write()
            self._prune()

    def _write(self) -> None:
        # Informational entries must not stop the run.
        with suppress(TallymarkError):
            if self._known or self._ledger.has_ledger():
                run = replace(self._run, seen=datetime.now(UTC))
                self._ledger.write_run(self._group, run, new=not self._known)
                # From now on only update the run: if a user forgets the group, the run must not be recorded again.
                self._known = True

    def _prune(self) -> None:
        if time.monotonic() - self._pruned < PRUNE_SECONDS:
            return
        with suppress(TallymarkError):
            self._ledger.prune(self._group, self._retention.cutoffs(datetime.now(UTC)))
            self._pruned = time.monotonic()


def error_text(error: BaseException | None) -> str | None:
    """The text of an error; None for exceptions that only ask the program to end."""
    if error is None or isinstance(error, GeneratorExit | KeyboardInterrupt | SystemExit):
        return None
    return str(error) if isinstance(error, TallymarkError) else described(error)
