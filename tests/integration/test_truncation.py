"""Logs that lose records which were applied: noticed by the epoch of their leader, refused, or written down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import tallymark as tm
from tallymark.brokers import Brokers
from tallymark.errors import Fenced, LogTruncated
from tallymark.fence import Wish
from tallymark.ledger.tables import VERSION
from tallymark.membership import Standalone
from tallymark.sandbox import Kafka, KafkaCluster
from tallymark.setup import new_owner
from tallymark.spans import Log, Partition, Tally
from tallymark.stores.opening import open_store
from tallymark.truncation import Truncation, cut_back
from tests.support import databases
from tests.support.kafka import Topics
from tests.support.running import wait_for
from tests.support.standing import Service, journal, make_table, numbers, offsets, seen, stand, standing

STORES = ("postgresql", "mariadb", "sqlite", "redis")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, database: Callable[[str], str], redis_url: str) -> str:
    return redis_url if request.param == "redis" else database(request.param)


def logs(brokers: str, topic: str) -> dict[Partition, Log]:
    asked = Brokers(brokers)
    return asked.logs(asked.topics([topic]))


def test_the_epoch_of_the_leader_is_beside_the_position_and_comes_with_the_next_batch(
    brokers: str, topics: Topics, group: str, store: str
) -> None:
    topic = topics.create(1)
    stand(brokers, store, group, topic, {0: 0})
    assert standing(store, group)[0].leader_epoch is None
    topics.send(topic, numbers(10))
    consumer = tm.Consumer(group=group, source=tm.Kafka(brokers, topic), store=store, membership=Standalone())
    for batch in consumer.batches(until="caught-up"):
        with batch.transaction():
            pass
    assert (offsets(store, group), standing(store, group)[0].leader_epoch) == ({0: 10}, 0)
    assert logs(brokers, topic)[Partition(topic, 0)].leader_epoch == 0


def test_who_goes_back_to_where_a_log_was_cut_begins_a_new_tally_and_is_refused_if_fenced(
    brokers: str, topics: Topics, group: str, store: str
) -> None:
    topic, (us, rival) = topics.create(1), (new_owner(), new_owner())
    partition = Partition(topic, 0)
    stand(brokers, store, group, topic, {0: 30})
    opened = open_store(store)
    claims = opened.claim(group, us, [partition], lambda _: Wish({}), {})
    assert cut_back(opened, group, us, claims, [Truncation(partition, 40, 20, 2)]) == {}
    claims = cut_back(opened, group, us, claims, [Truncation(partition, 30, 20, 2)])
    assert claims[partition].position == opened.positions(group)[group][0]
    found = standing(store, group)[0]
    assert (found.next_offset, found.first_offset, found.tally, found.leader_epoch) == (20, 20, Tally(), 2)
    (line,) = journal(store, group, "truncation")
    assert (line.note.span.start, line.note.span.stop) == (20, 30)
    assert line.note.reason.startswith(f"{partition}: the log was truncated at 20 by an unclean leader election")
    opened.claim(group, rival, [partition], lambda _: Wish({}), {})
    with pytest.raises(Fenced):
        cut_back(opened, group, us, claims, [Truncation(partition, 20, 10, 3)])
    assert offsets(store, group) == {0: 20}
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
        producer = Producer({"bootstrap.servers": self.cluster.brokers, "acks": "all", "log_level": 0})
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
        wait_for(lambda: all(self._partition(topic).leader == 2 for topic in topics))

    def _partition(self, topic: str) -> Any:
        return self._admin.list_topics(timeout=30).topics[topic].partitions[0]

    def _replicas(self, topic: str) -> list[int]:
        found = self._admin.list_topics(timeout=30).topics.get(topic)
        return list(found.partitions[0].isrs) if found and found.partitions else []


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
        with pytest.raises(LogTruncated, match=r"truncated at 50 .* applied of 50\.\.100 is gone"):
            service(refuses).catch_up()
        with pytest.raises(LogTruncated, match=r"truncated at 50 .* applied of 50\.\.100 is gone"):
            pipeline(brokers, stores[by_spark], by_spark).run(until="caught-up")
        assert (offsets(stores[refuses], refuses), offsets(stores[by_spark], by_spark)) == ({0: 100}, {0: 100})
        service(records, on_loss="record").catch_up()
        pipeline(brokers, stores[by_spark], by_spark, on_loss="record").run(until="caught-up")
        wait_for(lambda: offsets(stores[goes_on], goes_on) == {0: 120})
        assert running.error is None
    # What was applied before of 50..100 is there with what has taken its offsets.
    wanted = Counter({(0, offset): 2 if 50 <= offset < 100 else 1 for offset in range(120)})
    for name in (records, goes_on, by_spark):
        assert seen(stores[name]) == wanted, name
        position = standing(stores[name], name)[0]
        assert (position.next_offset, position.first_offset, position.tally) == (120, 50, Tally(applied=70))
        (line,) = journal(stores[name], name, "truncation")
        assert (line.note.span.start, line.note.span.stop) == (50, 100)


def test_an_election_that_loses_nothing_is_no_truncation_also_if_only_markers_follow(
    group: str, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'seen.db'}"
    make_table(store)
    with Kafka(tmp_path / "kafka", temporary=True) as node:
        topics = Topics(node.brokers)
        topic = topics.create(1)
        topics.send(topic, numbers(10))
        with Service(node.brokers, store, group, topic, membership=Standalone()) as service:
            wait_for(lambda: offsets(store, group) == {0: 10})
            node.kill()
            node.start()
            topics.send_in_transaction(topic, {0: numbers(1)}, commit=False)
            wait_for(lambda: offsets(store, group) == {0: 12})
            # That of the last record, which the log has had longer than the markers behind it.
            assert standing(store, group)[0].leader_epoch == 0
            assert service.error is None
        topics.send(topic, numbers(5))
        assert (logs(node.brokers, topic)[Partition(topic, 0)].leader_epoch or 0) > 0
        Service(node.brokers, store, group, topic, membership=Standalone()).catch_up()
    assert seen(store) == Counter((0, offset) for offset in range(17) if offset not in (10, 11))
    assert standing(store, group)[0].tally == Tally(applied=15, absent=2)
    assert journal(store, group, "truncation") == []
