"""Listeners whose batches fail: a retried batch is complete, and a batch is given up only once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

import tallymark as tm
from tallymark.core.claims import Claim, PositionChanges
from tallymark.core.progress import Progress, Step
from tallymark.core.spans import Owner, Partition
from tallymark.errors import Unreachable
from tallymark.stores.opening import open_store
from tallymark.stores.sql.store import SqlStore
from tests.support import truth
from tests.support.databases import execute, query
from tests.support.kafka import Topics

Databases = Callable[[str], str]
VALUE = tm.Json("id BIGINT")
QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200}
LOST = "records lost, counted as applied delivery=at-most-once"


@pytest.fixture
def url(database: Databases) -> str:
    made = database("sqlite")
    execute(made, "CREATE TABLE seen (id BIGINT NOT NULL)")
    return made


def filled(topics: Topics, partitions: int) -> str:
    """A topic with 300 records."""
    name = topics.create(partitions)
    topics.send(name, ({"id": n} for n in range(300)), partitions=partitions)
    return name


def written(url: str) -> Counter[int]:
    return Counter(int(str(found)) for (found,) in query(url, "SELECT id FROM seen"))


def insert(record: tm.Record, db: Any) -> None:
    db.execute("INSERT INTO seen (id) VALUES (:id)", {"id": record.value["id"]})


class Once:
    """True at the first call for each name."""

    def __init__(self) -> None:
        self._seen: set[object] = set()
        self._lock = threading.Lock()

    def __call__(self, name: object) -> bool:
        with self._lock:
            new = name not in self._seen
            self._seen.add(name)
            return new


class Interrupted:
    """A handler that can't finish one record at first, and a store that fails in the first commit."""

    def __init__(self, record: int) -> None:
        self._record = record
        self._first = Once()

    def receive(self, record: tm.Record, db: Any) -> None:
        insert(record, db)
        if record.value["id"] == self._record and self._first("record"):
            raise ConnectionError("the other service is away")

    def cut(self, step: Step, _: Progress) -> None:
        if step is Step.MOVED and self._first("commit"):
            raise Unreachable("the connection broke in the commit")


def test_what_is_tried_again_after_a_part_of_it_could_not_be_committed_moves_with_all_its_rows(
    brokers: str, topics: Topics, group: str, url: str
) -> None:
    app, work = tm.App(brokers=brokers, store=url, membership=tm.Standalone()), Interrupted(150)
    app.listen(filled(topics, 3), group=group, value=VALUE, workers=3, order="none")(work.receive)
    assert app.run("caught-up", on_step=work.cut) == tm.Tally(applied=300)
    assert written(url) == Counter(range(300))
    truth.check_accounts(url)


def test_letters_that_are_tried_again_after_that_are_settled_with_all_their_rows(
    brokers: str, topics: Topics, group: str, url: str
) -> None:
    app, work, broken = tm.App(brokers=brokers, store=url, membership=tm.Standalone()), Interrupted(20), True

    @app.listen(filled(topics, 1), group=group, value=VALUE, workers=3, order="none")
    def receive(record: tm.Record, db: Any) -> None:
        if broken and record.value["id"] < 40:
            raise ValueError("not yet")
        work.receive(record, db)

    assert app.run("caught-up") == tm.Tally(applied=260, dead=40)
    broken = False
    assert app.replay(on_step=work.cut) == tm.Tally(applied=40)
    assert written(url) == Counter(range(300))
    assert query(url, "SELECT DISTINCT state FROM tallymark_dead_letters") == [("replayed",)]
    truth.check_accounts(url)


def test_at_most_once_goes_on_behind_what_its_workers_could_not_finish(
    brokers: str, topics: Topics, group: str, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = filled(topics, 1)
    app = tm.App(brokers=brokers, store=url, membership=tm.Standalone(), delivery="at-most-once")

    @app.listen(topic, group=group, value=VALUE, workers=3, order="none", max_records=100)
    def receive(record: tm.Record, db: Any) -> None:
        insert(record, db)
        if record.offset == 20:
            raise KeyError("no such customer")
        if record.offset == 57:
            raise ConnectionError("the other service is away")

    assert app.run("caught-up") == tm.Tally(applied=300), "its records are counted as applied"
    assert written(url) == Counter([*range(20), *range(21, 57), *range(100, 300)])
    lost = [line.split(" span=")[1].split(" (test_")[0] for line in caplog.messages if line.startswith(LOST)]
    assert lost == [
        f"{topic}[0] 20..21 error=KeyError: 'no such customer'",
        f"{topic}[0] 57..100 error=ConnectionError: the other service is away",
    ]
    assert query(url, "SELECT record_offset FROM tallymark_dead_letters") == []
    truth.check_accounts(url)


@pytest.mark.parametrize("partitions", [1, 3])
def test_who_is_fenced_while_the_store_is_away_gives_up_the_batch_and_goes_on(
    brokers: str,
    topics: Topics,
    group: str,
    url: str,
    partitions: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another claim is noticed, and then the store is unavailable for longer than ``patience=``."""
    topic, first, away = filled(topics, partitions), Once(), threading.Event()
    app = tm.App(brokers=brokers, store=url, kafka=QUICK, patience=0.3)
    reclaim = SqlStore.reclaim

    def reclaim_if_there(store: SqlStore, group: str, claims: Mapping[Partition, Claim]) -> dict[Partition, Claim]:
        if away.is_set():
            raise Unreachable("the store is away")
        return reclaim(store, group, claims)

    @app.listen(topic, group=group, value=VALUE, max_records=60, batch=True)
    def receive(records: tm.Records, db: Any) -> None:
        if any(record.partition == 0 for record in records) and first("claim"):
            claim_for_another(url, group, Partition(topic, 0))
            away.set()
        else:
            away.clear()
        for record in records:
            insert(record, db)

    monkeypatch.setattr(SqlStore, "reclaim", reclaim_if_there)
    assert app.run("caught-up") == tm.Tally(applied=300)
    assert written(url) == Counter(range(300))
    abandoned = [line for line in caplog.messages if line.startswith("batch abandoned")]
    assert len(abandoned) == 1
    assert f"{topic}[0] is not claimed by this run" in abandoned[0]
    truth.check_accounts(url)


def claim_for_another(url: str, group: str, partition: Partition) -> None:
    store, zombie = open_store(url), Owner("zombie", "host", datetime.now(UTC))
    store.claim(group, zombie, {partition}, lambda _: PositionChanges({}), {})
    store.close()
