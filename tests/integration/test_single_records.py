"""Single records are read by their offsets: the cost of n dead letters does not depend on the records between."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import confluent_kafka
import pytest
from redis.client import Pipeline

import tallymark as tm
from tallymark.core.claims import Advance, Entry, FirstClaim, PositionChanges, Restart
from tallymark.core.journal import LetterQuery
from tallymark.core.records import DeadLetter
from tallymark.core.spans import Log, Partition, Tally
from tallymark.errors import RecordsLost
from tallymark.kafka.brokers import Brokers, Topic
from tallymark.kafka.membership import Standalone
from tallymark.run.letters import OpenLetters
from tallymark.run.setup import new_owner
from tallymark.run.skips import OpenSkips
from tallymark.stores.opening import open_store
from tests.support.kafka import Topics
from tests.support.standing import journal, make_table, numbers, seen, stand, standing

MANY = 30_000


def test_records_are_found_without_reading_what_is_between_them(
    brokers: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, delivered, consume = topics.create(2), list[Any](), confluent_kafka.Consumer.consume

    class Counting(confluent_kafka.Consumer):
        def consume(self, *arguments: Any) -> Any:
            delivered.extend(found := consume(self, *arguments))
            return found

    for number in (0, 1):
        topics.send_to(topic, number, (f"{number} {offset}" for offset in range(MANY)))
    topics.delete_records(topic, {0: 10, 1: 10})
    zero, one = Partition(topic, 0), Partition(topic, 1)
    monkeypatch.setattr("tallymark.kafka.brokers.Consumer", Counting, raising=False)
    monkeypatch.setattr("tallymark.kafka.probe.Consumer", Counting, raising=False)
    wanted = {zero: [5, 12, 13, MANY - 1, MANY + 5], one: [MANY // 2, 9, 150, 40]}
    found = Brokers(brokers).records(wanted)
    assert {(at[0].number, at[1]): record.value for at, record in found.items()} == {
        (number, offset): b"%d %d" % (number, offset)
        for number, offsets in ((0, (12, 13, MANY - 1)), (1, (40, 150, MANY // 2)))
        for offset in offsets
    }
    assert len(delivered) < MANY // 2


def dead_letters(store_url: str, group: str, partition: Partition, brokers: str, count: int) -> None:
    """This many letters whose records are only in Kafka."""
    asked, store, owner = Brokers(brokers), open_store(store_url), new_owner()
    first = {partition: FirstClaim(0, asked.topics([partition.topic])[partition.topic].id, asked.cluster_id())}
    store.create_ledger()
    claims = store.claim(group, owner, [partition], lambda _: PositionChanges(first), {})
    step = Advance(partition, 0, count, claims[partition].epoch, Tally(dead=count), None)
    words = "no; Kafka has deleted the record meanwhile"
    letters = [DeadLetter(partition, offset, None, None, None, (), None, words) for offset in range(count)]
    store.apply([], Entry(group, "one", owner.since, datetime.now(UTC), [step], dead_letters=letters))
    store.close()


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_the_work_for_dead_letters_grows_with_their_number(
    kind: str, brokers: str, topics: Topics, group: str, database: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    store_url, count, partition = database(kind), 200, Partition(topics.create(1), 0)
    topics.send(partition.topic, numbers(count))
    dead_letters(store_url, group, partition, brokers, count)
    questions, read, asked = list[object](), list[object](), Brokers(brokers)
    ask, read_hash, store = Brokers.topics, Pipeline.hgetall, open_store(store_url)

    def counted(self: Brokers, *arguments: Any, **named: Any) -> dict[str, Topic]:
        questions.append(arguments)
        return ask(self, *arguments, **named)

    def counted_hash(self: Pipeline, name: Any) -> Any:
        read.append(name)
        return read_hash(self, name)

    monkeypatch.setattr(Brokers, "topics", counted)
    monkeypatch.setattr(Pipeline, "hgetall", counted_hash)
    left = OpenLetters(group, store, [partition.topic], LetterQuery(), asked)
    for _ in range(4):
        task = left.next(count // 4)
        assert task is not None
        assert (len(task.records), task.gone) == (count // 4, [])
        left.drop(one.id for one in task.tried.values())
    assert left.next(1) is None
    assert len(questions) == 4
    assert len(read) == (2 * count if kind == "redis" else 0)
    store.close()


@pytest.mark.parametrize("on_loss", ["record", "fail"])
def test_what_is_deleted_while_a_service_fills_it_in_is_a_loss(
    on_loss: Any, brokers: str, topics: Topics, group: str, database: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    topic, store_url, ask = topics.create(1), database("sqlite"), OpenSkips.log
    partition, asked = Partition(topic, 0), list[Log]()
    make_table(store_url)
    topics.send(topic, numbers(50))
    stand(brokers, store_url, group, topic, {0: 0})
    store = open_store(store_url)
    store.claim(
        group, new_owner(), [partition], lambda _: PositionChanges({}, {partition: Restart(50, "far behind")}), {}
    )
    store.close()

    def ask_and_delete(self: OpenSkips, one: Partition) -> Log:
        asked.append(ask(self, one))
        if len(asked) == 1:
            topics.delete_records(topic, {0: 30})
        return asked[-1]

    monkeypatch.setattr(OpenSkips, "log", ask_and_delete)
    source = tm.Kafka(brokers, topic)
    consumer = tm.Consumer(group=group, source=source, store=store_url, membership=Standalone(), on_loss=on_loss)

    def fill() -> None:
        for batch in consumer.backfill():
            with batch.transaction() as db:
                db.write("seen", [{"part": one.partition, "off": one.offset} for one in batch.records])

    if on_loss == "fail":
        with pytest.raises(RecordsLost, match=r"offsets 0\.\.30 were deleted before they were read"):
            fill()
        return
    fill()
    assert sorted(seen(store_url)) == [(0, offset) for offset in range(30, 50)]
    assert standing(store_url, group)[0].tally == Tally(applied=20, lost=30)
    assert [(line.note.span.start, line.note.span.stop) for line in journal(store_url, group, "loss")] == [(0, 30)]
