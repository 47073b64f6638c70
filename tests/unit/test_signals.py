"""Ctrl-C is never lost, wherever Python runs its handler."""

from __future__ import annotations

import os
import signal
import weakref

import pytest

from tallymark.signals import noticing_interrupts


class Thing:
    """Something to refer to weakly."""


def swallowed(reached: list[bool]) -> None:
    with noticing_interrupts() as listen:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        listen()
        thing = Thing()
        _reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
        del thing
        reached.append(True)


def test_an_interrupt_that_a_callback_swallows_is_raised_in_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    before, reached = signal.getsignal(signal.SIGINT), list[bool]()
    with pytest.raises(KeyboardInterrupt):
        swallowed(reached)
    assert reached, "the callback has not swallowed it"
    assert signal.getsignal(signal.SIGINT) is before
    assert capfd.readouterr().err == ""
