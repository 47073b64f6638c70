"""Looking again and again, until somebody has seen enough."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from tallymark.cli.output import whole_lines
from tallymark.core.retry import Background
from tallymark.errors import TallymarkError

T = TypeVar("T")
Put = Callable[[RenderableType, str | None], None]

LAST_WAIT = 1.0
"""Seconds that a look under way may hold up who leaves."""


def watch(look: Callable[[], T], show: Callable[[T], RenderableType], every: float, *, in_place: bool = True) -> None:
    """Show what ``look`` finds every so many seconds, until Ctrl-C or SIGTERM. Of a look that fails it is told why.

    On a terminal it fills the screen; elsewhere, or not ``in_place``, one look is printed after the other. Looking is
    left to another thread, so that a store which does not answer keeps nobody from leaving.
    """
    background = Background("tallymark-watch")
    pending: Future[T] = Future()
    shown: RenderableType | None = None
    try:
        with _ended_by_signals(), _output(every, in_place) as put:
            while True:
                pending = background.submit(look)
                try:
                    shown, trouble = show(pending.result()), None
                except TallymarkError as error:
                    if shown is None:
                        raise
                    trouble = str(error)
                put(shown, trouble)
                time.sleep(every)
    except KeyboardInterrupt:
        if wait([pending], LAST_WAIT).not_done:
            # The thread may hold a client of Kafka: one that outlives the interpreter can crash it.
            sys.stdout.flush()
            os._exit(0)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _output(every: float, in_place: bool) -> Iterator[Put]:
    out = Console()
    if not out.is_terminal or not in_place:
        yield _print
        return
    with Live(Text("looking"), console=out, screen=True, refresh_per_second=2) as live:
        yield lambda shown, trouble: live.update(_page(shown, trouble, every), refresh=True)


def _print(shown: RenderableType, trouble: str | None) -> None:
    if trouble is None:
        whole_lines().print(shown, soft_wrap=True)
        sys.stdout.flush()
    else:
        Console(stderr=True, soft_wrap=True).print(f"error: {trouble}", highlight=False, markup=False)


def _page(shown: RenderableType, trouble: str | None, every: float) -> Page:
    now = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    if trouble is None:
        return Page(Text(f"{now}, every {every:g} s, Ctrl-C ends", style="dim"), shown)
    return Page(Text(f"{now}: not up to date: {trouble}", style="red"), shown)


@dataclass(frozen=True)
class Page:
    """As much as the screen is high, and how much there would be."""

    head: RenderableType
    body: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        lines = console.render_lines(Group(self.head, self.body), options.reset_height(), pad=False)
        hidden = len(lines) - console.height
        if hidden > 0:
            more = Text(f"{hidden + 1} more lines: enlarge the window, or name a group", style="dim")
            lines = [*lines[: console.height - 1], *console.render_lines(more, options.reset_height(), pad=False)[:1]]
        for number, line in enumerate(lines):
            yield from line
            if number + 1 < len(lines):
                yield Segment.line()
