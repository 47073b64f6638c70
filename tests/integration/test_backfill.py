"""A backfill writes skipped records to the tables once, and records the outcome of every offset."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tallymark.core.claims import FirstClaim, PositionChanges, Restart
from tallymark.core.plan import Limits
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.core.records import Reading
from tallymark.core.spans import Partition, Position, Span, Tally
from tallymark.core.start import Start
from tallymark.errors import BadInput, BatchTooLarge, RecordsLost, TopicRecreated, Unreachable
from tallymark.kafka.brokers import Brokers
from tallymark.run.commit import Destination
from tallymark.run.setup import Job
from tallymark.run.skips import backfill
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tests.support import truth
from tests.support.commits import owner
from tests.support.kafka import Topics
from tests.support.reader import ALIVE, EVENTS, LATEST, TRACED, VERSIONS, Filled, PlainReader

TABLES = (EVENTS, VERSIONS, TRACED)
RECORDS = 60


class Skipped:
    """A group that has skipped records 0..50 of 60 in both partitions of a topic; one in ten can't be decoded."""

    def __init__(self, topics: Topics, url: str, group: str, to: int = 50, topic_id: str | None = None) -> None:
        self.group, self.url, self.topics = group, url, topics
        self.topic = topics.create(2)
        values = ["no JSON" if number % 10 == 3 else {"id": number, "version": number} for number in range(RECORDS)]
        for partition in (0, 1):
            topics.send_to(self.topic, partition, values)
        self.committed = topics.committed(self.topic)
        self.brokers, self.store = Brokers(topics.brokers), open_store(url)
        self.store.create_ledger()
        found = self.brokers.topics([self.topic])[self.topic]
        self.parts = found.partitions
        start = FirstClaim(0, topic_id or found.id, self.brokers.cluster_id())
        self._claim(PositionChanges(dict.fromkeys(self.parts, start)))
        self._claim(PositionChanges({}, dict.fromkeys(self.parts, Restart(to, "too far behind"))))

    def _claim(self, changes: PositionChanges) -> None:
        self.store.claim(self.group, owner("live"), self.parts, lambda _: changes, {})

    def job(self, tables: Sequence[Filled] = TABLES, run: str = "back") -> Job:
        start, specs = Start.parse("uncommitted-earliest"), [table.spec for table in tables]
        return Job(self.group, [self.topic], specs, owner(run), start, Limits(20), patience=5.0)

    def fill(
        self,
        on_step: OnStep = ignore,
        *,
        job: Job | None = None,
        store: Store | None = None,
        reader: PlainReader | None = None,
        stop: threading.Event | None = None,
        partition: int | None = None,
    ) -> Tally:
        store, reader = store or self.store, reader or PlainReader(self.topics.brokers, TABLES)
        try:
            where = Destination(store, store)
            return backfill(job or self.job(), self.brokers, where, reader, on_step, stop, partition=partition)
        finally:
            reader.close()

    def positions(self) -> list[Position]:
        return self.store.positions(self.group)[self.group]

    def open(self) -> list[tuple[int, int, int]]:
        spans = [skip.span for skip in self.store.skips(self.group)]
        return [(span.partition.number, span.start, span.stop) for span in spans]

    def check(self, *filled: tuple[int, int, int]) -> None:
        """The tables hold exactly the records of these spans, and the ledger adds up."""
        below = {
            (partition, offset): value
            for (partition, offset), value in self.committed.items()
            if any(partition == one and start <= offset < stop for one, start, stop in filled)
        }
        good, dead = truth.split(below)
        assert truth.events(self.url) == truth.expected_events(good)
        assert sorted(truth.letters(self.url).elements()) == sorted(dead)
        truth.check_batches_of_rows(self.url)
        assert all(found.balanced for found in self.positions())
        open_ = sum(stop - start for _, start, stop in self.open())
        assert Tally.sum(found.tally for found in self.positions()).skipped == open_


@pytest.fixture
def make(topics: Topics, group: str) -> Iterator[Callable[..., Skipped]]:
    made: list[Skipped] = []

    def skipped(url: str, **settings: object) -> Skipped:
        made.append(Skipped(topics, url, group, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield skipped
    for one in made:
        one.store.close()


@pytest.fixture
def skipped(make: Callable[..., Skipped], database: Callable[[str], str]) -> Skipped:
    return make(database("sqlite"))


@pytest.mark.parametrize("kind", ["postgresql", "redis"])
def test_everything_that_was_skipped_is_filled(
    kind: str, make: Callable[..., Skipped], database: Callable[[str], str]
) -> None:
    skipped = make(database(kind))
    before, passed = skipped.positions(), []
    tally = skipped.fill(lambda step, progress: passed.append((step, progress)))
    assert tally == Tally(applied=90, dead=10)
    assert skipped.open() == []
    skipped.check((0, 0, 50), (1, 0, 50))
    assert [(one.next_offset, one.epoch, one.owner) for one in skipped.positions()] == [
        (one.next_offset, one.epoch, one.owner) for one in before
    ]
    chunks = [progress.offsets for step, progress in passed if step is Step.DONE]
    assert chunks == [20, 20, 10, 20, 20, 10]
    assert [progress.behind for step, progress in passed if step is Step.PLANNED] == [80, 60, 50, 30, 10, 0]
    assert skipped.fill() == Tally(), "there is nothing left"


def test_two_backfills_share_the_work(make: Callable[..., Skipped], database: Callable[[str], str]) -> None:
    skipped = make(database("postgresql"))
    stores = [open_store(skipped.url) for _ in range(2)]

    def fill(number: int) -> Tally:
        return skipped.fill(job=skipped.job(run=f"back-{number}"), store=stores[number])

    with ThreadPoolExecutor(2) as pool:
        assert Tally.sum(pool.map(fill, range(2))) == Tally(applied=90, dead=10)
    for store in stores:
        store.close()
    skipped.check((0, 0, 50), (1, 0, 50))


def test_one_partition_can_be_chosen_and_a_stop_is_heard(skipped: Skipped) -> None:
    stop = threading.Event()

    def leave(step: Step, _: Progress) -> None:
        if step is Step.COMMITTED:
            stop.set()

    assert skipped.fill(leave, stop=stop, partition=1).total == 20
    assert skipped.open() == [(0, 0, 50), (1, 20, 50)]
    skipped.check((1, 0, 20))


def test_an_answer_that_was_lost_repeats_nothing(skipped: Skipped, monkeypatch: pytest.MonkeyPatch) -> None:
    apply, calls = skipped.store.apply, iter([True, False, True])

    def lossy(*arguments: object) -> None:
        broken = next(calls, False)
        apply(*arguments)  # type: ignore[arg-type]
        if broken:
            raise Unreachable("gone, and everything was written")

    monkeypatch.setattr(skipped.store, "apply", lossy)
    assert skipped.fill() == Tally(applied=90, dead=10)
    skipped.check((0, 0, 50), (1, 0, 50))


def test_what_kafka_has_deleted_since_is_lost_if_that_is_allowed(skipped: Skipped) -> None:
    skipped.topics.delete_records(skipped.topic, {0: 7, 1: 55})
    with pytest.raises(RecordsLost, match=r"offsets 0\.\.7 were deleted before they were read"):
        skipped.fill()
    skipped.check()
    tally = skipped.fill(job=replace(skipped.job(), on_loss="record"))
    assert tally == Tally(applied=39, dead=4, lost=57)
    assert skipped.open() == []
    skipped.check((0, 7, 50))


class Narrow(PlainReader):
    """Takes seven records at a time."""

    def read(
        self,
        spans: Sequence[Span],
        batch: str,
        without: Collection[tuple[Partition, int]] = (),
        then: Sequence[Span] | None = None,
    ) -> Reading:
        if sum(map(len, spans)) > 7:
            raise BatchTooLarge("more than seven")
        return super().read(spans, batch, without, then)


def test_a_chunk_that_is_too_large_is_read_in_smaller_ones(skipped: Skipped) -> None:
    assert skipped.fill(reader=Narrow(skipped.topics.brokers, TABLES)) == Tally(applied=90, dead=10)
    skipped.check((0, 0, 50), (1, 0, 50))


def test_what_can_not_be_read_yet_is_left_open(make: Callable[..., Skipped], database: Callable[[str], str]) -> None:
    skipped = make(database("sqlite"), to=80)
    assert skipped.fill().total == 120
    assert skipped.open() == [(0, 60, 80), (1, 60, 80)]
    skipped.check((0, 0, 60), (1, 0, 60))


def test_another_topic_of_the_same_name_is_refused(
    make: Callable[..., Skipped], database: Callable[[str], str]
) -> None:
    skipped = make(database("sqlite"), topic_id="another")
    with pytest.raises(TopicRecreated):
        skipped.fill()
    skipped.check()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (LATEST, "table latest: older records would overwrite newer rows; set version=, or pass overwrite"),
        (
            replace(ALIVE, spec=replace(ALIVE.spec, version="version")),
            "table alive: older records could restore rows that newer records have deleted",
        ),
    ],
)
def test_tables_that_older_records_would_spoil_are_refused(table: Filled, words: str, skipped: Skipped) -> None:
    where, reader = Destination(skipped.store, skipped.store), PlainReader(skipped.topics.brokers, [table])
    with pytest.raises(BadInput, match=words):
        backfill(skipped.job([table]), skipped.brokers, where, reader)
    reader.close()


def test_delivery_other_than_exactly_once_is_refused(skipped: Skipped) -> None:
    where, reader = Destination(skipped.store, skipped.store, "at-least-once"), PlainReader(skipped.topics.brokers)
    with pytest.raises(BadInput, match="backfill requires exactly-once delivery"):
        backfill(skipped.job(), skipped.brokers, where, reader)
    reader.close()


def test_older_records_may_overwrite_where_that_is_asked_for(skipped: Skipped) -> None:
    where, reader = Destination(skipped.store, skipped.store), PlainReader(skipped.topics.brokers, [LATEST])
    tally = backfill(skipped.job([LATEST]), skipped.brokers, where, reader, overwrite=True)
    reader.close()
    assert tally == Tally(applied=90, dead=10)
