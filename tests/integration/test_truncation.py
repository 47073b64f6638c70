"""Logs that lose applied records: noticed by the leader epoch, then refused or recorded."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import tallymark as tm
from tallymark.core.claims import PositionChanges
from tallymark.core.progress import Progress, Step
from tallymark.core.spans import Log, Partition, Tally, Truncation
from tallymark.errors import Fenced, LogTruncated
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.membership import Standalone
from tallymark.local.sandbox import KafkaBroker, KafkaCluster
from tallymark.run.setup import new_owner
from tallymark.run.truncation import cut_back
from tallymark.stores.opening import open_store
from tallymark.stores.sql.ledger.tables import VERSION
from tests.support import databases
from tests.support.background import wait_for
from tests.support.kafka import Topics
from tests.support.standing import Service, journal, make_table, numbers, offsets, seen, stand, standing

LITTLE = {"queued.min.messages": 1, "fetch.message.max.bytes": 1, "fetch.queue.backoff.ms": 10}
"""For a client that fetches no more than a batch of the producer ahead."""


def logs(brokers: str, topic: str) -> dict[Partition, Log]:
    asked = Brokers(brokers)
    return asked.logs(asked.topics([topic]))


def test_the_epoch_of_the_leader_is_beside_the_position_and_comes_with_the_next_batch(
    brokers: str, topics: Topics, group: str, url: str
) -> None:
    topic = topics.create(1)
    stand(brokers, url, group, topic, {0: 0})
    assert standing(url, group)[0].leader_epoch is None
    topics.send(topic, numbers(10))
    consumer = tm.Consumer(group=group, source=tm.Kafka(brokers, topic), store=url, membership=Standalone())
    for batch in consumer.batches(until="caught-up"):
        with batch.transaction():
            pass
    assert (offsets(url, group), standing(url, group)[0].leader_epoch) == ({0: 10}, 0)
    assert logs(brokers, topic)[Partition(topic, 0)].leader_epoch == 0


def test_who_goes_back_to_where_a_log_was_cut_begins_a_new_tally_and_is_refused_if_fenced(
    brokers: str, topics: Topics, group: str, url: str
) -> None:
    topic, (us, rival) = topics.create(1), (new_owner(), new_owner())
    partition = Partition(topic, 0)
    stand(brokers, url, group, topic, {0: 30})
    opened = open_store(url)
    claims = opened.claim(group, us, [partition], lambda _: PositionChanges({}), {})
    assert cut_back(opened, group, us, claims, [Truncation(partition, 40, 20, 2)]) == {}
    claims = cut_back(opened, group, us, claims, [Truncation(partition, 30, 20, 2)])
    assert claims[partition].position == opened.positions(group)[group][0]
    found = standing(url, group)[0]
    assert (found.next_offset, found.first_offset, found.tally, found.leader_epoch) == (20, 20, Tally(), 2)
    (line,) = journal(url, group, "truncation")
    assert (line.note.span.start, line.note.span.stop) == (20, 30)
    assert line.note.reason.startswith(f"{partition}: the log was truncated at 20 by an unclean leader election")
    opened.claim(group, rival, [partition], lambda _: PositionChanges({}), {})
    with pytest.raises(Fenced):
        cut_back(opened, group, us, claims, [Truncation(partition, 20, 10, 3)])
    assert offsets(url, group) == {0: 20}
    opened.close()


def test_a_ledger_of_version_3_gets_the_epochs(brokers: str, topics: Topics, group: str, store_url: str) -> None:
    topic = topics.create(1)
    stand(brokers, store_url, group, topic, {0: 7})
    drop = "ALTER TABLE tallymark_positions DROP COLUMN leader_epoch"
    databases.execute(store_url, drop, f"UPDATE tallymark_schema SET version = 3 WHERE version = {VERSION}")
    opened = open_store(store_url)
    opened.create_ledger()
    opened.close()
    assert (offsets(store_url, group), standing(store_url, group)[0].leader_epoch) == ({0: 7}, None)
    assert databases.query(store_url, "SELECT MAX(version) FROM tallymark_schema") == [(VERSION,)]


# A real unclean election


class Cut:
    """Three brokers. The first two hold the topics; the second becomes their leader without the last records."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.brokers})

    def create(self, *topics: str) -> None:
        config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        made = [NewTopic(topic, 1, replica_assignment=[[1, 2]], config=config) for topic in topics]
        for future in self._admin.create_topics(made).values():
            future.result(30)
        wait_for(lambda: all(sorted(self._replicas(topic)) == [1, 2] for topic in topics))

    def send(self, topics: tuple[str, ...], count: int) -> None:
        producer = Producer(
            {"bootstrap.servers": self.cluster.brokers, "acks": "all", "batch.num.messages": 10, "log_level": 0}
        )
        for topic in topics:
            for value in numbers(count):
                producer.produce(topic, value, partition=0)
        assert producer.flush(60) == 0

    def lose_the_follower(self, topics: tuple[str, ...]) -> None:
        self.cluster.nodes[1].kill()
        wait_for(lambda: all(self._replicas(topic) == [1] for topic in topics))

    def elect_it(self, topics: tuple[str, ...]) -> None:
        self.cluster.nodes[0].kill()
        self.cluster.nodes[1].start()
        wait_for(lambda: all(self._leader(topic) == 2 for topic in topics))

    def _leader(self, topic: str) -> int | None:
        found = self._partition(topic)
        return found.leader if found else None

    def _replicas(self, topic: str) -> list[int]:
        found = self._partition(topic)
        return list(found.isrs) if found else []

    def _partition(self, topic: str) -> Any:
        """None while no broker answers: the request may go to the killed one."""
        with suppress(KafkaException):
            found = self._admin.list_topics(timeout=5).topics.get(topic)
            return found.partitions.get(0) if found else None
        return None

    def send_aborted(self, topic: str, count: int) -> None:
        Topics(self.cluster.brokers).send_in_transaction(topic, {0: numbers(count)}, commit=False)


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[Cut]:
    with KafkaCluster(tmp_path / "kafka", temporary=True) as running:
        yield Cut(running)


def source(brokers: str, topic: str) -> tm.Kafka:
    return tm.Kafka(brokers, topic, value=tm.Json("id BIGINT"))


def pipeline(brokers: str, store: str, topic: str, **settings: Any) -> tm.Pipeline:
    made = tm.Pipeline(group=topic, source=source(brokers, topic), store=store, membership=Standalone(), **settings)
    made.table("seen")(lambda records: records.selectExpr("partition AS part", "offset AS off"))
    return made


@pytest.mark.faults
def test_a_log_that_was_cut_by_an_unclean_election_and_refilled_is_refused_or_recorded(
    spark: Any, cut: Cut, group: str, database: Callable[[str], str], tmp_path: Path
) -> None:
    brokers, kinds = cut.cluster.brokers, ("refuses", "records", "goes-on", "spark")
    names = tuple(f"{group}-{kind}" for kind in kinds)
    refuses, records, goes_on, by_spark = names
    stores = {name: f"sqlite:///{tmp_path / name}.db" for name in names[:3]} | {by_spark: database("postgresql")}
    for store in stores.values():
        make_table(store)
    cut.create(*names)
    cut.send(names, 50)
    cut.lose_the_follower(names)
    cut.send(names, 50)

    def service(name: str, **settings: Any) -> Service:
        return Service(brokers, stores[name], name, name, membership=Standalone(), **settings)

    for name in (refuses, records):
        service(name).catch_up()
    pipeline(brokers, stores[by_spark], by_spark).run(until="caught-up")
    with service(goes_on, on_loss="record") as running:
        wait_for(lambda: all(offsets(stores[name], name) == {0: 100} for name in names))
        cut.elect_it(names)
        cut.send(names, 70)
        with pytest.raises(LogTruncated, match=r"truncated at 50 .* applied records of 50\.\.100 are no longer in it"):
            service(refuses).catch_up()
        with pytest.raises(LogTruncated, match=r"truncated at 50 .* applied records of 50\.\.100 are no longer in it"):
            pipeline(brokers, stores[by_spark], by_spark).run(until="caught-up")
        assert (offsets(stores[refuses], refuses), offsets(stores[by_spark], by_spark)) == ({0: 100}, {0: 100})
        service(records, on_loss="record").catch_up()
        pipeline(brokers, stores[by_spark], by_spark, on_loss="record").run(until="caught-up")
        wait_for(lambda: offsets(stores[goes_on], goes_on) == {0: 120})
        assert running.error is None
    # Rows of 50..100 from before the cut are there with those of the new records.
    wanted = Counter({(0, offset): 2 if 50 <= offset < 100 else 1 for offset in range(120)})
    for name in (records, goes_on, by_spark):
        assert seen(stores[name]) == wanted, name
        position = standing(stores[name], name)[0]
        assert (position.next_offset, position.first_offset, position.tally) == (120, 50, Tally(applied=70))
        (line,) = journal(stores[name], name, "truncation")
        assert (line.note.span.start, line.note.span.stop) == (50, 100)


@pytest.mark.faults
def test_a_run_that_is_to_catch_up_ends_at_the_end_of_a_log_that_was_cut_meanwhile(
    spark: Any, cut: Cut, group: str, tmp_path: Path
) -> None:
    """The goal of each run is 100, then the log ends at 50; by then two runs are past 60, one past 10."""
    brokers, names = cut.cluster.brokers, tuple(f"{group}-{kind}" for kind in ("behind", "before", "spark", "aborted"))
    behind, before, by_spark, aborted = names
    stores = {name: f"sqlite:///{tmp_path / name}.db" for name in names}
    for store in stores.values():
        make_table(store)
    cut.create(*names)
    cut.send(names, 50)
    cut.send_aborted(aborted, 0)  # creates the internal topic of transactions while all brokers are up
    cut.lose_the_follower(names)
    cut.send(names, 50)
    Service(brokers, stores[aborted], aborted, aborted, membership=Standalone()).catch_up()
    elected = threading.Event()

    def past(name: str, offset: int) -> bool:
        return offsets(stores[name], name).get(0, 0) >= offset

    def wait_at(name: str, offset: int) -> None:
        if past(name, offset):
            assert elected.wait(120)

    def service(name: str, offset: int) -> Service:
        settings: dict[str, Any] = {"membership": Standalone(), "on_loss": "record"}
        return Service(brokers, stores[name], name, name, lambda: wait_at(name, offset), LITTLE, **settings)

    def watch(step: Step, _: Progress) -> None:
        if step is Step.DONE:
            wait_at(by_spark, 60)

    one, two = service(behind, 60), service(before, 10)
    three = pipeline(brokers, stores[by_spark], by_spark, on_loss="record", limits=tm.Limits(records=20), patience=20)
    with ThreadPoolExecutor(3) as pool:
        runs: list[Future[Any]] = [pool.submit(one.catch_up, 10), pool.submit(two.catch_up, 10)]
        runs.append(pool.submit(three.run, until="caught-up", on_step=watch))
        try:
            wait_for(lambda: past(behind, 60) and past(before, 10) and past(by_spark, 60))
            cut.elect_it(names)
            elected.set()
            unfinished = [number for number, run in enumerate(runs) if run in wait(runs, 60).not_done]
        finally:
            elected.set()
            one.consumer.stop()
            two.consumer.stop()
            if not all(run.done() for run in runs):
                cut.cluster.kill()
    assert ([run.exception() for run in runs], unfinished) == ([None] * 3, [])
    assert [offsets(stores[name], name) for name in names[:3]] == [{0: 50}] * 3
    assert [len(journal(stores[name], name, "truncation")) for name in names[:3]] == [1, 0, 1]

    # Aborted records have taken the offsets of those that were read.
    cut.send_aborted(aborted, 60)
    with pytest.raises(LogTruncated, match=r"truncated at 50 .* applied records of 50\.\.100 are no longer in it"):
        Service(brokers, stores[aborted], aborted, aborted, membership=Standalone()).catch_up()


@pytest.mark.faults
def test_an_election_that_loses_nothing_is_no_truncation_also_if_only_markers_follow(
    group: str, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'seen.db'}"
    make_table(store)
    with KafkaBroker(tmp_path / "kafka", temporary=True) as node:
        topics = Topics(node.brokers)
        topic = topics.create(1)
        topics.send(topic, numbers(10))
        with Service(node.brokers, store, group, topic, membership=Standalone()) as service:
            wait_for(lambda: offsets(store, group) == {0: 10})
            node.kill()
            node.start()
            topics.send_in_transaction(topic, {0: numbers(1)}, commit=False)
            wait_for(lambda: offsets(store, group) == {0: 12})
            # The epoch of the marker after the last record: the record's epoch ends before the position.
            assert standing(store, group)[0].leader_epoch == logs(node.brokers, topic)[Partition(topic, 0)].leader_epoch
            assert service.error is None
            node.kill()
            node.start()
        topics.send(topic, numbers(5))
        Service(node.brokers, store, group, topic, membership=Standalone()).catch_up()
    assert seen(store) == Counter((0, offset) for offset in range(17) if offset not in (10, 11))
    assert standing(store, group)[0].tally == Tally(applied=15, absent=2)
    assert journal(store, group, "truncation") == []


def test_aborted_records_neither_hold_up_the_question_for_a_truncation_nor_are_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered, consume = list[Any](), confluent_kafka.Consumer.consume

    class Watched(confluent_kafka.Consumer):
        def consume(self, *arguments: Any) -> Any:
            delivered.extend(found := consume(self, *arguments))
            return found

    with KafkaBroker(tmp_path / "kafka", temporary=True) as node:
        topics = Topics(node.brokers)
        partition = Partition(topics.create(1), 0)
        topics.send(partition.topic, numbers(10))
        node.kill()
        node.start()
        for _ in range(3):
            topics.send_in_transaction(partition.topic, {0: [b"x" * 20_000] * 1_000}, commit=False)
        monkeypatch.setattr("tallymark.kafka.probe.Consumer", Watched)
        asked = Brokers(node.brokers)
        assert asked.truncated({partition: (10, 0)}) == {}
        # The first record after the position, not the end of the log.
        assert (delivered[0].error(), delivered[0].offset()) == (None, 10)
        assert [at for _, at in asked.records({partition: [8, 10, 11, 3_012]})] == [8]
