"""The metrics of runs: counters at the commit, gauges from a separate thread."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tallymark import Consumer, Json, Kafka, Standalone
from tallymark.core.claims import Entry, PositionChanges
from tallymark.core.progress import Progress, Step
from tallymark.core.spans import GroupState, Owner, Partition
from tallymark.errors import BadInput, Fenced, Unreachable
from tallymark.run.observe import gauges, serving
from tallymark.run.setup import Setup
from tallymark.stores.opening import open_sql, open_store
from tallymark.stores.sql.store import SqlStore
from tests.support import databases
from tests.support.background import Background, wait_for
from tests.support.crash import Run, make_loop
from tests.support.kafka import Topics
from tests.support.metrics import Scrape, free_port
from tests.support.pipelines import one_to_one
from tests.support.reader import PlainReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = Json("id BIGINT")
QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "REFRESH_SECONDS", 0.1)
    monkeypatch.setattr(gauges, "SOON_SECONDS", 0.1)


def consuming(consumer: Consumer) -> Background[None]:
    def work() -> None:
        for batch in consumer.batches(7):
            with suppress(Fenced), batch.transaction() as db:
                db.write("orders", [{"id": record.value["id"]} for record in batch.records])

    return Background(work, consumer.stop)


def test_what_a_consumer_does_can_be_scraped(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    topic, store, port = topics.create(2), database("postgresql"), free_port()
    topics.send(topic, [*({"id": n} for n in range(20)), "no JSON", "neither"], partitions=2)
    consumer = Consumer(group=group, source=Kafka(brokers, topic, ORDERS), store=store, metrics_port=port)
    of_topic = {"group": group, "topic": topic}
    with consuming(consumer):
        wait_for(lambda: _answers(port) and Scrape(port).total("tallymark_records_total", **of_topic) == 22)
        wait_for(lambda: Scrape(port).samples("tallymark_lag_records", **of_topic) == {("0",): 0, ("1",): 0})
        seen = Scrape(port)
        applied = seen.samples("tallymark_records_total", **of_topic, outcome="applied")
        assert applied == {("0",): 10, ("1",): 10}
        assert seen.samples("tallymark_records_total", **of_topic, outcome="dead") == {("0",): 1, ("1",): 1}
        assert seen.samples("tallymark_rows_total", group=group) == {("orders",): 20}
        batches = seen.total("tallymark_batches_total", group=group)
        assert batches >= 4
        # A batch of dead letters only writes no rows.
        ((written,),) = databases.query(store, "SELECT count(*) FROM tallymark_batches WHERE applied > 0")
        for stage, count in {"read": batches, "write": written, "commit": batches, "total": batches}.items():
            assert seen.total("tallymark_batch_seconds_count", group=group, stage=stage) == count
        assert seen.samples("tallymark_position", **of_topic) == {("0",): 11, ("1",): 11}
        assert seen.samples("tallymark_log_end_offset", **of_topic) == {("0",): 11, ("1",): 11}
        assert seen.samples("tallymark_lag_seconds", **of_topic) == {("0",): 0, ("1",): 0}
        assert seen.samples("tallymark_rebalances_total", group=group, kind="assigned") == {(): 1}
        assert seen.samples("tallymark_paused", group=group) == {(): 0}
        _check_pause(port, group, store)
        _check_fence(port, group, store, Partition(topic, 1), topics)
    assert not _answers(port)


def _check_pause(port: int, group: str, store: str) -> None:
    ledger, now = open_store(store), datetime.now(UTC)
    ledger.set_state(group, GroupState("paused", "to see it", "test", now))
    wait_for(lambda: Scrape(port).samples("tallymark_paused", group=group) == {(): 1})
    ledger.set_state(group, GroupState("running", None, "test", now))
    wait_for(lambda: Scrape(port).samples("tallymark_paused", group=group) == {(): 0})
    ledger.close()


def _check_fence(port: int, group: str, store: str, partition: Partition, topics: Topics) -> None:
    """A partition that another run claimed is no longer reported, and the refused commit is counted."""
    ledger = open_store(store)
    ledger.claim(group, Owner("other", "there", datetime.now(UTC)), [partition], lambda _: PositionChanges({}), {})
    ledger.close()
    wait_for(
        lambda: list(Scrape(port).samples("tallymark_lag_records", group=group, topic=partition.topic)) == [("0",)]
    )
    topics.send_to(partition.topic, partition.number, [{"id": 99}])
    wait_for(lambda: Scrape(port).total("tallymark_fenced_total", group=group) == 1)
    assert Scrape(port).samples("tallymark_batches_dropped_total", group=group) == {("Fenced",): 1}


def _answers(port: int) -> bool:
    try:
        Scrape(port)
    except OSError:
        return False
    return True


def test_a_pipeline_tells_of_all_its_stages_and_of_lag_while_it_works(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str], spark: SparkSession
) -> None:
    topic, port, seen = topics.create(1, retention_ms="86400000"), free_port(), []
    topics.send(topic, [{"id": n, "name": "x"} for n in range(30)], partitions=1)

    def scrape(step: Step, _: Progress) -> None:
        if step is Step.STAGED:
            wait_for(lambda: bool(Scrape(port).samples("tallymark_lag_records", group=group)))
            seen.append(Scrape(port))
        elif step is Step.DONE:
            seen.append(Scrape(port))

    one_to_one(brokers, topic, group, database("sqlite"), metrics_port=port).run("caught-up", on_step=scrape)
    staged, done = seen
    assert staged.total("tallymark_lag_records", group=group) == 30
    assert 0 < staged.total("tallymark_lag_seconds", group=group) < 60
    assert 86_000 < staged.total("tallymark_unread_expires_seconds", group=group) < 86_400
    assert done.total("tallymark_records_total", group=group, outcome="applied") == 30
    stages = done.samples("tallymark_batch_seconds_count", group=group)
    assert stages == dict.fromkeys([("plan",), ("read",), ("stage",), ("write",), ("commit",), ("total",)], 1)


def test_a_commit_whose_answer_was_lost_is_counted(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, url = topics.create(1), database("sqlite")
    topics.send(topic, [{"id": 1, "name": "x"}], partitions=1)
    store, reader, steps = open_sql(url), PlainReader(brokers), list[Step]()
    apply = store.apply

    def break_once(changes: Any, entry: Entry | None, *rest: Any) -> None:
        apply(changes, entry, *rest)
        if Step.UNKNOWN not in steps:
            raise Unreachable("the answer was lost")

    monkeypatch.setattr(store, "apply", break_once)
    setup = Setup(group, Kafka(brokers, topic), url, metrics_port=0)
    with serving(setup) as server:
        assert server is not None
        with server.watching(setup, "run") as watch:

            def told(step: Step, progress: Progress) -> None:
                steps.append(step)
                watch(step, progress)

            make_loop(Run(brokers, url, group, topic), store, reader, told).run("caught-up")
            seen = Scrape(url=server.url)
    assert seen.samples("tallymark_commit_unknown_total", group=group) == {(): 1}
    assert seen.total("tallymark_records_total", group=group, outcome="applied") == 1
    reader.close()
    store.close()


def test_groups_of_one_process_share_an_endpoint_and_the_last_one_closes_it(brokers: str, tmp_path: Any) -> None:
    one, other = (Setup(name, Kafka(brokers, "t"), f"sqlite:///{tmp_path}/s.db", metrics_port=0) for name in "ab")
    with serving(one) as first:
        with serving(other) as second:
            assert first is not None
            assert first is second
            with first.watching(one, "1"), first.watching(other, "2"):
                assert Scrape(url=first.url).samples("tallymark_paused") == {("a",): 0, ("b",): 0}
        assert Scrape(url=first.url).samples("tallymark_paused") == {}
        assert Scrape(url=first.url).total("tallymark_build_info") == 1
    with pytest.raises(OSError, match="refused"):
        Scrape(url=first.url)


def test_whoever_leaves_is_counted_though_others_stay(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    topic, store, port = topics.create(2), database("sqlite"), free_port()
    source = Kafka(brokers, topic, ORDERS, settings=QUICK)
    one, other = (Consumer(group=group, source=source, store=store, metrics_port=port) for _ in range(2))

    def counted(kind: str) -> float:
        return Scrape(port).total("tallymark_rebalances_total", group=group, kind=kind) if _answers(port) else 0

    with consuming(one):
        wait_for(lambda: counted("assigned") == 1)
        with consuming(other):
            wait_for(lambda: counted("assigned") >= 2)
        assert counted("left") == 1


def test_nothing_that_goes_wrong_ends_the_measuring(
    brokers: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup, asked, began = Setup("g", Kafka(brokers, "t"), f"sqlite:///{tmp_path}/s.db"), list[int](), time.time()

    def fail(*_: object) -> None:
        asked.append(1)
        raise OverflowError("date value out of range")

    monkeypatch.setattr(SqlStore, "has_ledger", fail)
    watch = gauges.Watch(setup)
    watch.add("run")
    wait_for(lambda: len(asked) > 2)
    watch.end()
    assert [record.getMessage() for record in caplog.records] == [
        "lag not measured group=g error=date value out of range"
    ]
    shown = gauges.Gauges()
    shown.watches = {"g": watch}
    (measured,) = (family for family in shown.collect() if family.name == "tallymark_measured_timestamp_seconds")
    assert [sample.value for sample in measured.samples] == [pytest.approx(began, abs=1)]


def test_a_port_that_is_taken_is_refused_in_one_sentence(brokers: str, tmp_path: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        setup = Setup("g", Kafka(brokers, "t"), f"sqlite:///{tmp_path}/s.db", metrics_port=port)
        words = f"metrics_port={port} on 127.0.0.1: Address already in use; choose another port"
        with pytest.raises(BadInput, match=re.escape(words)), serving(setup):
            pass
    with pytest.raises(BadInput, match="is not a port"):
        Setup("g", Kafka(brokers, "t"), "sqlite:///s.db", metrics_port=70_000, membership=Standalone())
