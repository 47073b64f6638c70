"""Runs a loop in a separate thread, and waits for its effects."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tallymark.core.budget import Budget
from tallymark.core.progress import OnStep, ignore
from tallymark.errors import TallymarkError
from tallymark.run.loop import Loop
from tallymark.stores.opening import open_sql
from tests.support.crash import Run, make_loop
from tests.support.reader import EVERY_WAY, Filled, PlainReader

TIMEOUT = 30.0


class Running:
    """Runs until it is stopped or fails."""

    def __init__(
        self,
        run: Run,
        on_step: OnStep = ignore,
        *,
        tables: Sequence[Filled] = EVERY_WAY,
        budget: Budget | None = None,
    ) -> None:
        self.store, self.reader = open_sql(run.store), PlainReader(run.brokers, tables)
        self.loop: Loop = make_loop(run, self.store, self.reader, on_step, budget)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run()
        except TallymarkError as error:
            self.error = error

    def wait(self) -> None:
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.loop.stop()
        self.wait()
        self.reader.close()
        self.store.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
