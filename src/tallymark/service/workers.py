"""Runs the handler of one consumer in several threads, with correct order and positions.

Handlers run concurrently as far as the order allows. A handler's first use of the transaction waits until every
earlier record of its partition is finished; from then on the handler has exclusive use of the transaction. So the
transaction always holds a finished prefix of each partition.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, NamedTuple

from tallymark.core.spans import Partition
from tallymark.errors import BadInput, Retry, TallymarkError, described
from tallymark.service.batch import Batch
from tallymark.service.handler import Handler, RecordFailed, classified
from tallymark.service.records import Record
from tallymark.stores.transaction import OVER, Transaction

Order = Literal["partition", "key", "none"]


class LaneStopped(BaseException):
    """An earlier record could not be finished, so this record can't be either.

    A ``BaseException``, because handlers should not catch it.
    """


class LanesOutcome(NamedTuple):
    """The result of a batch: how many records are finished, and why some of them are dead."""

    finished: int
    failed: Sequence[RecordFailed]


class Workers:
    """A pool that works on one batch at a time."""

    def __init__(self, handler: Handler, workers: int, order: Order) -> None:
        self._handler = handler
        self._count = workers
        self._order = order
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tallymark-worker")

    def close(self) -> None:
        self._pool.shutdown()

    def work(self, batch: Batch, db: Transaction) -> LanesOutcome:
        """Handle all records of the batch, or a prefix of each partition if a record has to be tried again."""
        lanes = Lanes(batch.records, self._order)
        futures = [self._pool.submit(self._serve, lanes, batch, db) for _ in range(self._count)]
        for future in futures:
            future.result()
        if lanes.error is not None and (not isinstance(lanes.error, Retry) or not lanes.progressed):
            raise lanes.error
        batch.shorten(lanes.unfinished(), lanes.error)
        return lanes.outcome()

    def _serve(self, lanes: Lanes, batch: Batch, db: Transaction) -> None:
        while (at := lanes.take()) is not None:
            record = lanes.records[at]
            try:
                with classified(), lanes.turn(at, db) as own:
                    self._handler.one(record, own)
            except RecordFailed as error:
                batch.dead(record, str(error))
                lanes.done(at, error)
            except TallymarkError as error:
                lanes.stop(at, error)
            except LaneStopped:
                lanes.stop(at)
            except BaseException as error:  # noqa: BLE001 - the thread that waits for the batch raises it
                lanes.stop(at, TallymarkError(f"a worker ended with {described(error)}"))
            else:
                lanes.done(at)


class Lanes:
    """Decides which record a worker may handle and which may write.

    The earliest unfinished record of a partition may always do both, so there is no deadlock.
    """

    def __init__(self, records: Sequence[Record], order: Order) -> None:
        self.records = records
        self.error: TallymarkError | None = None
        self._lanes = [_lane(record, at, order) for at, record in enumerate(records)]
        self._waiting = list(range(len(records)))
        self._busy: set[Hashable] = set()
        self._left: dict[tuple[str, int], deque[int]] = defaultdict(deque)
        for at, record in enumerate(records):
            self._left[record.topic, record.partition].append(at)
        self._begun = {place: left[0] for place, left in self._left.items()}
        self._finished: set[int] = set()
        self._failed: dict[int, RecordFailed] = {}
        self._change = threading.Condition()
        self._writing = threading.Lock()

    def take(self) -> int | None:
        """Return the first record whose lane is free, or None when no work is left."""
        with self._change:
            while self._waiting and self.error is None:
                for at in self._waiting:
                    if self._lanes[at] not in self._busy:
                        self._waiting.remove(at)
                        self._busy.add(self._lanes[at])
                        return at
                self._change.wait()
            return None

    def done(self, at: int, failed: RecordFailed | None = None) -> None:
        with self._change:
            if failed is not None:
                self._failed[at] = failed
            self._finished.add(at)
            left = self._left_of(at)
            while left and left[0] in self._finished:
                left.popleft()
            self._busy.discard(self._lanes[at])
            self._change.notify_all()

    def stop(self, at: int, error: TallymarkError | None = None) -> None:
        with self._change:
            if error is not None and (self.error is None or isinstance(self.error, Retry)):
                self.error = error
            self._busy.discard(self._lanes[at])
            self._change.notify_all()

    @contextmanager
    def turn(self, at: int, db: Transaction) -> Iterator[Any]:
        """Yield the transaction for one handler. Its first use waits; it is rolled back if the handler raises."""
        with ExitStack() as stack:

            def begin() -> Transaction:
                stack.enter_context(self.waiting_for(at))
                stack.enter_context(db.savepoint())
                return db

            turn = Turn(begin)
            try:
                yield turn
            finally:
                turn.end()

    @contextmanager
    def waiting_for(self, at: int) -> Iterator[None]:
        """Wait for all earlier records of the partition, then for exclusive use of the transaction."""
        with self._change:
            self._change.wait_for(lambda: self._is_next(at) or self.error is not None)
            if not self._is_next(at):
                raise LaneStopped
        with self._writing:
            yield

    @property
    def progressed(self) -> bool:
        """Whether the first record of any partition is finished."""
        return any(first in self._finished for first in self._begun.values())

    def outcome(self) -> LanesOutcome:
        """Return the result of the finished prefixes."""
        left = {at for waiting in self._left.values() for at in waiting}
        failed = [error for at, error in sorted(self._failed.items()) if at not in left]
        return LanesOutcome(len(self.records) - len(left), failed)

    def unfinished(self) -> dict[Partition, int]:
        """Return the first unfinished offset of each partition."""
        return {Partition(*place): self.records[left[0]].offset for place, left in self._left.items() if left}

    def _is_next(self, at: int) -> bool:
        return self._left_of(at)[0] == at

    def _left_of(self, at: int) -> deque[int]:
        record = self.records[at]
        return self._left[record.topic, record.partition]


class Turn:
    """The transaction for one handler: the first use waits for its turn, and use after the handler's end raises."""

    def __init__(self, begin: Callable[[], Transaction]) -> None:
        self._begin = begin
        self._db: Transaction | None = None
        self._over = False
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        # A thread that outlives its handler must not begin a turn, which would never end.
        with self._lock:
            if self._over:
                raise BadInput(OVER)
            if self._db is None:
                self._db = self._begin()
        return getattr(self._db, name)

    def end(self) -> None:
        with self._lock:
            self._over = True


def _lane(record: Record, at: int, order: Order) -> Hashable:
    if order == "partition":
        return record.topic, record.partition
    if order == "key" and record.key is not None:
        # A decoded key may be a dict, which can't be hashed.
        return record.topic, record.partition, repr(record.key)
    return at
