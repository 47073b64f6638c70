"""If a table merges records, a record that another table refuses is in no sum: it is dead, and applied only once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tallymark.core.budget import Budget
from tallymark.core.claims import FirstClaim, PositionChanges, Restart
from tallymark.core.journal import DEAD, LetterQuery
from tallymark.core.plan import Limits
from tallymark.core.spans import Tally
from tallymark.core.start import Start
from tallymark.errors import BatchTooLarge, Unreachable
from tallymark.kafka.brokers import Brokers
from tallymark.run.commit import Destination
from tallymark.run.letters import OpenLetters, replay
from tallymark.run.setup import Job
from tallymark.run.skips import backfill
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tests.support import databases, truth
from tests.support.crash import Run, make_loop, new_owner
from tests.support.kafka import Topics
from tests.support.reader import FIRST, TOTALS, PlainReader

TABLES = (FIRST, TOTALS)
VALUES: list[Any] = [{"id": 1}, {"id": None}, "no JSON", {"id": 4}, {"id": 66}, {"id": 6}, {"id": 77}, {"id": 8}]
"""One without a key, one that is not JSON, and two that are too large for the table."""
STRICT = "CREATE TABLE first_seen (id BIGINT PRIMARY KEY, record_offset BIGINT, CHECK (id < 50))"
LENIENT = ("DROP TABLE first_seen", STRICT.replace("50", "70"))
CLEAN, DIRTY = Tally(applied=4, dead=4), Tally(applied=1, dead=3)


class Shop:
    """A group on one partition, with a strict table and one that counts the records of each batch."""

    def __init__(self, topics: Topics, group: str, url: str) -> None:
        self.brokers, self.group, self.url = topics.brokers, group, url
        self.topic, self.store = topics.create(1), open_store(url)
        topics.send_to(self.topic, 0, VALUES)
        databases.execute(url, STRICT)

    def run(self, store: Store | None = None, delivery: Any = "exactly-once") -> Tally:
        run = Run(self.brokers, self.url, self.group, self.topic, 100, delivery)
        return self._reading(lambda reader: make_loop(run, store or self.store, reader).run("caught-up"))

    def replay(self) -> Tally:
        letters = OpenLetters(self.group, self.store, [self.topic], LetterQuery(), self._brokers)
        return self._reading(lambda reader: replay(self._job(), self._where, reader, letters))

    def backfill(self) -> Tally:
        return self._reading(lambda reader: backfill(self._job(), self._brokers, self._where, reader))

    def _reading(self, work: Callable[[PlainReader], Tally]) -> Tally:
        reader = PlainReader(self.brokers, TABLES)
        try:
            return work(reader)
        finally:
            reader.close()

    def _job(self) -> Job:
        start, tables = Start.parse("uncommitted-earliest"), [table.spec for table in TABLES]
        return Job(self.group, [self.topic], tables, new_owner(), start, Limits(100), budget=Budget(), patience=5.0)

    @property
    def _brokers(self) -> Brokers:
        return Brokers(self.brokers)

    @property
    def _where(self) -> Destination:
        return Destination(self.store, self.store)

    def ids(self) -> list[int]:
        return sorted(number for (number,) in truth.rows(self.url, "first_seen", "id").elements())

    def counted(self) -> int:
        """The number of records in the sums of all batches."""
        return sum(number for (number,) in truth.rows(self.url, "totals", "records").elements())

    def check(self, ids: Sequence[int]) -> None:
        """An applied record is in both tables, a dead one in neither."""
        assert self.ids() == sorted(ids)
        assert self.counted() == len(ids)
        assert all(one.balanced for one in self.store.positions(self.group)[self.group])
        dead = self.store.journal().letters(LetterQuery(self.group, states=(DEAD,)))
        assert len(dead) == len(VALUES) - len(ids)


@pytest.fixture
def shop(topics: Topics, group: str, database: Callable[[str], str]) -> Iterator[Shop]:
    made = Shop(topics, group, database("sqlite"))
    yield made
    made.store.close()


@pytest.mark.parametrize("delivery", ["exactly-once", "at-most-once"])
def test_a_record_that_one_table_refuses_is_not_in_the_sum_of_another(delivery: str, shop: Shop) -> None:
    assert shop.run(delivery=delivery) == CLEAN
    shop.check([1, 4, 6, 8])


def test_a_replayed_letter_is_summed_up_once_and_one_that_dies_again_is_not(shop: Shop) -> None:
    shop.run()
    for statement in ("DELETE FROM first_seen", *LENIENT):
        databases.execute(shop.url, statement)
    assert shop.replay() == DIRTY
    assert (shop.ids(), shop.counted()) == ([66], 5)
    truth.check_accounts(shop.url)


def test_a_backfill_sums_up_what_it_applies(shop: Shop) -> None:
    skip(shop)
    assert shop.backfill() == CLEAN
    shop.check([1, 4, 6, 8])


def skip(shop: Shop) -> None:
    """All records were skipped."""
    shop.store.create_ledger()
    found = Brokers(shop.brokers).topics([shop.topic])[shop.topic]
    first = FirstClaim(0, found.id, Brokers(shop.brokers).cluster_id())
    begins, jumps = dict.fromkeys(found.partitions, first), dict.fromkeys(found.partitions, Restart(8, "far"))
    shop.store.claim(shop.group, new_owner(), found.partitions, lambda _: PositionChanges(begins), {})
    shop.store.claim(shop.group, new_owner(), found.partitions, lambda _: PositionChanges({}, jumps), {})


@pytest.mark.parametrize("large", [False, True], ids=["refused", "in parts"])
def test_a_run_goes_on_with_the_epoch_that_it_has_raised_itself(
    large: bool, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of the first attempt is unknown, and the second one is refused or too large."""
    apply, failures = shop.store.apply, [Unreachable("gone"), *([BatchTooLarge("too large")] if large else [])]

    def broken(*arguments: Any) -> None:
        if failures:
            raise failures.pop(0)
        apply(*arguments)

    monkeypatch.setattr(shop.store, "apply", broken)
    assert shop.run() == CLEAN
    shop.check([1, 4, 6, 8])
    (position,) = shop.store.positions(shop.group)[shop.group]
    assert (position.epoch, position.owner) == (2, None), "claimed, settled, and given back"
