"""A secured cluster: every authentication works for every client, and every mistake gives one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import tallymark as tm
from tallymark.core.tls import Tls
from tallymark.errors import AccessDenied, TallymarkError, Unreachable
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.cluster import Cluster, Sasl
from tests.support import databases
from tests.support.command import in_process
from tests.support.pipelines import ORDERS, copied
from tests.support.secure import LIMITED, allow, as_client, other_ca
from tests.support.tokens import CLIENT, SECRET, Issuer, TokenKafka

pytestmark = pytest.mark.xdist_group("spark")

RECORDS = 50


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    with closing(Issuer(tmp_path_factory.mktemp("issuer"))) as found:
        yield found


@pytest.fixture(scope="module")
def kafka(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenKafka]:
    """One broker for the module, with a topic that has records."""
    kafka = TokenKafka(tmp_path_factory.mktemp("secured") / "kafka", temporary=True)
    kafka.issuer = issuer
    try:
        kafka.start()
        admin = AdminClient(as_client(kafka))
        for future in admin.create_topics([NewTopic("orders", 2, 1), NewTopic("written", 1, 1)]).values():
            future.result(30)
        producer = Producer(as_client(kafka))
        for number in range(RECORDS):
            producer.produce("orders", json.dumps({"id": number, "name": "a"}))
        producer.flush(30)
        yield kafka
    finally:
        kafka.kill()


def tls(kafka: TokenKafka, **changes: Any) -> Tls:
    return Tls(**{"ca": str(kafka.ca), **changes})


def scram(kafka: TokenKafka, user: str = "admin") -> Sasl:
    return Sasl("SCRAM-SHA-512", user, password_file=str(kafka.security.password_file(user)))


def password(kafka: TokenKafka) -> str:
    return kafka.password_file.read_text()


WAYS: dict[str, Callable[[TokenKafka], Cluster]] = {
    "scram-512": lambda kafka: Cluster(kafka.brokers, scram(kafka), tls(kafka)),
    "scram-256": lambda kafka: Cluster(kafka.brokers, Sasl("SCRAM-SHA-256", "admin", password(kafka)), tls(kafka)),
    "plain": lambda kafka: Cluster(kafka.brokers, Sasl("PLAIN", "admin", password(kafka)), tls(kafka)),
    "token": lambda kafka: Cluster(
        kafka.brokers, Sasl("OAUTHBEARER", CLIENT, SECRET, token_url=kafka.issuer.url, scope="kafka"), tls(kafka)
    ),
    "certificate": lambda kafka: Cluster(
        kafka.mtls_brokers, tls=tls(kafka, cert=str(kafka.client_cert), key=str(kafka.client_key))
    ),
    "any-name": lambda kafka: Cluster(
        kafka.brokers.replace("127.0.0.1", "localhost"), scram(kafka), tls(kafka, verify_hostname=False)
    ),
}


def source(cluster: Cluster, topic: str = "orders") -> tm.Kafka:
    return tm.Kafka(cluster.brokers, topic, value=ORDERS, security=cluster.security, tls=cluster.tls)


def consumed(cluster: Cluster, store: str, **settings: Any) -> int:
    """The number of records that a consumer has taken, in a group by default."""
    consumer = tm.Consumer(group="consumer", source=source(cluster), store=store, **settings)
    count = 0
    with closing(consumer.batches(max_records=RECORDS)) as batches:
        for batch in batches:
            with batch.transaction():
                count += len(batch.records)
            if count >= RECORDS:
                break
    return count


@pytest.mark.faults_where(way=["scram-256", "plain", "any-name"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_is_one_for_services_and_for_spark(
    spark: Any, kafka: TokenKafka, way: str, database: Callable[[str], str]
) -> None:
    cluster, url = WAYS[way](kafka), database("sqlite")
    assert consumed(cluster, url) == RECORDS
    pipeline = tm.Pipeline(group="pipeline", source=source(cluster), store=url, membership=tm.Standalone())
    pipeline.table("orders")(copied)
    assert pipeline.run("caught-up") == tm.Tally(applied=RECORDS)
    assert databases.query(url, "SELECT count(*) FROM orders") == [(RECORDS,)]


def wrong_ways(kafka: TokenKafka, tmp_path: Path) -> dict[str, tuple[Cluster, type[TallymarkError], str]]:
    """A mistake, and the expected message."""
    elsewhere = kafka.brokers.replace("127.0.0.1", "localhost")
    good, line = scram(kafka), tls(kafka)
    return {
        "password": (
            Cluster(kafka.brokers, Sasl("SCRAM-SHA-512", "admin", "canary"), line),
            AccessDenied,
            "invalid credentials with SASL mechanism SCRAM-SHA-512; check user and password",
        ),
        "secret of a client": (
            Cluster(kafka.brokers, Sasl("OAUTHBEARER", CLIENT, "canary", token_url=kafka.issuer.url), line),
            AccessDenied,
            "Failed to acquire SASL OAUTHBEARER token",
        ),
        "authority": (
            Cluster(kafka.brokers, good, Tls(ca=str(other_ca(tmp_path)))),
            AccessDenied,
            "the certificate is not trusted .*: set its authority with Tls",
        ),
        "host name": (
            Cluster(elsewhere, good, line),
            AccessDenied,
            "the certificate is not for localhost: use its host name, or set Tls.verify_hostname=False",
        ),
        "no client certificate": (
            Cluster(kafka.mtls_brokers, tls=line),
            AccessDenied,
            "the broker requires a client certificate: set Tls",
        ),
        "no TLS": (Cluster(kafka.brokers, good, tls=False), AccessDenied, "the broker requires TLS: set tls=Tls"),
        "no login": (
            Cluster(kafka.brokers, tls=line),
            Unreachable,
            "the broker may require a login: set security=Sasl",
        ),
    }


@pytest.mark.parametrize(
    "mistake",
    ["password", "secret of a client", "authority", "host name", "no client certificate", "no TLS", "no login"],
)
def test_every_mistake_ends_in_one_sentence(
    kafka: TokenKafka, tmp_path: Path, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallymark.kafka.brokers.TIMEOUT", 2.0)
    cluster, kind, said = wrong_ways(kafka, tmp_path)[mistake]
    with pytest.raises(kind, match=said) as refused:
        consumed(cluster, f"sqlite:///{tmp_path / 'shop.db'}", patience=1.0)
    words = str(refused.value)
    assert words.startswith(f"the brokers at {cluster.brokers}")
    assert "\n" not in words
    assert "canary" not in words


def test_who_lacks_a_permission_is_told_which(kafka: TokenKafka, tmp_path: Path, spark: Any) -> None:
    cluster, url = Cluster(kafka.brokers, scram(kafka, LIMITED), tls(kafka)), f"sqlite:///{tmp_path / 'shop.db'}"
    with pytest.raises(AccessDenied, match=r"denied access for limited to topic orders: .*Topic authorization"):
        consumed(cluster, url)
    allow(kafka, LIMITED, "topic", "orders", "describe")
    with pytest.raises(AccessDenied, match="orders"):
        consumed(cluster, url, membership=tm.Standalone())
    pipeline = tm.Pipeline(group="pipeline", source=source(cluster), store=url, membership=tm.Standalone())
    pipeline.table("orders")(copied)
    with pytest.raises(AccessDenied, match=r"denied access for limited to topic orders: .*authorization failed"):
        pipeline.run("caught-up")
    allow(kafka, LIMITED, "topic", "orders", "read")
    with pytest.raises(AccessDenied, match=r"group consumer: the brokers denied access: .*check the ACLs"):
        consumed(cluster, url)
    allow(kafka, LIMITED, "group", "consumer", "read")
    assert consumed(cluster, url) == RECORDS


def test_commands_get_in_by_the_environment(kafka: TokenKafka) -> None:
    shown = in_process("consume", "orders", "--limit", "0", **kafka.variables)
    assert (shown.returncode, len(shown.stdout.splitlines())) == (0, RECORDS), shown.stderr
    wrong = {**kafka.variables, "TALLYMARK_SASL_PASSWORD_FILE": "", "TALLYMARK_SASL_PASSWORD": "canary"}
    denied = in_process("-vv", "consume", "orders", **wrong)
    assert denied.returncode == 2
    assert "check user and password" in denied.stderr
    assert "canary" not in denied.stderr + denied.stdout


def test_a_producer_gets_in_or_says_why_not(kafka: TokenKafka) -> None:
    with tm.Producer(kafka.brokers, security=scram(kafka), tls=tls(kafka)) as producer:
        assert producer.send("written", {"id": 1}).result(10).topic == "written"
    with tm.Producer(kafka.brokers, security=scram(kafka, LIMITED), tls=tls(kafka)) as producer:
        error = producer.send("forbidden", "a").exception(10)
    assert isinstance(error, AccessDenied)
    producer = tm.Producer(kafka.brokers, security=Sasl("PLAIN", "admin", "canary"), tls=tls(kafka))
    with pytest.raises(AccessDenied, match="check user and password"):
        producer.send("orders", "a").result(10)
    with pytest.raises(TallymarkError, match="1 record was not delivered"):
        producer.close()


def test_a_password_that_is_changed_in_its_file_is_read_again(kafka: TokenKafka, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("old")
    login = Sasl("SCRAM-SHA-512", "admin", password_file=str(file))
    with pytest.raises(AccessDenied):
        Brokers(Cluster(kafka.brokers, login, tls(kafka))).cluster_id()
    file.write_text(password(kafka))
    assert Brokers(Cluster(kafka.brokers, login, tls(kafka))).cluster_id()
