"""Ctrl-C is never lost, in whichever frame Python runs its handler."""

from __future__ import annotations

import os
import signal
import sys
import threading
import weakref

import pytest

from tallymark.run.interrupts import repeating_interrupts


class Thing:
    """An object for weak references."""


def dropped(reached: list[bool]) -> None:
    with repeating_interrupts():
        thing = Thing()
        _reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
        del thing
        reached.append(True)
        threading.Event().wait(60)


@pytest.mark.timeout(10)
def test_an_interrupt_that_a_callback_drops_is_raised_again(capfd: pytest.CaptureFixture[str]) -> None:
    before, reached = sys.unraisablehook, list[bool]()
    with pytest.raises(KeyboardInterrupt):
        dropped(reached)
    assert reached, "the callback has not dropped it"
    assert sys.unraisablehook is before
    assert capfd.readouterr().err == ""
