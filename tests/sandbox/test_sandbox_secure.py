"""The secured Kafka authenticates its users, enforces their permissions, and shows no secrets."""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tallymark.errors import SandboxError
from tallymark.local.sandbox import SecureKafka
from tallymark.local.sandbox.server import HOST
from tests.support.background import wait_for
from tests.support.secure import LIMITED, allow, as_client, as_user, other_ca, secure_kafka

TIMEOUT = 15.0
ALERT_OF_TLS = b"\x15"
GROUP = "unused"
UNVERIFIED = "certificate verify failed"
Settings = dict[str, Any]


pytestmark = pytest.mark.xdist_group("secured sandbox")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with secure_kafka(tmp_path_factory.mktemp("secure")) as kafka:
        yield kafka


@pytest.fixture
def topic(kafka: SecureKafka) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    admin = AdminClient(as_client(kafka))
    admin.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT)
    return name


def client(kafka: SecureKafka, how: str) -> Settings:
    return as_client(kafka) if how == "certificate" else as_user(kafka, mechanism=how)


def read(settings: Settings, topic: str) -> bytes | KafkaError | None:
    consumer = Consumer({**settings, "group.id": GROUP, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        message = consumer.poll(TIMEOUT)
        assert message is not None
        return message.error() or message.value()
    finally:
        consumer.close()


def refusal(settings: Settings) -> KafkaError:
    """The reason why the client is refused."""
    seen: list[KafkaError] = []
    watched: Settings = {**settings, "error_cb": seen.append, "log_level": 0}
    admin = AdminClient(watched)
    wait_for(lambda: admin.poll(0.05) is not None and bool(seen))
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.2)
    return seen[0]


def answer_in_the_clear(port: int) -> bytes:
    """The response to an ApiVersions request without TLS."""
    with socket.create_connection((HOST, port), timeout=TIMEOUT) as connection:
        connection.sendall(bytes.fromhex("0000000a 0012 0000 00000001 ffff"))
        with contextlib.suppress(ConnectionResetError):
            return connection.recv(64)
    return b""


@pytest.mark.parametrize("how", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "certificate"])
def test_admin_gets_in_and_reads_what_it_wrote(kafka: SecureKafka, topic: str, how: str) -> None:
    producer = Producer(client(kafka, how))
    producer.produce(topic, how.encode())
    assert producer.flush(TIMEOUT) == 0
    assert read(client(kafka, how), topic) == how.encode()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_a_wrong_password_is_refused(kafka: SecureKafka, mechanism: str) -> None:
    assert refusal(as_user(kafka, mechanism=mechanism, sasl_password="wrong")).code() == KafkaError._AUTHENTICATION


def test_an_address_that_the_certificate_does_not_name_is_refused(kafka: SecureKafka) -> None:
    assert UNVERIFIED in refusal(as_user(kafka, bootstrap_servers=f"localhost:{kafka.port}")).str()


def test_another_authority_is_not_trusted(kafka: SecureKafka, tmp_path: Path) -> None:
    assert UNVERIFIED in refusal(as_user(kafka, ssl_ca_location=str(other_ca(tmp_path)))).str()


def test_a_user_without_permissions_gets_in_and_may_do_nothing_until_allowed(kafka: SecureKafka, topic: str) -> None:
    producer = Producer(as_user(kafka))
    producer.produce(topic, b"for those who may")
    producer.flush(TIMEOUT)
    limited = as_user(kafka, LIMITED)
    found = AdminClient(limited).list_topics(topic, TIMEOUT).topics[topic].error
    assert found is not None
    assert found.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    allow(kafka, LIMITED, "group", GROUP, "read")
    allow(kafka, LIMITED, "topic", topic, "read", "describe")
    assert read(limited, topic) == b"for those who may"


def test_no_port_serves_a_client_without_an_identity(kafka: SecureKafka) -> None:
    for port in (kafka.mtls_port, kafka.controller_port):
        line = ssl.create_default_context(cafile=str(kafka.ca))
        # With TLS 1.3 the refusal would come after the client's part of the handshake.
        line.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection((HOST, port), timeout=TIMEOUT) as connection, pytest.raises(ssl.SSLError):
            line.wrap_socket(connection, server_hostname=HOST)
    for port in (kafka.port, kafka.mtls_port, kafka.controller_port):
        assert answer_in_the_clear(port)[:1] in (b"", ALERT_OF_TLS)


def contents(directory: Path) -> dict[Path, bytes]:
    """All files of a running broker, which renames some meanwhile: then all are listed and read again."""
    for _ in range(50):
        with contextlib.suppress(FileNotFoundError):
            return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    pytest.fail(f"the files in {directory} do not come to rest")


def test_secrets_are_in_their_files_alone(kafka: SecureKafka) -> None:
    files = contents(kafka.directory)
    guarded = {path for path in files if path.suffix in {".password", ".key"} or path.name == "server.properties"}
    assert len(guarded) == 5
    assert {path.stat().st_mode & 0o777 for path in guarded} == {0o600}
    assert kafka.pid is not None
    parent = int(Path(f"/proc/{kafka.pid}/stat").read_text().rpartition(")")[2].split()[1])
    shown = [Path(f"/proc/{pid}/{name}") for pid in (kafka.pid, parent) for name in ("cmdline", "environ")]
    secrets = [files[path].splitlines()[path.suffix == ".key"] for path in guarded if path.suffix != ".properties"]
    assert len(secrets) == 4
    for path, content in {**files, **{path: path.read_bytes() for path in shown}}.items():
        assert path in guarded or not any(secret in content for secret in secrets), path


def test_without_trustme_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    with pytest.raises(SandboxError, match=r"pip install 'tallymark\[sandbox\]'"):
        SecureKafka(tmp_path / "kafka").start()


@pytest.mark.faults
def test_a_killed_secured_broker_knows_its_users_again(tmp_path: Path) -> None:
    with secure_kafka(tmp_path) as kafka:
        before = kafka.ca.read_bytes(), kafka.password_file.read_bytes(), as_user(kafka)
        kafka.kill()
        kafka.start()
        assert (kafka.ca.read_bytes(), kafka.password_file.read_bytes(), as_user(kafka)) == before
        AdminClient(as_user(kafka)).list_topics(timeout=TIMEOUT)
