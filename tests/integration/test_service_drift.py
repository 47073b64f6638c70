"""Services count the fields that the schema does not name, of the records that they apply."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

import tallymark as tm
from tallymark.core.claims import PositionChanges, Restart
from tallymark.core.drift import Drift, total
from tallymark.core.spans import Partition
from tallymark.errors import Drifted
from tallymark.run.setup import new_owner
from tallymark.stores.opening import open_store
from tests.support.databases import execute, query
from tests.support.kafka import Topics
from tests.support.registry import SchemaRegistry
from tests.support.standing import standing

VALUE = tm.Json("id BIGINT, address STRUCT<zip: STRING>")


def drift(store: str, group: str) -> dict[str, int]:
    found: list[Drift] = [position.drift for position in standing(store, group).values()]
    return {name: seen.records for name, seen in total(found).items()}


def values(count: int) -> list[Any]:
    return [{"id": n, "note": "x", "address": {"zip": "1", "city": "c" if n % 2 else None}} for n in range(count)]


def consumer(brokers: str, topic: str, group: str, store: str, **settings: Any) -> tm.Consumer:
    source = tm.Kafka(brokers, topic, value=VALUE)
    return tm.Consumer(group=group, source=source, store=store, membership=tm.Standalone(), **settings)


@pytest.mark.parametrize("count", [20, 400])
def test_dead_records_do_not_count(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str], count: int
) -> None:
    topic, store = topics.create(2), database("sqlite")
    execute(store, "CREATE TABLE seen (id BIGINT)")
    topics.send(topic, [*values(count), b'{"id": "x", "note": "x"}', b'{"more": 1}'], partitions=2)
    app = tm.App(brokers=brokers, store=store, membership=tm.Standalone())

    @app.listen(topic, group=group, value=VALUE)
    def receive(record: tm.Record, db: Any) -> None:
        if record.value["id"] == 3:
            raise ValueError("three")
        db.execute("INSERT INTO seen VALUES (:id)", {"id": record.value["id"]})

    assert app.run("caught-up") == tm.Tally(applied=count, dead=2)
    assert drift(store, group) == {"note": count - 1, "address.city": count // 2 - 1, "more": 1}


def test_what_a_block_rolls_back_or_leaves_is_counted_once_it_is_committed(
    brokers: str, topics: Topics, group: str, store_url: str
) -> None:
    topic = topics.create(1)
    topics.send(topic, values(30))
    for batch in consumer(brokers, topic, group, store_url).batches(10, until="caught-up"):
        with suppress(KeyError), batch.transaction() as db:
            db.write("seen", [{"id": 1}])
            raise KeyError
        assert drift(store_url, group).get("note", 0) == batch.moves[0].start
        if batch.moves[0].start == 20:
            break
        with batch.transaction() as db:
            db.write("seen", [{"id": 1}])
    assert drift(store_url, group) == {"note": 20, "address.city": 10}


def test_fail_ends_the_run_before_the_function_sees_the_batch(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    topic, store = topics.create(1), database("sqlite")
    topics.send(topic, [{"id": 1}, {"id": 2, "note": 1}])
    with pytest.raises(Drifted, match=rf"{topic}\[0\] offset 1 has the field note"):
        next(consumer(brokers, topic, group, store, on_drift="fail").batches())
    assert [(at.next_offset, at.drift) for at in standing(store, group).values()] == [(0, {})]
    for batch in consumer(brokers, topic, group, store, on_drift="ignore").batches(until="caught-up"):
        with batch.transaction():
            pass
    assert drift(store, group) == {}


def test_backfills_and_replays_count_what_they_apply(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    topic, store = topics.create(1), database("sqlite")
    topics.send(topic, values(10))
    for batch in consumer(brokers, topic, group, store).batches(until="caught-up"):
        with batch.transaction():
            for record in batch.records:
                batch.dead(record, "not today")
    assert drift(store, group) == {}
    reading = consumer(brokers, topic, group, store)
    for batch in reading.replay():
        with batch.transaction():
            batch.dead(batch.records[0], "never")
    assert drift(store, group) == {"note": 9, "address.city": 5}
    topics.send(topic, values(10))
    opened = open_store(store)
    ahead = PositionChanges({}, {Partition(topic, 0): Restart(20, "behind")})
    opened.claim(group, new_owner(), [Partition(topic, 0)], lambda _: ahead, {})
    opened.close()
    for batch in reading.backfill(4):
        with batch.transaction():
            pass
    assert drift(store, group) == {"note": 19, "address.city": 10}
    assert standing(store, group)[0].drift["note"].first_at <= datetime.now(UTC)


def test_avro_counts_a_record_by_its_schema(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    from tallymark.formats.framing import prefix

    def schema(*names: str) -> str:
        fields = [{"name": name, "type": "int"} for name in names]
        return json.dumps({"type": "record", "name": "R", "fields": fields})

    topic, store = topics.create(1), database("sqlite")
    with SchemaRegistry() as registry:
        own, _ = registry.add(f"{topic}-value", schema("id"))
        later, _ = registry.add("others-value", schema("id", "note"))
        old, new = prefix(own) + b"\x02", prefix(later) + b"\x02\x04"
        topics.send(topic, [old, new, new, prefix(later) + b"\x02"])
        source = tm.Kafka(brokers, topic, value=tm.Avro(registry.url, subject=f"{topic}-value"))
        reading = tm.Consumer(group=group, source=source, store=store, membership=tm.Standalone())
        for batch in reading.batches(until="caught-up"):
            with batch.transaction() as db:
                db.write("seen", batch.records.values_to_arrow())
    assert drift(store, group) == {"note": 2}
    assert query(store, "SELECT count(*) FROM seen") == [(3,)]
