"""``db.write(..., write="replica")`` on every store: any division into batches makes the rows of the source."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Any, get_args

import pyarrow as pa
import pytest

import tallymark as tm
from tallymark.core.replica import UNAVAILABLE
from tallymark.errors import BadInput
from tallymark.formats.debezium.changes import changes
from tallymark.formats.decoders import Decoders
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tallymark.stores.sql import mysql
from tests.integration.test_contract_deletions import WAITING
from tests.support import databases
from tests.support.background import wait_for
from tests.support.debezium import DDL, NAMES, Event, Kind, Source, as_json
from tests.support.replicas import ordered, plain, replicated

PARTITIONS = 3
STORES = [*databases.KINDS, "mariadb-many", databases.REDIS]


@pytest.fixture(params=STORES)
def store(
    request: pytest.FixtureRequest, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Store, str]]:
    kind, _, many = request.param.partition("-")
    monkeypatch.setattr(mysql, "MANY", 1 if many else 1_000)
    url = database(kind)
    opened = open_store(url)
    opened.create_ledger()
    yield opened, url
    opened.close()


def rows(events: Sequence[Event]) -> pa.Table:
    decoder = Decoders.of(tm.Debezium(tm.Json(DDL))).value
    return changes(decoder([as_json(event.value) for event in events]).values)


def write(store: Store, table: str, found: pa.Table) -> None:
    with store.begin(lambda: None) as db:
        db.write(table, found, key="id", write="replica")


def batches(random: Random, events: Sequence[Event]) -> Iterator[list[Event]]:
    """Divide the events into batches as partitions are read: each in its order, some faster than others."""
    queues = [[event for event in events if event.id % PARTITIONS == number] for number in range(PARTITIONS)]
    while queues := [queue for queue in queues if queue]:
        batch: list[Event] = []
        for queue in random.sample(queues, random.randrange(1, len(queues) + 1)):
            taken = random.randrange(1, 30)
            batch += queue[:taken]
            del queue[:taken]
        yield batch


def filled(kind: Kind, seed: int) -> Source:
    source = Source(kind, Random(seed))
    source.fill(40)
    source.snapshot()
    source.change(120)
    return source


@pytest.mark.parametrize("kind", get_args(Kind))
def test_events_that_are_read_in_their_order_make_the_rows_of_the_source(store: tuple[Store, str], kind: Kind) -> None:
    opened, url = store
    for seed in range(2):
        source = filled(kind, seed)
        for batch in batches(source.random, list(source.records(0.05))):
            write(opened, f"orders{seed}", rows(batch))
        assert replicated(url, f"orders{seed}") == ordered(map(plain, source.rows.values()))


def test_events_in_any_order_make_them_too_if_each_has_all_values(store: tuple[Store, str]) -> None:
    opened, url = store
    source = filled("mysql", 5)
    events = list(source.records(0.05))
    source.random.shuffle(events)
    for start in range(0, len(events), 50):
        write(opened, "orders", rows(events[start : start + 50]))
    assert replicated(url) == ordered(map(plain, source.rows.values()))


def one(source: Source, op: str, at: int, **columns: Any) -> Event:
    row = {**dict.fromkeys(NAMES), "id": 1, **columns}
    source._write(1, op, row if op == "d" else None, None if op == "d" else row, at)
    return source.events[-1]


def test_a_value_that_an_event_lacks_stays(store: tuple[Store, str]) -> None:
    opened, url = store
    source = Source("postgresql", Random(1))
    write(opened, "orders", rows([one(source, "c", 10, name="a", body="long")]))
    write(opened, "orders", rows([one(source, "u", 20, name="b", body=UNAVAILABLE)]))
    assert [(row[1], row[-1]) for row in replicated(url)] == [("b", "long")]
    write(opened, "orders", rows([one(source, "u", 15, name="old", body="older")]))
    assert [(row[1], row[-1]) for row in replicated(url)] == [("b", "long")]
    write(opened, "orders", rows([one(source, "d", 30)]))
    assert replicated(url) == []
    write(opened, "orders", rows([one(source, "u", 25, name="late", body="late")]))
    assert replicated(url) == [], "the deletion is remembered"
    write(opened, "orders", rows([one(source, "c", 40, name="new", body=UNAVAILABLE)]))
    assert [(row[1], row[-1]) for row in replicated(url)] == [("new", None)], "no value is known"


def test_a_value_stays_in_a_column_that_refuses_null(store_url: str) -> None:
    databases.execute(store_url, "CREATE TABLE notes (id BIGINT PRIMARY KEY, body TEXT NOT NULL, source_version TEXT)")
    decoder = Decoders.of(tm.Debezium(tm.Json("id BIGINT, body STRING"))).value
    opened = open_store(store_url)
    opened.create_ledger()
    for at, (id, body) in enumerate([(1, "long"), (1, UNAVAILABLE), (2, UNAVAILABLE)]):
        event = {"op": "u", "after": {"id": id, "body": body}, "source": {"lsn": at}}
        write(opened, "notes", changes(decoder([json.dumps(event).encode()]).values))
    assert databases.query(store_url, "SELECT id, body FROM notes ORDER BY id") == [(1, "long"), (2, UNAVAILABLE)]
    opened.close()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_late_event_waits_for_a_deletion_that_is_being_committed(database: Callable[[str], str], kind: str) -> None:
    """As a backfill of a service waits, which does not own its partition."""
    url, source = database(kind), Source("mysql", Random(1))
    opened = open_store(url)
    opened.create_ledger()

    @contextmanager
    def writing(event: Event) -> Iterator[None]:
        with opened.begin(lambda: None) as db:
            db.group = "orders-to-shop"
            db.write("orders", rows([event]), key="id", write="replica")
            yield

    def late(event: Event) -> None:
        with writing(event):
            pass

    late(one(source, "c", 10, name="a"))
    with ThreadPoolExecutor() as pool:
        with writing(one(source, "d", 30)):
            waiting = pool.submit(late, one(source, "u", 20, name="late"))
            wait_for(lambda: databases.query(url, WAITING[url.split(":")[0].split("+")[0]]) != [(0,)])
        waiting.result(20)
    assert replicated(url) == []
    opened.close()


def test_only_changes_can_be_written_as_a_replica(store: tuple[Store, str]) -> None:
    opened, _ = store
    with pytest.raises(BadInput, match=r"records\.changes"), opened.begin(lambda: None) as db:
        db.write("orders", [{"id": 1}], key="id", write="replica")
    with pytest.raises(BadInput, match="version= can't be set"), opened.begin(lambda: None) as db:
        db.write("orders", rows([]), key="id", write="replica", version="id")
