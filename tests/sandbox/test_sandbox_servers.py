"""Every server of the sandbox serves its real client, and restarts at the same address with its data."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tallymark.errors import SandboxError
from tallymark.local.sandbox import KafkaBroker, MariaDB, Sandbox, Valkey

from .processes import is_alive


def new_topic(kafka: KafkaBroker) -> str:
    topic = f"topic-{uuid.uuid4().hex[:8]}"
    client = AdminClient({"bootstrap.servers": kafka.brokers})
    client.create_topics([NewTopic(topic, 1)])[topic].result(15)
    return topic


def cluster_id(kafka: KafkaBroker) -> str | None:
    client = AdminClient({"bootstrap.servers": kafka.brokers})
    return client.list_topics(timeout=15).cluster_id


def produce(kafka: KafkaBroker, topic: str, value: bytes, **settings: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.brokers, **settings})
    if transactional := "transactional.id" in settings:
        producer.init_transactions(15)
        producer.begin_transaction()
    producer.produce(topic, value)
    if transactional:
        producer.commit_transaction(15)
    assert producer.flush(15) == 0


def consume(kafka: KafkaBroker, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": kafka.brokers, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, timeout=20)]
    finally:
        consumer.close()


def mysql(server: MariaDB) -> pymysql.Connection[pymysql.cursors.Cursor]:
    parts = urlsplit(server.url)
    assert parts.hostname is not None
    assert parts.port is not None
    return pymysql.connect(
        host=parts.hostname, port=parts.port, user=parts.username, database=parts.path[1:], local_infile=True
    )


def resp(server: Valkey, command: str) -> str:
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port or 0), timeout=5) as connection:
        connection.sendall(f"{command}\r\n".encode())
        return connection.recv(4096).decode()


def test_kafka_delivers_plain_and_transactional_records(box: Sandbox) -> None:
    kafka = box.kafka()
    topic = new_topic(kafka)
    produce(kafka, topic, b"plain")
    produce(kafka, topic, b"transactional", **{"transactional.id": "t"})
    assert consume(kafka, topic, 2) == [b"plain", b"transactional"]


@pytest.mark.faults
def test_kafka_keeps_the_offsets_of_a_group(box: Sandbox) -> None:
    kafka = box.kafka()
    stored = TopicPartition(new_topic(kafka), 0, 7)
    consumer = Consumer({"bootstrap.servers": kafka.brokers, "group.id": "group"})
    consumer.commit(offsets=[stored], asynchronous=False)
    assert [found.offset for found in consumer.committed([stored], timeout=15)] == [7]
    consumer.close()


def test_kafka_uses_the_transaction_protocol_of_its_release(box: Sandbox) -> None:
    assert "transaction.version=2" in box.kafka().log.read_text()


def test_kafka_does_not_make_topics_up(box: Sandbox) -> None:
    client = AdminClient({"bootstrap.servers": box.kafka().brokers})
    client.list_topics("nobody-made-this", timeout=15)
    assert "nobody-made-this" not in client.list_topics(timeout=15).topics


@pytest.mark.faults
def test_a_killed_broker_comes_back_with_its_address_identity_and_records(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka") as kafka:
        topic, brokers, cluster, pid = new_topic(kafka), kafka.brokers, cluster_id(kafka), kafka.pid
        produce(kafka, topic, b"kept")
        kafka.kill()
        assert pid is not None
        assert not is_alive(pid)
        kafka.start()
        assert kafka.brokers == brokers
        assert cluster_id(kafka) == cluster
        assert consume(kafka, topic, 1) == [b"kept"]


@pytest.mark.faults
def test_every_sandbox_is_another_cluster_and_takes_settings(box: Sandbox, tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka", settings={"auto.create.topics.enable": "true"}) as other:
        assert cluster_id(other) != cluster_id(box.kafka())
        produce(other, "made-up", b"record")
        assert consume(other, "made-up", 1) == [b"record"]


def test_a_server_that_cannot_start_quotes_its_log(tmp_path: Path) -> None:
    kafka = KafkaBroker(tmp_path / "kafka", settings={"num.io.threads": "zero"}, fast=False)
    with pytest.raises(SandboxError, match=r"(?s)kafka ended while it started.*zero.*num\.io\.threads"):
        kafka.start()
    assert not kafka.running


def test_postgresql_keeps_rows_over_a_kill(box: Sandbox) -> None:
    server = box.postgresql()
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS x")
    url = server.url
    server.kill()
    server.start()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT x FROM kept").fetchall() == [(1,)]
        assert connection.execute("SHOW max_connections").fetchone() == ("200",)


@pytest.mark.faults_where(name="mysql")
@pytest.mark.parametrize("name", ["mariadb", "mysql"])
def test_local_files_are_loaded_and_rows_kept_over_a_stop(name: str, box: Sandbox, tmp_path: Path) -> None:
    try:
        server = getattr(box, name)()
    except SandboxError as error:
        if name == "mariadb":
            raise
        pytest.skip(f"no MySQL on this machine: {error}")
    (tmp_path / "rows.tsv").write_text("1\n2\n")
    with mysql(server) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept (x INT) ENGINE=InnoDB")
        cursor.execute(f"LOAD DATA LOCAL INFILE '{tmp_path / 'rows.tsv'}' INTO TABLE kept")
        connection.commit()
    server.stop()
    server.start()
    with mysql(server) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT x FROM kept ORDER BY x")
        assert cursor.fetchall() == ((1,), (2,))


def test_valkey_keeps_what_was_set_over_a_stop(box: Sandbox) -> None:
    server = box.valkey()
    assert resp(server, "PING") == "+PONG\r\n"
    assert resp(server, "SET kept 1") == "+OK\r\n"
    server.stop()
    server.start()
    assert resp(server, "GET kept") == "$1\r\n1\r\n"


def listening(port: int) -> set[str]:
    """The addresses, in the kernel's format, on which a process listens on this port."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    ends = [fields[1].split(":") for fields in lines if fields[3] == "0A"]
    return {address for address, number in ends if int(number, 16) == port}


def test_servers_are_started_once_and_listen_on_loopback_alone(box: Sandbox) -> None:
    loopback, loopback_as_ipv6 = "0100007F", "0000000000000000FFFF00000100007F"
    for server in (box.kafka(), box.postgresql(), box.mariadb(), box.valkey()):
        assert getattr(box, server.name)() is server
        found = listening(server.port)
        assert found
        assert found <= {loopback, loopback_as_ipv6}


def test_nothing_stays_when_the_block_ends() -> None:
    with Sandbox() as box:
        server = box.valkey()
        pid = server.pid
        assert pid is not None
        assert is_alive(pid)
    assert not is_alive(pid)
    assert not box.directory.exists()
