"""Runs work in a background thread, and waits with a deadline for its effects."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")

TIMEOUT = 60.0


def wait_for(condition: Callable[[], T | None], seconds: float = TIMEOUT, what: str = "it happens") -> T:
    """Return the condition's value as soon as it is true; fail if it is not within these seconds."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)
    return value


def holds_for(seconds: float, condition: Callable[[], bool], what: str = "it") -> None:
    """Fail as soon as the condition does not hold within these seconds: for what must not happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition(), f"{what}, but it did not hold"
        time.sleep(0.02)


class Background(Generic[T]):
    """Work in a background thread, started by ``start`` or a ``with`` block, and stopped at the end of the block.

    An exception of the work is in ``error``, and is raised by ``result``. If neither is used, the block raises it.
    """

    def __init__(self, work: Callable[[], T], stop: Callable[[], object] = lambda: None) -> None:
        self._work, self._stop = work, stop
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._looked = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001 - for the test to look at
            self._error = error

    def start(self) -> Self:
        self._thread.start()
        return self

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def error(self) -> BaseException | None:
        """The exception of the work."""
        self._looked = self._error is not None
        return self._error

    def wait(self, seconds: float = TIMEOUT) -> None:
        """Wait for the end of the work."""
        self._thread.join(seconds)
        assert not self.alive, "it did not end"

    def result(self) -> T:
        """Wait for the end of the work; return its result or raise its exception."""
        self.wait()
        if (error := self.error) is not None:
            raise error
        return self._results[0]

    def stop(self) -> T:
        """Stop the work, and wait for its result."""
        self._stop()
        return self.result()

    def close(self) -> None:
        """Stop the work, and wait for its end; does not raise its exception."""
        self._stop()
        if self._thread.ident is not None:
            self.wait()

    def __enter__(self) -> Self:
        if self._thread.ident is None:
            self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
        if kind is None and self._error is not None and not self._looked:
            raise self._error


def repeating(work: Callable[[], Any]) -> Background[None]:
    """Repeats the work until it is stopped."""
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            work()

    return Background(repeat, over.set)
