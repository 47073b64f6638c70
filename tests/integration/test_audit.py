"""An audit of real ledgers and tables gives no false alarm while a group runs, and notices every change by hand."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tallymark import Json, Kafka, Limits, Pipeline, Standalone, Tally
from tallymark.core.claims import Advance, Fill, Note, PositionChanges, Replay, Restart
from tallymark.core.journal import DISCARDED, LetterQuery
from tallymark.core.records import DeadLetter
from tallymark.core.spans import Partition, Span
from tallymark.errors import BadInput
from tallymark.kafka.brokers import Brokers
from tallymark.operate.audit.compare import Compared
from tallymark.operate.audit.deep import Comparison, compare
from tallymark.operate.audit.examine import examine
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tests.support import databases
from tests.support.background import Background, repeating, wait_for
from tests.support.commits import SINCE, moving, take
from tests.support.kafka import Topics
from tests.support.pipelines import RunningPipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ZERO = Partition("orders", 0)


def broken(store: Store, group: str, brokers: str | None = None) -> dict[str, list[str]]:
    """The failed checks of each partition."""
    found: dict[str, list[str]] = {}
    for one in examine(store, group, Brokers(brokers) if brokers else None):
        if one.verdict != "ok":
            found.setdefault(one.about, []).append(one.check)
    return found


class Restless(Background[None]):
    """Commits continuously: records, dead letters, losses, skips and their fills, resets, replays."""

    def __init__(self, url: str, group: str) -> None:
        self.store, self.group, self.stopped = open_store(url), group, threading.Event()
        self.store.create_ledger()
        self.claims = take(self.store, group, "first", [ZERO])
        self.at, self.turns = 0, 0
        super().__init__(self._turn_on, self.stopped.set)

    def _turn_on(self) -> None:
        while not self.stopped.is_set():
            self.turn()

    def turn(self) -> None:
        """Commit twenty offsets, then the next operation."""
        tally, at = Tally(applied=12, dead=1, skipped=4, lost=2, absent=1), self.at
        letter = DeadLetter(ZERO, at + 7, SINCE, None, b"?", (), None, "garbage")
        notes = [Note("loss", Span(ZERO, at, at + 2), "gone"), Note("skip", Span(ZERO, at + 2, at + 6), "late")]
        step = Advance(ZERO, at, at + 20, self.claims[ZERO].epoch, tally, SINCE)
        self._apply(advances=[step], dead_letters=[letter], notes=notes)
        self.at, self.turns = at + 20, self.turns + 1
        skips = self.store.skips(self.group)
        part = Span(ZERO, skips[0].span.start, skips[0].span.start + 3)
        self._apply(fills=[Fill(skips[0].span, part, Tally(applied=3))] if len(skips[0].span) > 3 else [])
        (oldest,) = self.store.journal().letters(LetterQuery(self.group, most=1))
        if self.turns % 3 == 0:
            self._apply(replays=[Replay(oldest.id, ZERO, oldest.record.offset)])
        elif self.turns % 3 == 1:
            self.store.journal().settle([oldest], DISCARDED, "op", SINCE)
        if self.turns % 10 == 9:
            self._restart(self.at + 5)
        elif self.turns % 10 == 5:
            self._restart(self.at - 30)

    def _apply(self, **what: Any) -> None:
        self.store.apply((), dataclasses.replace(moving(self.group).entry, **{"advances": []} | what))

    def _restart(self, to: int) -> None:
        changes = PositionChanges({}, {ZERO: Restart(to, "by hand")})
        now = datetime.now(UTC)
        self.store.journal().move(self.group, [ZERO], lambda *_: changes, "op", now)
        self.claims, self.at = take(self.store, self.group, "next", [ZERO]), to

    def close(self) -> None:
        super().close()
        self.store.close()


@pytest.fixture(params=["sqlite", "postgresql", pytest.param("mariadb", marks=pytest.mark.faults), "redis"])
def url(request: pytest.FixtureRequest, database: Callable[[str], str]) -> str:
    return database(request.param)


def test_a_group_that_moves_meanwhile_raises_no_alarm(url: str, group: str) -> None:
    store = open_store(url)
    with Restless(url, group) as restless:
        wait_for(lambda: restless.turns > 3)
        before = restless.turns
        for _ in range(25):
            assert broken(store, group) == {}
        wait_for(lambda: restless.turns > before or restless.error is not None, what="it went on")
        assert restless.error is None
    assert broken(store, group) == {}
    store.close()


# Tables against Kafka

SCHEMA = Json("id BIGINT, name STRING")


def named(records: DataFrame) -> DataFrame:
    return records.where("value.name <> 'hidden'").selectExpr("value.id", "value.name")


def keyed(records: DataFrame) -> DataFrame:
    return records.selectExpr("coalesce(value.id, cast(cast(key AS STRING) AS BIGINT)) AS id", "value.name")


def make(brokers: str, topic: str, group: str, store: str, **settings: Any) -> Pipeline:
    """A table of each kind; the one without provenance is not compared."""
    source = Kafka(brokers, topic, value=SCHEMA)
    pipeline = Pipeline(group=group, source=source, store=store, membership=Standalone(), **settings)
    pipeline.table("log", provenance=True)(named)
    pipeline.table("latest", key="id", write="upsert", delete="tombstone", provenance=True)(keyed)
    pipeline.table("firsts", key="id", write="ignore", provenance=True)(lambda records: keyed(records).where("id > 0"))
    pipeline.table("plain")(named)
    versioned = pipeline.table("versions", key="id", write="upsert", version="v", delete="tombstone", provenance=True)
    versioned(lambda records: keyed(records).selectExpr("*", "if(name IS NULL, NULL, 9 - id) AS v"))
    return pipeline


def kinds(comparison: Comparison, table: str) -> list[dict[str, int]]:
    """The number of offsets of each outcome, by partition."""
    found = of(comparison, table)
    return [{kind: count for kind, count in found.counts[one].items() if count} for one in sorted(found.counts)]


def of(comparison: Comparison, table: str) -> Compared:
    return next(one for one in comparison.tables if one.spec.name == table)


def bad(comparison: Comparison, table: str) -> list[tuple[int, int, str]]:
    return sorted((one.partition.number, one.offset, one.kind) for one in of(comparison, table).bad)


def sent(store: Store, group: str, partition: Partition, to: int) -> None:
    changes = PositionChanges({}, {partition: Restart(to, "by hand")})
    store.journal().move(group, [partition], lambda *_: changes, "op", datetime.now(UTC))


@pytest.mark.faults
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "kind", ["postgresql", *(pytest.param(one, marks=pytest.mark.faults) for one in ("mariadb", "sqlite"))]
)
def test_every_offset_is_explained_and_what_was_changed_by_hand_is_found(
    kind: str, brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    topic, url = topics.create(2), database(kind)
    rows = [{"id": number, "name": f"n{number}"} for number in range(10)]
    topics.send_to(topic, 0, [*rows, b"garbage", {"id": 3, "name": "again"}, {"id": 4, "name": "hidden"}])
    topics.send_to(topic, 0, [None], key="5")
    topics.send_in_transaction(topic, {0: rows[:2]}, commit=False)
    topics.send_to(topic, 1, [{"id": 100 + number, "name": "x"} for number in range(20)])
    pipeline, store = make(brokers, topic, group, url), open_store(url)
    one = Partition(topic, 1)
    store.create_ledger()
    assert pipeline.run("caught-up").dead == 1
    # A skip, half of it filled in later.
    sent(store, group, one, 30)
    topics.send_to(topic, 1, [{"id": 200 + number, "name": "y"} for number in range(15)])
    pipeline.run("caught-up")
    pipeline.backfill(overwrite=True)

    healthy = compare(pipeline, at_once=30)
    assert broken(store, group, brokers) == {}
    assert healthy.wrong == 0
    assert [one.verdict for one in healthy.checks] == ["ok", "ok"]
    assert healthy.left_out == {"plain": "it was declared without provenance=True"}
    assert kinds(healthy, "log") == [{"applied": 11, "filtered": 2, "dead": 1, "marker": 3}, {"applied": 35}]
    # 13 is a tombstone that deleted the row of 5; 3 and 4 are overwritten.
    assert kinds(healthy, "latest")[0] == {"applied": 10, "superseded": 3, "dead": 1, "marker": 3}
    assert kinds(healthy, "versions")[0] == kinds(healthy, "latest")[0]
    assert kinds(healthy, "firsts")[0] == {"applied": 9, "superseded": 3, "filtered": 1, "dead": 1, "marker": 3}

    databases.execute(
        url,
        "DELETE FROM log WHERE tallymark_partition = 1 AND tallymark_offset = 4",
        "INSERT INTO log SELECT * FROM log WHERE tallymark_partition = 1 AND tallymark_offset = 5",
        "UPDATE log SET tallymark_offset = 7 WHERE tallymark_partition = 1 AND tallymark_offset = 6",
        "UPDATE log SET tallymark_offset = 16 WHERE tallymark_partition = 0 AND tallymark_offset = 0",
        "UPDATE log SET tallymark_offset = 99 WHERE tallymark_partition = 1 AND tallymark_offset = 8",
        "DELETE FROM latest WHERE id IN (0, 3)",
        "INSERT INTO latest (id, tallymark_topic, tallymark_partition, tallymark_offset) "
        "SELECT 5, tallymark_topic, tallymark_partition, 5 FROM latest WHERE id = 1",
        "INSERT INTO versions (id, v, tallymark_topic, tallymark_partition, tallymark_offset) "
        "SELECT 5, 4, tallymark_topic, tallymark_partition, 5 FROM versions WHERE id = 1",
        "DELETE FROM firsts WHERE id = 2",
        "DELETE FROM tallymark_dead_letters",
        "UPDATE tallymark_positions SET applied = applied + 1, absent = absent - 1 WHERE partition_id = 0",
        "UPDATE tallymark_positions SET next_offset = next_offset - 1 WHERE partition_id = 1",
    )
    spoilt = compare(pipeline)
    assert [(one.found, one.wanted, one.verdict) for one in spoilt.checks] == [
        ("14 in Kafka", "14 applied + 1 dead", "fail"),
        ("34 in Kafka", "35 applied + 0 dead", "fail"),
    ]
    assert broken(store, group) == {f"{topic}[0]": ["dead letters"], f"{topic}[1]": ["tally", "history"]}
    assert bad(spoilt, "log") == [
        (0, 0, "missing"),
        (0, 10, "missing"),
        (0, 16, "foreign"),
        (1, 4, "missing"),
        (1, 5, "duplicated"),
        (1, 6, "missing"),
        (1, 7, "duplicated"),
        (1, 8, "missing"),
        (1, 34, "foreign"),
        (1, 99, "foreign"),
    ]
    assert bad(spoilt, "latest") == [
        (0, 0, "missing"),
        (0, 5, "foreign"),
        (0, 10, "missing"),
        (0, 11, "missing"),
        (1, 34, "foreign"),
    ]
    assert bad(spoilt, "firsts") == [(0, 2, "missing"), (0, 10, "missing"), (1, 34, "foreign")]
    assert bad(spoilt, "versions") == [(0, 5, "foreign"), (0, 10, "missing"), (1, 34, "foreign")]
    assert spoilt.wrong == 21
    store.close()


@pytest.mark.faults
@pytest.mark.usefixtures("spark")
def test_what_kafka_has_deleted_and_what_a_reset_repeats_is_explained(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    topic, url = topics.create(1), database("postgresql")
    topics.send_to(topic, 0, [{"id": number % 4, "name": "x"} for number in range(10)])
    pipeline, store = make(brokers, topic, group, url), open_store(url)
    pipeline.run("caught-up")
    sent(store, group, Partition(topic, 0), 2)
    pipeline.run("caught-up")
    topics.delete_records(topic, {0: 5})
    sent(store, group, Partition(topic, 0), 14)
    databases.execute(url, "INSERT INTO log (id, name) VALUES (1, 'from before')")
    found = compare(pipeline)
    assert broken(store, group) == {}
    assert broken(store, group, brokers) == {f"{topic}[0]": ["log"]}, "the skip is past the end"
    assert kinds(found, "log") == [{"earlier": 2, "expired": 3, "repeated": 5, "skipped": 4}]
    assert of(found, "log").origins.unknown == 1
    assert kinds(found, "latest") == [{"expired": 3, "applied": 4, "superseded": 1, "skipped": 4}]
    assert kinds(found, "firsts")[0]["earlier"] == 1
    assert found.wrong == 0
    store.close()


@pytest.mark.faults
@pytest.mark.usefixtures("spark")
def test_a_pipeline_that_runs_meanwhile_shows_no_difference(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    topic, url, numbers = topics.create(2), database("postgresql"), itertools.count(step=50)

    def send() -> None:
        number = next(numbers)
        topics.send(topic, [{"id": (number + at) % 37, "name": "x"} for at in range(50)], partitions=2)

    pipeline, store = make(brokers, topic, group, url, limits=Limits(records=40)), open_store(url)
    with repeating(send), RunningPipeline(pipeline):
        wait_for(lambda: sum(one.tally.applied for one in _positions(store, group)) > 100)
        before = _positions(store, group)
        assert compare(pipeline).wrong == 0
        assert broken(store, group, brokers) == {}
        assert _positions(store, group) != before, "it went on"
    store.close()


def _positions(store: Store, group: str) -> list[Any]:
    return store.positions(group).get(group, []) if store.has_ledger() else []


@pytest.mark.usefixtures("spark")
def test_tables_that_cant_be_compared_are_named(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str], redis_url: str
) -> None:
    topic, url = topics.create(1), database("sqlite")
    topics.send_to(topic, 0, [{"id": 1, "name": "x"}])
    pipeline = Pipeline(group=group, source=Kafka(brokers, topic, value=SCHEMA), store=url, membership=Standalone())
    pipeline.table("plain")(named)
    pipeline.run("caught-up")
    with pytest.raises(BadInput, match=r"no table to compare \(table plain: it was declared without provenance=True\)"):
        compare(pipeline)
    pipeline.table("later", provenance=True)(named)
    with pytest.raises(BadInput, match="table later: it does not exist, or has no provenance columns yet"):
        compare(pipeline)
    databases.execute(url, "CREATE TABLE merged AS SELECT *, 't' AS tallymark_topic FROM plain")
    for name, kind in (("tallymark_partition", "INTEGER"), ("tallymark_offset", "BIGINT")):
        databases.execute(url, f"ALTER TABLE merged ADD COLUMN {name} {kind}")
    pipeline.table("merged", provenance=True)(lambda records: records.groupBy("value.id").count())
    with pytest.raises(BadInput, match="table merged: its function merges records"):
        compare(pipeline)
    with pytest.raises(BadInput, match="--deep requires an SQL database; Redis has no consistent snapshot of all rows"):
        compare(make(brokers, topic, group, redis_url))
