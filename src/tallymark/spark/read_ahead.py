"""Reads the spans of the next batch while the current batch is processed.

What was read ahead is used only by a read of exactly the same spans; otherwise it is discarded.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import cycle

from tallymark.core.records import Reading
from tallymark.core.retry import Background
from tallymark.core.spans import Partition, Span

Spans = Sequence[Span]
Records = Collection[tuple[Partition, int]]


class ReadAhead:
    """Reads spans in parts that ``split`` makes, in two threads: while one query ends, another keeps Spark busy.

    ``check`` raises if so many bytes of the spans are too many. Then the parts that have not begun are not read.
    """

    def __init__(
        self,
        read: Callable[[Spans, Records], Reading],
        split: Callable[[Spans], Sequence[Spans]],
        check: Callable[[Spans, int], None],
    ) -> None:
        self._read = read
        self._split = split
        self._check = check
        self._threads = cycle([Background("tallymark-read-1"), Background("tallymark-read-2")])
        self._lock = threading.Lock()
        self._ahead: tuple[Spans, deque[Future[Reading]]] = (), deque()

    def parts(self, spans: Spans, then: Spans | None, without: Records = ()) -> Generator[Reading, None, None]:
        """The parts of these spans in order. Afterwards the threads read ``then``, the spans of the next call.

        If ``then`` is None, what was read ahead stays as it is.
        """
        with self._lock:
            expected, futures = self._ahead
            if list(expected) == list(spans) and not without:
                self._ahead = (), deque()
            else:
                if then is not None:
                    _cancel(futures)
                futures = self._submit(spans, without)
            if then is not None:
                self._ahead = then, self._submit(then)
        try:
            while futures:
                yield futures.popleft().result()
        finally:
            _cancel(futures)

    def drop(self) -> None:
        """Discard everything that was read ahead."""
        with self._lock:
            _cancel(self._ahead[1])
            self._ahead = (), deque()

    def _submit(self, spans: Spans, without: Records = ()) -> deque[Future[Reading]]:
        parts = self._split(spans) if spans else ()
        checked = _Checked(self._read, partial(self._check, spans))
        return deque(next(self._threads).submit(partial(checked, part, without)) for part in parts)


class _Checked:
    """Reads the parts of some spans. Before each part, checks how many bytes were read; the caller checks the total."""

    def __init__(self, read: Callable[[Spans, Records], Reading], check: Callable[[int], None]) -> None:
        self._read = read
        self._check = check
        self._size = 0
        self._lock = threading.Lock()

    def __call__(self, part: Spans, without: Records) -> Reading:
        self._check(self._size)
        reading = self._read(part, without)
        with self._lock:
            self._size += reading.size
        return reading


def _cancel(futures: deque[Future[Reading]]) -> None:
    """Cancel reads that have not begun; a running read finishes."""
    while futures:
        futures.popleft().cancel()
