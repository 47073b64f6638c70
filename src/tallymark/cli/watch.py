"""Repeats a look at regular intervals, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from tallymark.cli.output import note, show
from tallymark.core.retry import Background
from tallymark.errors import TallymarkError

T = TypeVar("T")
Put = Callable[[RenderableType, str | None], None]

LAST_WAIT = 1.0
"""Seconds that Ctrl-C waits for a look that is under way."""


def watch(look: Callable[[], T], show: Callable[[T], RenderableType], every: float, *, in_place: bool = True) -> None:
    """Show what ``look`` returns every so many seconds, until Ctrl-C or SIGTERM. A look that fails is reported.

    On a terminal it fills the screen; elsewhere, or not ``in_place``, the looks are printed one after another. Another
    thread does the looking, so that a store that does not answer does not delay Ctrl-C.
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
            # The thread may hold a Kafka client, and a client that outlives the interpreter can crash it.
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
        show(shown)
        sys.stdout.flush()
    else:
        note(f"error: {trouble}")


def _page(shown: RenderableType, trouble: str | None, every: float) -> Page:
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if trouble is None:
        return Page(Text(f"{now}, every {every:g} s, Ctrl-C ends", style="dim"), shown)
    return Page(Text(f"{now}: not up to date: {trouble}", style="red"), shown)


@dataclass(frozen=True)
class Page:
    """As many lines as the screen has, and the number of hidden lines."""

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
