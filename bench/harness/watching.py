"""Watching a pipeline that runs: how long a batch takes, how much memory is held, and whether that grows."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.report import table
from tallymark.core.progress import Progress, Step

PATIENCE = 180.0
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20
SAMPLES, COLLECTIONS = 100, 10
"""Looks at the memory over all batches, and those of them with a garbage collection."""
ENOUGH = 5
"""Samples that a slope takes at least."""


class Stopwatch:
    """Makes batches of an exact size for a running pipeline, one at a time, and says how long each took.

    A single record wakes the pipeline. While its batch is held at its first step, the others are produced, so that the
    next batch has all of them; that one is held in turn until the first is done. What it took to plan it counts.
    """

    def __init__(self, produce: Callable[[int], None]) -> None:
        self._produce = produce
        self._records = 0
        self._first, self._batch, self._began = "", "", 0.0
        self._done = threading.Event()
        self._seconds: Future[float] = Future()

    def batch(self, records: int) -> float:
        """The seconds of one batch with so many records. One more was produced to wake the pipeline."""
        self._records, self._first, self._batch = records, "", ""
        self._done.clear()
        self._seconds = Future()
        self._produce(1)
        return self._seconds.result(PATIENCE)

    def step(self, step: Step, progress: Progress) -> None:
        if step is Step.PLANNED and not self._first:
            self._first = progress.batch
            self._produce(self._records)
        elif step is Step.PLANNED:
            self._planned(progress)
        elif step is Step.DROPPED and not self._seconds.done():
            self._seconds.set_exception(RuntimeError(f"batch {progress.batch} was dropped: {progress.error}"))
        elif step is Step.DONE and progress.batch == self._first:
            self._done.set()
        elif step is Step.DONE and progress.batch == self._batch:
            self._seconds.set_result(time.monotonic() - self._began)

    def _planned(self, progress: Progress) -> None:
        planning = time.monotonic() - progress.since
        if progress.offsets != self._records:
            wrong = RuntimeError(
                f"a batch of {self._records} records was to be measured, and it has {progress.offsets}"
            )
            self._seconds.set_exception(wrong)
            return
        self._done.wait(PATIENCE)
        self._batch, self._began = progress.batch, time.monotonic() - planning


@dataclass(frozen=True)
class Sample:
    """MiB after so many batches; ``heap`` is what a garbage collection left in the JVM, where one was asked for."""

    batches: int
    python: float
    jvm: float
    heap: float | None = None


class Memory:
    """The resident memory of this process and of the JVM, in MiB, now and at its peak. ``java`` is its java.lang."""

    def __init__(self, java: Any) -> None:
        self._java = java
        self._pids = {"python": os.getpid(), "jvm": int(java.ProcessHandle.current().pid())}
        self._peaks: dict[str, float] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def now(self) -> dict[str, float]:
        return {name: _resident(pid) for name, pid in self._pids.items()}

    def peaks(self) -> dict[str, float]:
        """The most since they were asked for the last time."""
        found, self._peaks = self._peaks, {}
        return {name: max(found.get(name, 0.0), size) for name, size in self.now().items()}

    def sample(self, batches: int, *, collect: bool) -> Sample:
        """``collect`` asks for a garbage collection, after the rest was looked at."""
        return Sample(batches, **self.now(), heap=self._live() if collect else None)

    def _live(self) -> float:
        self._java.System.gc()
        runtime = self._java.Runtime.getRuntime()
        return float(runtime.totalMemory() - runtime.freeMemory()) / MIB

    def _watch(self) -> None:
        # Once the JVM has ended, there is nothing left to look at.
        with suppress(OSError):
            while True:
                time.sleep(0.02)
                peaks = self._peaks
                for name, size in self.now().items():
                    peaks[name] = max(peaks.get(name, 0.0), size)


class Endurance:
    """Batch after batch, each called for when the records before are done, and a hundred looks at the memory."""

    def __init__(self, memory: Memory, most: int, seconds: float, call: Callable[[], int]) -> None:
        self.samples: list[Sample] = []
        self.batches, self.records = 0, 0
        """``records`` are those that were called for."""
        self._memory, self._most, self._seconds, self._produce = memory, most, seconds, call
        self._done = 0
        self._deadline = 0.0
        self._over = threading.Event()

    def step(self, step: Step, progress: Progress) -> None:
        if step is not Step.DONE:
            return
        self.batches += 1
        self._done += progress.offsets
        if self.batches % (self._most // SAMPLES) == 0:
            collect = self.batches % (self._most // COLLECTIONS) == 0
            self.samples.append(self._memory.sample(self.batches, collect=collect))
        if self._done < self.records:
            return
        if self.batches < self._most and time.monotonic() < self._deadline:
            self._call()
        else:
            self._over.set()

    def _call(self) -> None:
        self.records += self._produce()

    def run(self) -> None:
        """Until there were so many, or time is up."""
        self._deadline = time.monotonic() + self._seconds
        self._call()
        if not self._over.wait(self._seconds + PATIENCE):
            raise RuntimeError(f"batch {self.batches + 1} was not done in {PATIENCE:.0f} s")


def over_time(samples: Sequence[Sample], name: str = "one-record batches") -> Iterator[str]:
    """A table of what was held after every tenth of the batches, and a sentence about how that grows."""
    if len(samples) < ENOUGH:
        yield "There were too few batches to see whether memory grows."
        return
    heads = (name, "Python MiB", "JVM MiB", "JVM heap after a collection, MiB")
    rows = [
        (f"{one.batches:,}", f"{one.python:,.0f}", f"{one.jvm:,.0f}", f"{one.heap:,.0f}")
        for one in samples
        if one.heap is not None
    ]
    yield from table(heads, rows, left=0)
    python = slope([(one.batches, one.python) for one in samples])
    jvm = slope([(one.batches, one.jvm) for one in samples])
    yield ""
    yield (
        f"After the first fifth of {samples[-1].batches:,} batches, a thousand more add {python:+.1f} MiB to Python "
        f"and {jvm:+.1f} MiB to the JVM; the target is that memory is flat."
    )


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """How much is added in a thousand batches, once the first fifth of them has warmed up."""
    warm = samples[-1][0] / 5
    late = [one for one in samples if one[0] >= warm]
    return 1000 * statistics.linear_regression(*zip(*late, strict=True)).slope


def _resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / MIB
