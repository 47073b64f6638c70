"""The doctor examines real servers, correct and broken ones."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy.engine import make_url

from tallymark.core.claims import FirstClaim, PositionChanges
from tallymark.core.tls import Tls
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.cluster import Cluster, Sasl
from tallymark.local.sandbox.cluster import KafkaCluster
from tallymark.operate.doctor import cluster as asking
from tallymark.operate.doctor.examine import Patient, examine
from tallymark.operate.doctor.topics import DEVELOPMENT
from tallymark.operate.findings import Finding
from tallymark.stores.opening import open_store
from tallymark.stores.sql.ledger.tables import VERSION
from tests.support.background import wait_for
from tests.support.command import DEADLINE
from tests.support.commits import owner
from tests.support.databases import execute, tables
from tests.support.kafka import Topics
from tests.support.redis import OwnValkey, client, key
from tests.support.secure import LIMITED, allow, as_client, secure_kafka

UNCLEAN = "unclean.leader.election.enable"


def bad(found: list[Finding]) -> list[Finding]:
    """The findings, except those of every single broker and those that the test did not request."""
    return [one for one in found if one.verdict != "ok" and one.advice != DEVELOPMENT and one.found != "not checked"]


def only(found: list[Finding], check: str, about: str = "") -> Finding:
    (one,) = [one for one in found if one.check == check and one.about.startswith(about)]
    return one


def hold(store_url: str, brokers: str, group: str, topic: str, at: int) -> None:
    """Give the group a position in every partition of the topic."""
    store, cluster = open_store(store_url), Brokers(brokers)
    (found,) = cluster.topics([topic]).values()
    first = {partition: FirstClaim(at, found.id, cluster.cluster_id()) for partition in found.partitions}
    store.create_ledger()
    store.claim(group, owner("a"), found.partitions, lambda _: PositionChanges(first), {})
    store.close()


def test_a_single_broker_and_any_database_are_fine_for_development(
    brokers: str, topics: Topics, group: str, store_url: str
) -> None:
    topic = topics.create(2)
    topics.send(topic, range(10), partitions=2)
    hold(store_url, brokers, group, topic, 2)
    said: list[str] = []
    found = examine(Patient(Cluster(brokers), (store_url,), group), said.append)
    assert bad(found) == []
    assert {one.check for one in found if one.advice == DEVELOPMENT} == {
        "brokers",
        "replication factor",
        "min.insync.replicas",
    }
    assert only(found, "ledger version").found == str(VERSION)
    assert only(found, "permissions").found == "granted"
    assert "the first of 2 partitions" in only(found, "unread records expire").found
    assert f"topic {topic}" in said


def test_redis_is_fine(redis_url: str) -> None:
    found = examine(Patient(stores=(redis_url,)))
    assert bad(found) == []
    assert only(found, "connection", "cluster").verdict == "warn", "a cluster that nobody asked is not fine"
    assert only(found, "ledger version").found.startswith("none")
    assert {"version", "maxmemory_policy", "aof_enabled", "appendfsync", "clock skew"} <= {
        one.check for one in found if one.about == "store"
    }


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_what_was_created_to_see_whether_it_can_be_is_gone(kind: str, database: Callable[[str], str]) -> None:
    url = database(kind)
    assert only(examine(Patient(stores=(url,))), "permissions").verdict == "ok"
    assert left_behind(url) == []


def left_behind(url: str) -> list[str]:
    return [name for name in tables(url) if name.startswith("tallymark")]


def test_a_probe_measures_the_brokers_clocks_and_removes_its_topic(brokers: str) -> None:
    found = examine(Patient(Cluster(brokers), probe=True))
    clock = only(found, "clock skew", "broker 1")
    assert clock.verdict == "ok"
    assert clock.found != "not measured; use --probe"
    cluster = Brokers(brokers)
    wait_for(lambda: cluster.resolve(["^tallymark-doctor-.*"]) == [], DEADLINE, "its topic is gone")


def test_unclean_elections_small_records_and_compaction_of_a_topic_are_found(brokers: str, topics: Topics) -> None:
    settings = {"unclean_leader_election_enable": "true", "max_message_bytes": "1000", "cleanup_policy": "compact"}
    topic = topics.create(1, **settings)
    found = bad(examine(Patient(Cluster(brokers), topics=[topic])))
    assert {one.check: one.verdict for one in found} == {
        UNCLEAN: "fail",
        "cleanup.policy": "warn",
        "max.message.bytes": "warn",
    }
    assert f"--entity-name {topic} --add-config {UNCLEAN}=false" in only(found, UNCLEAN).advice


def test_a_topic_that_does_not_exist_and_records_from_the_future(brokers: str, topics: Topics) -> None:
    topic = topics.create(1)
    topics.send(topic, ["x"], timestamp=int(time.time() + 600) * 1000)
    assert only(examine(Patient(Cluster(brokers), topics=["^no-such-.*"])), "topics").verdict == "warn"
    found = bad(examine(Patient(Cluster(brokers), topics=[topic, "no-such-topic"])))
    assert [(one.about, one.verdict) for one in found] == [("topic no-such-topic", "fail"), (f"topic {topic}", "warn")]
    assert "producers' clocks" in found[1].advice


def test_lost_records_fail_and_those_about_to_expire_warn(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    url, topic = database("sqlite"), topics.create(2, retention_ms="3600000")
    topics.send(topic, range(10), partitions=2, timestamp=int(time.time() - 3480) * 1000)
    topics.delete_records(topic, {0: 3})
    hold(url, brokers, group, topic, 1)
    found = bad(examine(Patient(Cluster(brokers), (url,), group)))
    assert {one.check: one.verdict for one in found} == {
        "position can be read": "fail",
        "unread records expire": "warn",
    }
    assert "offsets 1..3 were deleted before they were read" in only(found, "position can be read").advice
    assert f"{topic}[1]: in 2 minutes" in only(found, "unread records expire").found


def test_a_ledger_of_a_newer_version_fails(database: Callable[[str], str], redis_url: str) -> None:
    url = database("postgresql")
    for one in (url, redis_url):
        store = open_store(one)
        store.create_ledger()
        store.close()
    execute(url, "INSERT INTO tallymark_schema VALUES (99, now())")
    client(redis_url).hset(key(redis_url, "tallymark:schema"), "version", 99)
    for one in (url, redis_url):
        finding = only(bad(examine(Patient(stores=(one,)))), "ledger version")
        assert (finding.found, finding.verdict) == ("99", "fail")


@pytest.fixture
def limited(database: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """A database as its owner, and as a user that may only connect."""
    url, user = database("postgresql"), f"limited_{uuid.uuid4().hex[:8]}"
    execute(url, f"CREATE ROLE {user} LOGIN PASSWORD 'canary'")
    yield url, make_url(url).set(username=user, password="canary").render_as_string(hide_password=False)
    execute(url, f"DROP OWNED BY {user}", f"DROP ROLE {user}")


def test_a_user_who_may_not_create_tables_is_told_the_grant(limited: tuple[str, str]) -> None:
    admin, url = limited
    found = examine(Patient(stores=(url,)))
    refused = only(found, "permissions")
    assert refused.verdict == "fail"
    assert "permission denied for schema public" in refused.advice
    assert "GRANT USAGE, CREATE ON SCHEMA public TO limited_" in refused.advice
    assert "canary" not in str(found)

    store = open_store(admin)
    store.create_ledger()
    store.close()
    user = make_url(url).username
    unread = only(examine(Patient(stores=(url,))), "ledger version")
    assert (unread.verdict, "permission denied for table tallymark_schema" in unread.advice) == ("fail", True)
    execute(admin, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {user}")
    assert only(examine(Patient(stores=(url,))), "permissions").verdict == "warn"
    execute(admin, f"REVOKE DELETE ON tallymark_batches FROM {user}")
    assert only(examine(Patient(stores=(url,))), "permissions").verdict == "fail"


def test_a_table_is_not_left_behind_where_a_view_is_refused(database: Callable[[str], str]) -> None:
    url, user = database("mariadb"), f"limited_{uuid.uuid4().hex[:8]}"
    name = make_url(url).database
    execute(url, f"CREATE USER {user}", f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP ON {name}.* TO {user}")
    limited = make_url(url).set(username=user).render_as_string(hide_password=False)
    refused = only(examine(Patient(stores=(limited,))), "permissions")
    execute(url, f"DROP USER {user}")
    assert refused.verdict == "fail"
    assert "CREATE VIEW command denied" in refused.advice
    assert left_behind(url) == []


def test_a_redis_that_forgets_is_found(tmp_path: Path) -> None:
    settings = {"maxmemory_policy": "allkeys-lru", "appendonly": "no", "appendfsync": "no"}
    with OwnValkey(tmp_path / "valkey", **settings) as server:
        found = {one.check: one.verdict for one in bad(examine(Patient(stores=(server.url,))))}
    assert found == {"maxmemory_policy": "fail", "aof_enabled": "warn", "appendfsync": "warn"}


def test_a_user_of_redis_who_may_not_write_is_told_the_command(redis_url: str) -> None:
    user = f"limited-{uuid.uuid4().hex[:8]}"
    admin = client(redis_url)
    admin.acl_setuser(user, enabled=True, passwords=["+canary"], keys=["*"], commands=["+@all", "-zadd"])
    found = examine(Patient(stores=(redis_url.replace("redis://", f"redis://{user}:canary@"),)))
    admin.acl_deluser(user)
    admin.close()
    refused = only(bad(found), "permissions")
    assert (refused.verdict, "may not call ZADD" in refused.advice) == ("fail", True)
    assert "canary" not in str(found)


def test_what_cannot_be_reached_fails_and_hides_nothing_else(
    monkeypatch: pytest.MonkeyPatch, database: Callable[[str], str]
) -> None:
    monkeypatch.setattr(asking, "PATIENCE", 1.0)
    gone = "postgresql://shop:canary@127.0.0.1:1/shop"
    here = database("sqlite")
    execute(here, "CREATE TABLE orders (id BIGINT)")
    found = examine(Patient(Cluster("127.0.0.1:1"), (here, gone)))
    failed = [(one.about, one.check) for one in found if one.verdict == "fail"]
    assert failed == [("cluster", "connection"), ("store", "connection")]
    assert "127.0.0.1:1" in only(bad(found), "connection", "cluster").advice
    assert {"permissions", "librdkafka"} <= {one.check for one in found}
    assert "canary" not in str(found)


@pytest.mark.faults
def test_three_brokers_are_fine_and_one_that_is_killed_is_missed(tmp_path: Path) -> None:
    with KafkaCluster(tmp_path / "kafka", temporary=True) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.brokers})
        admin.create_topics([NewTopic("orders", 3, 3)])["orders"].result(30)
        patient = Patient(Cluster(cluster.brokers), topics=["orders"], probe=True)
        found = examine(patient)
        assert bad(found) == []
        assert {one.about for one in found if one.check == "clock skew"} == {f"broker {n}" for n in (1, 2, 3)}
        cluster.nodes[2].kill()
        wait_for(lambda: in_sync(patient).verdict != "ok", DEADLINE, "somebody misses the broker")
        missed = in_sync(patient)
        assert (missed.verdict, missed.found) == ("warn", "3 of 3 partitions: under-replicated")
        assert "restart brokers 3" in missed.advice


@pytest.mark.faults
def test_what_a_user_may_not_ask_hides_nothing_that_it_may(tmp_path: Path) -> None:
    with secure_kafka(tmp_path) as kafka:
        admin = AdminClient(as_client(kafka))
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
        allow(kafka, LIMITED, "topic", "orders", "describe")
        password = str(kafka.security.password_file(LIMITED))
        cluster = Cluster(kafka.brokers, Sasl("SCRAM-SHA-512", LIMITED, password_file=password), Tls(ca=str(kafka.ca)))
        found = examine(Patient(cluster, topics=["orders"], probe=True))
        refused = {(one.about, one.check) for one in bad(found)}
        assert refused == {("broker 1", "settings"), ("topic orders", "settings"), ("cluster", "clock skew")}
        assert {one.verdict for one in bad(found)} == {"warn"}
        assert only(found, "in-sync replicas").found == "all of 1 partitions"
        assert only(found, "newest record").found == "no records"
        assert only(found, "host names verified").verdict == "ok"
        assert kafka.security.password_file(LIMITED).read_text() not in str(found)

        wrong = Cluster(kafka.brokers, Sasl("SCRAM-SHA-512", LIMITED, "canary"), Tls(ca=str(kafka.ca)))
        failed = only(bad(examine(Patient(wrong))), "connection", "cluster")
        assert (failed.verdict, "check user and password" in failed.advice) == ("fail", True)


def in_sync(patient: Patient) -> Finding:
    return only(examine(replace(patient, probe=False)), "in-sync replicas")
