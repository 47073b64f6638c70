"""A run that says in the ledger that it is alive, and in the end how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone

from tallymark.books import BEAT_SECONDS, KEEP_HISTORY, Run
from tallymark.errors import TallymarkError, described
from tallymark.spans import Owner
from tallymark.stores.store import Store

LAST_WAIT = 2.0
"""Seconds that a beat under way may hold up who leaves."""
PRUNE_SECONDS = 86_400.0


class Heartbeat:
    """Beats from a thread of its own, from ``start`` to ``end``. One that fails is not missed: the next one tells.

    It ends by itself when the run is not ``wanted`` any more. Once a day it prunes the history of the group.
    """

    def __init__(self, ledger: Store, group: str, owner: Owner, wanted: Callable[[], bool] = lambda: True) -> None:
        self._ledger = ledger
        self._group = group
        self._run = Run(owner.run, owner.host, owner.since, owner.since)
        self._wanted = wanted
        self._known = False
        self._pruned = -PRUNE_SECONDS
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._tell()
        self._prune()
        self._thread = threading.Thread(target=self._beat, name="tallymark-heartbeat", daemon=True)
        self._thread.start()

    def end(self, error: str | None, *, reached: bool = True) -> None:
        """Say how it ended. A run that has failed before it could start is told of, too, if there is a ledger.

        A ledger that is known to be out of reach is not told.
        """
        if self._thread is not None:
            self._ending.set()
            self._thread.join(LAST_WAIT)
        elif error is None:
            return
        if reached:
            self._finish(error)

    def _finish(self, error: str | None) -> None:
        self._run = replace(self._run, ended=datetime.now(timezone.utc), error=error)
        self._tell()

    def _beat(self) -> None:
        while not self._ending.wait(BEAT_SECONDS):
            if not self._wanted():
                self._finish(None)
                return
            self._tell()
            self._prune()

    def _tell(self) -> None:
        # What is written for people to read must not stop the work.
        with suppress(TallymarkError):
            if self._known or self._ledger.has_ledger():
                run = replace(self._run, seen=datetime.now(timezone.utc))
                self._ledger.write_run(self._group, run, new=not self._known)
                # From then on it does not come back: whoever has forgotten the group meant it.
                self._known = True

    def _prune(self) -> None:
        if time.monotonic() - self._pruned < PRUNE_SECONDS:
            return
        with suppress(TallymarkError):
            self._ledger.prune(self._group, datetime.now(timezone.utc) - KEEP_HISTORY)
            self._pruned = time.monotonic()


def words(error: BaseException | None) -> str | None:
    """How an error is told of; None for those by which somebody leaves."""
    if error is None or isinstance(error, GeneratorExit | KeyboardInterrupt | SystemExit):
        return None
    return str(error) if isinstance(error, TallymarkError) else described(error)
