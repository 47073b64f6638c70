"""A replay applies dead letters once, and settles each in the transaction that applies it."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tallymark import App, Consumer, Json, Kafka, Pipeline, Record, Retry, Standalone
from tallymark.core.budget import Budget
from tallymark.core.claims import Advance, Entry, FirstClaim, PositionChanges, Restart
from tallymark.core.journal import DEAD, DISCARDED, REPLAYED, VOID, LetterQuery
from tallymark.core.plan import Limits
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.core.records import DeadLetter, Reading
from tallymark.core.spans import Partition, Position, Tally
from tallymark.core.start import Start
from tallymark.errors import BadInput, BatchTooLarge, CommitRefused, TallymarkError, Unreachable
from tallymark.kafka.brokers import Brokers
from tallymark.run.commit import Destination
from tallymark.run.letters import OpenLetters, replay
from tallymark.run.setup import Job
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tests.support import databases, truth
from tests.support.children import PROCESSES
from tests.support.commits import SINCE, moving, owner, take
from tests.support.kafka import Topics
from tests.support.reader import ALIVE, EVENTS, LATEST, TRACED, VERSIONS, Filled, PlainReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = (EVENTS, VERSIONS, TRACED)
PARTS = Partition("orders", 0), Partition("orders", 1)
START, STOP = 30, 50
OFFSETS = range(START, STOP)
"""The dead offsets of fifty in each partition; one in ten of them has a value that stays dead."""
PLACES = [(part.number, offset) for part in PARTS for offset in OFFSETS]
GOOD = Counter((part, offset, offset) for part, offset in PLACES if offset % 10 != 3)
ALL = Tally(applied=36, dead=4)


def letter(partition: Partition, offset: int) -> DeadLetter:
    value = b"no JSON" if offset % 10 == 3 else b'{"id": %d, "version": %d}' % (offset, offset)
    return DeadLetter(partition, offset, SINCE, b"key", value, [("h", b"\xff")], None, "a schema that was wrong")


class Dead:
    """A group with twenty dead letters in each of two partitions."""

    def __init__(self, brokers: str, url: str, group: str) -> None:
        self.brokers, self.url, self.group = brokers, url, group
        self.store = open_store(url)
        self.store.create_ledger()
        self.store.create_tables([one.spec for one in TABLES], {one.spec.name: one.schema for one in TABLES})
        self.claims = take(self.store, group, "live", PARTS)
        letters = [letter(part, offset) for part in PARTS for offset in OFFSETS]
        self.commit([self.step(part, 0, STOP, dead=len(OFFSETS)) for part in PARTS], letters)

    def step(self, part: Partition, start: int, stop: int, dead: int = 0) -> Advance:
        return Advance(part, start, stop, self.claims[part].epoch, Tally(stop - start - dead, dead), SINCE)

    def commit(self, steps: Sequence[Advance], letters: Sequence[DeadLetter] = (), store: Store | None = None) -> None:
        entry: Entry = replace(moving(self.group).entry, advances=steps, dead_letters=letters)
        (store or self.store).apply((), entry)

    def replay(
        self,
        on_step: OnStep = ignore,
        query: LetterQuery | None = None,
        *,
        run: str = "again",
        store: Store | None = None,
        reader: PlainReader | None = None,
        tables: Sequence[Filled] = TABLES,
        stop: threading.Event | None = None,
        topics: Sequence[str] = ("orders",),
        **settings: bool,
    ) -> Tally:
        store, reader = store or self.store, reader or PlainReader(self.brokers, tables)
        job = Job(
            self.group,
            topics,
            [one.spec for one in tables],
            owner(run),
            Start.parse("uncommitted-earliest"),
            Limits(15),
            # The budget counts records that die in the group, not earlier dead letters.
            budget=Budget(max_dead_per_batch=0, max_dead_total=0),
            patience=5.0,
        )
        found = OpenLetters(self.group, store, topics, query or LetterQuery(), Brokers(self.brokers))
        try:
            return replay(job, Destination(store, store), reader, found, on_step, stop, **settings)
        finally:
            reader.close()

    def positions(self) -> list[Position]:
        return self.store.positions(self.group)[self.group]

    def states(self) -> Counter[str]:
        return Counter(one.state for one in self.store.journal().letters(LetterQuery(self.group, states=None)))

    def errors(self) -> set[str]:
        return {one.record.error for one in self.store.journal().letters(LetterQuery(self.group))}

    def check(self, applied: Counter[tuple[int, int, int]] = GOOD) -> None:
        """The tables hold these records once, their letters are settled, and the ledger adds up."""
        assert truth.events(self.url) == applied
        assert truth.rows(self.url, "traced", "tallymark_partition", "tallymark_offset", "id") == applied
        truth.check_batches_of_rows(self.url)
        truth.check_accounts(self.url)
        done = self.store.journal().letters(LetterQuery(self.group, states=[REPLAYED]))
        places = Counter((one.record.partition.number, one.record.offset) for one in done)
        assert places == Counter((part, offset) for part, offset, _ in applied.elements())
        assert Tally.sum(one.tally for one in self.positions()).dead == len(PLACES) - len(places)


@pytest.fixture
def make(brokers: str, group: str) -> Iterator[Callable[[str], Dead]]:
    made: list[Dead] = []

    def dead(url: str) -> Dead:
        made.append(Dead(brokers, url, group))
        return made[-1]

    yield dead
    for one in made:
        one.store.close()


@pytest.fixture
def dead(make: Callable[[str], Dead], database: Callable[[str], str]) -> Dead:
    return make(database("sqlite"))


@pytest.fixture(params=["postgresql", "mariadb", "sqlite", "redis"])
def anywhere(request: pytest.FixtureRequest, make: Callable[[str], Dead], database: Callable[[str], str]) -> Dead:
    return make(database(request.param))


@pytest.mark.faults_where(anywhere=["mariadb", "sqlite"])
def test_letters_are_applied_once_and_what_dies_again_says_why(anywhere: Dead) -> None:
    dead, passed = anywhere, []
    before = dead.positions()
    assert dead.replay(lambda step, progress: passed.append((step, progress))) == ALL
    dead.check()
    assert dead.states() == Counter({REPLAYED: 36, DEAD: 4})
    assert all(error.startswith("not an object with an id") for error in dead.errors())
    assert [(one.next_offset, one.epoch, one.owner) for one in dead.positions()] == [
        (one.next_offset, one.epoch, one.owner) for one in before
    ]
    assert [progress.offsets for step, progress in passed if step is Step.DONE] == [15, 15, 10]
    assert [progress.behind for step, progress in passed if step is Step.PLANNED] == [25, 10, 0]
    state = dead.store.state(dead.group)
    assert state is not None
    assert not state.paused
    assert dead.replay() == Tally(dead=4), "those that are open are tried again, and nothing else"
    dead.check()


def test_letters_can_be_chosen_and_a_stop_is_heard(dead: Dead) -> None:
    stop = threading.Event()

    def leave(step: Step, _: Progress) -> None:
        if step is Step.COMMITTED:
            stop.set()

    assert dead.replay(query=LetterQuery(partition=1, most=3)) == Tally(applied=3)
    assert dead.replay(query=LetterQuery(error="no such words")) == Tally()
    assert dead.replay(leave, LetterQuery(partition=1), stop=stop) == Tally(applied=13, dead=2)
    dead.check(Counter((1, offset, offset) for offset in range(30, 48) if offset % 10 != 3))
    with pytest.raises(BadInput, match=r"group='another'\) does not match"):
        dead.replay(query=LetterQuery("another"))


def test_letters_of_topics_that_nobody_reads_here_are_left_alone(dead: Dead) -> None:
    for topics, count in ((["clicks"], 0), (["^ord.*", "clicks"], 40)):
        assert len(OpenLetters(dead.group, dead.store, topics, LetterQuery(), Brokers(dead.brokers))) == count


@pytest.mark.faults_where(anywhere=["mariadb", "postgresql"])
def test_an_answer_that_was_lost_applies_no_letter_twice(anywhere: Dead, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = anywhere
    apply, calls = dead.store.apply, iter([True, False, True])

    def lossy(*arguments: object) -> None:
        broken = next(calls, False)
        apply(*arguments)  # type: ignore[arg-type]
        if broken:
            raise Unreachable("gone, and everything was written")

    monkeypatch.setattr(dead.store, "apply", lossy)
    assert dead.replay() == ALL
    dead.check()


@pytest.mark.faults_where(anywhere=["mariadb", "sqlite"])
@pytest.mark.faults_where(step=Step.MOVED)
@pytest.mark.faults_where(anywhere="redis", step=Step.WRITTEN)
@pytest.mark.parametrize("step", [Step.WRITTEN, Step.MOVED, Step.COMMITTED])
def test_killed_at_any_step_no_letter_is_applied_twice_or_lost(step: Step, anywhere: Dead) -> None:
    child = PROCESSES.Process(target=_replay_until_killed, args=(anywhere.brokers, anywhere.url, anywhere.group, step))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    # Of the first batch 13 are applied, of the second 14.
    done = 27 if step is Step.COMMITTED else 13
    assert (sum(truth.events(anywhere.url).values()), anywhere.states()[REPLAYED]) == (done, done)
    assert anywhere.replay().applied == 36 - done
    anywhere.check()


def _replay_until_killed(brokers: str, url: str, group: str, step: Step) -> None:
    """In the second batch."""
    dead = Dead.__new__(Dead)
    dead.brokers, dead.url, dead.group, dead.store = brokers, url, group, open_store(url)

    def pull(passed: Step, progress: Progress) -> None:
        if passed is step and progress.batch.endswith("-2"):
            os.kill(os.getpid(), signal.SIGKILL)

    dead.replay(pull)


@pytest.mark.faults_where(anywhere=["mariadb", "sqlite"])
def test_two_replays_share_the_letters_while_the_group_goes_on(anywhere: Dead) -> None:
    dead, over = anywhere, threading.Event()
    stores = [open_store(dead.url) for _ in range(3)]

    def again(number: int) -> Tally:
        return dead.replay(run=f"again-{number}", store=stores[number])

    def live() -> int:
        at = STOP
        while not over.is_set() or at == STOP:
            dead.commit([dead.step(part, at, at + 1) for part in PARTS], store=stores[2])
            at += 1
        return at - STOP

    with ThreadPoolExecutor(3) as pool:
        commits, replays = pool.submit(live), [pool.submit(again, number) for number in range(2)]
        try:
            tallies = [one.result(60) for one in replays]
        finally:
            over.set()
        live_commits = commits.result(60)
    for store in stores:
        store.close()
    assert Tally.sum(tallies).applied == 36, "each letter has one winner"
    dead.check()
    assert [one.tally.applied for one in dead.positions()] == [START + 18 + live_commits] * 2


@pytest.mark.faults_where(anywhere=["mariadb", "postgresql"])
@pytest.mark.faults_where(anywhere="redis", state=DISCARDED)
@pytest.mark.parametrize("state", [DISCARDED, VOID])
def test_letters_that_others_settle_meanwhile_are_left_out(state: str, anywhere: Dead) -> None:
    dead, other = anywhere, open_store(anywhere.url)

    def settle(step: Step, progress: Progress) -> None:
        if step is not Step.STAGED or progress.batch != "again-replay-1":
            return
        if state == VOID:
            changes = PositionChanges({}, {PARTS[0]: Restart(40, "once more")})
            other.journal().move(dead.group, [PARTS[0]], lambda *_: changes, "op", SINCE)
        else:
            found = other.journal().letters(LetterQuery(dead.group, partition=0))
            other.journal().settle([one for one in found if one.record.offset >= 40], state, "op", SINCE)

    tally = dead.replay(settle)
    other.close()
    applied = Counter({one: 1 for one in GOOD if one[0] == 1 or one[1] < 40})
    assert tally == Tally(applied=sum(applied.values()), dead=3)
    assert truth.events(dead.url) == applied
    assert dead.states() == Counter({REPLAYED: 27, DEAD: 3, state: 10})
    assert all(one.balanced for one in dead.positions())


def test_what_is_refused_for_ever_is_not_tried_for_ever(dead: Dead, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise CommitRefused("the books do not agree")

    monkeypatch.setattr(dead.store, "apply", refuse)
    with pytest.raises(CommitRefused, match="the books do not agree"):
        dead.replay()


class Blind(PlainReader):
    """A reader that omits a record."""

    def reread(self, letters: Sequence[DeadLetter], batch: str) -> Reading:
        return super().reread(letters[1:], batch)


def test_a_reader_that_counts_wrong_settles_nothing(dead: Dead) -> None:
    with pytest.raises(TallymarkError, match="counted 14 records for 15 dead letters"):
        dead.replay(reader=Blind(dead.brokers, TABLES))
    dead.check(Counter())


class Narrow(PlainReader):
    """Takes four records at a time."""

    def reread(self, letters: Sequence[DeadLetter], batch: str) -> Reading:
        if len(letters) > 4:
            raise BatchTooLarge("more than four")
        return super().reread(letters, batch)


def test_what_is_too_large_is_tried_in_smaller_batches(dead: Dead) -> None:
    assert dead.replay(reader=Narrow(dead.brokers, TABLES)) == ALL
    dead.check()


def test_a_row_that_the_table_refuses_leaves_its_letter_dead(
    make: Callable[[str], Dead], database: Callable[[str], str]
) -> None:
    dead = make(database("postgresql"))
    databases.execute(dead.url, "ALTER TABLE events ADD CONSTRAINT small CHECK (id < 45)")
    assert dead.replay() == Tally(applied=26, dead=14)
    dead.check(Counter({one: 1 for one in GOOD if one[2] < 45}))
    assert any('violates check constraint "small"' in error for error in dead.errors())
    databases.execute(dead.url, "ALTER TABLE events DROP CONSTRAINT small")
    assert dead.replay() == Tally(applied=10, dead=4)
    dead.check()


@pytest.mark.parametrize(
    "table", [LATEST, replace(ALIVE, spec=replace(ALIVE.spec, version="version"))], ids=["latest", "alive"]
)
def test_tables_that_older_records_would_spoil_need_consent(table: Filled, dead: Dead) -> None:
    with pytest.raises(BadInput, match=f"table {table.spec.name}: older records"):
        dead.replay(tables=[table])


def test_older_records_may_overwrite_where_that_is_asked_for(dead: Dead) -> None:
    assert dead.replay(tables=[LATEST], overwrite=True) == ALL


def test_delivery_other_than_exactly_once_is_refused(dead: Dead) -> None:
    reader, where = PlainReader(dead.brokers), Destination(dead.store, dead.store, "at-least-once")
    found = OpenLetters(dead.group, dead.store, ["orders"], LetterQuery(), Brokers(dead.brokers))
    with pytest.raises(BadInput, match="replay requires exactly-once delivery"):
        replay(None, where, reader, found)  # type: ignore[arg-type]
    reader.close()


# Records that only Kafka holds

UNKEPT = (
    "no row; its value of 99 bytes is too large for the database and only in Kafka",
    "no row; Kafka has deleted the record meanwhile",
)


@pytest.fixture
def unkept(topics: Topics, brokers: str, group: str, database: Callable[[str], str]) -> Iterator[Dead]:
    """Four letters of a real topic: two without values, of which Kafka has deleted one; one deleted; a tombstone."""
    topic = topics.create(1)
    topics.send_to(topic, 0, [{"id": number, "version": number} for number in range(5)])
    topics.delete_records(topic, {0: 2})
    dead, asked = Dead.__new__(Dead), Brokers(brokers)
    dead.brokers, dead.url, dead.group = brokers, database("sqlite"), group
    dead.store = open_store(dead.url)
    dead.store.create_ledger()
    part = Partition(topic, 0)
    first = FirstClaim(0, asked.topics([topic])[topic].id, asked.cluster_id())
    dead.claims = dead.store.claim(group, owner("live"), [part], lambda _: PositionChanges({part: first}), {})
    letters = [DeadLetter(part, at, SINCE, None, None, [], None, UNKEPT[0]) for at in (1, 2)]
    letters += [DeadLetter(part, 0, None, None, None, [], "events", UNKEPT[1])]
    letters += [DeadLetter(part, 3, SINCE, b"key", None, [], None, "a tombstone that died")]
    dead.commit([dead.step(part, 0, 5, dead=4)], letters)
    yield dead
    dead.store.close()


def test_a_value_that_was_not_kept_comes_from_kafka_while_it_is_there(unkept: Dead) -> None:
    topic = unkept.positions()[0].partition.topic
    assert unkept.replay(topics=[topic]) == Tally(applied=1, dead=3)
    assert truth.events(unkept.url) == Counter({(0, 2, 2): 1})
    gone = {f"{UNKEPT[0]}; Kafka has deleted the record meanwhile", UNKEPT[1]}
    assert {error for error in unkept.errors() if "row" in error} == gone
    assert unkept.replay(topics=[topic]) == Tally(dead=3), "and they say the same as before"
    assert {error for error in unkept.errors() if "row" in error} == gone


def test_a_value_that_dies_again_is_still_known_to_be_in_kafka(unkept: Dead, topics: Topics) -> None:
    topic = unkept.positions()[0].partition.topic
    databases.execute(
        unkept.url, "CREATE TABLE events (partition_id BIGINT, record_offset BIGINT, id BIGINT CHECK (id > 9))"
    )
    query = LetterQuery(error="no row; its")
    assert unkept.replay(topics=[topic], query=query) == Tally(dead=2)
    (died,) = (error for error in unkept.errors() if "CHECK" in error)
    assert died.endswith("; its value is only in Kafka")
    databases.execute(unkept.url, "DROP TABLE events")
    assert unkept.replay(topics=[topic]) == Tally(applied=1, dead=3)
    assert truth.events(unkept.url) == Counter({(0, 2, 2): 1})


def test_another_topic_of_the_same_name_does_not_have_the_value(unkept: Dead) -> None:
    topic = unkept.positions()[0].partition.topic
    databases.execute(unkept.url, "UPDATE tallymark_positions SET topic_id = 'another'")
    assert unkept.replay(topics=[topic]) == Tally(dead=4)
    assert truth.events(unkept.url) == Counter()


# Handlers


def consumer(dead: Dead, **settings: Any) -> Consumer:
    source = Kafka(dead.brokers, "orders", value=Json("id BIGINT, version BIGINT"))
    return Consumer(group=dead.group, source=source, store=dead.url, **settings)


def write(db: Any, records: Iterable[Record]) -> None:
    rows = [{"partition_id": one.partition, "record_offset": one.offset, "id": one.value["id"]} for one in records]
    db.write("events", rows)


@pytest.mark.parametrize("kind", ["postgresql", "redis"])
def test_a_consumer_gets_letters_as_records_as_they_came(
    kind: str, make: Callable[[str], Dead], database: Callable[[str], str]
) -> None:
    dead = make(database(kind))
    seen: list[Record] = []
    for batch in consumer(dead).replay(max_records=15):
        with batch.transaction() as db:
            seen += batch.records
            wrong = [one for one in batch.records if one.place == (PARTS[0], 30)]
            for one in wrong:
                batch.dead(one, "not this one")
            write(db, (one for one in batch.records if one not in wrong))
    assert [one.offset for one in seen if one.partition == 0] == [one for one in OFFSETS if one % 10 != 3]
    assert {(one.key, tuple(one.headers), one.timestamp) for one in seen} == {(b"key", (("h", b"\xff"),), SINCE)}
    applied = Counter({one: 1 for one in GOOD if one[:2] != (0, 30)})
    assert truth.events(dead.url) == applied
    assert dead.states() == Counter({REPLAYED: 35, DEAD: 5})
    assert "not this one" in dead.errors()
    truth.check_accounts(dead.url)


def test_a_handler_that_is_late_gets_what_is_left_of_its_batch(dead: Dead) -> None:
    others = open_store(dead.url)
    batches = consumer(dead).replay(letters=LetterQuery(partition=0))
    first = next(batches)
    some = others.journal().letters(LetterQuery(dead.group, partition=0, most=5))
    others.journal().settle(some, DISCARDED, "op", SINCE)
    others.close()
    with pytest.raises(CommitRefused, match="is already discarded"), first.transaction() as db:
        write(db, first.records)
    second = next(batches)
    with second.transaction() as db:
        write(db, second.records)
    assert list(batches) == []
    assert len(second.records) == 14
    assert truth.events(dead.url) == Counter({one: 1 for one in GOOD if one[0] == 0 and one[1] >= 35})
    assert all(one.balanced for one in dead.positions())


def test_a_listener_with_workers_settles_what_it_finished_and_blames_single_records(dead: Dead) -> None:
    app, failed = App(brokers=dead.brokers, store=dead.url), threading.Event()

    @app.listen("orders", group=dead.group, value=Json("id BIGINT"), workers=3, order="key")
    def receive(record: Record, db: Any) -> None:
        if record.offset == 41 and not failed.is_set():
            failed.set()
            raise Retry("once")
        if record.offset >= 45:
            raise ValueError("too high")
        write(db, [record])

    tally = app.replay()
    assert tally == Tally(applied=26, dead=14)
    assert truth.events(dead.url) == Counter({one: 1 for one in GOOD if one[1] < 45})
    assert any(error.startswith("ValueError: too high") for error in dead.errors())
    truth.check_accounts(dead.url)
    broken = App(brokers=dead.brokers, store=dead.url)
    broken.listen("orders", group=dead.group, value=Json("id BIGINT"))(lambda record: record.value["no"])
    assert broken.replay() == Tally(dead=14), "that all die again is no failure of the replay"
    with pytest.raises(BadInput, match="no listener of group other"):
        app.replay(LetterQuery("other"))


def test_a_handler_killed_before_the_commit_has_done_nothing(dead: Dead) -> None:
    child = PROCESSES.Process(target=_handle_until_killed, args=(dead.brokers, dead.url, dead.group))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert (sum(truth.events(dead.url).values()), dead.states()[REPLAYED]) == (13, 13)


def _handle_until_killed(brokers: str, url: str, group: str) -> None:
    dead = Dead.__new__(Dead)
    dead.brokers, dead.url, dead.group = brokers, url, group

    def pull(passed: Step, progress: Progress) -> None:
        if passed is Step.MOVED and progress.batch.endswith("-2"):
            os.kill(os.getpid(), signal.SIGKILL)

    for batch in consumer(dead).replay(15, on_step=pull):
        with batch.transaction() as db:
            write(db, batch.records)


# Spark


def test_a_corrected_pipeline_replays_what_the_first_one_could_not_read(
    topics: Topics, brokers: str, group: str, database: Callable[[str], str], spark: SparkSession
) -> None:
    url, topic = database("postgresql"), topics.create(1)
    values = [{"id": n} if n % 4 else {"id": f"x{n}"} for n in range(12)]
    topics.send_to(topic, 0, [*values, "no JSON"], key=b"k", headers={"h": b"1"})

    def pipeline(schema: str, row: str, budget: Budget | None = None) -> Pipeline:
        source = Kafka(brokers, topic, value=Json(schema))
        made = Pipeline(group=group, source=source, store=url, membership=Standalone(), budget=budget or Budget())
        made.table("orders", provenance=True)(lambda records: records.selectExpr(row, "key", "headers[0].value AS h"))
        made.table("counts")(lambda records: records.groupBy("partition").count())
        return made

    assert pipeline("id BIGINT", "value.id").run("caught-up") == Tally(applied=9, dead=4)
    # One dies again in the table's function, and one in the decoder.
    row = "IF(value.id = 'x8', raise_error('not this'), -CAST(substr(value.id, 2) AS BIGINT)) AS id"
    assert pipeline("id STRING", row, Budget(max_dead_per_batch=0)).replay() == Tally(applied=2, dead=2)
    columns = "id, tallymark_offset, key, h"
    found = databases.query(url, f"SELECT {columns} FROM orders WHERE tallymark_batch LIKE '%replay-1'")
    assert sorted(found) == [(-4, 4, b"k", b"1"), (0, 0, b"k", b"1")]
    assert sorted(databases.query(url, "SELECT partition, count FROM counts")) == [(0, 2), (0, 9)]
    errors = databases.query(url, "SELECT error FROM tallymark_dead_letters WHERE state = 'dead'")
    assert sorted("not this" in str(error) for (error,) in errors) == [False, True]
    assert databases.query(url, "SELECT sum(applied), sum(dead) FROM tallymark_positions") == [(11, 2)]
    truth.check_accounts(url)
