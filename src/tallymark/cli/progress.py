"""The progress bars of all commands, on stderr; without a terminal, a run prints a line every ten seconds."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from tallymark.cli.logs import is_json
from tallymark.core.progress import Progress, Step
from tallymark.core.spans import Tally

LINE_SECONDS = 10.0
"""How often progress is printed where a line can't be replaced."""


class Bar:
    """One line with a bar."""

    def __init__(self, progress: RichProgress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def __call__(self, done: int, total: int | None = None, words: str | None = None) -> None:
        """``total`` None: it is not known, or as it was."""
        task = self._progress.tasks[self._progress.task_ids.index(self._task)]
        end = total if total is not None else task.total
        words = words if words is not None else f"{done:,}" if end is None else f"{done:,}/{end:,.0f}"
        self._progress.update(self._task, completed=done, total=total, words=words)

    def say(self, words: str) -> None:
        self._progress.update(self._task, words=words)

    def remove(self) -> None:
        self._progress.remove_task(self._task)


class Bars:
    """The bars of a command. They are shown on a terminal, unless ``quiet`` or the logs are JSON."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, quiet=quiet or is_json())
        self._progress = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(),
            TextColumn("{task.fields[words]}", markup=False),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )

    def add(self, name: str, total: int | None = None, words: str = "") -> Bar:
        return Bar(self._progress, self._progress.add_task(name, total=total, words=words))

    def __enter__(self) -> Bars:
        self._progress.start()
        # A second Ctrl-C ends the process at once, and must not leave a terminal without a cursor.
        self.console.show_cursor(True)
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class RunBar:
    """The progress of a run, for ``on_step``. The listeners of an app call it from several threads."""

    def __init__(self, group: str, bars: Bars, starting: str = "starting") -> None:
        self._group, self._console, self._bar = group, bars.console, bars.add(group, words=starting)
        self._total, self._began, self._printed = Tally(), time.monotonic(), -LINE_SECONDS
        self._lock = threading.Lock()

    def __call__(self, step: Step, batch: Progress) -> None:
        if step is Step.DONE:
            with self._lock:
                self._show(batch)

    def _show(self, batch: Progress) -> None:
        self._total += batch.tally
        now, done = time.monotonic(), self._total.total
        rate = done / max(0.001, now - self._began)
        words = f"{describe(self._total)}, {batch.behind:,} behind, {rate:,.0f}/s"
        self._bar(done, done + batch.behind, words)
        if not self._console.is_terminal and now - self._printed >= LINE_SECONDS:
            self._printed = now
            self._console.print(f"{self._group}: {words}", highlight=False, markup=False)


def describe(tally: Tally) -> str:
    """A tally in words: always what was applied, and the other outcomes that occurred."""
    others = [f"{count:,} {name}" for name, count in asdict(tally).items() if count and name != "applied"]
    return ", ".join([f"{tally.applied:,} applied", *others])
