"""The doctor's rules: verdicts and advice."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError

import pytest

from tallymark.core.spans import Log, Partition, Position, Tally
from tallymark.core.tls import Tls
from tallymark.errors import AccessDenied
from tallymark.kafka.cluster import Cluster, Sasl
from tallymark.kafka.lag import TopicRetention
from tallymark.operate import findings as verdict
from tallymark.operate.doctor import client, databases, redis, topics
from tallymark.operate.doctor.backlog import expiry, lost, shortened
from tallymark.operate.doctor.topics import DEVELOPMENT, Replicas, Shell
from tallymark.operate.findings import Finding, Opinion

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
SHELL = Shell(Cluster("kafka-1:9092", tls=False))
ALTER = (
    "kafka-configs.sh --bootstrap-server kafka-1:9092 --alter --entity-type topics --entity-name orders --add-config"
)
HOUR = timedelta(hours=1)


def opinion(found: Opinion) -> str:
    return "fail" if found.fail else "warn" if found.warn else "ok"


def test_a_refused_question_keeps_the_answers_before_it_and_says_why() -> None:
    def question() -> Iterator[Finding]:
        yield verdict.judge("topic orders", "replication factor", 3)
        raise AccessDenied("the brokers denied access to shop; grant the missing ACLs")

    first, second = verdict.checked("topic orders", "settings", question)
    assert first.verdict == "ok"
    assert (second.verdict, second.found) == ("warn", "not known")
    assert second.advice == "the brokers denied access to shop; grant the missing ACLs"


def test_a_setting_that_the_server_hides_is_a_warning_of_its_own() -> None:
    rules = topics.broker_rules(SHELL, {})
    found = verdict.settings("broker 1", {topics.UNCLEAN: "false"}, rules)
    assert [one.verdict for one in found] == ["ok", "warn", "warn", "warn"]
    assert {one.found for one in found[1:]} == {"not known"}


@pytest.mark.parametrize(
    ("factor", "brokers", "expected", "words"),
    [
        (3, 3, "ok", ""),
        (2, 3, "fail", "kafka-reassign-partitions.sh --bootstrap-server kafka-1:9092"),
        (1, 2, "fail", "kafka-reassign-partitions.sh"),
        (1, 1, "warn", "for development only"),
    ],
)
def test_three_replicas_are_wanted(factor: int, brokers: int, expected: str, words: str) -> None:
    found = topics.replication(SHELL, "orders", factor, brokers)
    assert (found.about, found.found, found.verdict) == ("topic orders", str(factor), expected)
    assert words in found.advice


@pytest.mark.parametrize(
    ("minimum", "factor", "brokers", "expected", "words"),
    [
        ("2", 3, 3, "ok", ""),
        ("1", 3, 3, "fail", f"{ALTER} min.insync.replicas=2"),
        ("1", 1, 3, "fail", f"create 3 replicas, then: {ALTER} min.insync.replicas=2"),
        ("3", 3, 3, "warn", f"a single failed broker stops all writes: {ALTER} min.insync.replicas=2"),
        ("2", 2, 3, "warn", "create 3 replicas"),
        ("4", 3, 3, "fail", f"writes with acks=all are refused: {ALTER} min.insync.replicas=2"),
        ("1", 1, 1, "warn", DEVELOPMENT),
        ("2", 1, 1, "fail", f"{ALTER} min.insync.replicas=1"),
    ],
)
def test_two_in_sync_are_wanted_and_one_to_spare(
    minimum: str, factor: int, brokers: int, expected: str, words: str
) -> None:
    found = topics.in_sync_minimum(SHELL, "orders", factor, brokers, minimum)
    assert opinion(found) == expected
    assert words in (found.fail or found.warn or "")


def test_unclean_leader_election_fails_for_a_topic_and_is_named_for_brokers() -> None:
    assert opinion(topics.unclean(SHELL, "orders", "false")) == "ok"
    on = topics.unclean(SHELL, "orders", "true").fail or ""
    assert f"{ALTER} unclean.leader.election.enable=false" in on
    everywhere = topics.unclean(SHELL, None, "true").warn or ""
    assert "--entity-type brokers --entity-default --add-config unclean.leader.election.enable=false" in everywhere


def test_commands_for_a_secured_cluster_name_a_file_with_its_settings() -> None:
    secured = Shell(Cluster("kafka-1:9093", security=Sasl("PLAIN", "shop", "canary"), tls=Tls()))
    assert "--command-config client.properties" in secured.alter("orders", "a=b")
    assert "canary" not in secured.alter("orders", "a=b")
    assert "--command-config" not in SHELL.alter("orders", "a=b")


def replicas(number: int, in_sync: set[int], leader: int | None = 1) -> Replicas:
    return Replicas(number, leader, frozenset({1, 2, 3}), frozenset(in_sync))


@pytest.mark.parametrize(
    ("partitions", "expected", "found"),
    [
        ([replicas(0, {1, 2, 3}), replicas(1, {1, 2, 3})], "ok", "all of 2 partitions"),
        ([replicas(0, {1, 2}), replicas(1, {1, 2, 3})], "warn", "1 of 2 partitions: under-replicated"),
        ([replicas(0, {1}), replicas(1, {1, 2, 3})], "fail", "1 of 2 partitions: too few in-sync replicas for writes"),
        ([replicas(0, {3}, leader=None)], "fail", "1 of 1 partitions: no leader"),
    ],
)
def test_missing_replicas_are_told_with_their_brokers(partitions: list[Replicas], expected: str, found: str) -> None:
    finding = topics.in_sync("orders", partitions, 2)
    assert (finding.verdict, finding.found) == (expected, found)
    assert ("3" in finding.advice) == (expected != "ok")


def test_a_minimum_that_no_replicas_can_reach_is_not_blamed_on_a_broker() -> None:
    alone = Replicas(0, 1, frozenset({1}), frozenset({1}))
    assert topics.in_sync("orders", [alone], 2).verdict == "ok"


def test_compaction_is_explained() -> None:
    assert opinion(topics.cleanup(SHELL, "orders", "delete")) == "ok"
    for policy in ("compact", "compact,delete"):
        assert "count as absent" in (topics.cleanup(SHELL, "orders", policy).warn or "")


@pytest.mark.parametrize(
    ("most", "expected", "words"),
    [
        ("1048588", "ok", ""),
        ("500000", "warn", f"{ALTER} max.message.bytes=1048588"),
        ("20000000", "warn", "fetch.message.max.bytes in Kafka(settings=...) to 20000000"),
    ],
)
def test_record_sizes_fit_producers_and_fetches(most: str, expected: str, words: str) -> None:
    rule = topics.topic_rules("orders", 3, 3, SHELL, {})["max.message.bytes"]
    found = rule(most)
    assert (found.wanted, opinion(found)) == ("1000000 to 8388608", expected)
    assert words in (found.warn or "")


def test_session_timeouts_are_within_what_brokers_allow() -> None:
    def verdicts(ours: dict[str, object]) -> list[str]:
        rules = topics.broker_rules(SHELL, ours)
        bounds = {"group.min.session.timeout.ms": "6000", "group.max.session.timeout.ms": "50000"}
        return [opinion(rules[name](value)) for name, value in bounds.items() if name in rules]

    assert verdicts({}) == ["ok", "ok"]
    assert verdicts({"session.timeout.ms": 5000}) == ["fail", "ok"]
    assert verdicts({"session.timeout.ms": 60_000}) == ["ok", "fail"]
    assert verdicts({"group.protocol": "consumer"}) == []


def test_other_timeouts() -> None:
    assert opinion(topics.transactions("900000")) == "ok"
    assert "transaction.timeout.ms of transactional producers to 30000" in (topics.transactions("30000").warn or "")
    assert topics.polling({}).verdict == "ok"
    assert topics.polling({"max.poll.interval.ms": 10_000}).verdict == "fail"


def test_few_brokers() -> None:
    assert [topics.size(count).verdict for count in (3, 2, 1)] == ["ok", "warn", "warn"]
    assert topics.size(1).advice == DEVELOPMENT


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (Cluster("localhost:9092,127.0.0.1:9093,[::1]:9094", tls=False), ["ok"]),
        (Cluster("localhost:9092,kafka-1:9092", tls=False), ["warn"]),
        (Cluster("PLAINTEXT://kafka-1:9092", tls=False), ["warn"]),
        (Cluster("PLAINTEXT://localhost:9092", tls=False), ["ok"]),
        (Cluster("kafka-1:9092", security=Sasl("PLAIN", "shop", "canary"), tls=False), ["warn"]),
        (Cluster("kafka-1:9092", tls=Tls()), ["ok", "ok"]),
        (Cluster("kafka-1:9092", tls=Tls(verify_hostname=False)), ["ok", "warn"]),
    ],
)
def test_lines_to_other_machines_are_encrypted_and_hosts_verified(cluster: Cluster, expected: list[str]) -> None:
    found = topics.access(cluster)
    assert [one.verdict for one in found] == expected
    assert "canary" not in str(found)


def test_records_from_the_future_blame_the_clock_that_set_their_time() -> None:
    assert topics.newest("orders", "CreateTime", None, 100.0).found == "no records"
    assert topics.newest("orders", "CreateTime", 104.0, 100.0).verdict == "ok"
    by_producers = topics.newest("orders", "CreateTime", 106.0, 100.0)
    assert (by_producers.verdict, "producers' clocks" in by_producers.advice) == ("warn", True)
    assert "brokers' clocks" in topics.newest("orders", "LogAppendTime", 106.0, 100.0).advice


@pytest.mark.parametrize(
    ("theirs", "after", "expected"),
    [
        (100.0, 100.2, "ok"),
        (101.05, 100.2, "ok"),
        (101.3, 100.2, "warn"),
        (97.0, 100.2, "warn"),
        (105.5, 106.0, "ok"),
        (161.0, 100.2, "fail"),
        (30.0, 100.2, "fail"),
    ],
)
def test_clocks_are_compared_as_far_as_the_round_trip_allows(theirs: float, after: float, expected: str) -> None:
    assert verdict.skew("store", 100.0, theirs, after).verdict == expected


ORDERS = Partition("orders", 0)
POSITION = Position(ORDERS, 10, 0, "topic", "cluster", 1, None, Tally(), NOW, NOW)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (Log(ORDERS, "topic", "cluster", 10, 20, 20), None),
        (Log(ORDERS, "topic", "cluster", 11, 20, 20), "were deleted before they were read"),
        (Log(ORDERS, "topic", "cluster", 0, 5, 5), "past the end of the log"),
        (Log(ORDERS, "other", "cluster", 0, 20, 20), "created again"),
        (Log(ORDERS, "topic", "other", 0, 20, 20), "belongs to cluster"),
    ],
)
def test_a_position_that_cannot_be_read_from_fails(log: Log, words: str | None) -> None:
    found = lost("shop", POSITION, log)
    assert (found is None) == (words is None)
    if found is not None and words is not None:
        assert found.verdict == "fail"
        assert words in found.advice


@pytest.mark.parametrize(
    ("age", "retention", "expected", "words"),
    [
        (HOUR, 168 * HOUR, "ok", "orders[0]: in 7.0 days"),
        (145 * HOUR, 168 * HOUR, "ok", "in 23.0 hours"),
        (152 * HOUR, 168 * HOUR, "warn", "in 16.0 hours"),
        (690 * HOUR, 720 * HOUR, "ok", "in 30.0 hours"),
        (697 * HOUR, 720 * HOUR, "warn", "in 23.0 hours"),
        (200 * HOUR, 168 * HOUR, "warn", "orders[0]: now"),
    ],
)
def test_time_left_for_unread_records(age: timedelta, retention: timedelta, expected: str, words: str) -> None:
    left, found = expiry("shop", POSITION, NOW - age, TopicRetention(retention, None), SHELL, NOW)
    assert (left, found.verdict) == (retention - age, expected)
    assert words in found.found
    if expected == "warn":
        assert f"{ALTER} retention.ms={int(2000 * retention.total_seconds())}" in found.advice


def test_retention_as_the_topic_has_it() -> None:
    assert TopicRetention.of({"retention.ms": "1000", "retention.bytes": "-1"}) == TopicRetention(
        timedelta(seconds=1), None
    )
    assert TopicRetention.of({"retention.ms": "-1", "retention.bytes": "5"}) == TopicRetention(None, 5)
    assert TopicRetention.of({"retention.ms": str(2**63 - 1)}) == TopicRetention(None, None)
    assert TopicRetention.of({"retention.ms": "1000", "cleanup.policy": "compact"}) == TopicRetention(None, None)
    assert TopicRetention.of({}) is None
    _, never = expiry("shop", POSITION, NOW, TopicRetention(None, 5), SHELL, NOW)
    assert (never.verdict, never.found) == ("ok", "orders[0]: never; retention.bytes=5 may apply first")


def test_of_partitions_that_are_well_only_the_first_to_expire_is_shown() -> None:
    ages = [HOUR, 3 * HOUR, 2 * HOUR, 167 * HOUR]
    found = shortened([expiry("g", POSITION, NOW - age, TopicRetention(168 * HOUR, None), SHELL, NOW) for age in ages])
    assert [one.verdict for one in found] == ["warn", "ok"]
    assert found[1].found == "orders[0]: in 6.9 days, the first of 3 partitions"


def test_versions() -> None:
    assert verdict.version((18, 6), (13,)).verdict == "ok"
    assert verdict.version((10, 5, 9), (10, 6)).verdict == "fail"
    assert verdict.ledger(None, 2).verdict == "ok"
    assert verdict.ledger(1, 2).verdict == "ok"
    assert "upgrade" in verdict.ledger(3, 2).advice


@pytest.mark.parametrize("host", [None, "", "localhost", "127.0.0.2", "::1", "/run/postgresql"])
def test_a_line_that_stays_here_need_not_be_encrypted(host: str | None) -> None:
    assert verdict.line(host, False, "add tls").verdict == "ok"


def test_a_line_to_another_machine_is_to_be_encrypted() -> None:
    assert verdict.line("db.example.org", False, "add tls").verdict == "warn"
    assert verdict.line("db.example.org", True, "add tls").verdict == "ok"


@pytest.mark.parametrize(
    ("name", "fine", "bad"),
    [
        ("local_infile", "ON", "OFF"),
        ("default_storage_engine", "InnoDB", "MyISAM"),
        ("journal_mode", "wal", "delete"),
        ("sql_require_primary_key", "OFF", "ON"),
        ("idle_in_transaction_session_timeout", "300000", "5000"),
        ("statement_timeout", "0", "1000"),
        ("wait_timeout", "28800", "10"),
        ("idle_transaction_timeout", "0", "59"),
    ],
)
def test_settings_of_databases(name: str, fine: str, bad: str) -> None:
    assert opinion(databases.setting(name, fine)) == "ok"
    assert opinion(databases.setting(name, bad)) == "warn"


@pytest.mark.parametrize(
    ("name", "fine", "bad"), [("binlog_format", "MIXED", "STATEMENT"), ("super_read_only", "OFF", "ON")]
)
def test_settings_of_databases_that_let_nothing_be_written(name: str, fine: str, bad: str) -> None:
    assert opinion(databases.setting(name, fine)) == "ok"
    assert opinion(databases.setting(name, bad)) == "fail"


def test_isolation() -> None:
    assert databases.isolation("mysql", "READ COMMITTED").verdict == "ok"
    assert databases.isolation("postgresql", "REPEATABLE READ").verdict == "warn"


def test_permissions_name_the_grant() -> None:
    assert databases.permissions("mysql", "shop", "orders", None, True).verdict == "ok"
    needed = databases.permissions("postgresql", "shop", "orders", "permission denied", True)
    assert (needed.verdict, "CREATE ON SCHEMA public TO shop" in needed.advice) == ("fail", True)
    assert databases.permissions("mysql", "shop", "orders", "permission denied", False).verdict == "warn"


def test_redis_must_keep_what_it_is_given() -> None:
    policies = ("noeviction", "volatile-ttl", "allkeys-lru")
    assert [opinion(redis.eviction(policy)) for policy in policies] == ["ok", "ok", "fail"]
    assert [opinion(redis.persistence(value)) for value in ("1", "0")] == ["ok", "warn"]
    assert [opinion(redis.fsync(value)) for value in ("always", "everysec", "no")] == ["ok", "ok", "warn"]


def test_the_machine_fits_spark() -> None:
    assert client.librdkafka("2.16.0").verdict == "ok"
    assert client.librdkafka("2.8.0").verdict == "fail"
    assert client.connector("4.0.5", "2.13.16", "4.0.0", "2.13").verdict == "ok"
    assert client.connector("4.1.0", "2.13.16", "4.0.0", "2.13").advice == "pip install 'pyspark==4.0.*'"
    assert client.connector("4.0.5", "2.12.1", "4.0.0", "2.13").verdict == "fail"
    assert [client.java_version(found).verdict for found in (17, 21, 24, None)] == ["ok", "ok", "warn", "fail"]


def test_without_spark_the_machine_is_fine_for_services(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(client, "installed", missing)
    assert [one.verdict for one in client.examine()] == ["ok", "ok"]
