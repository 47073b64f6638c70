"""Only transient failures are retried, for a limited time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tallymark.core.retry import retrying
from tallymark.errors import AccessDenied, Unreachable
from tallymark.run.loop import LONGEST_WAIT, SHORTEST_WAIT, idle_wait


def failing(times: int, error: Exception) -> tuple[Callable[[], str], list[int]]:
    """A function that fails this many times, and the list of its calls."""
    calls: list[int] = []

    def work() -> str:
        calls.append(len(calls))
        if len(calls) <= times:
            raise error
        return "done"

    return work, calls


def test_a_transient_error_is_tried_again_until_it_passes() -> None:
    work, calls = failing(2, Unreachable("away"))
    assert retrying(work) == "done"
    assert len(calls) == 3


@pytest.mark.parametrize("error", [AccessDenied("no"), ValueError("a bug")])
def test_an_error_that_will_not_pass_is_raised_at_once(error: Exception) -> None:
    work, calls = failing(99, error)
    with pytest.raises(type(error)):
        retrying(work)
    assert len(calls) == 1


def test_the_end_of_patience_raises_the_last_error() -> None:
    work, calls = failing(99, Unreachable("still away"))
    began = time.monotonic()
    with pytest.raises(Unreachable, match="still away"):
        retrying(work, patience=0.2)
    assert 0.2 <= time.monotonic() - began < 2
    assert len(calls) > 1


def test_pauses_grow_so_that_a_server_in_trouble_is_not_pestered() -> None:
    work, calls = failing(99, Unreachable("away"))
    with pytest.raises(Unreachable):
        retrying(work, patience=0.6)
    assert len(calls) <= 6


def test_somebody_who_wants_to_leave_does_not_wait() -> None:
    stop = threading.Event()
    work, calls = failing(99, Unreachable("away"))

    def work_and_stop() -> str:
        stop.set()
        return work()

    began = time.monotonic()
    with pytest.raises(Unreachable):
        retrying(work_and_stop, stop)
    assert len(calls) == 1
    assert time.monotonic() - began < 5


def test_what_has_to_be_finished_gets_a_last_moment() -> None:
    stop = threading.Event()
    stop.set()
    work, calls = failing(2, Unreachable("away for a moment"))
    assert retrying(work, stop, after_stop=5) == "done"
    assert len(calls) == 3
    work, _ = failing(99, Unreachable("away for good"))
    began = time.monotonic()
    with pytest.raises(Unreachable):
        retrying(work, stop, patience=600, after_stop=0.3)
    assert time.monotonic() - began < 5


def test_an_idle_loop_waits_for_a_tenth_of_its_idle_time() -> None:
    assert [idle_wait(idle) for idle in (0, 0.05, 0.2, 0.4, 100)] == pytest.approx(
        [SHORTEST_WAIT, SHORTEST_WAIT, 0.02, 0.04, LONGEST_WAIT]
    )
