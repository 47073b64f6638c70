"""Scans that run ahead: while one part of a batch is decoded the next is scanned, and after the last the next batch.

What was scanned ahead is taken only by a read of the very same spans; if nobody asks for them, it was in vain.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from functools import partial

import pyarrow as pa

from tallymark.background import Background
from tallymark.spans import Span

Spans = Sequence[Span]


class Scanning:
    """Scans spans in the parts that ``split`` makes of them, one part after the other, in a thread of its own."""

    def __init__(self, scan: Callable[[Spans], pa.Table], split: Callable[[Spans], Sequence[Spans]]) -> None:
        self._scan = scan
        self._split = split
        self._thread = Background("tallymark-scan")
        self._lock = threading.Lock()
        self._ahead: tuple[Spans, deque[Future[pa.Table]]] = (), deque()

    def parts(self, spans: Spans, then: Spans | None = None) -> Generator[pa.Table, None, None]:
        """The parts of these spans in their order; meanwhile ``then`` is scanned, which will be asked for next.

        None leaves what is ahead as it is.
        """
        with self._lock:
            expected, futures = self._ahead
            if expected == spans:
                self._ahead = (), deque()
            else:
                futures = self._submit(spans)
            if then is not None:
                _cancel(self._ahead[1])
                self._ahead = then, self._submit(then)
        try:
            while futures:
                yield futures.popleft().result()
        finally:
            _cancel(futures)

    def drop(self) -> None:
        """Nothing that was scanned ahead is wanted any more."""
        with self._lock:
            _cancel(self._ahead[1])
            self._ahead = (), deque()

    def _submit(self, spans: Spans) -> deque[Future[pa.Table]]:
        return deque(self._thread.submit(partial(self._scan, part)) for part in self._split(spans))


def _cancel(futures: deque[Future[pa.Table]]) -> None:
    """What is being scanned now comes to its end; what has not begun never will."""
    while futures:
        futures.popleft().cancel()
