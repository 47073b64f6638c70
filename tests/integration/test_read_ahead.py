"""The batch that is announced to a reader is the next one, unless something has changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pytest

from tallymark.core.records import Reading
from tallymark.core.spans import Partition, Span, Tally
from tallymark.errors import BatchTooLarge
from tallymark.stores.opening import open_store
from tests.support import truth
from tests.support.crash import Run, make_loop
from tests.support.kafka import Topics
from tests.support.reader import EVENTS, PlainReader

RECORDS, BATCH = 200, 40


class Told(PlainReader):
    """Records its reads and the announced ones. ``meanwhile`` is called within a read."""

    def __init__(self, brokers: str, meanwhile: Callable[[int], None] = lambda _: None) -> None:
        super().__init__(brokers, [EVENTS])
        self.asked: list[tuple[Span, ...]] = []
        self.told: list[tuple[Span, ...] | None] = []
        self._meanwhile = meanwhile

    def read(
        self,
        spans: Sequence[Span],
        batch: str,
        without: Collection[tuple[Partition, int]] = (),
        then: Sequence[Span] | None = None,
    ) -> Reading:
        self.asked.append(tuple(spans))
        self.told.append(None if then is None else tuple(then))
        self._meanwhile(len(self.asked))
        return super().read(spans, batch, without, then)


@pytest.fixture
def run(brokers: str, database: Callable[[str], str], group: str, topics: Topics) -> Run:
    made = Run(brokers, database("sqlite"), group, topics.create(2), records=BATCH)
    topics.send(made.topic, ({"id": number} for number in range(RECORDS)), partitions=2)
    return made


def caught_up(run: Run, reader: Told) -> Tally:
    store = open_store(run.store)
    try:
        return make_loop(run, store, reader).run("caught-up")
    finally:
        reader.close()
        store.close()


def test_what_was_announced_is_read_next(run: Run) -> None:
    reader = Told(run.brokers)
    assert caught_up(run, reader) == Tally(applied=RECORDS)
    assert len(reader.asked) == RECORDS // BATCH
    assert reader.told == [*reader.asked[1:], ()]


def test_records_that_arrive_meanwhile_do_not_change_it(run: Run, topics: Topics) -> None:
    def arrive(read: int) -> None:
        if read == 1:
            topics.send_to(run.topic, 0, [{"id": RECORDS + number} for number in range(50)])

    reader = Told(run.brokers, arrive)
    caught_up(run, reader)
    assert reader.asked[1] == reader.told[0]
    assert set(truth.events(run.store).values()) == {1}


def test_a_batch_that_was_shortened_changes_it(run: Run) -> None:
    def shorten(read: int) -> None:
        if read == 1:
            raise BatchTooLarge("too large")

    reader = Told(run.brokers, shorten)
    assert caught_up(run, reader) == Tally(applied=RECORDS)
    assert reader.told[1] is None
    assert reader.asked[2] != reader.told[0]
    assert set(truth.events(run.store).values()) == {1}
