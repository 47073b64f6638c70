"""When the rows of a peer become visible: peers run in other processes, so the table is queried.

Counting costs the database time that the peer needs. Therefore each count estimates when the rest will be there, and
the next one waits for most of that time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from sqlalchemy import Connection, text

from bench.harness import tables
from bench.harness.race import Course, Lap
from bench.harness.records import PARTITIONS, STEP
from bench.harness.tables import Mode
from tallymark.errors import TallymarkError
from tallymark.stores.opening import open_sql

Check = Callable[[], None]
"""Raises if the peer is no longer at work."""

STALLED = 120.0
"""Seconds without a new row after which a peer is given up."""
GLANCE, LONGEST = 0.005, 5.0
"""Seconds between two looks, at least and at most."""
CHECK_EVERY = 1.0
PART = 0.8
"""Of the time that the rest will take: near the end counts come closer together."""


def watch(course: Course, mode: Mode, wanted: int, check: Check) -> Lap:
    """From the first visible row to the moment when at least so many are, with all that are visible then.

    A peer that brings them all at once is timed from the call. What is there with the first row is counted only where
    counting costs nothing: a table that is full of old rows would have to be read as a whole.
    """
    with closing(open_sql(course.url)) as store, store.engine.connect() as connection:
        looking = connection.execution_options(isolation_level="AUTOCOMMIT")
        return _watch(_Table(looking, course, mode), wanted, _seldom(check), cheap=mode == "append")


class _Table:
    """The rows of this lap, as another connection sees them."""

    def __init__(self, connection: Connection, course: Course, mode: Mode) -> None:
        self._connection = connection
        new = f"FROM {course.table} WHERE amount <> {tables.OLD}"
        self._count = text(f"SELECT COUNT(*) {new}")
        # One of these is the first, as partitions keep their order; by key no old row is in the way.
        firsts = ", ".join(str(number * STEP % course.records) for number in range(PARTITIONS))
        self._any = text(
            f"SELECT 1 {new} AND id IN ({firsts}) LIMIT 1" if mode == "upsert" else f"SELECT 1 {new} LIMIT 1"
        )

    def begun(self) -> bool:
        return self._connection.execute(self._any).first() is not None

    def count(self) -> int:
        return int(self._connection.execute(self._count).scalar_one())


def _watch(table: _Table, wanted: int, check: Check, *, cheap: bool) -> Lap:
    called = time.perf_counter()
    began = _first(table, check)
    first = table.count() if cheap else 0
    seen, moved = 0, began
    while True:
        asked = time.perf_counter()
        found = table.count()
        if found >= wanted:
            return Lap(found, asked - began, first) if seen else Lap(found, asked - called)
        if found > seen:
            seen, moved = found, asked
        elif asked - moved > STALLED:
            raise TallymarkError(f"no new row came in {STALLED:.0f} s; {found:,} of {wanted:,} are there")
        check()
        rest = (asked - began) * (wanted - found) / max(found, 1)
        time.sleep(min(max(rest * PART, GLANCE), LONGEST))


def _first(table: _Table, check: Check) -> float:
    """The moment when the first row was visible."""
    deadline = time.perf_counter() + STALLED
    while not table.begun():
        if time.perf_counter() > deadline:
            raise TallymarkError(f"not a single row came in {STALLED:.0f} s")
        check()
        time.sleep(GLANCE)
    return time.perf_counter()


def _seldom(check: Check) -> Check:
    """The same check, at most once a second."""
    latest = 0.0

    def checked() -> None:
        nonlocal latest
        if time.perf_counter() - latest > CHECK_EVERY:
            check()
            latest = time.perf_counter()

    return checked
