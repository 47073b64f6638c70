"""What was read ahead is used only by a read of the same spans."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence

import pyarrow as pa
import pytest

from tallymark.core.records import Reading
from tallymark.core.spans import Partition, Span, split
from tallymark.errors import BatchTooLarge
from tallymark.spark.read_ahead import ReadAhead, Records
from tests.support.background import wait_for

ONE = Partition("orders", 0)
FIRST, SECOND, THIRD = ((Span(ONE, start, start + 10),) for start in (0, 10, 20))


class Kept:
    """Reads offsets and records them; waits before each read until it is released."""

    def __init__(self) -> None:
        self.read: list[tuple[int, int]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.fails = False
        self.begun: list[Sequence[Span]] = []
        self.pieces, self.most = 2, 10
        self.ahead = ReadAhead(self, self.split, self.check)

    def split(self, spans: Sequence[Span]) -> Sequence[Sequence[Span]]:
        self.begun.append(spans)
        return split(spans, self.pieces)

    def check(self, spans: Sequence[Span], size: int) -> None:
        if size > self.most:
            raise BatchTooLarge(f"{size} of {spans}")

    def __call__(self, spans: Sequence[Span], without: Records) -> Reading:
        (span,) = spans
        self.read.append((span.start, span.stop))
        assert self.may_go_on.wait(10)
        if self.fails:
            raise ConnectionError("no broker")
        rows = pa.table({"offset": [at for at in range(span.start, span.stop) if (ONE, at) not in without]})
        return Reading({}, {"orders": rows}, [], size=rows.num_rows)

    def offsets(self, spans: Sequence[Span], then: Sequence[Span] | None = None, without: Records = ()) -> list[int]:
        return [offset for part in self.ahead.parts(spans, then, without) for offset in offsets_of(part)]


def offsets_of(part: Reading) -> list[int]:
    found: list[int] = part.rows["orders"]["offset"].to_pylist()
    return found


def test_parts_come_in_their_order_and_the_next_spans_are_read_after_them() -> None:
    kept = Kept()
    assert kept.offsets(FIRST, SECOND) == list(range(10))
    wait_for(lambda: len(kept.read) == 4)
    # Two threads read in turns.
    assert kept.read.index((0, 5)) < kept.read.index((10, 15))
    assert kept.read.index((5, 10)) < kept.read.index((15, 20))
    assert kept.offsets(SECOND, ()) == list(range(10, 20))
    assert len(kept.read) == 4


def test_a_part_is_returned_while_the_next_one_is_read() -> None:
    kept = Kept()
    parts = kept.ahead.parts(FIRST, None)
    next(parts)
    wait_for(lambda: len(kept.read) == 2)
    assert offsets_of(next(parts)) == [5, 6, 7, 8, 9]


def test_other_spans_are_read_and_reads_ahead_do_not_begin() -> None:
    kept = Kept()
    kept.may_go_on.clear()
    parts = kept.ahead.parts(FIRST, SECOND)
    worker = threading.Thread(target=lambda: list(parts))
    worker.start()
    wait_for(lambda: sorted(kept.read) == [(0, 5), (5, 10)])
    other = kept.ahead.parts(THIRD, ())
    found: list[Reading] = []
    second = threading.Thread(target=lambda: found.extend(other))
    second.start()
    wait_for(lambda: kept.begun[-1] == THIRD)
    kept.may_go_on.set()
    worker.join(10)
    second.join(10)
    assert sorted(kept.read[2:]) == [(20, 25), (25, 30)]
    assert [offset for part in found for offset in offsets_of(part)] == list(range(20, 30))


def test_a_read_without_next_spans_keeps_what_was_read_ahead() -> None:
    kept = Kept()
    kept.offsets(FIRST, SECOND)
    assert kept.offsets(THIRD) == list(range(20, 30))
    assert kept.offsets(SECOND) == list(range(10, 20))
    assert len(kept.read) == 6
    assert kept.offsets(SECOND) == list(range(10, 20))
    assert len(kept.read) == 8


def test_a_read_that_failed_is_repeated() -> None:
    kept = Kept()
    kept.fails = True
    with pytest.raises(ConnectionError):
        kept.offsets(FIRST, SECOND)
    wait_for(lambda: (15, 20) in kept.read)
    kept.fails = False
    with pytest.raises(ConnectionError):
        kept.offsets(SECOND)
    assert kept.offsets(SECOND) == list(range(10, 20))


def test_the_parts_after_one_that_is_too_large_are_not_read() -> None:
    kept = Kept()
    kept.pieces, kept.most = 5, 3
    with pytest.raises(BatchTooLarge):
        kept.offsets(FIRST)
    kept.most = 10
    assert kept.offsets(FIRST) == list(range(10))
    # Two parts are too large together, and a third may have begun by then; the second time all five are read.
    assert len(kept.read) <= 3 + 5


def test_what_is_dropped_is_read_again() -> None:
    kept = Kept()
    kept.offsets(FIRST, SECOND)
    wait_for(lambda: len(kept.read) == 4)
    kept.ahead.drop()
    assert kept.offsets(SECOND) == list(range(10, 20))
    assert len(kept.read) == 6


def test_what_was_read_ahead_is_not_used_if_records_are_left_out() -> None:
    kept = Kept()
    kept.offsets(FIRST, SECOND)
    assert kept.offsets(SECOND, without=[(ONE, 12)]) == [10, 11, *range(13, 20)]


@pytest.mark.parametrize("dropped", [False, True])
def test_the_threads_end_with_their_owner(dropped: bool) -> None:
    before = threading.enumerate()
    kept = Kept()
    kept.offsets(FIRST)
    kept.may_go_on.clear()
    kept.offsets((), SECOND)
    read = kept.read
    wait_for(lambda: len(read) == 4)
    if dropped:
        kept.ahead.drop()
    kept.may_go_on.set()
    threads = set(threading.enumerate()) - set(before)
    assert len(threads) == 2
    del kept

    def has_ended() -> bool:
        gc.collect()
        return not any(thread.is_alive() for thread in threads)

    wait_for(has_ended)
