"""Passwords and TLS options of store URLs become settings of each driver. These tests use no server."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from sqlalchemy.engine import make_url

from tallymark.errors import AccessDenied, BadInput
from tallymark.stores import tls
from tallymark.stores.opening import open_sql, open_store
from tallymark.stores.redis.address import Address
from tallymark.stores.tls import tls_failure
from tallymark.stores.url import with_password

CANARY = "Canary-7f3a"
SQL = ("postgresql", "mysql")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYMARK_STORE_PASSWORD", CANARY)
    monkeypatch.delenv("TALLYMARK_STORE_PASSWORD_FILE", raising=False)
    tls.warn.cache_clear()


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a CA, a certificate with its key, the same key encrypted, and a file of nonsense."""
    folder = tmp_path_factory.mktemp("pem")
    authority = trustme.CA()
    issued = authority.issue_cert("client.test")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    authority.private_key_pem.write_to_path(str(folder / "other.key"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "client.pem"))
    issued.private_key_pem.write_to_path(str(folder / "client.key"))
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "both.pem"))
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    words = serialization.BestAvailableEncryption(b"open sesame")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "locked.key").write_bytes(key.private_bytes(*form, words))
    (folder / "nonsense.pem").write_text("nonsense")
    return folder


# Passwords


@pytest.mark.parametrize(
    ("url", "password"),
    [
        ("postgresql://shop@host/db", CANARY),
        ("mysql://shop:mine@host/db", "mine"),
        ("mysql://shop:@host/db", ""),
        ("postgresql://host/db", None),
        ("postgresql://shop@host/db?password=mine", "mine"),
        ("mysql://shop@host/db?passwd=mine", "mine"),
        ("redis://default@host/0", CANARY),
        ("redis://host/0", None),
    ],
)
def test_the_environment_has_the_password_of_a_user_who_brings_none(url: str, password: str | None) -> None:
    assert with_password(make_url(url)).password == password


def test_a_file_has_it_where_the_url_names_one(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("p@ss/word é\n")
    option = f"password_file={tmp_path / 'secret'}"
    url = with_password(make_url(f"postgresql://shop@host/db?{option}&application_name=x"))
    assert (url.password, dict(url.query)) == ("p@ss/word é", {"application_name": "x"})
    address = Address.parse(f"redis://host/0?{option}")
    assert (address.options["username"], address.options["password"]) == (None, "p@ss/word é")
    assert "p@ss" not in repr(address)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        (f"postgresql://shop:{CANARY}@host/db?password_file=/x", "has a password and password_file="),
        (f"mysql://shop@host/db?password_file=/x&password={CANARY}", "has a password and password_file="),
        ("mysql://host/db?password_file=/x", "needs the user before the host"),
        ("redis://host?password_file=/x/y", "password_file: the file /x/y can't be read: No such file"),
        ("postgresql://shop@host/db?password_file=/x&password_file=/y", "password_file= takes one value"),
        ("sqlite:///shop.db?password_file=/x", "SQLite has no server to connect to; leave password_file= out"),
        ("sqlite:///shop.db?tls=verify", "SQLite has no server to connect to; leave tls= out"),
    ],
)
def test_passwords_that_are_nowhere_or_twice_are_refused(url: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint) as caught:
        open_store(url)
    assert CANARY not in str(caught.value)


def test_a_password_from_elsewhere_is_shown_as_little_as_one_in_the_url() -> None:
    for kind in SQL:
        store = open_sql(f"{kind}://shop@host/db")
        assert store.engine.url.password == CANARY
        assert CANARY not in f"{store.name} {store!r} {store.engine!r} {store.engine.url} {store.dialect!r}"
    assert CANARY not in repr(Address.parse("redis://default@host/0"))


# TLS


def query(url: str) -> dict[str, str]:
    """The TLS options that the driver gets."""
    return {name: str(value) for name, value in open_sql(url).engine.url.query.items() if name.startswith("ssl")}


def test_each_driver_hears_it_in_its_own_words(pem: Path, caplog: pytest.LogCaptureFixture) -> None:
    ca, cert, key = f"{pem}/ca.pem", f"{pem}/client.pem", f"{pem}/client.key"
    asked = f"tls=verify&tls_ca={ca}&tls_cert={cert}&tls_key={key}"
    assert query(f"postgresql://host/db?{asked}") == {
        "sslmode": "verify-full", "sslrootcert": ca, "sslcert": cert, "sslkey": key
    }  # fmt: skip
    assert query(f"mysql://host/db?{asked}") == {"ssl_ca": ca, "ssl_cert": cert, "ssl_key": key}
    address = Address.parse(f"redis://host?{asked}")
    assert address.tls == tls.StoreTls("redis://host", ca, cert, key)
    assert not caplog.records


@pytest.mark.parametrize("asked", ["tls=verify", "tls_cert={pem}/both.pem"])
def test_the_systems_authorities_are_a_file_too(pem: Path, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    """Without a file, PyMySQL would not check the host name."""
    monkeypatch.setenv("SSL_CERT_FILE", f"{pem}/ca.pem")
    for kind, name in (("postgresql", "sslrootcert"), ("mysql", "ssl_ca")):
        assert query(f"{kind}://host/db?{asked.format(pem=pem)}")[name] == f"{pem}/ca.pem"


def test_rediss_is_verified_and_redis_is_not_encrypted(pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", f"{pem}/ca.pem")
    assert Address.parse("rediss://host").tls == tls.StoreTls("rediss://host", f"{pem}/ca.pem")
    assert Address.parse("redis://host").tls is None


def test_a_certificate_and_its_key_may_be_one_file(pem: Path) -> None:
    found = query(f"postgresql://host/db?tls_ca={pem}/ca.pem&tls_cert={pem}/both.pem")
    assert found["sslcert"] == found["sslkey"] == f"{pem}/both.pem"


def test_paths_are_good_in_any_directory(pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pem)
    assert query("postgresql://host/db?tls_ca=ca.pem")["sslrootcert"] == f"{pem}/ca.pem"


@pytest.mark.parametrize("kind", SQL)
def test_host_names_are_left_unverified_by_name_alone_with_one_warning(
    pem: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    loose = {"postgresql": ("sslmode", "verify-ca"), "mysql": ("ssl_check_hostname", "false")}
    for _ in range(2):
        assert loose[kind] in query(f"{kind}://shop@host/db?tls=verify-ca&tls_ca={pem}/ca.pem").items()
    (record,) = caplog.records
    assert (record.levelno, CANARY in record.getMessage()) == (logging.WARNING, False)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("tls=require", r"tls=require is not known; write tls=verify"),
        ("tls=verify&tls=verify", "tls= takes one value"),
        ("tls=verify-ca", "tls=verify-ca requires tls_ca="),
        ("tls_ca=/no/ca.pem", "tls_ca=/no/ca.pem: the file does not exist"),
        ("tls_cert=/no/client.pem", "tls_cert=/no/client.pem: the file does not exist"),
        ("tls_cert={pem}/client.pem&tls_key=/no/key", "tls_key=/no/key: the file does not exist"),
        ("tls_key={pem}/client.key", "tls_key= requires tls_cert="),
        ("tls_ca={pem}/nonsense.pem", "TLS can't be set up from .*nonsense.pem.*; use readable PEM files"),
        ("tls_cert={pem}/client.pem&tls_key={pem}/other.key", "TLS can't be set up from .*the key of the certificate"),
        ("tls_cert={pem}/client.pem&tls_key={pem}/locked.key", r"locked.key is encrypted"),
    ],
)
@pytest.mark.parametrize("scheme", [*SQL, "redis"])
def test_tls_that_can_not_work_is_refused_before_connecting(
    pem: Path, scheme: str, options: str, complaint: str
) -> None:
    with pytest.raises(BadInput, match=complaint) as caught:
        open_store(f"{scheme}://shop@host/0?{options.format(pem=pem)}")
    assert str(caught.value).startswith(f"{scheme}://shop")
    assert CANARY not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", ["tls=", "tls", "tls=&tls_ca=/x", "tls_ca=/x&tls=", "tls_ca=", "password_file="])
@pytest.mark.parametrize("scheme", [*SQL, "redis"])
def test_an_option_without_a_value_is_not_passed_over(scheme: str, options: str) -> None:
    with pytest.raises(BadInput, match=r"has (tls|tls_ca|password_file)= without a value"):
        open_store(f"{scheme}://shop@host/0?{options}")


def test_two_ways_of_saying_it_are_refused(pem: Path) -> None:
    for kind, own in (("postgresql", "sslmode"), ("mysql", "ssl_ca"), ("mysql", "ssl_verify_identity")):
        with pytest.raises(BadInput, match=f"the driver's option {own}="):
            open_store(f"{kind}://host/db?tls_ca={pem}/ca.pem&{own}=x")


def test_a_system_without_authorities_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: SimpleNamespace(cafile=None))
    with pytest.raises(BadInput, match="set tls_ca="):
        open_store("rediss://host")


# The drivers' own options


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("postgresql://host/db", None),
        ("postgresql://host/db?sslmode=disable", None),
        ("postgresql://host/db?sslmode=verify-full&sslrootcert=system", None),
        ("postgresql://host/db?sslmode=verify-full&sslrootcert={pem}/ca.pem", None),
        ("postgresql://host/db?sslmode=require", "sslmode=require"),
        ("postgresql://host/db?sslmode=prefer", "sslmode=prefer"),
        ("postgresql://host/db?sslmode=allow", "sslmode=allow"),
        ("postgresql://host/db?sslmode=verify-ca&sslrootcert={pem}/ca.pem", "sslmode=verify-ca"),
        ("mysql://host/db", None),
        ("mysql://host/db?ssl_disabled=true", None),
        ("mysql://host/db?ssl_ca={pem}/ca.pem", None),
        ("mysql://host/db?ssl_ca={pem}/ca.pem&ssl_check_hostname=true", None),
        ("mysql://host/db?ssl_ca={pem}/ca.pem&ssl_check_hostname=false", "ssl_check_hostname="),
        ("mysql://host/db?ssl_ca={pem}/ca.pem&ssl_verify_identity=true", "ssl_verify_identity="),
        ("mysql://host/db?ssl_cert={pem}/both.pem", "ssl_cert="),
    ],
)
def test_they_are_taken_as_they_are_and_warned_about_where_they_prove_nothing(
    pem: Path, url: str, warned: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    url = url.format(pem=pem)
    assert query(url).items() == dict(make_url(url).query).items()
    said = [record.getMessage() for record in caplog.records if record.name.startswith("tallymark")]
    assert len(said) == (warned is not None)
    assert not warned or (f"option={warned}" in said[0] and "tls=verify" in said[0])


@pytest.mark.parametrize("option", ["sslrootcert", "sslcert", "sslkey"])
def test_a_file_of_theirs_that_is_not_there_is_named(option: str) -> None:
    with pytest.raises(BadInput, match=f"{option}=/no/file: the file does not exist"):
        open_store(f"postgresql://host/db?{option}=/no/file")
    own = {"sslrootcert": "ssl_ca", "sslcert": "ssl_cert", "sslkey": "ssl_key"}[option]
    with pytest.raises(BadInput, match=f"{own}=/no/file: the file does not exist"):
        open_store(f"mysql://host/db?{own}=/no/file")


@pytest.mark.parametrize("store", ["mysql://shop@host/db", "postgresql://shop@host/db", "redis://host/0"])
@pytest.mark.parametrize("name", ["read_timeout", "connect_timeout"])
def test_a_time_limit_is_a_duration(store: str, name: str) -> None:
    for limit in ("7", "1h30m", "500ms"):
        open_store(f"{store}?{name}={limit}").close()
    for wrong in ("-1", "soon", "5min"):
        with pytest.raises(BadInput, match=f"host/.*: {name}='{wrong}' is not a duration; write one such as"):
            open_store(f"{store}?{name}={wrong}")
    with pytest.raises(BadInput, match=f"{name}='0' must be positive"):
        open_store(f"{store}?{name}=0")
    with pytest.raises(BadInput, match=f"{name}= without a value"):
        open_store(f"{store}?{name}=")
    with pytest.raises(BadInput, match="write_timeout='0' must be positive"):
        open_store("mysql://host/db?write_timeout=0")
    with pytest.raises(BadInput, match=f"leave {name}= out"):
        open_store(f"sqlite:///x.db?{name}=7")


def test_executors_get_the_time_limits_too() -> None:
    for store in ("mysql://shop@host/db", "postgresql://shop@host/db"):
        query = dict(open_sql(f"{store}?read_timeout=1h30m&connect_timeout=2500ms").engine.url.query)
        assert query.items() >= {"read_timeout": "5400", "connect_timeout": "3"}.items()


@pytest.mark.parametrize("option", ["colour=red", "ssl=true"])
def test_what_pymysql_can_not_take_is_one_sentence(option: str) -> None:
    with pytest.raises(BadInput, match=r"^mysql://shop@localhost:1/db: PyMySQL refused") as caught:
        open_store(f"mysql://shop@localhost:1/db?{option}").ping()
    assert CANARY not in f"{caught.value} {caught.value.__cause__}"


# Permanent and transient failures


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("SSL error: certificate verify failed", BadInput),
        ('server certificate for "a" does not match host name "b"', BadInput),
        ("server does not support SSL, but SSL was required", BadInput),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)", BadInput),
        ("SSL error: tlsv13 alert certificate required", AccessDenied),
        ("SSL SYSCALL error: EOF detected", None),
        ("SSL connection has been closed unexpectedly", None),
        ("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol", None),
        ("Connection refused", None),
    ],
)
def test_a_handshake_that_never_succeeds_is_told_from_a_connection_that_broke(
    words: str, kind: type[Exception] | None
) -> None:
    found = tls_failure("mysql://host/db", words)
    assert (type(found) if found else None) is kind


@pytest.mark.parametrize("url", ["postgresql://shop:p@ss@db/shop", "mysql://shop:a@b/c@db/shop", "redis://x:p@ss@h/0"])
def test_a_password_with_an_at_that_is_not_escaped_is_not_shown(url: str) -> None:
    with pytest.raises(BadInput, match=r"more than one @; .* write @ as %40") as refused:
        open_store(url)
    assert "ss" not in str(refused.value).replace("password", "")


def test_the_text_of_a_key_is_not_shown() -> None:
    with pytest.raises(BadInput, match="tls_ca= is the text of a PEM file") as refused:
        open_store("postgresql://db/shop?tls_ca=-----BEGIN CERTIFICATE-----%0AQQCANARY")
    assert "CANARY" not in str(refused.value)
