"""Lanes: which records run in parallel, which wait for others, and what is saved if a record can't be finished."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tallymark.core.spans import Partition
from tallymark.errors import BadInput, Retry, TallymarkError
from tallymark.service.handler import Handler
from tallymark.service.records import Record
from tallymark.service.workers import Lanes, LanesOutcome, Order, Workers


class Notes:
    """A fake transaction that records writes and undoes them with its savepoint."""

    def __init__(self) -> None:
        self.written: list[tuple[int, int]] = []
        self._inside = threading.Lock()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        assert self._inside.acquire(blocking=False), "two handlers had the transaction at once"
        before = len(self.written)
        try:
            yield
        except BaseException:
            del self.written[before:]
            raise
        finally:
            self._inside.release()

    def put(self, record: Record) -> None:
        self.written.append((record.partition, record.offset))


class OneBatch:
    """The part of a batch that the workers need."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.letters: list[tuple[int, int]] = []
        self.stops: dict[Partition, int] = {}

    def dead(self, record: Record, _: str) -> None:
        self.letters.append((record.partition, record.offset))

    def shorten(self, unfinished: dict[Partition, int], _: TallymarkError | None) -> None:
        self.stops = unfinished


def records(partitions: int, each: int, keys: int = 3) -> list[Record]:
    return [
        Record("t", partition, offset, None, b"%d" % (offset % keys), None, ())
        for partition in range(partitions)
        for offset in range(each)
    ]


def work(
    function: Callable[..., Any],
    given: list[Record],
    workers: int,
    order: Order,
    outcomes: list[LanesOutcome] | None = None,
) -> tuple[OneBatch, Notes]:
    batch, db = OneBatch(given), Notes()
    pool = Workers(Handler(function, takes_batches=False), workers, order)
    try:
        outcome = pool.work(batch, db)  # type: ignore[arg-type]
        if outcomes is not None:
            outcomes.append(outcome)
    finally:
        pool.close()
    return batch, db


@pytest.mark.parametrize("order", ["partition", "key", "none"])
@pytest.mark.parametrize("workers", [2, 3, 8])
def test_everything_is_written_in_the_order_of_its_partition_whoever_is_quicker(order: Order, workers: int) -> None:
    dice = random.Random(workers)

    def handle(record: Record, db: Notes) -> None:
        time.sleep(dice.random() * 0.002)
        db.put(record)

    given = records(3, 40)
    batch, db = work(handle, given, workers, order)
    for partition in range(3):
        assert [offset for where, offset in db.written if where == partition] == list(range(40))
    assert batch.stops == {}


@pytest.mark.parametrize(("order", "together"), [("partition", 2), ("key", 3), ("none", 4)])
def test_as_many_run_side_by_side_as_the_order_allows(order: Order, together: int) -> None:
    """Two partitions with one key each would have two lanes; here one of the 2 partitions has 2 keys."""
    given = [Record("t", 0, offset, None, b"%d" % (offset % 2), None, ()) for offset in range(8)]
    given += [Record("t", 1, offset, None, b"x", None, ()) for offset in range(4)]
    running, most, change = 0, 0, threading.Condition()

    def handle(_: Record) -> None:
        nonlocal running, most
        with change:
            running += 1
            most = max(most, running)
            change.notify_all()
            change.wait_for(lambda: most >= together, 5)
            running -= 1

    work(handle, given, 4, order)
    assert most == together


def test_records_of_one_key_are_handled_one_after_the_other() -> None:
    seen: dict[bytes | None, list[int]] = {}
    inside: set[bytes | None] = set()

    def handle(record: Record) -> None:
        assert record.key not in inside
        inside.add(record.key)
        time.sleep(0.001)
        seen.setdefault(record.key, []).append(record.offset)
        inside.discard(record.key)

    work(handle, records(1, 30), 8, "key")
    assert seen == {b"%d" % key: list(range(key, 30, 3)) for key in range(3)}


def test_a_record_that_has_to_be_tried_again_ends_what_is_saved_of_its_partition() -> None:
    overtaken = threading.Event()

    def handle(record: Record, db: Notes) -> None:
        if record.partition == 0 and record.offset == 5:
            assert overtaken.wait(10)
            db.put(record)
            raise Retry("later")
        if record.partition == 0 and record.offset > 5:
            overtaken.set()
        db.put(record)

    batch, db = work(handle, records(2, 20), 4, "none")
    assert [offset for where, offset in db.written if where == 0] == list(range(5))
    saved = len([offset for where, offset in db.written if where == 1])
    assert batch.stops[Partition("t", 0)] == 5
    assert batch.stops.get(Partition("t", 1), 20) == saved


def test_when_nothing_could_be_finished_the_error_is_told() -> None:
    def handle(record: Record, db: Notes) -> None:
        if record.offset == 0:
            raise Retry("the service is away")
        db.put(record)

    with pytest.raises(Retry, match="the service is away"):
        work(handle, records(1, 20), 4, "none")


def test_a_record_that_fails_for_good_is_dead_and_the_others_go_on() -> None:
    def handle(record: Record, db: Notes) -> None:
        db.put(record)
        if record.offset in (3, 7):
            raise ValueError("no")

    batch, db = work(handle, records(1, 12), 4, "none")
    assert sorted(batch.letters) == [(0, 3), (0, 7)]
    assert [offset for _, offset in db.written] == [n for n in range(12) if n not in (3, 7)]
    assert batch.stops == {}


def test_an_error_of_our_own_ends_the_batch_whatever_was_finished() -> None:
    def handle(record: Record, db: Notes) -> None:
        db.put(record)
        if record.offset == 9:
            raise TallymarkError("the table does not fit")

    with pytest.raises(TallymarkError, match="does not fit"):
        work(handle, records(1, 12), 4, "partition")


def test_async_handlers_run_side_by_side() -> None:
    import asyncio

    async def handle(record: Record, db: Notes) -> None:
        await asyncio.sleep(0.001)
        db.put(record)

    _, db = work(handle, records(2, 10), 4, "none")
    assert sorted(db.written) == [(partition, offset) for partition in range(2) for offset in range(10)]


def test_the_earliest_record_always_finds_a_worker() -> None:
    """Two workers, and keys that delay each other: no worker waits for ever."""
    for seed in range(30):
        dice = random.Random(seed)
        given = [Record("t", 0, n, None, b"%d" % dice.randrange(4), None, ()) for n in range(25)]

        def handle(record: Record, db: Notes) -> None:
            db.put(record)

        _, db = work(handle, given, 2, "key")
        assert [offset for _, offset in db.written] == list(range(25))


def test_lanes_know_where_each_partition_is_unfinished() -> None:
    lanes = Lanes(records(2, 3), "none")
    assert lanes.unfinished() == {Partition("t", 0): 0, Partition("t", 1): 0}
    assert not lanes.progressed
    for at in (1, 2):
        lanes.done(at)
    assert not lanes.progressed
    lanes.done(0)
    assert lanes.progressed
    assert lanes.unfinished() == {Partition("t", 1): 0}


def test_what_failed_is_counted_against_what_was_finished() -> None:
    def handle(record: Record, db: Notes) -> None:
        if record.offset == 8:
            raise Retry("later")
        raise ValueError("no")

    outcomes: list[LanesOutcome] = []
    work(handle, records(1, 12), 2, "partition", outcomes)
    [outcome] = outcomes
    assert (outcome.finished, len(outcome.failed)) == (8, 8)
    assert str(outcome.failed[0]).startswith("ValueError: no (test_workers.py:")


@pytest.mark.parametrize("order", ["partition", "none"])
def test_a_transaction_that_is_used_after_its_handler_returned_is_over(order: Order) -> None:
    """A late use fails at once, during the batch and after it, instead of waiting for a turn."""
    used: list[BaseException | str] = []
    kept: list[Any] = []

    def use(db: Any, record: Record) -> None:
        try:
            used.append(db.put(record) or "written")
        except BaseException as error:  # noqa: BLE001
            used.append(error)

    def handle(record: Record, db: Notes) -> None:
        kept.append(db)
        if record.offset == 1:
            late = threading.Thread(target=use, args=(kept[0], record), daemon=True)
            late.start()
            late.join(5)

    _, db = work(handle, records(1, 3), 2, "partition" if order == "partition" else "none")
    after = threading.Thread(target=use, args=(kept[0], records(1, 3)[0]), daemon=True)
    after.start()
    after.join(5)
    assert [type(one) for one in used] == [BadInput, BadInput]
    assert str(used[0]) == "this transaction has ended: use it only inside its block"
    assert db.written == []
