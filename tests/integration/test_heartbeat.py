"""A run records that it is alive, and how it ended, in every case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from tallymark.core.journal import Run
from tallymark.core.retention import Retention
from tallymark.errors import BadInput
from tallymark.kafka.source import Kafka
from tallymark.run import heartbeat
from tallymark.run.heartbeat import Heartbeat
from tallymark.spark.pipeline import Pipeline
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tests.support.background import wait_for
from tests.support.commits import SINCE, owner


@pytest.fixture
def store(database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.05)
    made = open_store(database("sqlite"))
    made.create_ledger()
    yield made
    made.close()


def test_it_beats_until_it_ends_and_says_why(store: Store, group: str) -> None:
    beating = Heartbeat(store, group, owner("first"))
    beating.start()
    (begun,) = store.journal().runs(group)
    wait_for(lambda: store.journal().runs(group)[0].seen > begun.seen)
    beating.end("it broke")
    (ended,) = store.journal().runs(group)
    assert ended.ended is not None
    assert ended.error == "it broke"


def test_it_prunes_what_the_retention_does_not_keep(store: Store, group: str) -> None:
    for name, started in (("long ago", SINCE - timedelta(days=2)), ("since then", SINCE)):
        store.write_run(group, Run(name, "here", started, started, started), new=True)
    for retention, left in ((Retention(), ["first", "since then", "long ago"]), (Retention(runs="1h"), ["first"])):
        beating = Heartbeat(store, group, replace(owner("first"), since=SINCE + timedelta(1)), retention=retention)
        beating.start()
        beating.end(None)
        assert [run.name for run in store.journal().runs(group)] == left


def test_it_ends_by_itself_when_nobody_wants_the_run_any_more(store: Store, group: str) -> None:
    wanted = [True]
    beating = Heartbeat(store, group, owner("first"), lambda: wanted[0])
    beating.start()
    wanted[0] = False
    wait_for(lambda: store.journal().runs(group)[0].ended is not None)
    assert store.journal().runs(group)[0].error is None


def test_a_run_that_fails_before_it_begins_is_told_of_if_there_is_a_ledger(
    store: Store, group: str, brokers: str, database: Callable[[str], str]
) -> None:
    pipeline = Pipeline(group=group, source=Kafka(brokers, "no-such-topic"), store=database("sqlite"))
    pipeline.table("events")(lambda records: records)
    with pytest.raises(BadInput, match="no-such-topic"):
        pipeline.run("caught-up")
    (told,) = store.journal().runs(group)
    assert "no-such-topic" in str(told.error)
    assert told.ended is not None
