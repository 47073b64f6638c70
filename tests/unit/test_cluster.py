"""One description of the access to a cluster becomes the settings of both clients."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import tallymark as tm
from tallymark.core.tls import Tls
from tallymark.errors import BadInput
from tallymark.kafka.cluster import Cluster, Sasl, warn
from tallymark.spark import access

SECRET = 'ca"n\\ary\nü'
PEM = "-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nQQ==\n-----END PRIVATE KEY-----\n"


@pytest.fixture
def pem(tmp_path: Path) -> dict[str, Any]:
    for name, content in {"ca": PEM, "cert": PEM, "key": KEY}.items():
        (tmp_path / name).write_text(content)
    return {name: str(tmp_path / name) for name in ("ca", "cert", "key")}


@pytest.fixture(autouse=True)
def nobody_was_warned() -> None:
    warn.cache_clear()


def scram(**changes: Any) -> Sasl:
    return Sasl(**{"mechanism": "SCRAM-SHA-512", "username": "shop", "password": SECRET, **changes})


def test_an_open_cluster_is_plain() -> None:
    cluster = Cluster("kafka:9092")
    assert cluster.settings() == {"bootstrap.servers": "kafka:9092", "security.protocol": "PLAINTEXT"}
    assert access.options(cluster) == {
        "kafka.bootstrap.servers": "kafka:9092",
        "kafka.security.protocol": "PLAINTEXT",
    }


def test_user_and_password_with_tls_for_both_clients(pem: dict[str, Any]) -> None:
    cluster = Cluster("kafka:9093", scram(), Tls(ca=pem["ca"]))
    assert cluster.settings() == {
        "bootstrap.servers": "kafka:9093",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": pem["ca"],
        "ssl.endpoint.identification.algorithm": "https",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "shop",
        "sasl.password": SECRET,
    }
    assert access.options(cluster) == {
        "kafka.bootstrap.servers": "kafka:9093",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": PEM,
        "kafka.ssl.endpoint.identification.algorithm": "https",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="shop" password="ca\\"n\\\\ary\\012ü";',
    }


def test_certificates_of_our_own_for_both_clients(pem: dict[str, Any]) -> None:
    cluster = Cluster("kafka:9093", tls=Tls(**pem, key_password="opens"))
    assert cluster.protocol == "SSL"
    assert cluster.settings()["ssl.certificate.location"] == pem["cert"]
    assert cluster.settings()["ssl.key.location"] == pem["key"]
    assert cluster.settings()["ssl.key.password"] == "opens"
    spark = access.options(cluster)
    assert spark["kafka.ssl.keystore.certificate.chain"] == PEM
    assert (spark["kafka.ssl.keystore.key"], spark["kafka.ssl.key.password"]) == (KEY, "opens")


def test_tokens_for_both_clients() -> None:
    tokens = scram(mechanism="OAUTHBEARER", password="x", token_url="https://id.example/token", scope="kafka")
    cluster = Cluster("kafka:9093", tokens)
    found = cluster.settings()
    assert found["sasl.oauthbearer.method"] == "oidc"
    assert found["sasl.oauthbearer.client.id"] == "shop"
    assert found["sasl.oauthbearer.client.secret"] == "x"
    assert found["sasl.oauthbearer.token.endpoint.url"] == "https://id.example/token"
    assert found["sasl.oauthbearer.scope"] == "kafka"
    spark = access.options(cluster)
    assert spark["kafka.sasl.jaas.config"].endswith('required clientId="shop" clientSecret="x" scope="kafka";')
    assert spark["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://id.example/token"


def test_a_password_goes_over_an_encrypted_line_unless_that_is_switched_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert Cluster("kafka:9093", scram()).protocol == "SASL_SSL"
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert Cluster("kafka:9093", scram(), tls=False).protocol == "SASL_PLAINTEXT"
    assert "without encryption" in caplog.text
    assert SECRET not in caplog.text


def test_host_names_are_verified_unless_that_is_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("kafka:9093", tls=Tls(verify_hostname=False))
    assert "host name" in caplog.text
    assert cluster.settings()["ssl.endpoint.identification.algorithm"] == "none"
    assert access.options(cluster)["kafka.ssl.endpoint.identification.algorithm"] == ""


def test_the_environment_is_asked_when_the_program_says_nothing(
    monkeypatch: pytest.MonkeyPatch, pem: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("from a file\n")
    for name, value in {
        "SASL_MECHANISM": "PLAIN",
        "SASL_USERNAME": "shop",
        "SASL_PASSWORD_FILE": str(tmp_path / "password"),
        "TLS_CA": pem["ca"],
        "TLS_VERIFY_HOSTNAME": "no",
    }.items():
        monkeypatch.setenv(f"TALLYMARK_{name}", value)
    by_file = Sasl("PLAIN", "shop", password_file=str(tmp_path / "password"))
    assert Cluster("a:1") == Cluster("a:1", by_file, Tls(ca=pem["ca"], verify_hostname=False))
    assert Cluster("a:1").settings()["sasl.password"] == "from a file"
    assert tm.Kafka("a:1", "t").cluster == Cluster("a:1")
    assert Cluster("a:1", tls=False).protocol == "PLAINTEXT"
    assert Cluster("a:1", scram()).line == Tls(), "what the program says stands alone"
    monkeypatch.setenv("TALLYMARK_TLS", "off")
    assert Cluster("a:1").protocol == "SASL_PLAINTEXT"
    monkeypatch.setenv("TALLYMARK_TLS", "perhaps")
    with pytest.raises(BadInput, match="TALLYMARK_TLS=perhaps is not known; write on or off"):
        Cluster("a:1")


def test_half_an_environment_is_refused_or_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYMARK_SASL_USERNAME", "shop")
    monkeypatch.setenv("TALLYMARK_SASL_PASSWORD", SECRET)
    with pytest.raises(BadInput, match="TALLYMARK_SASL_MECHANISM is missing"):
        Cluster("a:1")
    monkeypatch.setenv("TALLYMARK_SASL_MECHANISM", "PLAIN")
    monkeypatch.setenv("TALLYMARK_TLS_VERIFY_HOSTNAME", "off")
    assert Cluster("a:1").line == Tls(verify_hostname=False), "a login brings TLS, and that is set up by the rest"


def test_tls_of_the_system_s_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Cluster("a:1", tls=True).line == Tls()
    monkeypatch.setenv("TALLYMARK_TLS", "on")
    assert Cluster("a:1").line == Tls()
    assert "ssl.ca.location" not in Cluster("a:1").settings()


def test_no_secret_is_shown(pem: dict[str, Any]) -> None:
    source = tm.Kafka("a:1", "t", security=scram(), tls=Tls(**pem, key_password="opens"))
    for thing in (source, source.cluster, tm.Pipeline(group="g", source=source, store="sqlite:///x.db")):
        assert "ary" not in f"{thing!r} {thing}"
        assert "opens" not in f"{thing!r} {thing}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mechanism": "GSSAPI"}, r"Sasl\('GSSAPI'\) is not known; write one of PLAIN, SCRAM-SHA-256"),
        ({"mechanism": "scram-sha-512"}, "is not known"),
        ({"password": ""}, "needs username= and either password= or password_file="),
        ({"username": ""}, "needs username="),
        ({"password_file": "x"}, "either password= or password_file="),
        ({"password": "", "password_file": "/no/such/file"}, "/no/such/file can't be read"),
        ({"mechanism": "OAUTHBEARER"}, "token_url= is required for"),
        ({"token_url": "https://id.example"}, "token_url= is required for"),
        ({"scope": "kafka"}, "scope= is only allowed for"),
        ({"mechanism": "OAUTHBEARER", "token_url": "http://id.example/"}, "token_url= must start with https://"),
    ],
)
def test_what_can_t_be_a_login_is_refused(changes: dict[str, str], said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        scram(**changes)
    assert SECRET not in str(refused.value)


def test_what_can_t_be_a_certificate_is_refused(pem: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="needs cert= and key= together"):
        Tls(cert=pem["cert"])
    with pytest.raises(BadInput, match=r"Tls\(ca='/no/ca.pem'\): the file can't be read"):
        Tls(ca="/no/ca.pem")
    with pytest.raises(BadInput, match="is the text of a PEM file") as refused:
        Tls(ca=pem["ca"], cert=pem["cert"], key=KEY)
    assert "QQ==" not in str(refused.value)
    (tmp_path / "store.jks").write_bytes(b"\xfe\xed\xfe\xed")
    with pytest.raises(BadInput, match="is not a PEM file"):
        Tls(ca=str(tmp_path / "store.jks"))
    (tmp_path / "key").write_text(KEY.replace("PRIVATE", "RSA PRIVATE"))
    with pytest.raises(BadInput, match=r"needs a PKCS#8 key; convert it with openssl pkcs8"):
        access.options(Cluster("a:1", tls=Tls(**pem)))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("sasl.jaas.config", "login modules load code"),
        ("plugin.library.paths", "loads code"),
        ("ssl.engine.location", "loads code"),
        ("sasl.kerberos.kinit.cmd", "runs a command"),
        ("sasl.password", r"use security=Sasl\(...\)"),
        ("security.protocol", r"use security=Sasl\(...\)"),
        ("ssl.ca.location", r"tls=Tls\(...\)"),
        ("enable.ssl.certificate.verification", r"tls=Tls\(...\)"),
    ],
)
def test_settings_that_load_code_or_have_their_place_are_refused_by_name(name: str, why: str) -> None:
    with pytest.raises(BadInput, match=rf"{name} can't be set: .*{why}") as refused:
        tm.Kafka("a:1", "t", settings={name: SECRET})
    assert SECRET not in str(refused.value)


def test_the_choice_of_ciphers_is_the_user_s() -> None:
    assert tm.Kafka("a:1", "t", settings={"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}).settings
