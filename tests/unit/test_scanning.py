"""A scan in advance is used only by a read of the same spans."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence

import pyarrow as pa
import pytest

from tallymark.core.spans import Partition, Span, split
from tallymark.spark.scan import Scanning
from tests.support.background import wait_for

ONE = Partition("orders", 0)
FIRST, SECOND, THIRD = ((Span(ONE, start, start + 10),) for start in (0, 10, 20))


class Kept:
    """Scans offsets and records them; waits before each scan until it is released."""

    def __init__(self) -> None:
        self.scanned: list[tuple[int, int]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.fails = False
        self.begun: list[Sequence[Span]] = []
        self.scanning = Scanning(self, self.split)

    def split(self, spans: Sequence[Span]) -> Sequence[Sequence[Span]]:
        self.begun.append(spans)
        return split(spans, 2) if spans else []

    def __call__(self, spans: Sequence[Span]) -> pa.Table:
        (span,) = spans
        self.scanned.append((span.start, span.stop))
        assert self.may_go_on.wait(10)
        if self.fails:
            raise ConnectionError("no broker")
        return pa.table({"offset": range(span.start, span.stop)})

    def offsets(self, spans: Sequence[Span], then: Sequence[Span] | None = None) -> list[int]:
        return [one for part in self.scanning.parts(spans, then) for one in part["offset"].to_pylist()]


def test_parts_come_in_their_order_and_what_is_next_is_scanned_behind_them() -> None:
    kept = Kept()
    assert kept.offsets(FIRST, SECOND) == list(range(10))
    wait_for(lambda: len(kept.scanned) == 4)
    assert kept.scanned == [(0, 5), (5, 10), (10, 15), (15, 20)]
    assert kept.offsets(SECOND, ()) == list(range(10, 20))
    assert len(kept.scanned) == 4


def test_a_part_is_handed_out_while_the_next_one_is_scanned() -> None:
    kept = Kept()
    parts = kept.scanning.parts(FIRST)
    next(parts)
    wait_for(lambda: len(kept.scanned) == 2)
    assert next(parts)["offset"].to_pylist() == [5, 6, 7, 8, 9]


def test_other_spans_are_scanned_and_what_was_ahead_is_not_begun_any_more() -> None:
    kept = Kept()
    kept.may_go_on.clear()
    parts = kept.scanning.parts(FIRST, SECOND)
    worker = threading.Thread(target=lambda: list(parts))
    worker.start()
    wait_for(lambda: kept.scanned == [(0, 5)])
    other = kept.scanning.parts(THIRD, ())
    found: list[pa.Table] = []
    second = threading.Thread(target=lambda: found.extend(other))
    second.start()
    wait_for(lambda: kept.begun[-1] == ())
    kept.may_go_on.set()
    worker.join(10)
    second.join(10)
    assert kept.scanned == [(0, 5), (5, 10), (20, 25), (25, 30)]
    assert [one for part in found for one in part["offset"].to_pylist()] == list(range(20, 30))


def test_who_says_nothing_about_what_comes_next_leaves_it_alone() -> None:
    kept = Kept()
    kept.offsets(FIRST, SECOND)
    assert kept.offsets(THIRD) == list(range(20, 30))
    assert kept.offsets(SECOND) == list(range(10, 20))
    assert len(kept.scanned) == 6
    assert kept.offsets(SECOND) == list(range(10, 20))
    assert len(kept.scanned) == 8


def test_a_scan_that_failed_is_made_again() -> None:
    kept = Kept()
    kept.fails = True
    with pytest.raises(ConnectionError):
        kept.offsets(FIRST, SECOND)
    wait_for(lambda: (15, 20) in kept.scanned)
    kept.fails = False
    with pytest.raises(ConnectionError):
        kept.offsets(SECOND)
    assert kept.offsets(SECOND) == list(range(10, 20))


def test_what_is_dropped_is_scanned_again() -> None:
    kept = Kept()
    kept.offsets(FIRST, SECOND)
    wait_for(lambda: len(kept.scanned) == 4)
    kept.scanning.drop()
    assert kept.offsets(SECOND) == list(range(10, 20))
    assert len(kept.scanned) == 6


@pytest.mark.parametrize("dropped", [False, True])
def test_the_thread_ends_with_whoever_scans(dropped: bool) -> None:
    before = threading.enumerate()
    kept = Kept()
    kept.offsets(FIRST)
    kept.may_go_on.clear()
    kept.offsets((), SECOND)
    scanned = kept.scanned
    wait_for(lambda: len(scanned) == 3)
    if dropped:
        kept.scanning.drop()
    kept.may_go_on.set()
    (thread,) = set(threading.enumerate()) - set(before)
    del kept

    def has_ended() -> bool:
        gc.collect()
        return not thread.is_alive()

    wait_for(has_ended)
